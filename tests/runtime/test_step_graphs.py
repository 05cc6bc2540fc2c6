"""A decode step borrows a larger graph for a few steps, and has one of its own then."""

from __future__ import annotations

import pytest

from lmnb.runtime.step_graphs import GraphKey, StepGraphs


def anything(key: GraphKey) -> bool:
    return True


def graphs_of(*keys: tuple[int, int, bool]) -> StepGraphs[tuple[int, int, bool]]:
    graphs: StepGraphs[tuple[int, int, bool]] = StepGraphs()
    for key in keys:
        graphs.add(GraphKey(*key), key)
    return graphs


def test_a_steps_own_graph_is_taken_always() -> None:
    graphs = graphs_of((8, 0, False), (8, 32, False))
    for _ in range(20):
        assert graphs.find(GraphKey(8, 0, False), anything) == ((8, 0, False), (8, 0, False))


@pytest.mark.parametrize(
    ("wanted", "borrowed"),
    [
        ((2, 0, False), (8, 0, False)),
        ((1, 0, False), None),  # a single row has its own at once
        ((9, 0, False), (16, 0, False)),
        ((17, 0, False), (64, 0, True)),  # few rows cost little
        ((64, 0, False), (64, 0, True)),
        ((64, 32, True), (64, 128, True)),
        ((140, 0, True), (160, 0, False)),
        ((100, 0, True), None),  # more rows than cost little, or much room for wide items
        ((64, 512, True), (128, 2048, True)),
        ((64, 256, True), None),  # too little room, or too much
        ((160, 512, True), None),
        ((512, 0, False), None),
    ],
)
def test_the_smallest_that_has_room_is_borrowed(
    wanted: tuple[int, int, bool], borrowed: tuple[int, int, bool] | None
) -> None:
    graphs = graphs_of(
        (160, 0, False), (128, 2048, True), (64, 128, True), (64, 0, True), (16, 0, False), (8, 0, False)
    )
    key, graph = graphs.find(GraphKey(*wanted), anything)
    assert graph == borrowed
    assert key == (wanted if borrowed is None else borrowed)


def test_of_equal_size_that_for_the_same_kind_of_items_is_borrowed() -> None:
    graphs = graphs_of((64, 128, True), (64, 128, False))
    assert graphs.find(GraphKey(48, 32, False), anything)[1] == (64, 128, False)
    assert graphs.find(GraphKey(48, 32, True), anything)[1] == (64, 128, True)


def test_none_is_borrowed_that_does_not_fit() -> None:
    graphs = graphs_of((8, 0, False), (16, 0, False))
    assert graphs.find(GraphKey(4, 0, False), lambda key: key.size > 8)[1] == (16, 0, False)
    assert graphs.find(GraphKey(4, 0, False), lambda key: False) == ((4, 0, False), None)


def test_what_is_wanted_often_is_captured() -> None:
    graphs = graphs_of((8, 0, False))
    key = GraphKey(4, 0, False)
    found = [graphs.find(key, anything)[1] for _ in range(34)]
    assert found == [(8, 0, False)] * 32 + [None] * 2
    graphs.add(key, (4, 0, False))
    assert graphs.find(key, anything) == (key, (4, 0, False))


def test_nothing_is_borrowed_when_all_are_given_up() -> None:
    graphs = graphs_of((8, 0, False))
    graphs.clear()
    assert graphs.find(GraphKey(4, 0, False), anything)[1] is None

"""Lanes of a fork in a real page: while text streams nothing moves but what grows, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.live_page import LivePage, live_html

from lmnb.language import events as ev
from lmnb.widgets.run_model import RunModel

pytestmark = pytest.mark.e2e

OUT = Path(__file__).parent / "out"
WORDS = ["the", "sea", "at", "night", "is", "dark", "and", "the", "boats", "go", "home", "one", "by", "one"]
OUTER = ".lmnb-body > .lmnb-branch > .lmnb-fork > .lmnb-lanes > .lmnb-lane"


def opened(branch: int, parent: int, index: int, fork: int, label: str, **more: Any) -> dict[str, Any]:
    return ev.to_json(ev.BranchOpened(branch, parent, index, fork, label, **more))


def begun(branch: int, var: str = "x") -> dict[str, Any]:
    return ev.to_json(ev.GenStarted(branch, var, "gen"))


def said(branch: int, count: int, start: int = 0, origin: str = "free") -> dict[str, Any]:
    texts = [" " + WORDS[(start + i) % len(WORDS)] for i in range(count)]
    parts = [[len(text), 1, None, origin] for text in texts]
    return ev.to_json(ev.TokensGenerated(branch, "".join(texts), count, parts))


def lanes(count: int, words: int) -> list[dict[str, Any]]:
    """A fork whose lanes stream."""
    return [
        ev.to_json(ev.RunStarted("r", "tales", "m", 1000.0)),
        ev.to_json(ev.TextAppended(0, "Tell a tale.\n")),
        *(opened(i, 0, i - 1, 0, f"0.{i - 1}") for i in range(1, count + 1)),
        *(event for i in range(1, count + 1) for event in (begun(i), said(i, words, i))),
    ]


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    contexts: list[Any] = []

    def show_(events: list[dict[str, Any]], width: int) -> LivePage:
        model = RunModel()
        model.apply_all(events)
        contexts.append(browser.new_context(viewport={"width": width, "height": 1400}))
        return LivePage(contexts[-1].new_page(), tmp_path / "view.html", live_html("run", model.to_json()))

    yield show_
    for context in contexts:
        context.close()


def places(live: LivePage) -> list[list[float]]:
    """Of each outer lane and of the text in it: left, top in the transcript, and the lane's width."""
    found: list[list[float]] = live.page.locator(OUTER).evaluate_all(
        """(lanes) => lanes.flatMap((lane) => [lane, lane.querySelector('.lmnb-gen')].map((el) => {
            const { left, top } = el.getBoundingClientRect();
            return [left, Math.round(top + document.querySelector('.lmnb-body').scrollTop), lane.clientWidth];
        }))"""
    )
    return found


@pytest.mark.parametrize("width", [1000, 400])
@pytest.mark.parametrize("words", [20, 900])  # lanes that do, and do not, show all of their text
def test_a_fork_inside_a_lane_moves_nothing_that_is_there(show: Any, width: int, words: int) -> None:
    live = show(lanes(3, words), width)
    before = places(live)
    # the program forks inside the last lane, and a reader lets a branch part inside it
    live.tell(*(opened(10 + i, 3, i, 1, f"0.2.{i}") for i in range(2)))
    live.tell(opened(20, 3, 0, 2, "0.2~1", at=[0, 8], given=" noon"), *(begun(i) for i in (10, 11, 20)))
    for step in range(5):
        live.tell(*(said(i, 30, step) for i in (10, 11, 20)))
    after = places(live)
    if width == 400:  # in several rows a lane has one height: its text makes room for what opens below
        assert after.pop()[0] == before.pop()[0]
    assert after == before
    assert live.page.evaluate(  # and following the end took none of them out of sight
        "() => document.querySelector('.lmnb-fork-head').getBoundingClientRect().top"
        " >= document.querySelector('.lmnb-body').getBoundingClientRect().top - 1"
    )
    nested = live.page.locator('[data-branch="3"] .lmnb-lane .lmnb-gen')
    assert nested.count() == 3
    for gen in nested.all():
        box, lane = gen.bounding_box(), live.page.locator('[data-branch="3"]').bounding_box()
        assert lane["x"] <= box["x"] < box["x"] + box["width"] <= lane["x"] + lane["width"]
    assert live.page.evaluate("() => document.querySelector('.lmnb').scrollWidth <= innerWidth")
    live.page.screenshot(path=OUT / f"lanes-{width}-{words}.png", full_page=True)


@pytest.mark.parametrize("width", [1000, 400])
def test_a_lane_that_comes_late_goes_where_there_is_room(show: Any, width: int) -> None:
    live = show(lanes(2, 30), width)
    live.page.wait_for_timeout(500)
    before = places(live)
    live.tell(opened(3, 0, 2, 0, "0.2"), begun(3), said(3, 10))
    live.tell(said(3, 20))
    assert places(live)[: len(before)] == before


@pytest.mark.parametrize(("count", "width"), [(8, 1000), (3, 400)])
def test_lanes_in_several_rows_do_not_push_each_other(show: Any, count: int, width: int) -> None:
    live = show(lanes(count, 2), width)
    tops = live.tops(OUTER)
    assert len(set(tops)) > 1
    for step in range(6):
        live.tell(*(said(i, 5 + 4 * (i % 3), step) for i in range(1, count + 1)))
        assert live.tops(OUTER) == tops
    # A fork inside a lane of the first row, and a branch that parts inside another: there is room for both in the lane.
    live.tell(*(opened(20 + i, 1, i, 1, f"0.0.{i}") for i in range(2)))
    live.tell(opened(30, 2, 0, 2, "0.1~1", at=[0, 4], given=" noon"), *(begun(i) for i in (20, 21, 30)))
    for step in range(4):
        live.tell(*(said(i, 30, step) for i in (20, 21, 30)))
        assert live.tops(OUTER) == tops
    for lane in (1, 2):
        assert live.page.locator(f'[data-branch="{lane}"] .lmnb-fork-head').evaluate(
            "(el) => el.getBoundingClientRect().top >= el.closest('.lmnb-branch').getBoundingClientRect().top - 1"
            " && el.getBoundingClientRect().bottom <= el.closest('.lmnb-branch').getBoundingClientRect().bottom + 1"
        )  # and it is in sight
    for gen in live.page.locator(".lmnb-lane .lmnb-segment").all():  # each at its end
        assert gen.evaluate("(el) => el.scrollHeight - el.scrollTop - el.clientHeight < 2")
    live.page.screenshot(path=OUT / f"rows-{width}.png")
    live.tell(ev.to_json(ev.RunFinished("done", 1.0)))
    heights = live.page.locator(f"{OUTER} > .lmnb-lane-body > .lmnb-branch > .lmnb-segment").evaluate_all(
        "(all) => all.map((el) => el.scrollHeight - el.clientHeight)"
    )
    assert max(heights) < 2  # all of it is there to be read
    assert live.page.locator('[data-branch="3"] .lmnb-gen').is_visible()


def test_where_a_branch_parts_is_in_sight_though_both_are_long(show: Any) -> None:
    origin = [*lanes(1, 0)[:2], begun(0), said(0, 1500)]
    live = show(origin, 800)
    kept = said(5, 1200, origin="kept")
    live.tell(opened(5, 0, 0, 0, "0~1", at=[0, len(kept["text"])], given=" fish"), begun(5), kept)
    live.tell(ev.to_json(ev.TokensGenerated(5, " fish", 0, [[5, 1, None, "given"]])), said(5, 40))
    lane = live.page.locator('[data-branch="5"]')
    given = lane.locator('[data-o="given"]')

    def in_sight() -> bool:
        segment, box = lane.locator(".lmnb-segment").bounding_box(), given.bounding_box()
        return bool(segment["y"] <= box["y"] and box["y"] + box["height"] <= segment["y"] + segment["height"])

    assert in_sight()
    live.tell(said(5, 800))  # it follows its end, and the way back is above it
    assert not in_sight()
    lane.locator(".lmnb-parted").click()
    assert in_sight()
    assert lane.locator(".lmnb-parted").inner_text().endswith("→ ␣fish")
    live.page.screenshot(path=OUT / "parting-in-sight.png", full_page=True)

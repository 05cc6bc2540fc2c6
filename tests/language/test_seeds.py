from __future__ import annotations

import lmnb as sgl
from lmnb.backends.testing import ScriptedBackend

State = sgl.ProgramState


@sgl.function
def program(s: State, start: str = "") -> None:
    s += start + sgl.gen("a") + sgl.gen("own", seed=99)
    group = s.fork(2)
    group += sgl.gen("b") + sgl.gen("c")
    group.join()
    group = s.fork(2)
    group += sgl.gen("d")
    group.join()
    s += sgl.gen("e")


def seeds(backend: ScriptedBackend) -> list[tuple[str, str, int | None]]:
    """(branch, variable, seed) of every generation."""
    found = [
        (call.owner.branch, str(call.owner.var), call.params.seed)
        for call in backend.calls
        if call.params and call.owner
    ]
    return sorted(found, key=str)


def test_a_seed_is_spread_over_branches_and_generations() -> None:
    backend = ScriptedBackend()
    program.run(seed=7, backend=backend).sync()
    found = seeds(backend)
    assert ("0", "a", 7) in found
    assert ("0", "own", 99) in found
    values = [seed for _, _, seed in found]
    assert len(set(values)) == len(values) == 9
    again = ScriptedBackend()
    program.run(seed=7, backend=again).sync()
    assert seeds(again) == found
    other = ScriptedBackend()
    program.run(seed=8, backend=other).sync()
    assert {seed for _, _, seed in seeds(other)} & set(values) == {99}


def test_a_row_of_a_batch_draws_what_the_call_draws_alone() -> None:
    alone, batch = ScriptedBackend(), ScriptedBackend()
    program.run("x", seed=7, backend=alone).sync()
    program.run_batch([("x",), ("y",)], seed=7, backend=batch)
    rows: dict[int | None, list[int | None]] = {0: [], 1: []}
    for call in batch.calls:
        if call.params and call.owner:
            rows[call.owner.row].append(call.params.seed)
    expected = sorted(str(seed) for _, _, seed in seeds(alone))
    assert [sorted(map(str, row)) for row in rows.values()] == [expected, expected]


def test_without_a_seed_there_is_none() -> None:
    backend = ScriptedBackend()
    program.run(backend=backend).sync()
    assert {seed for _, var, seed in seeds(backend) if var != "own"} == {None}

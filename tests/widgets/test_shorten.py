"""Pictures of huge runs: of a size that front ends take, with the beginning and the end, and what is missing said."""

from __future__ import annotations

import pytest
from run_samples import gen, judge

from lmnb.language import events as ev
from lmnb.widgets.run_model import RunModel
from lmnb.widgets.run_sinks import RunRecord
from lmnb.widgets.shorten import LARGEST, fitted, shortened

START, END = ev.RunStarted("r", "p", "m", 1.0), ev.RunFinished("done", 1.0)
LIMIT = 10_000_000  # bytes that Databricks takes of a cell's output


def model_of(*said: ev.RunEvent) -> RunModel:
    model = RunModel()
    model.apply_all(ev.to_json(event) for event in (START, *said, END))
    return model


def lanes(count: int, text: str, *, forks: bool) -> list[ev.RunEvent]:
    said: list[ev.RunEvent] = []
    for i in range(1, count + 1):
        said += [ev.BranchOpened(i, 0, i - 1, i if forks else 0, f"0.{i - 1}"), *gen(i, "x", text)]
    return said


def one_text() -> list[ev.RunEvent]:
    return [ev.TextAppended(0, "first " + "word " * 2_600_000 + "last")]


def many_pieces() -> list[ev.RunEvent]:
    texts = ["first", *("<&" * 200 for _ in range(9_000)), "last"]
    return [event for text in texts for event in (*gen(0, None, text), ev.TextAppended(0, "\n"))]


def many_choices() -> list[ev.RunEvent]:
    choices = [f"{'&' * 300} {i}" for i in range(32)]
    said: list[ev.RunEvent] = [ev.TextAppended(0, "first")]
    for _ in range(800):
        said += [
            ev.GenStarted(0, None, "select", "choices"),
            ev.ChoiceMade(0, choices[0], choices, [0.0] * 32, "token_length_normalized"),
            ev.GenFinished(0, "stop", None, 0, 9, 0, None, 0.1),
        ]
    return [*said, ev.TextAppended(0, "last")]


@pytest.mark.parametrize("said", [one_text, many_pieces, many_choices], ids=lambda f: f.__name__)
def test_a_huge_run_is_cut_to_what_a_cell_may_hold(said):
    record = RunRecord()
    record.apply([ev.to_json(event) for event in (START, *said(), END)])
    bundle = record.bundle()
    assert sum(len(text.encode()) for text in bundle.values()) < LIMIT
    for text in bundle.values():
        assert "first" in text
        assert "last" in text
        assert " more" in text or "not shown" in text


@pytest.mark.parametrize("forks", [True, False])
def test_thousands_of_branches_are_cut_and_counted(forks):
    record = RunRecord()
    record.apply([ev.to_json(event) for event in (START, *lanes(3000, "<&" * 1300, forks=forks), END)])
    bundle = record.bundle()
    assert sum(len(text.encode()) for text in bundle.values()) < LIMIT
    assert "not shown" in bundle["text/html"]


def test_what_is_small_is_left_as_it_is():
    model = model_of(*judge()[1:-1])
    assert shortened(model) is model
    assert fitted(model, lambda given: str(given is model)) == "True"


def test_the_model_itself_is_not_changed():
    model = model_of(*lanes(700, "word", forks=False))
    before = model.to_json()
    copy = {**before, "branches": [{**branch, "items": list(branch["items"])} for branch in before["branches"]]}
    short = shortened(model)
    assert len(short.branches) == 600
    assert model.to_json() == copy
    assert len(model.branches) == 701


def test_a_branch_is_kept_with_all_above_it():
    deep = [ev.BranchOpened(i, i - 1, 0, i, "0" + ".0" * i) for i in range(1, 700)]
    short = shortened(model_of(*deep))
    assert all(branch["parent"] is None or branch["parent"] in short.branches for branch in short.branches.values())


def test_what_cannot_be_made_small_ends_the_search():
    model = model_of(*lanes(5, "word", forks=False))
    assert len(fitted(model, lambda given: "x" * (LARGEST + 1))) == LARGEST + 1

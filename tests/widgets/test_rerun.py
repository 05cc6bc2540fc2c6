"""A run beside the last run of the same program or cell: where its prompts differ, and why."""

from __future__ import annotations

from typing import Any

import pytest
from run_samples import FakeRun, chat, gen

from lmnb.language import events as ev
from lmnb.widgets import RunView, run_html, run_text
from lmnb.widgets.rerun import Comparison, History, _common_length
from lmnb.widgets.run_model import RunModel
from lmnb.widgets.shorten import shortened


def program(question: str, answer: str = "Oslo it is", *, fork: str = "", reused: int = 10, computed: int = 5) -> Any:
    lanes = []
    for index in range(2 if fork else 0):
        lanes += [ev.BranchOpened(index + 1, 0, index, 0, f"0.{index}")]
    for index in range(2 if fork else 0):
        lanes += [ev.TextAppended(index + 1, f"{fork} {index}"), *gen(index + 1, "y", "ok")]
    return [
        ev.RunStarted("r", "ask", "m", 0.0),
        *chat(0, "user", ev.TextAppended(0, question)),
        *chat(0, "assistant", *gen(0, "x", answer, reused=reused, computed=computed)),
        *chat(0, "user", ev.TextAppended(0, "And then?")),
        *chat(0, "assistant", *gen(0, "z", "Home", reused=reused, computed=computed)),
        *lanes,
        ev.RunFinished("done", 1.0),
    ]


def run(history: History, events: list[ev.RunEvent], *, cell: str | None = None, step: int = 3) -> RunModel:
    """Deliver in small pieces, as a feed does."""
    comparison, model = Comparison(cell, history), RunModel()
    for place in range(0, len(events), step):
        wires = [ev.to_json(event) for event in events[place : place + step]]
        model.apply_all(wires)
        model.apply_all(comparison.look(model, wires))
    return model


def marks(model: RunModel) -> dict[int, list[tuple[str, Any]]]:
    """By branch: the text behind each mark, and why."""
    found: dict[int, list[tuple[str, Any]]] = {}
    for branch in model.branches.values():
        for mark in branch["marks"]:
            item = branch["items"][mark["item"]]
            text = item.get("text", "")
            rest = None if mark["at"] is None else text.encode("utf-16-le")[2 * mark["at"] :].decode("utf-16-le")
            found.setdefault(branch["id"], []).append((rest, mark["why"]))
    return found


@pytest.mark.parametrize("step", [1, 3, 100])
def test_the_first_change_is_marked_once_with_what_became_of_what(step: int) -> None:
    history = History()
    first = run(history, program("👩‍🚀 Name a city in Norway."), step=step)
    assert not first.head["rerun"]
    assert marks(first) == {}
    again = run(history, program("👩‍🚀 Name a town in Norway."), step=step)
    assert again.head["rerun"]
    ((rest, why),) = marks(again)[0]
    assert rest == "town in Norway."
    assert "“city” became “town”" in why
    assert "10 of 15 prompt tokens were reused" in why


def test_a_shortened_picture_puts_no_mark_at_a_wrong_place() -> None:
    history = History()
    many = [ev.TextAppended(0, "x"), *gen(0, None, "y")] * 900
    end = ev.RunFinished("done", 1.0)
    run(history, [ev.RunStarted("r", "ask", "m", 0.0), *many, end], step=4000)
    late = [*many[:-8], ev.TextAppended(0, "👩‍🚀 other"), *gen(0, None, "y")]
    model = run(history, [ev.RunStarted("r", "ask", "m", 0.0), *late, end], step=4000)
    assert marks(model)[0]
    kept = shortened(model, 4)
    assert all(kept.branches[0]["items"][m["item"]] is model.branches[0]["items"][m["item"]]
               for m in kept.branches[0]["marks"])  # fmt: skip
    run_html.render(kept)


def test_the_same_again_has_no_mark_if_it_was_cached() -> None:
    history = History()
    run(history, program("A city?"))
    again = run(history, program("A city?", computed=1))
    assert again.head["rerun"]
    assert marks(again) == {}


def test_the_same_prompt_that_was_computed_again_was_evicted() -> None:
    history = History()
    run(history, program("A city?", fork="Verse"))
    found = marks(run(history, program("A city?", reused=4, computed=11, fork="Verse")))
    assert list(found) == [0]  # told once, at its first call, and not again below it
    assert [rest for rest, _ in found[0]] == [None]
    assert "evicted or flushed · 4 of 15" in found[0][0][1]


def test_another_answer_is_told_by_the_next_prompt() -> None:
    history = History()
    run(history, program("A city?", "Oslo it is", computed=1))
    ((rest, why),) = marks(run(history, program("A city?", "Oslo, of course", computed=1)))[0]
    assert rest == ", of course"
    assert why.startswith("The generated text changed here")


def test_branches_are_marked_only_where_they_themselves_changed() -> None:
    history = History()
    run(history, program("A city?", fork="Verse", computed=1))
    found = marks(run(history, program("A city?", fork="Rhyme", computed=1)))
    assert {branch: [rest for rest, _ in told] for branch, told in found.items()} == {1: ["Rhyme 0"], 2: ["Rhyme 1"]}
    above = marks(run(history, program("A river?", fork="Verse", computed=1)))
    assert list(above) == [0]


def test_a_longer_program_is_new_from_where_the_last_one_ended() -> None:
    history = History()
    events = program("A city?", computed=1)
    run(history, [*events[:11], ev.RunFinished("done", 1.0)])
    ((_, why),) = marks(run(history, events))[0]
    assert why.startswith("The last run ended here")


def test_cells_are_told_apart_and_unknown_ones_are_not_compared() -> None:
    history = History()

    def cell(question: str, id: str | None) -> RunModel:
        return run(history, [ev.RunStarted("r", "cell", "m", 0.0), *program(question)[1:]], cell=id)

    cell("A?", "one")
    assert not cell("A?", "two").head["rerun"]
    assert cell("B?", "one").head["rerun"]
    cell("A?", None)
    assert not cell("B?", None).head["rerun"]


def test_the_static_forms_show_the_mark() -> None:
    for question in ("A <b>city</b>?", "A <i>town</i>?"):
        view = RunView(FakeRun(program(question)), "off")
        view.display()
        assert view.finish(30)
    html, text = view._record.read(run_html.render), view.to_text()
    assert 'A &lt;<details class="lmnb-mark"><summary title="' in html
    assert "</details>i&gt;town" in html
    assert "since the last run\n  The program's text changed here: “b>city" in text
    assert run_text.changes(RunModel()) == ""


def test_history_forgets_the_oldest_and_what_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History()
    for number in range(40):
        run(history, [ev.RunStarted("r", f"p{number}", "m", 0.0), *program("A?")[1:]])
    assert history.find(("program", "p0")) is None
    assert history.find(("program", "p39")) is not None
    monkeypatch.setattr("lmnb.widgets.rerun.MOST_CHARACTERS", 50)
    run(history, program("A?" * 50))
    assert history.find(("program", "ask")) is None


@pytest.mark.parametrize(("a", "b"), [("", ""), ("ab", "ab"), ("abc", "abd"), ("a", "ab"), ("x", "y")])
def test_common_length(a: str, b: str) -> None:
    expected = sum(1 for i in range(min(len(a), len(b))) if a[: i + 1] == b[: i + 1])
    assert _common_length(a, b) == expected


def test_another_image_is_a_change_and_the_same_one_is_none() -> None:
    def look(digest: str) -> list[ev.RunEvent]:
        image = ev.ImageAdded(0, "<image>", "image/png", 4, 4, 90, digest, "")
        return [
            ev.RunStarted("r", "look", "m", 0.0),
            *chat(0, "user", image, ev.TextAppended(0, "What is it?")),
            *chat(0, "assistant", *gen(0, "x", "A dot", computed=1)),
            ev.RunFinished("done", 1.0),
        ]

    history = History()
    run(history, look("aa11"))
    assert marks(run(history, look("aa11"))) == {}
    (((_, why),),) = marks(run(history, look("bb22"))).values()
    assert "another image" in why

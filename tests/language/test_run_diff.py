"""Two runs compared: what is the same, what is not, and where."""

from __future__ import annotations

from typing import Any

import pytest
from run_samples import judge

import lmnb
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError
from lmnb.language import events as ev
from lmnb.language.pictures import painter, set_painter
from lmnb.language.run_diff import Line, RunDiff
from lmnb.language.saved_run import SavedRun


@lmnb.function
def debate(s, topic):
    s += lmnb.user(f"Is {topic} good?\nBe short.")
    forks = s.fork(2)
    forks += lambda i: lmnb.assistant(lmnb.gen("view"))
    forks.join()
    s += lmnb.assistant(lmnb.gen("verdict"))


def run(verdict: str, topic: str = "tea", view: str = "fine") -> lmnb.SavedRun:
    state = debate.run(topic, backend=ScriptedBackend({"verdict": verdict, "view": view}))
    state.sync()
    assert state.run.wait(30)
    return state.run.saved()


def test_a_run_does_not_differ_from_itself():
    diff = SavedRun(judge()).diff(SavedRun(judge()))
    assert diff.same
    assert all(branch.same for branch in diff.branches)
    assert not diff.variables


def test_the_lines_and_the_variable_that_changed_are_named():
    diff = run("yes").diff(run("no"))
    assert not diff.same
    changed = [branch for branch in diff.branches if not branch.same]
    assert [branch.label for branch in changed] == ["0"]
    assert [line for line in changed[0].lines if line.sign != " "] == [
        Line("-", "assistant: «yes»"),
        Line("+", "assistant: «no»"),
    ]
    assert [(c.branch, c.name, c.first, c.second) for c in diff.variables] == [("0", "verdict", "yes", "no")]


def test_branches_are_matched_by_place_and_one_sided_ones_are_told():
    one = run("yes")

    state = lmnb.language.open_state(ScriptedBackend({"verdict": "yes"}), program="debate")
    state += lmnb.user("Is tea good?\nBe short.")
    state.run.finish()
    diff = one.diff(state)
    only = {branch.label: branch.only for branch in diff.branches}
    assert only == {"0": None, "0.0": 1, "0.1": 1}
    text = diff.to_text()
    assert "branch 0.0, in − only" in text
    assert "(not set)" in text


def test_the_same_text_at_other_times_is_the_same():
    first, second = run("yes"), run("yes")
    assert first.id != second.id
    assert first.diff(second).same
    assert "Both runs say the same." in str(first.diff(second))


def test_a_large_change_is_found_quickly_and_is_right():
    def long(word: str) -> list[Any]:
        state = lmnb.language.open_state(ScriptedBackend())
        state += "same\n" * 5 + "\n".join(f"{word} {i}" for i in range(6000)) + "\nend"
        state.run.finish()
        return list(state.run.events)

    lines = RunDiff(long("a"), long("b")).branches[0].lines
    assert [line for line in lines if line.sign == " "] == [Line(" ", "same")] * 5 + [Line(" ", "end")]
    assert sum(line.sign == "-" for line in lines) == sum(line.sign == "+" for line in lines) == 6000


def test_only_runs_can_be_compared():
    with pytest.raises(ArgumentError, match="no run"):
        run("yes").diff("no")


def test_another_painter_can_take_over():
    class Plain:
        def run_html(self, run: Any) -> str:
            return f"run {run.id}"

        def run_picture(self, run: Any) -> str:
            return "picture"

        def show_run(self, run: Any) -> None: ...

        def diff_html(self, diff: Any) -> str:
            return "html"

        def diff_text(self, diff: Any) -> str:
            return "text"

    set_painter(Plain())
    try:
        saved = run("yes")
        assert saved._repr_html_() == "picture"
        assert saved.to_html() == f"run {saved.id}"
        assert (repr(saved.diff(saved)), saved.diff(saved)._repr_html_()) == ("text", "html")
    finally:
        set_painter(None)
    assert painter().__name__ == "lmnb.widgets.pictures"


def test_two_images_are_told_apart_by_more_than_their_size():
    def look(digest: str) -> SavedRun:
        image = ev.ImageAdded(0, "<image>", "image/png", 4, 4, 90, digest, "")
        return SavedRun([ev.RunStarted("r", "look", "m", 0.0), image, ev.RunFinished("done", 1.0)])

    assert look("aa11").diff(look("aa11")).same
    (branch,) = look("aa11").diff(look("bb22")).branches
    assert [line.text for line in branch.lines] == ["[image 4×4 png #aa11]", "[image 4×4 png #bb22]"]

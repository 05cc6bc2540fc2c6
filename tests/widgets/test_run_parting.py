"""What a page may ask of single tokens, and a view that follows a run which goes on after its end."""

from __future__ import annotations

import gc
import json
import re
import weakref
from typing import Any

import pytest
from context_support import fake_runtime
from patience import until
from run_samples import branched
from view_front_end import FrontEnd

from lmnb.backends.testing import ScriptedBackend
from lmnb.language import events as ev
from lmnb.language import gen, open_state
from lmnb.language.saved_run import SavedRun
from lmnb.language.state import ProgramState
from lmnb.widgets import RunView, run_html, run_text
from lmnb.widgets.recent import MOST_RUNS, recent_runs
from lmnb.widgets.run_model import RunModel

PLACE = {"branch": 0, "gen": 0, "token": 1}


@pytest.fixture(autouse=True)
def no_recent_runs() -> None:
    recent_runs.clear()


def shown(reply: str = "the sea at night") -> tuple[ProgramState, dict[str, ProgramState], RunView]:
    """A finished run in a widget, and where its branches are kept."""
    kept: dict[str, ProgramState] = {}

    def keep(state: ProgramState) -> str:
        kept[f"s_{len(kept) + 1}"] = state
        return f"s_{len(kept)}"

    state = open_state(ScriptedBackend(reply, alternatives={"sea": ["wind"]}))
    view = RunView(state.run, "widget", keep=keep)
    view.display()
    state += "Say " + gen("line")
    state.run.finish()
    assert view.finish(30)
    return state, kept, view


def send(front_end: FrontEnd, **message: Any) -> None:
    front_end.widget._on_message(None, message, [])


def replies(front_end: FrontEnd, kind: str) -> list[dict[str, Any]]:
    return [post for post in front_end.posts if post["type"] == kind]


def test_what_else_was_likely_is_asked_of_the_model_where_it_was_not_noted(front_end: FrontEnd) -> None:
    kept = shown()
    send(front_end, type="ask", **PLACE)
    (reply,) = until(lambda: replies(front_end, "likely"))
    text, logprob, top = reply["detail"]
    assert (text, [entry[0] for entry in top]) == (" sea", [" sea", " wind"])
    assert logprob == pytest.approx(top[0][1], abs=1e-3)
    assert len(reply["ids"]) == 2
    assert {key: reply[key] for key in PLACE} == PLACE
    assert kept


def test_a_branch_is_made_kept_named_and_followed_to_its_end(front_end: FrontEnd) -> None:
    state, kept, view = shown()
    before = len(front_end.updates)
    send(front_end, type="ask", **PLACE)
    (likely,) = until(lambda: replies(front_end, "likely"))
    send(front_end, type="part", **PLACE, id=likely["ids"][1])
    (parted,) = until(lambda: replies(front_end, "parted"))
    assert parted["opened"] == 1
    assert kept["s_1"]["line"] == "the wind at night"
    until(lambda: len(front_end.updates) > before)
    model = RunModel()
    model.apply_all(front_end.events())
    assert json.loads(view.snapshot())["model"] == json.loads(json.dumps(model.to_json()))
    branch = model.branches[1]
    assert (branch["name"], branch["at"], branch["status"]) == ("s_1", [0, 3], "done")
    assert model.head["status"] == "done"
    posts = replies(front_end, "events")
    assert [post["seq"] for post in posts] == list(range(1, len(posts) + 1))
    assert "branch 0~1 = s_1" in front_end.updates[-1][1]["text/html"]
    send(front_end, type="part", branch=1, gen=0, token=1, text=" moon")  # from the branch, and after the end again
    until(lambda: len(kept) == 2)
    assert kept["s_2"]["line"] == "the moon at night"
    assert state.run.wait(30)
    until(lambda: "branch 0~1~1 = s_2" in front_end.updates[-1][1]["text/html"])


def test_a_branch_made_in_python_shows_in_the_same_view(front_end: FrontEnd) -> None:
    state, _, view = shown()
    state.branch_at("line", 1, " moon").sync()
    until(lambda: '"0~1"' in view.snapshot() and json.loads(view.snapshot())["model"]["status"] == "done")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"token": 99, "text": "x"}, "no place 99"),
        ({"text": 3}, "must be text"),
        ({"gen": 5}, "no branch can part from this text"),
        ({"branch": 7}, "no branch can part from this text"),
    ],
)
def test_what_cannot_be_is_answered_with_why(front_end: FrontEnd, message: dict[str, Any], why: str) -> None:
    kept = shown()
    send(front_end, type="part", **{**PLACE, **message})
    (reply,) = until(lambda: replies(front_end, "refused"))
    assert why in reply["why"]
    assert kept


def test_a_run_is_kept_for_a_while_without_its_state_and_then_said_to_be_gone(front_end: FrontEnd) -> None:
    state, kept, _ = shown()
    run = weakref.ref(state.run)
    del state
    gc.collect()
    send(front_end, type="part", **PLACE, text=" moon")
    until(lambda: "s_1" in kept)
    assert kept.pop("s_1")["line"] == "the moon at night"

    def forgotten() -> bool:
        for _ in range(MOST_RUNS):
            recent_runs.add(open_state(ScriptedBackend()).run)
        gc.collect()
        return run() is None

    until(forgotten)
    send(front_end, type="part", **PLACE)
    assert "gone" in until(lambda: replies(front_end, "refused"))[-1]["why"]
    recent_runs.clear()


def test_a_saved_run_is_only_looked_at(front_end: FrontEnd) -> None:
    run = SavedRun(branched())
    view = RunView(run, "widget")
    view.display()
    assert view.finish(30)
    send(front_end, type="ask", **PLACE)
    assert "saved run" in replies(front_end, "refused")[-1]["why"]
    assert front_end.widget.saved is True  # the page does not even offer it


def test_what_the_constraint_rules_out_is_marked_on_the_page_however_it_was_sampled(front_end: FrontEnd) -> None:
    with fake_runtime() as runtime:
        state = open_state(runtime)
        view = RunView(state.run, "widget")
        view.display()
        state += "x" + gen("x", regex="[1-9][0-9]{0,2}", max_tokens=5, temperature=0.9, seed=7)
        state.run.finish()
        assert view.finish(30)
        for token in range(len(state.generated("x"))):
            send(front_end, type="ask", branch=0, gen=0, token=token)
            reply = until(lambda token=token: [r for r in replies(front_end, "likely") if r["token"] == token])[0]
            _, logprob, top = reply["detail"]
            assert logprob is not None
            digits = [f"{n}" for n in range(0 if token else 1, 10)]
            assert {text for text, _, *out in top if not out} <= {*digits, "<eos>"}
            assert any(out for _, _, *out in top)


def test_a_comparison_with_a_new_branch_waits_for_it_and_a_saved_run_has_it() -> None:
    state = open_state(ScriptedBackend("one two three four", token_delay=0.02))
    state += "Say " + gen("x")
    state.run.finish()
    before = state.run.saved()
    branch = state.branch_at("x", 1, " TWO")
    assert [e.given for e in state.run.saved().events if isinstance(e, ev.BranchOpened)] == [" TWO"]
    diff = before.diff(branch)
    assert not diff.same
    assert diff.summaries[1].status == "done"
    again = state.branch_at("x", 2, " THREE")
    assert before.diff(again).summaries[1].status == "done"
    assert state.run.diff(again).same


def test_a_branch_tells_what_was_put_where_it_parts() -> None:
    state = open_state(ScriptedBackend("one two three"))
    state += gen("x")
    state.branch_at("x", 1, " TWO").sync()
    state.branch_at("x", 1, token_id=state.run.generated[0, 0].ids[0]).sync()
    state.branch_at("x", 1).sync()
    state.run.finish()
    assert [e.given for e in state.run.events if isinstance(e, ev.BranchOpened)] == [" TWO", "one", None]


def test_pictures_say_what_was_put_where_a_branch_failed_before_it_said_a_word() -> None:
    model = RunModel()
    failed = [
        *branched()[:-1],
        ev.BranchOpened(4, 0, 0, 3, "0~3", at=[0, 4], given=" <moon>"),
        ev.BranchFinished(4, "failed", "GrammarError: no"),
        ev.RunFinished("done", 2.5),
    ]
    model.apply_all(map(ev.to_json, failed))
    assert "put there: <b> &lt;moon&gt;</b>" in run_html.render(model)
    text = run_text.render(model)
    assert "│ put there: « <moon>»\n│ error: GrammarError: no" in text
    assert text.count("put there") == 1  # the others say it themselves


def test_static_pictures_show_where_branches_part() -> None:
    model = RunModel()
    model.apply_all(map(ev.to_json, branched()))
    html = run_html.render(model)
    assert '<small class="lmnb-parting">↳2</small>Oslo<small class="lmnb-parting">↳1</small> it is' in html
    assert (
        '<span class="lmnb-kept">Oslo</span><small class="lmnb-parting">↳</small><b class="lmnb-given"> was</b> it'
        in html
    )
    told = re.findall(r'<p class="lmnb-parted">(?:<bdi>)?(.*?)</', html)
    assert told[:2] == ["␣it → ␣was", "Oslo → Bergen"]
    assert told[2].startswith("␣it → &lt;img␣src=x␣onerror")
    assert "2 branches from inside answer" in html
    assert "The program had read a value" in html
    assert "<script>alert" not in html

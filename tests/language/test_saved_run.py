"""Saved runs: what is written is what is read, and nothing that is not a run is taken for one."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import pytest
from run_samples import branched, images, judge, stopped

import lmnb
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError
from lmnb.language import events as ev
from lmnb.language.event_schema import MisfitError, decode_event, encode_event
from lmnb.language.saved_run import SavedRun, saved

SAMPLES = {
    ev.RunStarted: ev.RunStarted("1a", "judge", "model", 1.5),
    ev.RunFinished: ev.RunFinished("done", 2),
}


def finished_run(replies: object = "ok", body: object = None) -> lmnb.ProgramState:
    @lmnb.function
    def program(s):
        s += lmnb.user("Say.") + lmnb.assistant(lmnb.gen("x"))

    state = program.run(backend=ScriptedBackend(replies))
    state.sync()
    assert state.run.wait(30)
    return state


@pytest.mark.parametrize(
    "events", [judge(), stopped(), images(), branched()], ids=["judge", "stopped", "images", "parts"]
)
def test_a_saved_run_is_read_back_as_it_was_and_fits_the_schema(events):
    text = SavedRun(events).to_json()
    jsonschema.Draft202012Validator(lmnb.run_schema()).validate(json.loads(text))
    assert SavedRun.from_json(text).events == tuple(events)


def test_the_schema_is_a_schema_and_refuses_other_things():
    schema = lmnb.run_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    document = json.loads(SavedRun(judge()).to_json())
    validator = jsonschema.Draft202012Validator(schema)
    for damage in ({"type": "nothing"}, {"type": "run", "run": 3}, {"type": "branch_end", "branch": 1, "status": "?"}):
        assert not validator.is_valid({**document, "events": [damage]})
    assert not validator.is_valid({**document, "version": 99})


def test_every_event_class_has_a_schema_that_its_own_wire_form_fits():
    kinds = {
        entry["properties"]["type"]["const"] for entry in lmnb.run_schema()["properties"]["events"]["items"]["anyOf"]
    }
    assert kinds == set(ev.EVENT_TYPES)
    seen = {type(event) for event in judge() + stopped() + images() + branched()}
    assert seen == set(ev.EVENT_TYPES.values())  # the samples above exercise all of them


def test_the_documentation_lists_every_event():
    text = (Path(__file__).parents[2] / "docs" / "sharing.md").read_text(encoding="utf-8")
    table = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert [kind for kind in ev.EVENT_TYPES if not any(f"`{kind}`" in cell for cell in table)] == []


def test_numbers_that_json_has_no_sign_for_survive():
    event = ev.ChoiceMade(0, "a", ["a", "b"], [-math.inf, 0.5], "greedy_token_selection")
    text = json.dumps(encode_event(event), allow_nan=False)
    assert decode_event(json.loads(text)) == event


def test_fields_of_a_newer_version_are_left_out_and_missing_ones_are_named():
    message = encode_event(ev.TextAppended(0, "hi"))
    assert decode_event({**message, "colour": "red"}) == ev.TextAppended(0, "hi")
    with pytest.raises(MisfitError, match="text has no text"):
        decode_event({"type": "text", "branch": 0})
    with pytest.raises(MisfitError, match=r"text\.branch is 'x'"):
        decode_event({"type": "text", "branch": "x", "text": "hi"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "not JSON"),
        ("[]", "no saved run"),
        ('{"format": "lmnb-run", "version": 2, "events": []}', "version 2"),
        ('{"format": "lmnb-run", "version": 1, "events": []}', "does not begin"),
        (
            '{"format": "lmnb-run", "version": 1, "events": [{"type": "text", "branch": 0, "text": "x"}]}',
            "does not begin",
        ),
        ('{"format": "lmnb-run", "version": 1, "events": [{"type": "what"}]}', "no event of type 'what'"),
    ],
)
def test_what_is_no_saved_run_is_refused_with_a_reason(text, says):
    with pytest.raises(ArgumentError, match=says):
        SavedRun.from_json(text)


@pytest.mark.parametrize(
    "event",
    [
        ev.TextAppended(7, "x"),
        ev.TokensGenerated(0, "x", 1),
        ev.BranchOpened(0, 0, 0, 0, "0.0"),
        ev.BranchesJoined(5, [1], "gather_variable"),
        SAMPLES[ev.RunStarted],
    ],
)
def test_events_that_a_view_could_not_follow_are_refused(event):
    with pytest.raises(ArgumentError, match="its event 1 "):
        SavedRun([SAMPLES[ev.RunStarted], event, SAMPLES[ev.RunFinished]])


def test_a_run_and_its_state_save_and_replay_without_the_model(tmp_path):
    state = finished_run({"x": "hello"})
    path = state.run.save(tmp_path / "run.json")
    again = lmnb.replay(path)
    assert again.events == state.run.events
    assert (again.id, again.status, again.model) == (state.run.id, "done", "scripted")
    assert again.to_json() == state.run.to_json()
    assert saved(state).events == saved(state.run).events == again.events
    assert "SavedRun" in repr(again)
    with pytest.raises(ArgumentError, match=r"\.json or \.html"):
        again.save(tmp_path / "run.txt")
    with pytest.raises(ArgumentError, match="no run"):
        saved(3)


def test_a_run_that_goes_on_is_saved_up_to_now():
    backend = ScriptedBackend("word " * 200, token_delay=0.05)
    s = lmnb.language.open_state(backend)
    s += lmnb.gen("x", max_tokens=500)
    next(s.text_iter("x"))
    part = s.run.saved()
    s.run.cancel()
    s.run.finish()
    assert s.run.wait(30)
    assert part.status == "running"
    assert SavedRun.from_json(part.to_json()).events == part.events
    assert s.run.saved().status == "cancelled"


def test_no_key_of_the_environment_is_saved(monkeypatch):
    key = "sk-very-secret-0123456789"
    monkeypatch.setenv("SOME_API_KEY", key)
    monkeypatch.setenv("HUSH_TOKEN", "short")
    monkeypatch.setenv("ORDINARY", "an ordinary value")
    reply = f"the key is {key}, which an ordinary value and short are not"
    state = finished_run({"x": reply})
    assert key in state["x"]
    pieces = [e.text for e in state.run.events if isinstance(e, ev.TokensGenerated)]
    assert key in "".join(pieces)
    assert not any(key in piece for piece in pieces)  # it is spelled out over several
    text = state.run.to_json()
    assert key not in text
    again = SavedRun.from_json(text)
    generated = "".join(e.text for e in again.events if isinstance(e, ev.TokensGenerated))
    assert generated == reply.replace(key, "***")
    assert sum(e.num_tokens for e in again.events if isinstance(e, ev.TokensGenerated)) == sum(
        e.num_tokens for e in state.run.events if isinstance(e, ev.TokensGenerated)
    )


def test_a_key_is_not_spelled_out_token_by_token_either(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "sk-0123456789")
    start = [SAMPLES[ev.RunStarted], ev.GenStarted(0, "x", "gen")]
    whole = ev.TokensGenerated(0, "a sk-0123456789", 3, [["a "], ["sk-01234"], ["56789"]])
    split = [ev.TokensGenerated(0, "sk-01234", 1, [["sk-01234"]]), ev.TokensGenerated(0, "56789", 1, [["56789"]])]
    choice = ev.ChoiceMade(
        0, "sk-0123456789", ["sk-0123456789", "no"], [1.0, 0.0], "m", [[["sk-01234", 1], ["56789", 1]]]
    )
    for events in ([whole], split, [choice]):
        text = SavedRun.of([*start, *events]).to_json()
        assert "01234" not in text
        assert "56789" not in text


def test_broken_characters_do_not_stop_a_run_from_being_saved(tmp_path):
    broken = SavedRun([SAMPLES[ev.RunStarted], ev.TextAppended(0, "a\ud83d b \U0001f600"), SAMPLES[ev.RunFinished]])
    again = lmnb.replay(broken.save(tmp_path / "run.json"))
    assert again.events[1] == ev.TextAppended(0, "a\ufffd b \U0001f600")


def test_a_preview_that_happens_to_spell_a_key_is_left_out_whole(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "iVBORw0KGgoAAAAN")  # what every PNG begins with
    (first, *_) = [event for event in SavedRun.of(images()).events if isinstance(event, ev.ImageAdded)]
    assert (first.preview, first.digest) == ("", "0a1b2c3d4e5f")


def test_a_place_that_cannot_be_written_or_read_is_one_line(tmp_path, monkeypatch):
    run = SavedRun.of(judge())
    for path in (tmp_path / "missing" / "run.json", "~nobody-of-this-name/run.html"):
        with pytest.raises(ArgumentError, match=r"cannot be saved to .*No such file.*save it to another folder"):
            run.save(path)
    with pytest.raises(ArgumentError, match=r"below .* cannot be read: No such file.*check the path"):
        lmnb.replay("~nobody-of-this-name/run.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ArgumentError, match="no saved run: it is not text"):
        lmnb.replay(tmp_path / "binary.json")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ArgumentError, match="below 'a folder that was deleted' cannot be read"):
        lmnb.replay("run.json")

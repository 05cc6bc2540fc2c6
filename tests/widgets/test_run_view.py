"""The run view in each mode: one display, complete and in order, standing alone at the end."""

from __future__ import annotations

import json
import re
import threading
import time
from typing import Any

import pytest
from patience import until
from run_samples import FakeRun, gen, images, judge, stopped
from view_front_end import FrontEnd

import lmnb
from lmnb.language import events as ev
from lmnb.widgets import RunView, run_html, run_text
from lmnb.widgets.output import WIDGET_MIME
from lmnb.widgets.run_model import RunModel
from lmnb.widgets.run_sinks import RunRecord


def model_of(events: list[ev.RunEvent]) -> dict[str, Any]:
    model = RunModel()
    model.apply_all(map(ev.to_json, events))
    value: dict[str, Any] = json.loads(json.dumps(model.to_json()))
    return value


def stream(run: FakeRun, events: list[ev.RunEvent], pause: float = 0.002) -> None:
    for event in events:
        run.publish(event)
        time.sleep(pause)


def test_the_widget_gets_numbered_deltas_that_make_the_whole_run(front_end: FrontEnd) -> None:
    run = FakeRun(judge()[:4])
    view = RunView(run, "widget")
    view.display()
    began = time.monotonic()
    stream(run, judge()[4:])
    assert view.finish(30)
    posts = [post for post in front_end.posts if post["type"] == "events"]
    assert [post["seq"] for post in posts] == list(range(1, len(posts) + 1))
    assert len(posts) <= (time.monotonic() - began) * 20 + 2
    model = RunModel()
    model.apply_all(front_end.events())
    assert json.loads(json.dumps(model.to_json())) == model_of(judge())


def test_a_live_view_stands_behind_a_picture_whose_last_update_is_final(front_end: FrontEnd) -> None:
    run = FakeRun(judge())
    view = RunView(run, "widget")
    view.display()
    view.display()
    assert view.finish(30)
    (id, first), (live_id, live) = front_end.displays
    assert set(first) == {"text/html", "text/plain"}
    assert set(live) == {WIDGET_MIME, "text/html"}  # no text: a console prints what it is shown once
    assert live["text/html"] == ""
    assert live_id != id
    ((updated, last),) = front_end.updates
    assert updated == id
    assert last["text/html"].startswith(f'<div class="lmnb-still {front_end.widget.picture}">')
    assert "Clear enough to be read twice." in last["text/html"]
    assert "«Clear enough to be read twice.»" in last["text/plain"]
    assert "done after 2.00 s" in last["text/plain"]


def test_the_snapshot_is_made_only_when_it_is_asked_for(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    snapshot = RunRecord.snapshot

    def counted(record: RunRecord) -> str:
        made.append(1)
        return snapshot(record)

    monkeypatch.setattr(RunRecord, "snapshot", counted)
    run = FakeRun()
    view = RunView(run, "widget")
    opened = len(made)  # opening the comm sends the state
    view.display()
    stream(run, judge(), 0.001)
    until(lambda: any(event["type"] == "run_end" for event in front_end.events()))
    assert len(made) == opened
    state = json.loads(front_end.widget.get_state("snapshot")["snapshot"])  # a page that loads late
    assert state["kind"] == "run"
    assert view.finish(30)


def test_a_late_page_joins_without_a_gap(front_end: FrontEnd) -> None:
    run = FakeRun()
    view = RunView(run, "widget")
    view.display()
    for place, event in enumerate(judge()):
        run.publish(event)
        time.sleep(0.002)
        if place == 20:
            state = json.loads(front_end.widget.get_state("snapshot")["snapshot"])
    assert view.finish(30)
    model = RunModel()
    model.head.update({key: value for key, value in state["model"].items() if key != "branches"})
    for branch in state["model"]["branches"]:
        model.branches[branch["id"]] = {**branch, "vars": {found["name"]: found for found in branch["vars"]}}
    for post in front_end.posts:
        if post["type"] == "events" and post["seq"] > state["seq"]:
            model.apply_all(post["events"])
    assert json.loads(json.dumps(model.to_json())) == model_of(judge())


def test_a_resync_is_answered_while_it_runs_and_after_the_end(front_end: FrontEnd) -> None:
    run = FakeRun(judge()[:10])
    view = RunView(run, "widget")
    view.display()
    for stage in ("running", "done"):
        before = len(front_end.posts)
        front_end.widget._on_message(None, {"type": "resync"}, [])
        answer, *_ = until(
            lambda before=before: [post for post in front_end.posts[before:] if post["type"] == "snapshot"]
        )
        assert json.loads(answer["snapshot"])["model"]["status"] == stage
        if stage == "running":
            stream(run, judge()[10:], 0)
            assert view.finish(30)
    assert json.loads(answer["snapshot"])["model"] == model_of(judge())


def test_cancel_from_any_thread_cancels_the_run_and_not_after_its_end(front_end: FrontEnd) -> None:
    run = FakeRun(stopped()[:-1])
    view = RunView(run, "widget")
    view.display()
    click = threading.Thread(target=lambda: front_end.widget._on_message(None, {"type": "cancel"}, []))
    click.start()
    click.join()
    assert run.cancelled.is_set()
    run.publish(stopped()[-1])
    assert view.finish(30)
    run.cancelled.clear()
    front_end.widget._on_message(None, {"type": "cancel"}, [])
    assert not run.cancelled.is_set()


def test_malformed_messages_from_a_page_are_ignored(front_end: FrontEnd) -> None:
    run = FakeRun(judge())
    view = RunView(run, "widget")
    view.display()
    for message in ("cancel", None, {}, {"type": 3}, {"type": "no such thing"}):
        front_end.widget._on_message(None, message, [])
    assert not run.cancelled.is_set()
    assert view.finish(30)


def test_messages_are_kept_off_the_busy_shell() -> None:
    from lmnb.widgets.host import ViewWidget

    widget = ViewWidget(lambda: "{}", lambda message: None)
    widget.comm._reply_subshell_for = lambda data, default: "main"
    widget.post({"type": "events", "seq": 1, "events": []})
    assert widget.comm._reply_subshell_for is None
    widget.close()


def test_html_is_updated_in_place_a_few_times_a_second(front_end: FrontEnd) -> None:
    run = FakeRun()
    view = RunView(run, "html")
    view.display()
    began = time.monotonic()
    stream(run, judge(), 0.01)
    assert view.finish(30)
    seconds = time.monotonic() - began
    ((id, first),) = front_end.displays
    assert set(first) == {"text/html", "text/plain"}
    assert {updated for updated, _ in front_end.updates} == {id}
    assert 2 <= len(front_end.updates) <= seconds * 3 + 3
    assert "«fair»" in front_end.updates[-1][1]["text/plain"]
    assert 'data-status="done"' in front_end.updates[-1][1]["text/html"]


def test_text_streams_once_and_ends_with_the_whole_transcript(
    front_end: FrontEnd, capsys: pytest.CaptureFixture[str]
) -> None:
    run = FakeRun()
    view = RunView(run, "text")
    view.display()
    stream(run, judge(), 0.005)
    assert view.finish(30)
    printed = capsys.readouterr().out
    assert front_end.displays == []
    model = RunModel()
    model.apply_all(map(ev.to_json, judge()))
    assert printed == (f"{run_text.title(model)}\n{run_text.transcript(model)}\n{run_text.summary(model)}\n")


@pytest.mark.parametrize("events", [judge(), stopped()])
def test_stable_text_only_ever_grows(events: list[ev.RunEvent]) -> None:
    model = RunModel()
    text = ""
    for event in events:
        model.apply(ev.to_json(event))
        longer = run_text.transcript(model, stable=not model.ended)
        assert longer.startswith(text)
        text = longer
    assert text == run_text.transcript(model)


def test_off_shows_nothing_and_still_knows_the_run(front_end: FrontEnd, capsys: pytest.CaptureFixture[str]) -> None:
    view = RunView(FakeRun(judge()), "off")
    view.display()
    assert view.finish(30)
    assert front_end.displays == []
    assert capsys.readouterr().out == ""
    assert json.loads(view.snapshot())["model"] == model_of(judge())


@pytest.mark.parametrize("mode", ["widget", "html"])
def test_in_the_background_the_view_finishes_by_itself(front_end: FrontEnd, mode: str) -> None:
    run = FakeRun()
    view = RunView(run, mode)
    view.display(background=True)
    stream(run, judge(), 0)
    until(lambda: front_end.updates and "done after" in front_end.updates[-1][1]["text/plain"])
    until(lambda: not run.num_subscribers)
    assert "«fair»" in front_end.updates[-1][1]["text/plain"]
    assert view.finish(30)


def test_a_picture_that_may_be_the_only_one_is_of_the_run(front_end: FrontEnd) -> None:
    """A cell with a background run is over at once, and some front ends draw nothing of it after that."""
    view = RunView(FakeRun(judge()[:3]), "html")
    late = view._sink.deliver
    view._sink.deliver = lambda events: (time.sleep(0.2), late(events))  # type: ignore[method-assign]
    view.display(background=True)
    assert "judge" in front_end.updates[-1][1]["text/plain"]
    assert not view.finish(timeout=0.1)


def test_finish_without_an_end_shows_what_is_there(front_end: FrontEnd) -> None:
    run = FakeRun(judge()[:8])
    view = RunView(run, "widget")
    view.display()
    assert not view.finish(timeout=0.2)
    assert "running" in front_end.updates[-1][1]["text/plain"]
    assert run.num_subscribers == 0


def test_a_front_end_that_fails_stops_neither_run_nor_view(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = FakeRun()
    view = RunView(run, "widget")
    view.display()
    monkeypatch.setattr(type(front_end.widget), "send", lambda *args, **kwargs: 1 / 0)
    stream(run, judge(), 0.001)
    assert view.finish(30)
    assert json.loads(view.snapshot())["model"] == model_of(judge())


def test_a_long_transcript_is_cut_to_a_bounded_size_and_says_so() -> None:
    model = RunModel()
    model.apply_all(
        map(
            ev.to_json,
            [ev.RunStarted("r", "p", "m", 0.0), ev.TextAppended(0, "x" * 3_000_000), ev.RunFinished("done", 1.0)],
        )
    )
    html = run_html.render(model)
    assert len(html) < 1_000_000
    assert "2,200,000 characters not shown" in html


@pytest.mark.parametrize(("count", "shown"), [(3, 3), (256, 256), (600, 512)])
def test_html_shows_many_branches_as_lines_up_to_a_limit(count: int, shown: int) -> None:
    model = RunModel()
    events = [
        ev.RunStarted("r", "p", "m", 0.0),
        *(ev.BranchOpened(i, 0, i - 1, 0, f"0.{i - 1}") for i in range(1, count + 1)),
    ]
    events += [event for branch in range(1, count + 1) for event in gen(branch, "x", "a word")]
    model.apply_all(map(ev.to_json, events))
    html = run_html.render(model)
    assert html.count('<summary class="lmnb-lane-head">') == (shown if count > 12 else 0)
    assert html.count("lmnb-lane-body") - run_html.style().count("lmnb-lane-body") == shown
    assert ("more branches not shown here" in html) == (count > shown)
    assert html.count('<span class="lmnb-preview">a word</span>') == (shown if count > 12 else 0)


def test_the_type_of_a_variable_in_html_is_its_own() -> None:
    model = RunModel()
    events = [
        ev.RunStarted("r", "p", "m", 0.0),
        ev.VariableSet(0, "notes", "['a']", "list"),
        ev.VariableSet(0, "size", "big", "str"),
        ev.VariableSet(0, "many", "3", "int"),
        ev.RunFinished("done", 1.0),
    ]
    model.apply_all(map(ev.to_json, events))
    heads = re.findall(r'<th scope="row">(.*?)</th>', run_html.render(model))
    kinds = [re.sub("<.*?>", "", head) for head in heads]
    assert kinds == ["notes list", "size", "many int"]


def test_a_picture_is_no_taller_than_a_box_that_scrolls_also_where_style_sheets_are_stripped() -> None:
    long = "\n".join(f"line {n}" for n in range(5000))
    model = RunModel()
    model.apply_all(
        map(ev.to_json, [ev.RunStarted("r", "p", "m", 0.0), *gen(0, "x", long), ev.RunFinished("done", 1.0)])
    )
    html = run_html.render(model).removeprefix(run_html.style())
    assert re.search(r'<div class="lmnb-body" style="max-height:\d+px;overflow:auto" tabindex="0"', html)
    assert not re.search(
        r"\.lmnb-body\{[^}]*max-height:\s*none[^}]*\}", re.sub(r"@media print.*?\}\}", "", run_html.style())
    )


def test_what_is_not_known_yet_is_not_said_to_be_nothing() -> None:
    model = RunModel()
    events = [ev.RunStarted("r", "p", "m", 0.0), *gen(0, "x", "a b")]
    model.apply_all(map(ev.to_json, events[:3]))
    assert "reused" not in run_html.render(model).removeprefix(run_html.style()).partition("lmnb-bar")[0]
    model.apply_all(map(ev.to_json, events[3:]))
    assert '<b>0</b> reused</span> <span class="lmnb-metric"><b>8</b> computed' in run_html.render(model)


def test_durations_have_units() -> None:
    assert [run_text.seconds(value) for value in (0.083, 0.9999, 1.416, 59.999, 185.0)] == [
        "83 ms", "1.00 s", "1.42 s", "1 min 00 s", "3 min 05 s",
    ]  # fmt: skip


def test_a_choice_is_explained_in_html_and_text() -> None:
    model = RunModel()
    model.apply_all(map(ev.to_json, judge()))
    html = run_html.render(model)
    assert 'tokens">mean<small> decides</small></th>' in html
    assert '<tr class="lmnb-picked"><th scope="row"><span class="lmnb-tokens">' in html
    assert 'title="log-probability -0.250 · 78 % · 29 % without the prompt"' in html
    assert "&lt;img src=x" in html.partition('lmnb-warning">')[2]
    text = run_text.render(model)
    assert "1 of 3, by mean (decides), greedy:" in text
    assert "✓ fair  -0.250*  -0.500*" in text
    assert "\x1b" not in text


def test_images_are_named_in_their_places_where_no_picture_is_drawn() -> None:
    model = RunModel()
    model.apply_all(map(ev.to_json, images()))
    said = "What is [image 1×1 png] and [video 640×480 png, 8 frames]?"
    assert f"user: {said}\n" in run_text.render(model)
    shown = re.sub(r"<[^>]*>", "", run_html.render(model))
    drawn = said.replace("[image 1×1 png]", "image 1×1 png · 0.1 kB")  # this one has a picture
    assert drawn in shown.replace("\u2068", "").replace("\u2069", "")


def test_a_view_as_a_cells_value_is_displayed_and_ends_by_itself(front_end: FrontEnd) -> None:
    run = FakeRun(judge()[:-1])
    view = RunView(run, "html")
    view._ipython_display_()
    assert len(front_end.displays) == 1
    run.publish(judge()[-1])
    assert view._ended.wait(30)
    until(lambda: not run.num_subscribers)
    assert "fair" in front_end.updates[-1][1]["text/html"]
    view._ipython_display_()
    assert len(front_end.displays) == 1


def test_marimo_shows_the_widget_itself(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun(judge()[:-1])
    view = RunView(run, "text")
    assert view._display_() is view._display_() is front_end.widget
    run.publish(judge()[-1])
    assert view._ended.wait(30)
    until(lambda: view._finished)
    assert [event["type"] for event in front_end.events()][-1] == "run_end"
    assert front_end.displays == front_end.updates == []
    monkeypatch.setattr("lmnb.widgets.run_view.has_anywidget", lambda: False)
    assert "needs anywidget" in str(RunView(FakeRun(judge()), "text")._display_())


def test_a_page_that_missed_messages_before_it_was_there_gets_a_snapshot(front_end: FrontEnd) -> None:
    run = FakeRun(judge())
    view = RunView(run, "widget")
    view.display()
    assert view.finish(30)
    for seq, count in ((view._record.seq, 0), (0, 1)):
        front_end.widget._on_message(None, {"type": "views", "count": 1, "seq": seq}, [])
        assert len([post for post in front_end.posts if post["type"] == "snapshot"]) == count


def test_text_says_which_constrained_values_are_incomplete() -> None:
    def text_of(constraint: str | None, reason: str, *, cut: bool = False) -> str:
        events = [
            ev.RunStarted("r1", "judge", "smollm2", 1000.0, "3"),
            ev.GenStarted(0, "x", "gen", constraint, 3),
            ev.TokensGenerated(0, "1220", 4),
            ev.GenFinished(0, reason, None, 0, 8, 4, 0.125, 0.5, cut=cut),
            ev.VariableSet(0, "x", "1220"),
            ev.RunFinished("done", 0.5),
        ]
        model = RunModel()
        model.apply_all(map(ev.to_json, events))
        return run_text.render(model)

    assert "«1220» [incomplete: token limit]" in text_of("regex", "length")
    assert "x = 1220 [incomplete]" in text_of("regex", "length")
    assert "«1220» [incomplete: stop string]" in text_of("regex", "stop", cut=True)
    assert "x = 1220 [incomplete]" in text_of("regex", "stop", cut=True)
    assert "incomplete" not in text_of("regex", "stop") + text_of(None, "length")


def test_html_says_which_constrained_values_are_incomplete() -> None:
    model = RunModel()
    model.apply_all(map(ev.to_json, stopped()))
    words = re.sub("<[^>]*>", "", run_html.render(model).replace("</td>", "\n"))
    assert words.count("incomplete: token limit") == 2
    assert re.findall(r"(?:code|year) 0\.0 \w+", words) == ["code 0.0 incomplete1220", "year 0.0 int1969"]
    plain = RunModel()
    plain.apply_all(map(ev.to_json, judge()))
    assert "token limit" in run_html.render(plain)
    assert "incomplete" not in run_html.render(plain)


def test_a_programs_cut_value_is_marked_in_every_view(embedded_runtime: Any) -> None:
    @lmnb.function
    def program(s: Any) -> None:
        s += "Count: " + lmnb.gen("x", regex="[0-9]{40}", max_tokens=3) + "."

    state = program.run(backend=embedded_runtime)
    state.text()
    run = state.run
    assert run.wait(60)
    model = RunModel()
    model.apply_all(map(ev.to_json, run.events))
    text = run_text.render(model)
    assert "[incomplete: token limit]" in text
    assert text.count("[incomplete]") == 1
    words = re.sub("<[^>]*>", "", run_html.render(model))
    assert "regex by llguidance" in words
    assert words.count("incomplete: token limit") == 1
    assert words.count("incomplete") == 2


def test_a_value_that_a_stop_cut_is_marked(embedded_runtime: Any) -> None:
    @lmnb.function
    def program(s: Any) -> None:
        s += "Count: " + lmnb.gen("x", regex="[0-9]{3}-[0-9]{3}", stop="-") + "."

    state = program.run(backend=embedded_runtime)
    state.text()
    assert state.run.wait(60)
    model = RunModel()
    model.apply_all(map(ev.to_json, state.run.events))
    assert "[incomplete: stop string]" in run_text.render(model)
    words = re.sub("<[^>]*>", "", run_html.render(model))
    assert words.count("incomplete: stop string") == 1
    assert words.count("incomplete") == 2

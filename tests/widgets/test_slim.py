"""Very long texts: cut in messages, whole in the kernel and on request."""

from __future__ import annotations

import json

from patience import until
from run_samples import FakeRun, gen
from view_front_end import FrontEnd

from lmnb.language import events as ev
from lmnb.widgets import RunView
from lmnb.widgets.slim import LONGEST

LONG = "👩‍🚀 a much longer word than most, and more " * 300_000  # some 14 MB


def test_a_transcript_of_13_megabytes_is_cut_and_not_lost(front_end: FrontEnd) -> None:
    run = FakeRun([ev.RunStarted("r", "p", "m", 0.0), ev.TextAppended(0, LONG), *gen(0, "x", "short")])
    view = RunView(run, "widget")
    view.display()
    run.publish(ev.VariableSet(0, "all", LONG), ev.RunFinished("done", 1.0))
    assert view.finish(30)
    assert max(len(json.dumps(post)) for post in front_end.posts) < 10 * LONGEST
    (text,) = [event for event in front_end.events() if event["type"] == "text"]
    kept = text["text"].encode("utf-16-le")
    at, missing = 2 * text["cut"]["at"], 2 * text["cut"]["missing"]
    whole = LONG.encode("utf-16-le")
    assert kept[:at] == whole[:at]
    assert kept[at:] == whole[at + missing :]

    saved = front_end.updates[-1][1]
    assert len(saved["text/html"]) < 2_000_000
    assert len(saved["text/plain"]) < 2_000_000
    assert "characters not shown" in saved["text/plain"]
    assert "s.text()" in saved["text/html"]
    assert view.to_text().count("👩‍🚀") >= 300_000

    before = len(front_end.posts)
    front_end.widget._on_message(None, {"type": "whole", "branch": 0, "item": 0}, [])
    until(lambda: len(front_end.posts) != before)
    model = json.loads(front_end.posts[-1]["snapshot"])["model"]
    assert model["branches"][0]["items"][0] == {"type": "text", "text": LONG}

"""Live outputs that are made to stand alone."""

from __future__ import annotations

import gc
import re
import threading
import time
from types import SimpleNamespace

import pytest
from cache_samples import busy_cache
from patience import until

import lmnb
from lmnb.backends.testing import ScriptedBackend
from lmnb.language import open_state
from lmnb.widgets import CacheView, RunView, freeze_outputs, run_html
from lmnb.widgets.output import WIDGET_MIME, Output, _live, bundle


@pytest.fixture(autouse=True)
def _nothing_live():
    _live.clear()


def test_a_view_frozen_while_it_runs_ends_as_a_picture(front_end):
    run_state = open_state(ScriptedBackend("one two three", token_delay=0.05))
    view = RunView(run_state.run, "widget")
    view.display()
    run_state += "Say: "
    assert freeze_outputs() == 1
    run_state += lmnb.gen("x")
    run_state.run.finish()
    view.finish()
    (display, _), (live, _) = front_end.displays
    assert [bundle for id, bundle in front_end.updates if id == live] == [{"text/html": ""}]
    updated, picture = front_end.updates[-1]
    assert updated == display
    assert "three" in picture["text/html"]


def test_outputs_that_are_gone_are_not_kept(front_end):
    output = Output(lambda: bundle("<p>", "text"))
    output.show(SimpleNamespace(model_id="1", picture="picture"))
    assert len(_live) == 1
    del output
    gc.collect()
    assert freeze_outputs() == 0


def test_outputs_without_a_live_view_are_left_alone(front_end):
    output = Output(lambda: bundle("<p>", "text"))
    output.show()
    assert freeze_outputs() == 0
    assert front_end.updates == []


def test_a_cache_tree_is_frozen_as_it_is_then(front_end):
    cache = busy_cache()
    view = CacheView(cache, "widget")
    view.display()
    cache.request("Something entirely new", "cell 9")
    until(lambda: front_end.posts)  # until the view has heard of it
    assert freeze_outputs() == 1
    view.close()
    (display, _), (live, shown) = front_end.displays
    assert WIDGET_MIME in shown
    (first, picture), (second, gone) = front_end.updates
    assert (first, second) == (display, live)
    assert "Something entirely new" in picture["text/html"]
    assert gone == {"text/html": ""}


def test_a_picture_of_a_run_that_goes_on_is_marked_as_one_that_was_saved_then(front_end, monkeypatch):
    """It is seen only where the notebook is opened again, or was frozen: there it goes on."""
    monkeypatch.setattr("lmnb.widgets.output.PICTURE_INTERVAL", 0.05)

    def next_picture(count):
        def pictures():
            return [shown["text/html"] for id, shown in front_end.updates if id == display]

        until(lambda: len(pictures()) > count)
        return pictures()[-1]

    run_state = open_state(ScriptedBackend("one two three " * 1000, token_delay=0.01))
    view = RunView(run_state.run, "widget")
    view.display()
    (display, first), _ = front_end.displays
    run_state += lmnb.gen("x", max_tokens=3000)
    marked = '<div class="lmnb-still [^"]* lmnb-late"><style>.*data-status="running"'
    assert not re.match(marked, first["text/html"], re.DOTALL)
    assert re.match(marked, next_picture(0), re.DOTALL)
    freeze_outputs()
    count = len(front_end.updates)
    front_end.updates.clear()
    assert count >= 2
    assert "lmnb-late" not in next_picture(0).replace(run_html.style(), "")
    run_state.run.cancel()
    run_state.run.finish()
    assert run_state.run.wait(30)
    view.finish()
    assert "lmnb-late" not in front_end.updates[-1][1]["text/html"].replace(run_html.style(), "")


def test_large_pictures_are_drawn_less_often(front_end, monkeypatch):
    monkeypatch.setattr("lmnb.widgets.output.PICTURE_INTERVAL", 0.01)
    monkeypatch.setattr("lmnb.widgets.output.MOST_CHARACTERS", 100)
    output = Output(lambda: bundle("x" * 5000, "y" * 5000))
    output.show()
    output.outdate()
    until(lambda: front_end.updates)
    for _ in range(20):
        output.outdate()
        time.sleep(0.02)
    assert len(front_end.updates) == 1  # the next one is due after 100 seconds
    output.update()  # the last one waits for nothing
    assert len(front_end.updates) == 2
    assert output._timer is None


def test_a_picture_that_is_drawn_late_never_follows_a_later_one(front_end, monkeypatch):
    """The last picture of a run waits for one that is being drawn."""
    monkeypatch.setattr("lmnb.widgets.output.PICTURE_INTERVAL", 0.01)
    began, go = threading.Event(), threading.Event()
    said = "old"

    def picture():
        words = said
        if threading.current_thread() is not threading.main_thread():
            began.set()
            go.wait(30)
        return bundle(words, words)

    output = Output(picture)
    output.show()
    output.outdate()
    assert began.wait(30)
    said = "new"
    threading.Timer(0.1, go.set).start()
    output.update()
    assert [shown["text/html"] for _, shown in front_end.updates] == ["old", "new"]

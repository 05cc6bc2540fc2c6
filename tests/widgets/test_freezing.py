"""Live outputs that are made to stand alone."""

from __future__ import annotations

import gc

import pytest
from view_samples import busy_cache

import lmnb
from lmnb.backends.testing import ScriptedBackend
from lmnb.language import open_state
from lmnb.widgets import CacheView, RunView, freeze_outputs
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
    assert all(WIDGET_MIME not in bundle for _, bundle in front_end.updates)
    assert "three" in front_end.updates[-1][1]["text/html"]


def test_outputs_that_are_gone_are_not_kept(front_end):
    output = Output(lambda: bundle("<p>", "text"))
    output.show({WIDGET_MIME: {}, "text/plain": "live"})
    assert len(_live) == 1
    del output
    gc.collect()
    assert freeze_outputs() == 0


def test_outputs_without_a_live_view_are_left_alone(front_end):
    output = Output(lambda: bundle("<p>", "text"))
    output.show({"text/plain": "still"})
    assert freeze_outputs() == 0
    assert front_end.updates == []


def test_a_cache_tree_is_frozen_as_it_is_then(front_end):
    cache = busy_cache()
    view = CacheView(cache, "widget")
    view.display()
    cache.request("Something entirely new", "cell 9")
    assert freeze_outputs() == 1
    view.close()
    (display, shown), (updated, picture) = front_end.displays[-1], front_end.updates[-1]
    assert display == updated
    assert WIDGET_MIME in shown
    assert WIDGET_MIME not in picture
    assert "<svg" in picture["text/html"]

"""`%lmnb freeze` and `%config Lmnb.view`: live views become pictures, and one setting holds for every view."""

from __future__ import annotations

import pytest

from lmnb.widgets import detect_mode, freeze_outputs
from lmnb.widgets.output import WIDGET_MIME


@pytest.fixture(autouse=True)
def _widgets(notebook, monkeypatch):
    pytest.importorskip("anywidget")
    monkeypatch.setenv("LMNB_VIEW", "widget")


def test_live_views_are_replaced_by_pictures(notebook, backend):
    freeze_outputs()
    notebook.run("%%lmprog\ns += user('Hi.') + assistant(gen('city'))")
    assert WIDGET_MIME in notebook.outputs[1].data
    assert "1 live view was replaced by a picture. Save the notebook" in notebook.show("%lmnb freeze")
    picture, gone = notebook.outputs
    assert picture.update
    assert gone.update
    assert gone.data == {"text/html": ""}
    assert WIDGET_MIME not in picture.data
    assert "Kyoto" in picture.data["text/html"]
    assert "<script" not in picture.data["text/html"]
    assert "Kyoto" in picture.data["text/plain"]
    assert "No live view to replace." in notebook.show("%lmnb freeze")


def test_the_setting_holds_for_views_made_by_hand_and_ends_with_the_extension(notebook):
    assert detect_mode() == "widget"
    notebook.run("%config Lmnb.view = 'html'")
    assert detect_mode() == "html"
    notebook.run("%config Lmnb.view = 'auto'")
    assert detect_mode() == "widget"
    notebook.run("%config Lmnb.view = 'text'")
    notebook.run("%unload_ext lmnb")
    assert detect_mode() == "widget"
    notebook.run("%load_ext lmnb")

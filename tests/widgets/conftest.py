"""The recording front end in the place of IPython's and the widget's."""

from __future__ import annotations

from typing import Any

import pytest
from view_front_end import FrontEnd

from lmnb.widgets.rerun import history


@pytest.fixture(autouse=True)
def no_earlier_runs() -> None:
    history.clear()


@pytest.fixture
def front_end(monkeypatch: pytest.MonkeyPatch) -> FrontEnd:
    from lmnb.widgets.host import ViewWidget

    record = FrontEnd()
    monkeypatch.setattr("IPython.display.display", record.display)
    monkeypatch.setattr("IPython.display.update_display", record.update_display)
    open_widget = ViewWidget.open

    def open_and_record(widget: Any) -> None:
        record.widgets.append(widget)
        open_widget(widget)

    monkeypatch.setattr(ViewWidget, "open", open_and_record)
    monkeypatch.setattr(ViewWidget, "send", lambda widget, content, buffers=None: record.posts.append(content))
    return record

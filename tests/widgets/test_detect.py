"""Which front end gets which view."""

from __future__ import annotations

import pytest

from lmnb.errors import ArgumentError
from lmnb.widgets import RunView, detect
from lmnb.widgets.detect import detect_mode


class ZMQInteractiveShell: ...


class TerminalInteractiveShell: ...


class DatabricksShell(ZMQInteractiveShell): ...


class OwnTerminal(TerminalInteractiveShell): ...


Colab = type("Shell", (ZMQInteractiveShell,), {"__module__": "google.colab._shell"})

OwnColab = type("OwnShell", (Colab,), {})

CASES = [
    (ZMQInteractiveShell(), {}, True, "widget"),
    (ZMQInteractiveShell(), {}, False, "html"),
    (TerminalInteractiveShell(), {}, True, "text"),
    (OwnTerminal(), {}, False, "text"),
    (DatabricksShell(), {}, True, "html"),
    (ZMQInteractiveShell(), {"DATABRICKS_RUNTIME_VERSION": "16.4"}, True, "html"),
    (TerminalInteractiveShell(), {"DATABRICKS_RUNTIME_VERSION": "16.4"}, True, "text"),
    (Colab(), {}, True, "html"),
    (OwnColab(), {}, True, "html"),
    (ZMQInteractiveShell(), {"COLAB_RELEASE_TAG": "release-colab-external_20261101"}, True, "html"),
    (TerminalInteractiveShell(), {"COLAB_RELEASE_TAG": "release-colab-external_20261101"}, True, "text"),
    (ZMQInteractiveShell(), {"VSCODE_PID": "1", "VSCODE_CWD": "/"}, True, "widget"),
    (ZMQInteractiveShell(), {"VSCODE_PID": "1"}, False, "html"),
    (TerminalInteractiveShell(), {"VSCODE_PID": "1", "TERM_PROGRAM": "vscode"}, True, "text"),
    (ZMQInteractiveShell(), {"LMNB_VIEW": "text"}, True, "text"),
    (DatabricksShell(), {"LMNB_VIEW": "widget", "DATABRICKS_RUNTIME_VERSION": "16.4"}, True, "widget"),
    (TerminalInteractiveShell(), {"LMNB_VIEW": "off"}, True, "off"),
]


@pytest.mark.parametrize(("shell", "environment", "anywidget", "expected"), CASES)
def test_the_view_fits_the_front_end(
    shell: object, environment: dict[str, str], anywidget: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LMNB_VIEW", "DATABRICKS_RUNTIME_VERSION", "COLAB_RELEASE_TAG", "VSCODE_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(detect, "has_anywidget", lambda: anywidget)
    assert detect_mode(shell) == expected


def test_without_ipython_the_view_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LMNB_VIEW", raising=False)
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    monkeypatch.setattr(detect, "current_shell", lambda: None)
    assert detect_mode() == "text"


def test_an_unknown_view_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="widget, html, text, off"):
        RunView(object(), "hologram")  # type: ignore[arg-type]
    monkeypatch.setenv("LMNB_VIEW", "hologram")
    with pytest.raises(ArgumentError, match="LMNB_VIEW"):
        detect_mode()


def test_the_cell_is_named_by_the_front_end() -> None:
    class Shell:
        parent: object = {"metadata": {"cellId": "abc"}}

        def get_parent(self) -> object:
            return self.parent

    shell = Shell()
    assert detect.current_cell(shell) == "abc"
    for other in ({}, {"metadata": {}}, {"metadata": {"cellId": 3}}, None):
        shell.parent = other
        assert detect.current_cell(shell) is None
    assert detect.current_cell(None) is None

"""Which kind of view the present front end can show. Knows front ends by name; draws nothing."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any, Literal

from lmnb import env
from lmnb.errors import ArgumentError

ViewMode = Literal["widget", "html", "text", "off"]
MODES: tuple[ViewMode, ...] = ("widget", "html", "text", "off")
_preferred: ViewMode | None = None


def prefer_mode(mode: ViewMode | str | None) -> None:
    """Show everything in this way from now on, whatever the front end is; None goes back to detecting."""
    global _preferred
    _preferred = None if mode is None else check_mode(mode)


def detect_mode(shell: object | None = None) -> ViewMode:
    """The best view here: what `prefer_mode` or else `LMNB_VIEW` say, else by the kind of IPython shell.

    Databricks and Colab show third-party widgets only with help from outside the notebook, so they get HTML.
    JupyterLab, Notebook and VS Code get widgets where anywidget is installed. `shell` defaults to the running
    IPython; in a terminal, or without IPython (a script, marimo), the view is text. (marimo shows a view that is a
    cell's last value by asking it: see `_display_` of the views.)
    """
    if _preferred is not None:
        return _preferred
    forced = env.view_mode()
    if forced is not None:
        return check_mode(forced)
    shell = shell if shell is not None else current_shell()
    kinds = type(shell).__mro__
    names = {kind.__name__ for kind in kinds}
    if shell is None or "TerminalInteractiveShell" in names:  # also in the terminals and jobs of those below
        return "text"
    if "DATABRICKS_RUNTIME_VERSION" in os.environ or "DatabricksShell" in names:
        return "html"
    if "COLAB_RELEASE_TAG" in os.environ or any(kind.__module__.startswith("google.colab") for kind in kinds):
        return "html"
    return "widget" if has_anywidget() else "html"


def check_mode(mode: str) -> ViewMode:
    """`mode` if it is one. ArgumentError otherwise."""
    for known in MODES:
        if mode == known:
            return known
    raise ArgumentError(f"a view is one of {', '.join(MODES)}, not {mode!r}")


def has_anywidget() -> bool:
    """Whether anywidget can be imported; does not import it."""
    try:
        return importlib.util.find_spec("anywidget") is not None
    except (ImportError, ValueError):  # a broken or half-removed installation
        return False


def current_shell() -> Any | None:
    """The running IPython shell, or None. Does not import IPython: a shell exists only if something else did."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def current_request(shell: object | None = None) -> str | None:
    """The id of the request that the kernel is executing; None where there is none."""
    get_parent = getattr(shell or current_shell(), "get_parent", None)
    parent = get_parent() if callable(get_parent) else None
    header = parent.get("header") if isinstance(parent, dict) else None
    request = header.get("msg_id") if isinstance(header, dict) else None
    return request if isinstance(request, str) else None


def current_cell(shell: object | None = None) -> str | None:
    """The front end's id of the running cell, which stays the same when the cell is edited; None if it tells none."""
    get_parent = getattr(shell or current_shell(), "get_parent", None)
    parent = get_parent() if callable(get_parent) else None
    metadata = parent.get("metadata") if isinstance(parent, dict) else None
    cell = metadata.get("cellId") if isinstance(metadata, dict) else None
    return cell if isinstance(cell, str) else None

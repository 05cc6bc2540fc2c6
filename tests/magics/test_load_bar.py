from __future__ import annotations

from types import SimpleNamespace

import pytest

from lmnb.magics import load_bar
from lmnb.magics.load_bar import LoadBar, bar


def test_a_bar_says_how_much_has_been_read() -> None:
    shown = bar(3_200_000_000, 15_000_000_000)
    assert shown["text/plain"] == "3.2 of 15.0 GB of weights read"
    assert 'value="3200000000" max="15000000000"' in shown["text/html"]


@pytest.mark.parametrize(("patience", "in_notebook", "count"), [(0.0, True, 1), (60.0, True, 0), (0.0, False, 0)])
def test_only_a_long_load_in_a_notebook_is_shown(
    monkeypatch: pytest.MonkeyPatch, patience: float, in_notebook: bool, count: int
) -> None:
    monkeypatch.setattr(load_bar, "_PATIENCE_SECONDS", patience)
    shell = SimpleNamespace(kernel=object() if in_notebook else None)
    shown: list[object] = []
    monkeypatch.setattr(load_bar, "display", lambda bundle, **_: shown.append(bundle))
    monkeypatch.setattr(load_bar, "update_display", lambda bundle, **_: shown.append(bundle))
    told = LoadBar(shell)
    told(1, 10)
    told(2, 10)  # too soon to be drawn again
    assert len(shown) == count
    told.close()  # wherever the load got to, no half-filled bar stays behind
    assert shown[count:] == ([{"text/plain": "", "text/html": ""}] if count else [])

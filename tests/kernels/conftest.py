"""Fixtures of the kernels' tests."""

from __future__ import annotations

import pytest

from lmnb.kernels import native


@pytest.fixture(params=["torch", "native"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch's operators, and by the compiled kernels for what those take."""
    if request.param == "torch":
        monkeypatch.setattr(native, "_outcome", None)
    elif native.prepare() is None:
        pytest.skip(native.why_not())

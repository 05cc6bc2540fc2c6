"""The default backend."""

from __future__ import annotations

import pytest
from context_support import fake_runtime

from lmnb.backends.default import get_default_backend, set_default_backend
from lmnb.errors import NoBackendError


def test_default_backend() -> None:
    set_default_backend(None)
    with pytest.raises(NoBackendError, match="set_default_backend"):
        get_default_backend()
    with fake_runtime() as runtime:
        set_default_backend(runtime)
        assert get_default_backend() is runtime
        set_default_backend(None)
    with pytest.raises(NoBackendError):
        get_default_backend()

"""The `dspy` package, for the modules beside this one, or the error that says how to get it."""

from __future__ import annotations

from typing import Any

from lmnb.backends.remote.packages import require
from lmnb.errors import MissingPackageError

dspy = require("dspy", "lmnb.dspy", "'lmnb[dspy]'")
if not hasattr(dspy, "lm15"):
    raise MissingPackageError(
        f"lmnb.dspy needs dspy 3.4 or newer, not {dspy.__version__}; run: pip install -U 'lmnb[dspy]'"
    )
lm15: Any = dspy.lm15  # DSPy's requests, responses and errors

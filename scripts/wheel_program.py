"""What check_wheel.py runs with the installed wheel, in a folder that knows nothing of the checkout."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from importlib.metadata import version
from pathlib import Path

import lmnb as sgl

assert not {"torch", "transformers", "triton"} & set(sys.modules), "import lmnb loaded a heavy library"
assert Path(sgl.__file__).is_relative_to(sys.prefix), f"not the installed lmnb: {sgl.__file__}"
assert version("lmnb") == sgl.__version__, f"{version('lmnb')} is installed, lmnb says {sgl.__version__}"
for module in pkgutil.walk_packages(sgl.__path__, "lmnb."):
    importlib.import_module(module.name)


@sgl.function
def capital(s, country):  # type: ignore[no-untyped-def]
    """A program as a user writes it."""
    s += sgl.user(f"What is the capital of {country}? Answer in one word.")
    s += sgl.assistant(sgl.gen("answer", max_tokens=8, temperature=0))


runtime = sgl.Runtime()
try:
    answer = capital.run(country="France", backend=runtime)["answer"]
finally:
    runtime.shutdown()
print("The installed wheel says:", answer)
assert "Paris" in answer, answer

"""What `import lmnb` costs and offers."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import types

import pytest

import lmnb


def child(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_importing_loads_nothing_heavy() -> None:
    code = """
import json, sys
import lmnb
bare = [name for name in ("torch", "transformers", "triton", "IPython", "numpy") if name in sys.modules]
lmnb.gen, lmnb.function, lmnb.set_default_backend, lmnb.ArgumentError
language = [name for name in ("torch", "transformers", "triton", "IPython", "ipywidgets") if name in sys.modules]
print(json.dumps([bare, language]))
"""
    bare, language = json.loads(child(code))
    assert bare == []
    assert language == []


def test_every_language_name_is_importable_and_sorted() -> None:
    assert lmnb.__all__ == sorted(lmnb.__all__)
    assert len(set(lmnb.__all__)) == len(lmnb.__all__)
    elsewhere = {"Runtime", "get_chat_template", "register_chat_template"}
    for name in set(lmnb.__all__) - elsewhere:
        assert getattr(lmnb, name) is not None
    assert set(lmnb.__all__) <= set(dir(lmnb))
    with pytest.raises(AttributeError, match="no_such_name"):
        lmnb.no_such_name  # noqa: B018


def test_one_version() -> None:
    assert lmnb.__version__ == importlib.metadata.version("lmnb")


def test_the_extension_is_loaded_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, object]] = []
    fake = types.ModuleType("lmnb.magics")
    fake.load_ipython_extension = lambda shell: calls.append(("load", shell))  # type: ignore[attr-defined]
    fake.unload_ipython_extension = lambda shell: calls.append(("unload", shell))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lmnb.magics", fake)
    lmnb.load_ipython_extension("shell")
    lmnb.unload_ipython_extension("shell")
    assert calls == [("load", "shell"), ("unload", "shell")]


def test_a_process_ends_at_once_while_a_run_goes_on() -> None:
    code = """
import lmnb as sgl
from lmnb.backends.testing import ScriptedBackend
from lmnb.language import open_state
s = open_state(ScriptedBackend("word " * 1000, token_delay=0.5))
s += sgl.gen("x", max_tokens=1000)
print(next(s.text_iter("x")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("word\n", "")

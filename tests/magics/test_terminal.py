"""lmnb in a plain IPython terminal, and in a script without IPython: text, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SETUP = """\
import lmnb
from lmnb.backends.testing import ScriptedBackend
lmnb.set_default_backend(ScriptedBackend({"topic": "the sea at night"}))
"""
CELL = r"""
%load_ext lmnb
get_ipython().run_cell_magic("lmprog", "", "s += user('Name a topic.') + assistant(gen('topic'))\ns['topic']")
%lmnb pin s
"""
SCRIPT = """
@lmnb.function
def name(s):
    s += lmnb.user("Name a topic.") + lmnb.assistant(lmnb.gen("topic"))

view = lmnb.RunView(name.run().run)
view.display()
view.finish()
"""


def run(tmp_path: Path, name: str, code: str, *before: str) -> str:
    path = tmp_path / name
    path.write_text(code)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("LMNB_VIEW", "DATABRICKS"))}
    environment = {**clean, "IPYTHONDIR": str(tmp_path / "ipython")}
    done = subprocess.run(
        [sys.executable, *before, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_terminal_gets_the_run_as_text_and_errors_as_one_line(tmp_path: Path) -> None:
    out = run(tmp_path, "cell.ipy", SETUP + CELL, "-m", "IPython", "--no-banner", "--simple-prompt", "--colors=NoColor")
    assert "user: Name a topic.\nassistant: «the sea at night»" in out
    assert "cell · scripted · done after" in out
    assert "UsageError: %lmnb pin: scripted has no cache of ours" in out
    assert "<IPython" not in out
    assert "<div" not in out


def test_a_script_gets_the_same_text(tmp_path: Path) -> None:
    out = run(tmp_path, "script.py", SETUP + SCRIPT)
    assert "assistant: «the sea at night»" in out
    assert out.count("Name a topic.") == 1

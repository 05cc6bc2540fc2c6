"""Every Python sample of the README and of the pages in docs/ runs as it stands there."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from doc_samples import python_samples

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests/support/doc_samples.py"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

SCRIPTED = """
import lmnb
from lmnb.backends.testing import ScriptedBackend
from lmnb.language import open_state
"""
# What a page takes for granted before a sample, and what must be true after it, by page and by a line of the sample.
BEFORE = {
    ("sharing.md", 's.run.save("monday.json")'): SCRIPTED
    + """
@lmnb.function
def program(s):
    s += lmnb.user("Which day is it?") + lmnb.assistant(lmnb.gen("day"))
tuesday, s = (program.run(backend=ScriptedBackend(day)) for day in ("Tuesday", "Monday"))
assert tuesday.run.wait(30) and s.run.wait(30)
tuesday.run.save("tuesday.json")
""",
    (
        "sharing.md",
        "tree = lmnb.CacheView(runtime)",
    ): "from context_support import fake_runtime; runtime = fake_runtime()",
    ("views.md", "pin = runtime.cache.pin(s)"): """
from context_support import fake_runtime
from lmnb.language import open_state
runtime = fake_runtime()
s = open_state(runtime)
s += "A prompt that is asked for again and again."
s.sync()
""",
    ("language.md", 't = s.branch_at("answer"'): SCRIPTED
    + """
s = open_state(ScriptedBackend("one two three four five six seven eight nine"))
s += lmnb.gen("answer")
""",
    ("structured.md", "class Wand:"): SCRIPTED
    + """s = open_state(ScriptedBackend({"wand": '{"wood":"holly","length":11}', """
    + """"call": '{"name":"weather","arguments":{"city":"Oslo","days":7}}'}))""",
}
AFTER = {
    ("README.md", "def visit(s, country):"): """
assert "Tokyo" in state["capital"] and state["continent"] == "Asia", state.text()
""",
    ("sharing.md", 's.run.save("monday.json")'): """
from pathlib import Path
assert Path("monday.html").read_text().startswith("<!doctype html>")
assert monday.diff(s).same and not monday.diff(lmnb.replay("tuesday.json")).same
""",
    ("sharing.md", "lmnb.mlflow.autolog()"): "lmnb.mlflow.autolog(disable=True); lmnb.telemetry.disable()",
    ("language.md", 't = s.branch_at("answer"'): """
assert t["answer"] == "one two three four five six seven maybe nine"
""",
    ("views.md", "pin = runtime.cache.pin(s)"): """
assert pin.text == s.text() and runtime.cache.pins() == [] and runtime.status().cached_tokens > 0
""",
    ("structured.md", "class Wand:"): 'assert s.parsed("wand") == Wand(wood="holly", length=11)',
    ("structured.md", "def weather("): 'assert repr(s.parsed("call")) == "weather(city=\'Oslo\', days=7)"',
    ("backends.md", "dspy.configure("): 'assert lm.history[0]["outputs"][0].startswith("{")',
}
NEEDS = {"backends.md": ["dspy"], "sharing.md": ["graphviz", "mlflow", "opentelemetry.sdk"]}


def around(page: str, sample: str) -> list[str]:
    """The sample between what belongs before it and after it."""
    before = [code for (name, line), code in BEFORE.items() if name == page and line in sample]
    return [*before, sample, *(code for (name, line), code in AFTER.items() if name == page and line in sample)]


@pytest.mark.model
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "path", [path for path in PAGES if python_samples(path.read_text())], ids=lambda path: path.name
)
def test_the_samples_of_a_page_run(path: Path, tmp_path: Path) -> None:
    for package in NEEDS.get(path.name, []):
        if importlib.util.find_spec(package.partition(".")[0]) is None:
            pytest.skip(f"a sample needs {package}")
    steps = [around(path.name, sample) for sample in python_samples(path.read_text())]
    paths = [str(SCRIPT.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "LMNB_VIEW": "off", "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONPATH": ":".join(paths)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input=json.dumps(steps),
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_each_surrounding_belongs_to_a_sample() -> None:
    texts = {path.name: "\n".join(python_samples(path.read_text())) for path in PAGES}
    for page, line in [*BEFORE, *AFTER]:
        assert line in texts[page], f"{page} has no sample with {line!r} any more"

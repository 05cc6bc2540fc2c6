"""MLflow tracing, against MLflow's own store of files, in a process of its own: MLflow keeps threads and settings."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lmnb
from lmnb.errors import MissingPackageError

PROGRAM = """
import json, sys
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
import lmnb
from lmnb.backends.testing import ScriptedBackend

@lmnb.function
def city(s):
    s += lmnb.user("A city?")
    forks = s.fork(2)
    forks += lmnb.assistant(lmnb.gen("name"))
    forks.join()

def run(reply):
    runs = []
    end = lmnb.on_run(runs.append)
    try:
        city.run(backend=ScriptedBackend(reply))
    except lmnb.GenerationError:
        pass
    end()
    assert runs[0].wait(30)
    assert lmnb.mlflow.flush()
    mlflow.flush_trace_async_logging()

run("unseen")
lmnb.mlflow.autolog()
run("Kyoto")
with mlflow.start_span("mine"):
    run("Nara")
run(RuntimeError("no more words"))
lmnb.mlflow.autolog(log_texts=False)
run("hushed")
lmnb.mlflow.autolog(disable=True)
run("unseen")
traces = mlflow.search_traces(return_type="list", order_by=["timestamp_ms ASC"])
print(json.dumps([
    {"state": str(trace.info.state), "usage": trace.info.token_usage,
     "spans": [[s.name, s.span_id, s.parent_id, s.span_type, s.inputs, s.outputs, s.status.status_code.value,
                dict(s.attributes)] for s in trace.data.spans]}
    for trace in traces]))
"""
NAMES = ("name", "id", "parent", "type", "inputs", "outputs", "status", "attributes")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    if importlib.util.find_spec("mlflow") is None or importlib.util.find_spec("sqlparse") is None:
        pytest.skip("needs mlflow-skinny, which can read what it wrote")
    folder: Path = tmp_path_factory.mktemp("mlflow")
    # MLflow asks for this before it uses its oldest and simplest store.
    environment = {**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, (folder / "store").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    for trace in found:
        trace["spans"] = [dict(zip(NAMES, span, strict=True)) for span in trace["spans"]]
    return found


pytestmark = pytest.mark.timeout(150)


def names(trace: dict[str, Any]) -> list[str]:
    return sorted(span["name"] for span in trace["spans"])


def test_each_run_while_it_is_on_is_a_trace(traces):
    city = ["branch 0.0", "branch 0.1", "city", "gen name", "gen name"]
    assert [names(trace) for trace in traces] == [city, [*city, "mine"], city, city]


def test_spans_are_nested_and_typed_with_texts(traces):
    spans = {span["id"]: span for span in traces[0]["spans"]}
    gens = [span for span in spans.values() if span["name"] == "gen name"]
    for gen in gens:
        assert gen["type"] == "LLM"
        assert gen["outputs"] == {"text": "Kyoto"}
        assert "A city?" in gen["inputs"]["prompt"]
        branch = spans[gen["parent"]]
        assert branch["name"].startswith("branch 0.")
        assert spans[branch["parent"]]["name"] == "city"
    assert traces[0]["usage"]["output_tokens"] == 2


def test_a_run_inside_the_users_own_span_belongs_to_it(traces):
    spans = {span["id"]: span for span in traces[1]["spans"]}
    city = next(span for span in spans.values() if span["name"] == "city")
    assert spans[city["parent"]]["name"] == "mine"


def test_a_failed_run_is_a_failed_trace(traces):
    assert [("ERROR" in trace["state"]) for trace in traces] == [False, False, True, False]
    failed = [span for span in traces[2]["spans"] if span["status"] == "ERROR"]
    assert "no more words" in json.dumps(failed)


def test_texts_can_be_left_out(traces):
    assert "hushed" not in json.dumps(traces[3])
    assert "A city?" not in json.dumps(traces[3])


def test_without_mlflow_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingPackageError, match="pip install mlflow-tracing"):
        lmnb.mlflow.autolog()

"""OpenTelemetry, with its SDK: spans that an exporter gets."""

from __future__ import annotations

import contextlib
import sys

import pytest

import lmnb
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import GenerationError, MissingPackageError

sdk = pytest.importorskip("opentelemetry.sdk.trace")

export = pytest.importorskip("opentelemetry.sdk.trace.export")
in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")


@lmnb.function
def city(s):
    forks = s.fork(2)
    forks += lmnb.user("A city?") + lmnb.assistant(lmnb.gen("name"))
    forks.join()


@pytest.fixture
def traced():
    exporter = in_memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    yield provider, exporter
    lmnb.telemetry.disable()


def run_city(reply: object = "Kyoto") -> lmnb.Run:
    runs: list[lmnb.Run] = []
    end = lmnb.on_run(runs.append)
    with contextlib.suppress(GenerationError):
        city.run(backend=ScriptedBackend(reply))
    end()
    assert runs[0].wait(30)
    assert lmnb.telemetry.flush()
    return runs[0]


def test_it_is_off_until_it_is_enabled_and_after_it_is_disabled(traced):
    provider, exporter = traced
    run_city()
    lmnb.telemetry.enable(provider)
    run_city()
    assert len(exporter.get_finished_spans()) == 5
    lmnb.telemetry.disable()
    run_city()
    assert len(exporter.get_finished_spans()) == 5


def test_spans_are_nested_in_the_users_own_and_hold_no_texts(traced):
    provider, exporter = traced
    lmnb.telemetry.enable(provider)
    with provider.get_tracer("mine").start_as_current_span("mine") as mine:
        run = run_city()
    spans = exporter.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans}
    root = next(span for span in spans if span.name == "city")
    assert root.parent.span_id == mine.get_span_context().span_id
    gens = [span for span in spans if span.name == "gen name"]
    assert [by_id[by_id[gen.parent.span_id].parent.span_id].name for gen in gens] == ["city", "city"]
    for gen in gens:
        assert gen.attributes["gen_ai.request.model"] == "scripted"
        assert gen.attributes["gen_ai.usage.output_tokens"] == 1
        assert gen.attributes["gen_ai.response.finish_reasons"] == ("stop",)
        assert gen.attributes["lmnb.run"] == run.id
        assert root.start_time <= gen.start_time <= gen.end_time <= root.end_time
    assert "Kyoto" not in repr([dict(span.attributes) for span in spans])


def test_texts_and_failures_when_asked_for(traced):
    provider, exporter = traced
    lmnb.telemetry.enable(provider, texts=True)
    run_city()
    gen = next(span for span in exporter.get_finished_spans() if span.name == "gen name")
    assert gen.attributes["lmnb.text"] == "Kyoto"
    assert "A city?" in gen.attributes["lmnb.prompt"]
    exporter.clear()
    run_city(RuntimeError("no more words"))
    failed = {span.name: span.status for span in exporter.get_finished_spans() if not span.status.is_ok}
    assert set(failed) >= {"gen name", "branch 0.0"}
    assert "no more words" in failed["branch 0.0"].description


def test_enabling_twice_records_once(traced):
    provider, exporter = traced
    lmnb.telemetry.enable(provider)
    lmnb.telemetry.enable(provider)
    run_city()
    assert len(exporter.get_finished_spans()) == 5


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(MissingPackageError, match="pip install opentelemetry-api"):
        lmnb.telemetry.enable()
    run_city()

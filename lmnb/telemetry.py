"""OpenTelemetry: `lmnb.telemetry.enable()` records a span for each program, branch and generation.

Off until enabled. Needs the package `opentelemetry-api`, and an SDK that your own code sets up: this exports nothing.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from lmnb.backends.remote.packages import require
from lmnb.language.spans import Span, SpanFollower

__all__ = ["disable", "enable", "flush"]

_follower: SpanFollower | None = None


def enable(tracer_provider: Any | None = None, *, texts: bool = False) -> None:
    """Record spans of every run that begins from now on. MissingPackageError without `opentelemetry-api`.

    `tracer_provider` defaults to OpenTelemetry's global one. `texts`: record prompts and replies too, as events and
    attributes; without it spans hold names, counts and times only. Enabling again replaces what was set before.
    """
    global _follower
    disable()
    _follower = SpanFollower(_OpenTelemetry(tracer_provider), texts=texts)
    _follower.open()


def disable() -> None:
    """Record no new runs."""
    global _follower
    follower, _follower = _follower, None
    if follower is not None:
        follower.close()
        follower.flush()


def flush(timeout: float = 5.0) -> bool:
    """Wait until what has happened so far was handed to OpenTelemetry. False if that took longer."""
    return _follower is None or _follower.flush(timeout)


class _OpenTelemetry:
    """The recorder."""

    def __init__(self, provider: Any | None) -> None:
        package = "opentelemetry-api"
        self._trace = require("opentelemetry.trace", "tracing by OpenTelemetry", package)
        self._context = require("opentelemetry.context", "tracing by OpenTelemetry", package)
        self._tracer = self._trace.get_tracer("lmnb", version("lmnb"), tracer_provider=provider)

    def outer(self) -> Any:
        return self._context.get_current()

    def start(self, span: Span) -> Any:
        context = span.outer
        if span.parent is not None and span.parent.handle is not None:
            context = self._trace.set_span_in_context(span.parent.handle)
        return self._tracer.start_span(span.name, context, start_time=span.start_ns, attributes=span.attributes)

    def end(self, span: Span, end_ns: int) -> None:
        handle = span.handle
        if handle is None:
            return
        handle.set_attributes(span.attributes)
        for name, value in (("lmnb.prompt", span.inputs), ("lmnb.text", span.outputs)):
            if value is not None:
                handle.set_attribute(name, value)
        for name, time_ns, attributes in span.events:
            handle.add_event(name, attributes, time_ns)
        if span.failed:
            handle.set_status(self._trace.Status(self._trace.StatusCode.ERROR, span.error))
        handle.end(end_ns)

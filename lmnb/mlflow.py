"""MLflow tracing: `lmnb.mlflow.autolog()` logs each run as a trace, with a span for each branch and generation.

Off until called. Needs the package `mlflow-tracing`, `mlflow-skinny` or `mlflow`, 3.0 or newer; traces go where
MLflow's own settings say.
"""

from __future__ import annotations

from typing import Any

from lmnb.backends.remote.packages import require
from lmnb.language.spans import Span, SpanFollower

__all__ = ["autolog", "flush"]

_KINDS = {"program": "CHAIN", "branch": "CHAIN", "gen": "LLM"}
_follower: SpanFollower | None = None


def autolog(disable: bool = False, *, log_texts: bool = True) -> None:
    """Log every run that begins from now on; with `disable`, none. MissingPackageError without MLflow.

    `log_texts=False` leaves prompts and replies out. Keys that the environment holds are left out always. Calling
    it again replaces what was set before.
    """
    global _follower
    follower, _follower = _follower, None
    if follower is not None:
        follower.close()
        follower.flush()
    if not disable:
        _follower = SpanFollower(_MLflow(), texts=log_texts)
        _follower.open()


def flush(timeout: float = 5.0) -> bool:
    """Wait until what has happened so far was handed to MLflow. False if that took longer."""
    return _follower is None or _follower.flush(timeout)


class _MLflow:
    """The recorder."""

    def __init__(self) -> None:
        self._mlflow = require("mlflow", "tracing by MLflow", "mlflow-tracing")
        require("mlflow.entities", "tracing by MLflow", "mlflow-tracing")

    def outer(self) -> Any:
        return self._mlflow.get_current_active_span()

    def start(self, span: Span) -> Any:
        parent = span.outer if span.parent is None else span.parent.handle
        return self._mlflow.start_span_no_context(
            span.name,
            span_type=_KINDS[span.kind],
            parent_span=parent,
            inputs=None if span.inputs is None else {"prompt": span.inputs},
            attributes=dict(span.attributes),
            start_time_ns=span.start_ns,
        )

    def end(self, span: Span, end_ns: int) -> None:
        if span.handle is None:
            return
        for name, time_ns, attributes in span.events:
            span.handle.add_event(self._mlflow.entities.SpanEvent(name, time_ns, attributes))
        attributes = dict(span.attributes)
        if "gen_ai.usage.input_tokens" in attributes:  # what MLflow sums up for a trace
            used, made = attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]
            attributes["mlflow.chat.tokenUsage"] = {
                "input_tokens": used,
                "output_tokens": made,
                "total_tokens": used + made,
            }
        if span.error is not None:
            attributes["lmnb.error"] = span.error
        outputs = None if span.outputs is None else {"text": span.outputs}
        span.handle.end(outputs, attributes, "ERROR" if span.failed else "OK", end_ns)

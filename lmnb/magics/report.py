"""What the magics say in plain lines: a model's status, with units."""

from __future__ import annotations

from typing import Any

from lmnb.magics.models import LoadedModel


def say(text: str) -> None:
    """Print to the cell."""
    print(text)  # noqa: T201


def status_line(model: LoadedModel, *, default: bool) -> str:
    """The model's name, where it runs, its pool, and its work so far."""
    head = model.name + (" (default)" if default else "")
    status: Any = getattr(model.backend, "status", None)
    if status is None:  # a backend without an engine of ours: a server or an API
        return f"{head}: {model.backend.name}"
    now = status()
    strict = ", deterministic" if now.deterministic else ""
    pinned = f"{now.pinned_tokens:,} of them pinned, " if now.pinned_tokens else ""
    held = f" in {now.kv_note}" if now.kv_note else ""
    kind = f"{now.dtype} ({now.weight_note})" if now.weight_note else now.dtype
    return "\n".join(
        (
            f"{head}: {now.model}, {kind} on {now.device}, context {now.context_tokens:,} tokens{strict}",
            f"  memory   weights {_bytes(now.weight_bytes)}, KV pool {_bytes(now.pool_bytes)}{held} for "
            f"{now.pool_tokens:,} tokens ({now.cached_tokens:,} cached, {pinned}{now.free_tokens:,} free)",
            f"  work     {now.running} running, {now.waiting} waiting; {now.prompt_tokens:,} prompt tokens, "
            f"{_share(now.reused_tokens, now.prompt_tokens)} of them reused; {now.generated_tokens:,} generated",
        )
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "none"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}" if count < 10 * size else f"{count / size:.0f} {unit}"
    return f"{count} B"

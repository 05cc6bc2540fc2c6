"""The scripted backend keeps the promises of a real one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lmnb.backends.base import Backend, CancelToken, Delta, Generation, Owner
from lmnb.backends.script import Broken
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError, EngineClosedError, TemplateError
from lmnb.runtime.request import SamplingParams

OWNER = Owner(run="r", program="p", var="x")


def generate(backend: Backend, prompt: str = "p ", **params: Any) -> tuple[Generation, list[Delta]]:
    deltas: list[Delta] = []
    context = backend.new_context()
    context.append(prompt)
    result = asyncio.run(
        context.generate(SamplingParams(**params), owner=OWNER, cancel=CancelToken(), on_delta=deltas.append)
    )
    return result, deltas


def test_deltas_add_up() -> None:
    result, deltas = generate(ScriptedBackend("Grüße, 世界 🎈!"))
    assert "".join(delta.text for delta in deltas) == result.text == "Grüße, 世界 🎈!"
    assert sum(delta.num_tokens for delta in deltas) == result.completion_tokens
    assert result.finish_reason == "stop"


def test_stop_strings_and_length() -> None:
    result, _ = generate(ScriptedBackend("a b STOP c"), stop=("STOP", "nope"))
    assert (result.text, result.finish_reason, result.matched) == ("a b ", "stop", "STOP")
    result, _ = generate(ScriptedBackend("a b c d"), max_new_tokens=2)
    assert (result.text, result.finish_reason) == ("a b", "length")


def test_forms_of_replies() -> None:
    assert generate(ScriptedBackend({"x": "by name"}))[0].text == "by name"
    assert generate(ScriptedBackend({"p ": "by prompt", "": "rest"}))[0].text == "by prompt"
    assert generate(ScriptedBackend({"": "rest"}))[0].text == "rest"
    assert generate(ScriptedBackend(lambda call: call.prompt.upper()))[0].text == "P "
    queue = ScriptedBackend(["one", "two"])
    assert [generate(queue)[0].text for _ in range(2)] == ["one", "two"]
    with pytest.raises(ArgumentError, match="no reply left"):
        generate(queue)
    with pytest.raises(OSError, match="x"):
        generate(ScriptedBackend(OSError("x")))
    with pytest.raises(OSError, match="x"):
        generate(ScriptedBackend(Broken("a", OSError("x"))))


def test_cached_tokens_count_common_prefixes() -> None:
    backend = ScriptedBackend()
    assert generate(backend, "a b c")[0].cached_tokens == 0
    assert generate(backend, "a b d")[0].cached_tokens == 2
    assert generate(backend, "a b d")[0].cached_tokens == 2  # never the whole prompt
    backend.flush_cache()
    assert generate(backend, "a b d")[0].cached_tokens == 0


def test_cancel_leaves_what_was_handed_over() -> None:
    async def go() -> tuple[Generation, str, str]:
        context = ScriptedBackend("w " * 100, token_delay=0.005).new_context()
        cancel = CancelToken()
        seen: list[str] = []
        task = asyncio.create_task(
            context.generate(SamplingParams(), owner=OWNER, cancel=cancel, on_delta=lambda d: seen.append(d.text))
        )
        while not seen:
            await asyncio.sleep(0.001)
        cancel.cancel()
        return await task, "".join(seen), context.prompt

    result, seen, prompt = asyncio.run(go())
    assert result.finish_reason == "cancelled"
    assert result.text == seen == prompt
    assert 0 < len(seen) < 200


def test_roles_and_forks() -> None:
    context = ScriptedBackend().new_context()
    assert context.begin_role("user") == "<|user|>\n"
    with pytest.raises(TemplateError):
        context.begin_role("user")
    other = context.fork()
    other.append("x")
    assert other.end_role() == "<|end|>\n"
    assert (context.prompt, other.prompt) == ("<|user|>\n", "<|user|>\nx<|end|>\n")
    with pytest.raises(TemplateError):
        other.begin_role("tool")
    with pytest.raises(TemplateError):
        other.end_role()


def test_a_closed_backend_refuses() -> None:
    backend = ScriptedBackend()
    backend.shutdown()
    with pytest.raises(EngineClosedError):
        generate(backend)

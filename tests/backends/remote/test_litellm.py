"""`LiteLLM`: what it gives the package, and what it does without it. The package itself is large, and optional."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from server_support import fake_server

import lmnb as sgl
from lmnb.backends.remote.litellm_backend import LiteLLM
from lmnb.errors import ArgumentError, GenerationError, MissingPackageError


@sgl.function
def talk(s: Any) -> None:
    s += sgl.system("Be brief.")
    s += sgl.user("Why?")
    s += sgl.assistant(sgl.gen("a", max_tokens=8, stop="END"))


class _VendorError(Exception):
    message = "no such model"
    status_code = 404


_VendorError.__module__ = "litellm.exceptions"


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A stand-in for the package, which has one function that matters."""
    calls: list[dict[str, Any]] = []

    async def acompletion(**arguments: Any) -> AsyncIterator[Any]:
        calls.append(arguments)
        if arguments["model"] == "none/none":
            raise _VendorError("litellm.NotFoundError: no such model")

        async def chunks() -> AsyncIterator[Any]:
            for text in ("Be", "cause"):
                choice = SimpleNamespace(delta=SimpleNamespace(content=text), finish_reason=None)
                yield SimpleNamespace(choices=[choice])
            choice = SimpleNamespace(delta=SimpleNamespace(content=None), finish_reason="stop")
            usage = SimpleNamespace(prompt_tokens=4, completion_tokens=2, prompt_tokens_details=None)
            yield SimpleNamespace(choices=[choice], usage=usage)

        return chunks()

    module = ModuleType("litellm")
    module.acompletion = acompletion  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "litellm", module)
    return calls


class _Stream:
    """The package's stream: when the vendor's ends, it says "stop" whatever the vendor said."""

    def __init__(self, received: str | None) -> None:
        self.received_finish_reason = received
        self.intermittent_finish_reason = None

    async def __aiter__(self) -> AsyncIterator[Any]:
        for text, reason in (("The answer is", None), (None, "stop")):
            yield SimpleNamespace(choices=[SimpleNamespace(delta=SimpleNamespace(content=text), finish_reason=reason)])


def test_a_stream_that_broke_off(package: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    for received in (None, "stop"):

        async def acompletion(received: str | None = received, **arguments: Any) -> _Stream:
            return _Stream(received)

        monkeypatch.setattr(sys.modules["litellm"], "acompletion", acompletion)
        with LiteLLM("vendor/m") as backend:
            state = talk.run(backend=backend)
            if received:
                assert state["a"] == "The answer is"
                continue
            with pytest.raises(GenerationError, match="ended before the answer did"):
                state["a"]


def test_the_call(package: list[dict[str, Any]]) -> None:
    with LiteLLM("vendor/m", base_url="http://example.invalid", timeout=3, max_retries=1) as backend:
        state = talk.run(backend=backend, temperature=0.5)
        assert state["a"] == "Because"
        assert backend.token_usage.prompt_tokens == 4
    assert package == [
        {
            "model": "vendor/m",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "stop": ["END"],
            "max_tokens": 8,
            "timeout": 3,
            "num_retries": 1,
            "api_base": "http://example.invalid",
        }
    ]


def test_the_vendors_error_is_told(package: list[dict[str, Any]]) -> None:
    with pytest.raises(GenerationError, match=r"no such model \(HTTP 404\)"):
        talk.run(backend=LiteLLM("none/none"))["a"]


def test_keys_are_not_passed(package: list[dict[str, Any]]) -> None:
    with pytest.raises(ArgumentError, match="saved with the notebook"):
        LiteLLM("vendor/m", api_key="k")


def test_without_the_package_the_install_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(MissingPackageError, match="pip install litellm"):
        LiteLLM("vendor/m")
    assert issubclass(MissingPackageError, ImportError)


@pytest.mark.skipif(find_spec("litellm") is None, reason="litellm is not installed: pip install litellm")
def test_the_package_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    with fake_server() as server, LiteLLM("openai/fake", base_url=server.url + "/v1") as backend:
        assert talk.run(backend=backend, temperature=0).get_meta_info("a") is not None

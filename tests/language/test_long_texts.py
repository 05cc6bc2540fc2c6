"""A text of any length leaves the shared loop to the other runs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from context_support import fake_runtime

import lmnb as sgl
from lmnb.errors import GenerationError, RequestTooLongError
from lmnb.runtime.testing import ByteTokenizer


@sgl.function
def say(s: Any, text: str) -> None:
    s += sgl.user(text)
    s += sgl.assistant(sgl.gen("x", max_tokens=3))


class Slow(ByteTokenizer):
    """Takes as long as a test wants it to for a text that holds `z`."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go = threading.Event(), threading.Event()
        self.waited_in_vain = False

    def encode(self, text: str, *, trusted: bool = False) -> list[int]:
        if "z" in text:
            self.entered.set()
            self.waited_in_vain |= not self.go.wait(20)
        return super().encode(text, trusted=trusted)


def test_another_run_does_not_wait_for_a_long_text() -> None:
    tokenizer = Slow()
    with fake_runtime(tokenizer, kv_cache=100_000) as runtime:
        long = say.run("z" * 20_000, backend=runtime)
        try:
            assert tokenizer.entered.wait(30)
            answer = say.run("short", backend=runtime)
            assert answer.get_meta_info("x")["completion_tokens"] > 0  # the text of random bytes may be empty
            assert not tokenizer.waited_in_vain  # as it does if it holds up the run that would let it go on
        finally:
            tokenizer.go.set()
            long.stream.branch.run.cancel()


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_that_is_too_long_is_told_where_it_is_generated_from(stream: bool) -> None:
    with fake_runtime() as runtime:
        state = say.run("word " * 200_000, backend=runtime, stream=stream)
        with pytest.raises(GenerationError, match=r"gen\('x'\).*more tokens than") as caught:
            state["x"]
        assert isinstance(caught.value.__cause__, RequestTooLongError)

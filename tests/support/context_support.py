"""What the local backend's tests share: a runtime on the fake model, and calls of a context from plain tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from lmnb.backends.base import CancelToken, ChoiceScore, Delta, Generation, Owner
from lmnb.backends.local import Runtime
from lmnb.backends.local_context import LocalContext
from lmnb.runtime.fake_model import FakeModel
from lmnb.runtime.loading import LoadedModel
from lmnb.runtime.request import SamplingParams
from lmnb.runtime.testing import ByteTokenizer
from lmnb.runtime.tokenizer import Tokenizer

OWNER = Owner(run="r1", program="cell", cell="3")


def fake_runtime(tokenizer: Tokenizer | None = None, *, step_seconds: float = 0.0, **options: Any) -> Runtime:
    tokenizer = tokenizer or ByteTokenizer()
    model = FakeModel(tokenizer.vocab_size, step_seconds=step_seconds)
    return Runtime(LoadedModel(model, tokenizer), **{"kv_cache": 4096, **options})


def generate(
    context: LocalContext,
    *,
    cancel: CancelToken | None = None,
    on_delta: Callable[[Delta], None] = lambda delta: None,
    logprob_start: int | None = None,
    **params: Any,
) -> Generation:
    sampling = SamplingParams(**{"temperature": 0.0, "max_new_tokens": 8, **params})
    return asyncio.run(
        context.generate(
            sampling,
            owner=OWNER,
            cancel=cancel or CancelToken(),
            on_delta=on_delta,
            logprob_start=logprob_start,
        )
    )


def score(
    context: LocalContext, choices: Sequence[str], *, unconditional: bool = False, cancel: CancelToken | None = None
) -> list[ChoiceScore]:
    asked = context.score(choices, unconditional=unconditional, owner=OWNER, cancel=cancel or CancelToken())
    return list(asyncio.run(asked).choices)


def say(context: LocalContext, role: str, text: str) -> str:
    """A whole turn; returns all the text that it added."""
    prefix = context.begin_role(role)
    context.append(text)
    return prefix + text + context.end_role()


def text_of(runtime: Runtime, context: LocalContext) -> str:
    return runtime.decode(context.token_ids)

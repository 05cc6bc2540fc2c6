"""One state's prompt on a remote SGLang server: text that is sent whole with every call."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lmnb.backends.base import CancelToken, ChoiceScore, Delta, Generation, Owner, Scores
from lmnb.backends.images import Picture
from lmnb.backends.remote.cancellation import until_cancelled
from lmnb.backends.remote.endpoint_bodies import commit_body, generate_body, scoring_body
from lmnb.backends.remote.endpoint_reply import Reply, count_of
from lmnb.backends.remote.endpoint_scoring import RemoteToken, ScoredChoice, attribute
from lmnb.backends.remote.schema_check import check_schema
from lmnb.backends.remote.text_prompt import TextPrompt
from lmnb.errors import ArgumentError, CancelledError
from lmnb.runtime.request import SamplingParams, TokenLogprob

if TYPE_CHECKING:
    from lmnb.backends.remote.endpoint import RuntimeEndpoint

_OVERLAP = 2  # prompt tokens scored with each choice: one for the first place, one that a choice may join
_WIDER_OVERLAP = 16
_ABORT_SECONDS = 2.0


class EndpointContext:
    """Implements `Context`. Special tokens in a role's content reach the server as text, which takes them for what
    they say: this protocol has no other way to send them."""

    def __init__(self, backend: RuntimeEndpoint, prompt: TextPrompt) -> None:
        self._backend = backend
        self._prompt = prompt
        self._committed = ""  # a text tells of its images, too: a prompt only grows

    @property
    def text(self) -> str:
        """The whole prompt."""
        return self._prompt.text

    def append(self, text: str, *, data: bool = False) -> None:
        """See `Context.append`."""
        self._prompt.append(text)

    def append_image(self, picture: Picture) -> str:
        """See `SeeingContext.append_image`."""
        return self._prompt.append_image(picture)

    def begin_role(self, role: str) -> str:
        """See `Context.begin_role`."""
        return self._prompt.begin_role(role)

    def end_role(self) -> str:
        """See `Context.end_role`."""
        return self._prompt.end_role()

    def fork(self) -> EndpointContext:
        """See `Context.fork`."""
        twin = EndpointContext(self._backend, self._prompt.fork())
        twin._committed = self._committed
        return twin

    async def commit(self, *, owner: Owner, cancel: CancelToken) -> None:
        """See `Context.commit`: a request for no tokens, which leaves the prompt in the server's cache."""
        text = self.text
        if not text or text == self._committed:
            return
        if await until_cancelled(self._ask(commit_body(text, self._prompt.images)), cancel) is not None:
            self._committed = text

    async def generate(
        self,
        params: SamplingParams,
        *,
        owner: Owner,
        cancel: CancelToken,
        on_delta: Callable[[Delta], None],
        logprob_start: int | None = None,
    ) -> Generation:
        """See `Context.generate`. RemoteError has the server's own message; text that came before it stays."""
        self._backend.capabilities.check(params, "RuntimeEndpoint")
        if cancel.cancelled:
            return Generation(text="", finish_reason="cancelled")
        reply = Reply(self._backend, params, on_delta)
        rid = secrets.token_hex(16)
        body = generate_body(self.text, self._prompt.images, params, rid, logprob_start)
        try:
            finished = await until_cancelled(self._stream(body, reply, params), cancel)
            if finished is None:
                await self._abort(rid)
        finally:
            self._prompt.append(reply.text)
        return reply.generation(cancelled=finished is None)

    async def score(self, choices: Sequence[str], *, unconditional: bool, owner: Owner, cancel: CancelToken) -> Scores:
        """See `Context.score`, and `attribute` for what happens where prompt and choice join."""
        for choice in choices:
            if not isinstance(choice, str) or not choice:
                raise ArgumentError(f"choices must be non-empty text, not {choice!r}")
        scores = await until_cancelled(self._score(choices, unconditional), cancel)
        if scores is None:
            raise CancelledError("the choice was not made because its run was stopped")
        return scores

    async def _ask(self, body: Any) -> Any:
        """The answer: a result, or one for each of a batch. RemoteError if it is neither."""
        answer = await self._backend.wire.ask("/generate", body)
        with self._backend.wire.tell.reading(lambda: answer):
            for one in answer if isinstance(answer, list) else [answer]:
                meta = one["meta_info"]
                self._backend.token_usage.add(count_of(meta, "prompt_tokens"), count_of(meta, "completion_tokens"))
        return answer

    async def _stream(self, body: Any, reply: Reply, params: SamplingParams) -> bool:
        events = self._backend.wire.stream("/generate", body)
        try:
            async for event in events:
                reply.take(event)
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # a generator: this closes the connection
        reply.finish()
        await check_schema(self._backend.wire.tell, params, reply.text, reply.finish_reason)
        return True

    async def _abort(self, rid: str) -> None:
        """The closed stream says it already; a server behind a proxy may not notice."""
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._backend.wire.ask("/abort_request", {"rid": rid}), _ABORT_SECONDS)

    async def _score(self, choices: Sequence[str], unconditional: bool) -> Scores:
        started = time.monotonic()
        text, images, tell = self.text, self._prompt.images, self._backend.wire.tell
        num_prompt, asked = 0, []
        if text:
            head = await self._ask(commit_body(text, images))
            with tell.reading(lambda: head):
                num_prompt = int(head["meta_info"]["prompt_tokens"])
            asked.append(head)
        scored: list[ScoredChoice] | None = None
        for overlap in (_OVERLAP, _WIDER_OVERLAP, num_prompt):
            start = max(num_prompt - overlap, 0)
            answers = await self._ask(scoring_body({"text": [text + choice for choice in choices]}, start, images))
            with tell.reading(lambda: answers):  # noqa: B023  # called at once, if at all
                asked += answers
                scored = attribute([_tokens(answer) for answer in answers], choices, num_prompt - start)
            if scored is not None:
                break
        if scored is None:
            raise ArgumentError("the server tokenizes the prompt differently for each choice; end it at a word")
        alone: list[tuple[TokenLogprob, ...]] = [()] * len(choices)
        texts = self._backend.token_texts
        if unconditional:
            answers = await self._ask(scoring_body({"input_ids": [one.token_ids for one in scored]}, 0))
            with tell.reading(lambda: answers):
                values = [[token.logprob for token in _tokens(answer)] for answer in answers]
                alone = [one.logprobs(row, texts) for one, row in zip(scored, values, strict=True)]
        for one in scored:
            for token in one.tokens:
                texts.learn(token.token_id, token.text)
        found = [one.logprobs([token.logprob for token in one.tokens], texts) for one in scored]
        with tell.reading(lambda: asked):
            num_asked, num_cached = (
                sum(count_of(answer["meta_info"], name) for answer in asked)
                for name in ("prompt_tokens", "cached_tokens")
            )
        return Scores(
            tuple(ChoiceScore(*each) for each in zip(choices, found, alone, strict=True)),
            prompt_tokens=num_asked,
            cached_tokens=num_cached,
            seconds=time.monotonic() - started,
        )


def _tokens(answer: dict[str, Any]) -> list[RemoteToken]:
    return [RemoteToken.read(entry) for entry in answer["meta_info"]["input_token_logprobs"]]

"""One state's prompt on a scripted backend, as text."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lmnb.backends.base import (
    CancelToken,
    ChoiceScore,
    Context,
    Delta,
    Generation,
    Owner,
    PromptToken,
    Scores,
    TokenSource,
)
from lmnb.backends.images import Picture
from lmnb.backends.script import WORD, Broken, ScriptedCall
from lmnb.errors import TemplateError
from lmnb.runtime.request import Constraint, FinishReason, SamplingParams

if TYPE_CHECKING:
    from lmnb.backends.testing import ScriptedBackend


class ScriptedContext:
    """One state's prompt as text. Roles are `<|user|>` ... `<|end|>`, each on its own line."""

    def __init__(
        self,
        backend: ScriptedBackend,
        parts: Sequence[tuple[str, TokenSource]] = (),
        role: str | None = None,
        images: Sequence[Picture] = (),
    ) -> None:
        self.backend = backend
        self._parts = list(parts)
        self._images = list(images)
        self._role = role

    @property
    def prompt(self) -> str:
        """The whole text so far."""
        return "".join(text for text, _ in self._parts)

    def tokens(self) -> list[PromptToken]:
        """The words and marks, each part by itself."""
        words = [(word, source) for text, source in self._parts for word in WORD.findall(text)]
        return [PromptToken(word, self.backend.number(word), source) for word, source in words]

    def append(self, text: str, *, data: bool = False) -> None:
        """Add text."""
        self._parts.append((text, "generated" if data else "given"))

    def append_image(self, picture: Picture) -> str:
        """Add an image."""
        self._images.append(picture)
        self._parts.append(("<image>", "given"))
        return "<image>"

    def begin_role(self, role: str) -> str:
        """Open a role."""
        if role not in ("system", "user", "assistant"):
            raise TemplateError(f"the scripted template has no role {role!r}; use system, user or assistant")
        if self._role is not None:
            raise TemplateError(f"{role} cannot open inside {self._role}; close that one first")
        self._role = role
        prefix = f"<|{role}|>\n"
        default = self.backend.default_system
        if default and role != "system" and not self._parts:
            prefix = f"<|system|>\n{default}<|end|>\n{prefix}"
        self._parts.append((prefix, "template"))
        return prefix

    def end_role(self) -> str:
        """Close the open role."""
        if self._role is None:
            raise TemplateError("no role is open")
        self._role = None
        self._parts.append(("<|end|>\n", "template"))
        return "<|end|>\n"

    def fork(self) -> ScriptedContext:
        """An independent copy."""
        return ScriptedContext(self.backend, self._parts, self._role, self._images)

    async def commit(self, *, owner: Owner, cancel: CancelToken) -> None:
        """Note that branches are about to race."""
        self.backend.record(ScriptedCall("commit", self.prompt, owner, images=tuple(self._images)))
        self.backend.count_cached(WORD.findall(self.prompt))

    def checkpoint(self) -> Callable[[], ScriptedContext]:
        """What makes this prompt again: parts are only ever added."""
        count, role, num_images = len(self._parts), self._role, len(self._images)
        return lambda: ScriptedContext(self.backend, self._parts[:count], role, self._images[:num_images])

    @property
    def vocab_size(self) -> int:
        """See `ResumableContext.vocab_size`."""
        return self.backend.vocab_size

    async def ruled_out(self, constraint: Constraint, begun: Sequence[int], ids: Sequence[int]) -> frozenset[int]:
        """None: what is said is the script's, whatever the constraint."""
        return frozenset()

    async def logprob_of(self, ids: tuple[int, ...], *, owner: Owner, cancel: CancelToken) -> float | None:
        """As `logprobs` has it."""
        return self.backend.logprobs(self.prompt, [self.backend.token_text(ids[-1])], 0)[0].logprob

    def encode_more(self, text: str) -> tuple[int, ...]:
        """The numbers of the words."""
        return tuple(map(self.backend.number, WORD.findall(text)))

    def fork_moved(self, offset: int) -> ScriptedContext:
        """Note by how much, and fork."""
        self.backend.record(ScriptedCall("fork", self.prompt, offset=offset))
        return self.fork()

    async def concatenate(self, branches: Sequence[Context], *, owner: Owner, cancel: CancelToken) -> None:
        """Note the call, and go on with the branches' own texts."""
        mine, num_images = self.prompt, len(self._images)
        self.backend.record(ScriptedCall("concatenate", mine, owner))
        for branch in branches:
            assert isinstance(branch, ScriptedContext)
            self._parts.append((branch.prompt.removeprefix(mine), "given"))
            self._images += branch._images[num_images:]

    async def generate(
        self,
        params: SamplingParams,
        *,
        owner: Owner,
        cancel: CancelToken,
        on_delta: Callable[[Delta], None],
        logprob_start: int | None = None,
        begun: tuple[int, ...] = (),
    ) -> Generation:
        """Say the scripted reply, token by token."""
        backend, prompt = self.backend, self.prompt
        given = [backend.token_text(token_id) for token_id in begun]
        call = ScriptedCall("generate", prompt, owner, params, images=tuple(self._images), begun="".join(given))
        reply = backend.record(call)
        prompt_tokens = [*WORD.findall(prompt), *given]
        cached = backend.count_cached(prompt_tokens)
        said = reply.text if isinstance(reply, Broken) else reply if isinstance(reply, str) else ""
        error = reply.error if isinstance(reply, Broken) else reply if isinstance(reply, BaseException) else None
        text, reason, matched = _cut("".join([*given, *WORD.findall(said)[len(given) :]]), params)
        produced: list[str] = []
        async with _Cancellation(cancel) as stopped:
            for token in _tokens(text, given):
                is_given = len(produced) < len(given)
                if not is_given and await _pause(backend.token_delay, stopped):
                    break
                produced.append(token)
                self._parts.append((token, "generated"))
                asked = params.return_logprob and not is_given
                logprobs = backend.logprobs(prompt, [token], params.top_logprobs_num) if asked else ()
                on_delta(Delta(token, 1, logprobs, "given" if is_given else "free", (backend.number(token),)))
            else:
                await _pause(backend.token_delay, stopped)
        if error is not None and not cancel.cancelled:
            raise error
        shown = "".join(produced)
        own = produced[len(given) :]
        backend.remember([*prompt_tokens[: len(prompt_tokens) - len(given)], *produced])
        scored = backend.logprobs("", prompt_tokens, 0) if logprob_start is not None else ()
        return Generation(
            text=shown,
            finish_reason="cancelled" if cancel.cancelled and shown != text else reason,
            matched=matched if shown == text else None,
            prompt_tokens=len(prompt_tokens),
            cached_tokens=cached,
            completion_tokens=len(own),
            first_token_seconds=backend.token_delay if produced else None,
            total_seconds=backend.token_delay * max(len(produced), 1),
            logprobs=backend.logprobs(prompt, own, params.top_logprobs_num) if params.return_logprob else (),
            input_logprobs=scored[logprob_start:],
        )

    async def score(self, choices: Sequence[str], *, unconditional: bool, owner: Owner, cancel: CancelToken) -> Scores:
        """Score by the scorer."""
        backend, prompt = self.backend, self.prompt
        backend.record(ScriptedCall("score", prompt, owner, choices=tuple(choices), images=tuple(self._images)))
        await _pause(backend.token_delay, asyncio.Event())
        texts = [prompt + choice for choice in choices] + (list(choices) if unconditional else [])
        prompts = [WORD.findall(text) for text in texts]
        return Scores(
            tuple(
                ChoiceScore(
                    choice,
                    backend.score_tokens(prompt, choice),
                    backend.score_tokens("", choice) if unconditional else (),
                )
                for choice in choices
            ),
            prompt_tokens=sum(map(len, prompts)),
            cached_tokens=sum(map(backend.count_cached, prompts)),
            seconds=backend.token_delay,
        )


class _Cancellation:
    """An asyncio event that a `CancelToken` sets, from whatever thread."""

    def __init__(self, token: CancelToken) -> None:
        self._token = token

    async def __aenter__(self) -> asyncio.Event:
        event = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._forget = self._token.on_cancel(lambda: _set_soon(loop, event))
        if self._token.cancelled:
            event.set()
        return event

    async def __aexit__(self, *_: object) -> None:
        self._forget()


def _set_soon(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    loop.call_soon_threadsafe(event.set)


async def _pause(seconds: float, stopped: asyncio.Event) -> bool:
    """Let others run, for `seconds` at least; True if `stopped` was set meanwhile."""
    if seconds <= 0:
        await asyncio.sleep(0)
    elif not stopped.is_set():
        try:
            await asyncio.wait_for(stopped.wait(), seconds)
        except asyncio.TimeoutError:
            return False
    return stopped.is_set()


def _cut(text: str, params: SamplingParams) -> tuple[str, FinishReason, str | None]:
    """The reply up to its first stop and its last allowed token."""
    found = [(text.index(stop), stop) for stop in params.stop if stop in text]
    found += [(match.start(), stop) for stop in params.stop_regex if (match := re.search(stop, text))]
    matched = None
    if found:
        end, matched = min(found)
        text = text[:end]
    tokens = WORD.findall(text)
    if len(tokens) > params.max_new_tokens:
        return "".join(tokens[: params.max_new_tokens]), "length", None
    return text, "stop", matched


def _tokens(text: str, given: Sequence[str]) -> list[str]:
    """The words of `text`; those it was given are as they were given."""
    start = "".join(given)
    return [*given, *WORD.findall(text[len(start) :])] if text.startswith(start) else WORD.findall(text)

"""A backend without a model, for tests and for trying a program out: replies come from a rule or a queue.

Deterministic, records every call, can be slow per token and can fail on demand. Its "tokens" are words and single
marks. It does not enforce regexes and schemas: the reply rule is trusted.
"""

from __future__ import annotations

import asyncio
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

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
from lmnb.backends.capabilities import ALL_SAMPLING, Capabilities
from lmnb.backends.images import Picture
from lmnb.backends.prefix import common_prefix_length
from lmnb.errors import ArgumentError, EngineClosedError, TemplateError
from lmnb.runtime.request import FinishReason, SamplingParams, TokenLogprob

Scorer = Callable[[str, str], Sequence[float]]

_TOKEN = re.compile(r"\s*\w+|\s+|\S", re.UNICODE)
_HISTORY = 512  # prompts kept for counting cached tokens


@dataclass(frozen=True)
class Broken:
    """A reply that ends in an error: `text` is streamed, then `error` is raised."""

    text: str
    error: BaseException


@dataclass(frozen=True)
class ScriptedCall:
    """One call that a program made: `prompt` is the state's whole text at that moment."""

    kind: Literal["generate", "score", "commit", "fork", "concatenate"]
    prompt: str
    owner: Owner | None = None
    params: SamplingParams | None = None
    choices: tuple[str, ...] = ()
    images: tuple[Picture, ...] = ()  # in the prompt, each where it says "<image>"
    begun: str = ""  # what an earlier generation had said, which this one goes on from
    offset: int = 0


Reply = str | BaseException | Broken
Rule = Callable[[ScriptedCall], Reply]
Replies = Reply | Mapping[str, Reply] | Iterable[Reply] | Rule


@dataclass
class _Script:
    """What to answer; one of the forms of `Replies`, made a rule."""

    replies: Replies
    _queue: Iterator[Reply] | None = field(default=None, repr=False)

    def answer(self, call: ScriptedCall) -> Reply:
        if isinstance(self.replies, (str, BaseException, Broken)):
            return self.replies
        if isinstance(self.replies, Mapping):
            return self._by_key(self.replies, call)
        if callable(self.replies):
            return self.replies(call)
        if self._queue is None:
            self._queue = iter(self.replies)
        for reply in self._queue:
            return reply
        return ArgumentError("the scripted backend has no reply left; give it a longer queue")

    @staticmethod
    def _by_key(replies: Mapping[str, Reply], call: ScriptedCall) -> Reply:
        var = call.owner.var if call.owner else None
        if var is not None and var in replies:
            return replies[var]
        for key, reply in replies.items():
            if key and call.prompt.endswith(key):
                return reply
        return replies.get("", f"<{var or 'text'}>")


class ScriptedBackend:
    """A `Backend` that says what it is told to.

    `replies`: one text for every call; or a mapping from a variable's name, or from the end of a prompt, to a text
    (`""` is for the rest); or an iterable, one text a call in order; or a function of the `ScriptedCall`. An
    exception in place of a text is raised by that call; `Broken` streams some text first.
    `token_delay`: seconds before each token. `score`: `(prompt, choice) -> log-probabilities`, one for each token
    of the choice (prompt is "" for the unconditional ones); by default a hash of the text decides.
    `concatenates_caches`: whether it says that it can join branches by their caches. `alternatives`: by word, what
    else was likely in its place, where log-probabilities are asked for. A generation that goes on from the middle of
    an earlier one says what its reply says behind as many words.
    `calls` lists what was asked, in order.
    """

    capabilities = Capabilities(
        logprobs="made up",
        select="scored",
        regex="trusted",
        json_schema="trusted",
        cancel="at once",
        images=True,
        continues_turn=True,
        token_lens=True,
        resumes=True,
        data_is_text=True,
        sampling=ALL_SAMPLING,
    )

    def __init__(
        self,
        replies: Replies = "ok",
        *,
        name: str = "scripted",
        stop: tuple[str, ...] = (),
        token_delay: float = 0.0,
        score: Scorer | None = None,
        default_system: str | None = None,
        concatenates_caches: bool = False,
        alternatives: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.name = name
        self.stop = stop
        self.token_delay = token_delay
        self.default_system = default_system
        self.capabilities = replace(type(self).capabilities, concatenates_caches=concatenates_caches)
        self.alternatives = dict(alternatives or {})
        self.calls: list[ScriptedCall] = []
        self.flushes = 0
        self.closed = False
        self._script = _Script(replies)
        self._score = score or _hashed_score
        self._lock = threading.Lock()
        self._vocabulary: dict[str, int] = {}
        self._seen: list[list[str]] = []

    def new_context(self) -> ScriptedContext:
        """An empty prompt."""
        return ScriptedContext(self)

    def token_text(self, token_id: int) -> str:
        """The word that got this number."""
        with self._lock:
            return list(self._vocabulary)[token_id]

    def flush_cache(self) -> bool:
        """Forget earlier prompts."""
        self.flushes += 1
        self._seen.clear()
        return True

    def get_server_info(self) -> dict[str, Any]:
        """The name, and how many calls there were."""
        return {"model": self.name, "calls": len(self.calls)}

    def shutdown(self) -> None:
        """Make every later call fail."""
        self.closed = True

    def prompts(self, kind: str = "generate") -> list[str]:
        """The prompts of the calls of one kind, in order."""
        return [call.prompt for call in self.calls if call.kind == kind]

    def record(self, call: ScriptedCall) -> Reply:
        """Note the call; returns its reply (for a "generate" call)."""
        if self.closed:
            raise EngineClosedError("the scripted backend was shut down; make a new one")
        with self._lock:
            self.calls.append(call)
            return self._script.answer(call) if call.kind == "generate" else ""

    @property
    def vocab_size(self) -> int:
        """How many words have got a number."""
        with self._lock:
            return len(self._vocabulary)

    def number(self, token: str) -> int:
        """The id of a token: words are numbered as they come."""
        with self._lock:
            return self._vocabulary.setdefault(token, len(self._vocabulary))

    def logprobs(self, prompt: str, tokens: Sequence[str], top: int) -> tuple[TokenLogprob, ...]:
        """Made-up but repeatable log-probabilities of `tokens` after `prompt`."""
        ids = [self.number(token) for token in tokens]
        values = [_hashed_score(prompt, token)[0] for token in tokens]
        tops = [((i, v), *self._others(token, v))[:top] for i, v, token in zip(ids, values, tokens, strict=True)]
        return tuple(TokenLogprob(*entry) for entry in zip(ids, values, tops, strict=True))

    def _others(self, token: str, value: float) -> list[tuple[int, float]]:
        """What else was likely in the place of `token`."""
        word = token.lstrip()
        space = token[: len(token) - len(word)]
        others = self.alternatives.get(word, ())
        return [(self.number(space + other), value - rank) for rank, other in enumerate(others, 1)]

    def score_tokens(self, prompt: str, choice: str) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of a choice after `prompt`, from the scorer."""
        values = list(self._score(prompt, choice))
        first = self.number(choice)
        return tuple(TokenLogprob(first, value) for value in values)

    def count_cached(self, tokens: list[str]) -> int:
        """How many leading tokens an earlier prompt already had, at most all but one; remembers this prompt."""
        best = max((common_prefix_length([tokens, other]) for other in self._seen), default=0)
        self.remember(tokens)
        return min(best, max(len(tokens) - 1, 0))

    def remember(self, tokens: list[str]) -> None:
        """Have a later prompt that begins like this count what it has in common as cached."""
        self._seen.append(tokens)
        del self._seen[:-_HISTORY]


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
        words = [(word, source) for text, source in self._parts for word in _TOKEN.findall(text)]
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
        self.backend.count_cached(_TOKEN.findall(self.prompt))

    def checkpoint(self) -> Callable[[], ScriptedContext]:
        """What makes this prompt again: parts are only ever added."""
        count, role, num_images = len(self._parts), self._role, len(self._images)
        return lambda: ScriptedContext(self.backend, self._parts[:count], role, self._images[:num_images])

    @property
    def vocab_size(self) -> int:
        """See `ResumableContext.vocab_size`."""
        return self.backend.vocab_size

    def encode_more(self, text: str) -> tuple[int, ...]:
        """The numbers of the words."""
        return tuple(map(self.backend.number, _TOKEN.findall(text)))

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
        prompt_tokens = [*_TOKEN.findall(prompt), *given]
        cached = backend.count_cached(prompt_tokens)
        said = reply.text if isinstance(reply, Broken) else reply if isinstance(reply, str) else ""
        error = reply.error if isinstance(reply, Broken) else reply if isinstance(reply, BaseException) else None
        text, reason, matched = _cut("".join([*given, *_TOKEN.findall(said)[len(given) :]]), params)
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
        prompts = [_TOKEN.findall(text) for text in texts]
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
    tokens = _TOKEN.findall(text)
    if len(tokens) > params.max_new_tokens:
        return "".join(tokens[: params.max_new_tokens]), "length", None
    return text, "stop", matched


def _tokens(text: str, given: Sequence[str]) -> list[str]:
    """The words of `text`; those it was given are as they were given."""
    start = "".join(given)
    return [*given, *_TOKEN.findall(text[len(start) :])] if text.startswith(start) else _TOKEN.findall(text)


def _hashed_score(prompt: str, text: str) -> list[float]:
    tokens = _TOKEN.findall(text) or [""]
    return [-(1 + zlib.crc32(f"{prompt}|{token}".encode()) % 997) / 1000 for token in tokens]

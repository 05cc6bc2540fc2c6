"""API speculative execution: one call answers several `gen`s, where what the model goes on to say is what the program
says next.

It wraps any backend: its contexts ask for more than one `gen` needs and keep the rest for what follows. A text that
was kept is used only as long as the program follows it word for word, so that each value is what the model says after
exactly this prompt. Everything is in the context: states do not share anything, and may run side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from lmnb.backends.base import Backend, CancelToken, Context, Delta, Generation, Owner, Scores, SeeingContext
from lmnb.backends.capabilities import Capabilities
from lmnb.backends.images import Picture
from lmnb.backends.speculated_text import Piece, SpeculatedText
from lmnb.errors import ArgumentError, ProgramError
from lmnb.runtime.request import SamplingParams

TRIES = 3  # calls for a turn that cannot be continued, until the model writes it as the program has it
_SHOWN = 60  # characters of a text in an error

Foreseen = Sequence["str | SamplingParams"]


def with_speculation(backend: Backend, num_tokens: int | None) -> Backend:
    """`backend` for a program with that `num_api_spec_tokens`. A backend that gains nothing by it (one with a prefix
    cache of its own) stays as it is, and so does what the program says."""
    inner = backend.inner if isinstance(backend, SpeculativeBackend) else backend
    if num_tokens is None or not inner.capabilities.speculation:
        return inner
    return SpeculativeBackend(inner, num_tokens)


class SpeculativeBackend:
    """`inner`, with contexts that ask for `num_tokens` tokens at a time. Implements `Backend`."""

    def __init__(self, inner: Backend, num_tokens: int) -> None:
        self.inner = inner
        self.num_tokens = num_tokens
        self.name = inner.name
        self.stop = inner.stop
        # What contexts can do beside the protocol, these do not: their prompt is the program's, not the model's.
        self.capabilities: Capabilities = replace(
            inner.capabilities, token_lens=False, concatenates_caches=False, resumes=False
        )

    def __repr__(self) -> str:
        return f"{self.inner!r} with num_api_spec_tokens={self.num_tokens}"

    def new_context(self) -> SpeculativeContext:
        """An empty prompt."""
        return SpeculativeContext(self, self.inner.new_context())

    def token_text(self, token_id: int) -> str:
        """See `Backend.token_text`."""
        return self.inner.token_text(token_id)

    def flush_cache(self) -> bool:
        """See `Backend.flush_cache`."""
        return self.inner.flush_cache()

    def get_server_info(self) -> dict[str, Any]:
        """See `Backend.get_server_info`."""
        return {**self.inner.get_server_info(), "num_api_spec_tokens": self.num_tokens}

    def shutdown(self) -> None:
        """See `Backend.shutdown`."""
        self.inner.shutdown()


class SpeculativeContext:
    """Implements `Context` on another one, which always holds exactly what the program has said."""

    def __init__(self, backend: SpeculativeBackend, inner: Context) -> None:
        self._backend = backend
        self._inner = inner
        self._kept: SpeculatedText | None = None  # what the model said beyond the prompt
        self._turn: Context | None = None  # an assistant's turn that only whole calls can write: as it began
        self._said = ""  # in that turn
        self._foreseen: Foreseen = ()
        self._is_chat = bool(getattr(backend.inner, "is_chat_model", False))

    def append(self, text: str, *, data: bool = False) -> None:
        """See `Context.append`."""
        if data:
            self._inner.append(text, data=True)
        else:
            self._inner.append(text)
        self._follow(text)

    def append_image(self, picture: Picture) -> str:
        """See `SeeingContext.append_image`. No kept text goes on behind an image that the model had not seen."""
        text = cast(SeeingContext, self._inner).append_image(picture)
        self._kept = None
        self._said += text
        return text

    def begin_role(self, role: str) -> str:
        """See `Context.begin_role`."""
        text = self._inner.begin_role(role)
        self._cross(text)
        if role == "assistant" and self._is_chat and not self._backend.capabilities.continues_turn:
            self._turn = self._inner.fork()
        return text

    def end_role(self) -> str:
        """See `Context.end_role`."""
        text = self._inner.end_role()
        self._cross(text)
        return text

    def fork(self) -> SpeculativeContext:
        """See `Context.fork`. A fork keeps nothing: branches that used the same text would be one sample, not two."""
        twin = SpeculativeContext(self._backend, self._inner.fork())
        twin._turn = self._turn
        twin._said = self._said
        return twin

    def foresee(self, following: Foreseen) -> None:
        """What the program is known to add to the turn after the next generation: texts, and further generations."""
        self._foreseen = following

    async def commit(self, *, owner: Owner, cancel: CancelToken) -> None:
        """See `Context.commit`."""
        await self._inner.commit(owner=owner, cancel=cancel)

    async def score(self, choices: Sequence[str], *, unconditional: bool, owner: Owner, cancel: CancelToken) -> Scores:
        """See `Context.score`."""
        return await self._inner.score(choices, unconditional=unconditional, owner=owner, cancel=cancel)

    async def generate(
        self,
        params: SamplingParams,
        *,
        owner: Owner,
        cancel: CancelToken,
        on_delta: Callable[[Delta], None],
        logprob_start: int | None = None,
    ) -> Generation:
        """See `Context.generate`. The text comes in one piece. ProgramError if the model will not write the turn."""
        foreseen, self._foreseen = self._foreseen, ()
        if not _can_be_cut(params) or logprob_start is not None:
            self._kept = None
            options = {} if logprob_start is None else {"logprob_start": logprob_start}
            result = await self._inner.generate(params, owner=owner, cancel=cancel, on_delta=on_delta, **options)
            self._said += result.text
            return result
        if self._kept is not None and not self._kept.serves(params):
            if self._turn is not None:
                raise ArgumentError(
                    "the generations of one assistant turn are made by one call here, so they need the same "
                    "temperature, top_p and other sampling parameters (stop and max_tokens may differ)"
                )
            self._kept = None
        calls = _Calls(params, owner, cancel)
        piece = await (self._from_turn(calls, foreseen) if self._turn is not None else self._from_prompt(calls))
        if piece is None:
            return calls.generation(Piece(), "cancelled")
        if self._kept is not None and not self._kept.text:
            self._kept = None  # all is used; what the model would say now is another call's answer
        self._inner.append(piece.text, data=True)
        self._said += piece.text
        on_delta(Delta(piece.text, piece.num_tokens, piece.logprobs))
        return calls.generation(piece, piece.finish_reason)

    async def _from_prompt(self, calls: _Calls) -> Piece | None:
        """From what is kept, and where that is too short from calls that go on with it."""
        params = calls.params
        while True:
            kept = self._kept
            if kept is not None:
                piece = kept.take(params.stop, params.max_new_tokens)
                if piece is not None:
                    return piece
            context = self._inner.fork()
            if kept is not None:
                context.append(kept.text, data=True)
            more = max(params.max_new_tokens - (kept.num_tokens if kept is not None else 0), self._backend.num_tokens)
            found = await calls.ask(context, more, self._backend.stop)
            if found is None:
                return None
            self._kept = found if kept is None else kept.extended(found)

    async def _from_turn(self, calls: _Calls, foreseen: Foreseen) -> Piece | None:
        """From what is kept, else from a whole turn that says what the program has said in it, and goes on to say
        (as far as that is foreseen). Each try is judged by itself: nothing of a failed one is used."""
        assert self._turn is not None
        params = calls.params
        if self._kept is not None:
            piece = self._kept.take(params.stop, params.max_new_tokens, whole=True)
            if piece is not None:
                return piece
        went_wrong = ""
        for _ in range(TRIES):
            found = await calls.ask(self._turn.fork(), self._backend.num_tokens, self._backend.stop)
            if found is None:
                return None
            went_wrong = _stray(found.copy(), [self._said, params, *foreseen])
            if not went_wrong:
                found.follow(self._said)
                self._kept = found
                piece = found.take(params.stop, params.max_new_tokens, whole=True)
                assert piece is not None
                return piece
        raise ProgramError(
            f"the model did not write the assistant turn as the program has it, in {TRIES} tries: {went_wrong}; say in "
            "the user turn what the answer must look like, or raise num_api_spec_tokens if it was cut"
        )

    def _follow(self, text: str) -> None:
        """The program says `text`: what is kept stays only if it begins so."""
        self._said += text
        if self._kept is not None and not self._kept.follow(text):
            self._kept = None

    def _cross(self, text: str) -> None:
        """A turn begins or ends. A completion may have written that too; a chat's answer ends there."""
        self._turn = None
        if self._is_chat:
            self._kept = None
        else:
            self._follow(text)
        self._said = ""


class _Calls:
    """The calls that one generation made."""

    def __init__(self, params: SamplingParams, owner: Owner, cancel: CancelToken) -> None:
        self.params = params
        self._owner = owner
        self._cancel = cancel
        self._results: list[Generation] = []

    async def ask(self, context: Context, num_tokens: int, stop: tuple[str, ...]) -> SpeculatedText | None:
        """Ask for `num_tokens` tokens, without the generation's own stops. None if the run was cancelled."""
        params = replace(self.params, max_new_tokens=num_tokens, stop=stop)
        deltas: list[Delta] = []
        result = await context.generate(params, owner=self._owner, cancel=self._cancel, on_delta=deltas.append)
        self._results.append(result)
        if result.finish_reason == "cancelled":
            return None
        return SpeculatedText(self.params, deltas, result)

    def generation(self, piece: Piece, reason: Any) -> Generation:
        """The piece as a generation, with what the calls took."""
        results = self._results
        return Generation(
            text=piece.text,
            finish_reason=reason,
            matched=piece.matched,
            prompt_tokens=sum(result.prompt_tokens for result in results),
            cached_tokens=sum(result.cached_tokens for result in results),
            completion_tokens=piece.num_tokens,
            first_token_seconds=results[0].first_token_seconds if results else 0.0,
            total_seconds=sum(result.total_seconds for result in results),
            logprobs=piece.logprobs,
            meta={"api_calls": len(results)},
        )


def _can_be_cut(params: SamplingParams) -> bool:
    """Whether a longer text without stops has the wanted one as its beginning."""
    return (
        params.constraint is None and not params.min_new_tokens and not params.stop_regex and params.max_new_tokens > 0
    )


def _stray(text: SpeculatedText, steps: Foreseen) -> str:
    """Where `text` leaves what the program says ("" if it does not). Uses `text` up."""
    for index, step in enumerate(steps):
        if isinstance(step, str):
            begin = text.text[: max(len(step), _SHOWN)]
            if not text.follow(step):
                return f"it should say {step[:_SHOWN]!r} where it said {begin!r}"
        else:
            if not _can_be_cut(step) or not text.serves(step):
                return ""  # that generation will say what is wrong with it
            if not text.text and index > 1:
                return "it ended where more was to be written"
            piece = cast(Piece, text.take(step.stop, step.max_new_tokens, whole=True))
            assert piece is not None
    return ""

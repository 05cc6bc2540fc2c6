"""What DSPy calls an engine: one request in, one response out. Each call is a run of a program on a backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from lmnb.backends.base import Backend
from lmnb.dspy.package import lm15
from lmnb.dspy.translation import REPLY, as_lm15, end_of, read, response_of, unsupported
from lmnb.language.defaults import Defaults
from lmnb.language.expressions import Expr
from lmnb.language.primitives import assistant, gen, role_turn
from lmnb.language.program import Program
from lmnb.language.state import ProgramState

# What DSPy can ask for besides temperature and length, by its own names.
SAMPLING = frozenset({"top_p", "top_k", "seed", "stop", "frequency_penalty", "presence_penalty"})


@dataclass
class Samples:
    """The samples of one call, for which DSPy asks one by one: with their seeds, and those that have been begun."""

    count: int
    num_asked: int = 0
    begun: list[ProgramState] = field(default_factory=list)

    def seeds(self, seed: int | None, count: int) -> list[int | None]:
        """The seeds of the next `count` samples, all different."""
        first, self.num_asked = self.num_asked, self.num_asked + count
        return [None if seed is None else seed + index for index in range(first, first + count)]


_samples: ContextVar[Samples | None] = ContextVar("lmnb_dspy_samples", default=None)


@contextmanager
def samples_of_one_call(count: int) -> Iterator[None]:
    """What is asked of the engine meanwhile belongs together; at the end, samples that nobody took are stopped."""
    samples = Samples(count)
    before = _samples.set(samples)
    try:
        yield
    finally:
        _samples.reset(before)
        for state in samples.begun:
            _stop(state)


class Engine:
    """The engine on one backend, whose capabilities it tells in DSPy's words. `defaults` are for what DSPy cannot ask.

    Errors are DSPy's (`dspy.lm15`), and none is one that DSPy tries again.
    """

    def __init__(self, backend: Backend, defaults: Defaults) -> None:
        self.backend = backend
        self._program = Program(_dspy, defaults=defaults)
        can = backend.capabilities
        self.supports_response_schema = bool(can.json_schema)
        self.supported_params = {"temperature", "max_tokens", "n"} | (SAMPLING & can.sampling)
        if can.json_schema:
            self.supported_params.add("response_format")
        if can.logprobs:
            self.supported_params |= {"logprobs", "top_logprobs"}

    def __repr__(self) -> str:
        return f"<lmnb on {self.backend!r}>"

    def complete(self, request: Any) -> Any:
        with as_lm15():
            state = self._begun() or self._first(
                self._program.run(*self._asked(request), backend=self.backend).ret_value
            )
            try:
                return response_of(state, state[REPLY], request)
            except BaseException:
                _stop(state)
                raise

    async def complete_async(self, request: Any) -> Any:
        with as_lm15():
            state = self._begun()
            if state is None:
                called = await self._program.arun(*self._asked(request), backend=self.backend)
                state = self._first(called.ret_value)
            try:
                return response_of(state, await state.get(REPLY), request)
            except BaseException:
                _stop(state)
                raise

    def stream(self, request: Any) -> Iterator[Any]:
        with as_lm15():
            state = self._streaming(request)
            try:
                yield lm15.StreamStartEvent(model=request.model)
                for piece in state.text_iter(REPLY):
                    yield lm15.StreamDeltaEvent(lm15.TextDelta(piece))
                yield end_of(response_of(state, state[REPLY], request))
            except BaseException:
                _stop(state)
                raise

    async def stream_async(self, request: Any) -> AsyncIterator[Any]:
        with as_lm15():
            state = self._streaming(request)
            try:
                yield lm15.StreamStartEvent(model=request.model)
                async for piece in state.text_async_iter(REPLY):
                    yield lm15.StreamDeltaEvent(lm15.TextDelta(piece))
                yield end_of(response_of(state, await state.get(REPLY), request))
            except BaseException:
                _stop(state)
                raise

    def close(self) -> None:
        """Nothing to do: the backend is the user's."""

    def _streaming(self, request: Any) -> ProgramState:
        if request.config.logprobs is not None:
            raise unsupported("logprobs while streaming", "config.logprobs")
        return self._program.run(*self._asked(request, count=1), backend=self.backend, stream=True)

    def _asked(self, request: Any, count: int | None = None) -> tuple[Any, ...]:
        """The program's arguments."""
        samples = _samples.get() or Samples(1)
        return (*read(request), samples.seeds(request.config.seed, count or samples.count))

    def _begun(self) -> ProgramState | None:
        samples = _samples.get()
        return samples.begun.pop(0) if samples is not None and samples.begun else None

    def _first(self, states: list[ProgramState]) -> ProgramState:
        samples = _samples.get()
        if samples is not None:
            samples.begun += states[1:]
        return states[0]


class AsyncEngine:
    """The same for coroutines."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def complete(self, request: Any) -> Any:
        return await self._engine.complete_async(request)

    def stream(self, request: Any) -> AsyncIterator[Any]:
        return self._engine.stream_async(request)

    async def aclose(self) -> None:
        """Nothing to do."""


def _dspy(
    s: ProgramState, turns: Sequence[tuple[str, Expr]], options: Mapping[str, Any], seeds: Sequence[int | None]
) -> list[ProgramState]:
    """The program of every call. Returns the state of each sample, which has the reply."""
    for role, content in turns:
        s += role_turn(role, content)
    states = [s] if len(seeds) == 1 else list(s.fork(len(seeds)))
    for state, seed in zip(states, seeds, strict=True):
        state += assistant(gen(REPLY, seed=seed, **options))
    return states


_dspy.__name__ = "dspy"  # as views name the program


def _stop(state: ProgramState) -> None:
    state.stream.branch.cancel.cancel()

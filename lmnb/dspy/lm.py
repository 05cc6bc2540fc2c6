"""`LM`: the `dspy.LM` that runs on one of lmnb's backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmnb.backends.base import Backend
from lmnb.dspy.engine import SAMPLING, AsyncEngine, Engine, samples_of_one_call
from lmnb.dspy.package import dspy
from lmnb.errors import ArgumentError, NoBackendError
from lmnb.language.default_backend import get_default_backend, resolve_backend
from lmnb.language.defaults import Defaults

_Base: Any = dspy.LM
_CLASS_KEY = "_dspy_lm_class"  # where DSPy keeps a saved LM's class
# What DSPy has no word for; everything else is DSPy's own.
_OURS = frozenset({"min_p", "repetition_penalty", "stop_regex", "stop_token_ids", "ignore_eos"})
_THEIRS = SAMPLING | {"n", "logprobs", "top_logprobs", "response_format", "rollout_id", "callbacks"}


class LM(_Base):  # type: ignore[misc]  # DSPy has no types
    """A language model for DSPy modules that runs on `backend`: a `Runtime`, or any other of lmnb's.

    `sampling` is DSPy's (`top_p`, `top_k`, `seed`, `stop`, `n`, `frequency_penalty`, `presence_penalty`, `logprobs`,
    `response_format`), and of lmnb's `min_p`, `repetition_penalty`, `stop_regex`, `stop_token_ids`, `ignore_eos`. A
    module's `config` may have DSPy's. `response_format`, which DSPy's JSONAdapter sets, is enforced token by token
    where the backend can; what cannot be done is refused by name. The `n` samples of a call are drawn side by side.

    `cache=True` turns on DSPy's own cache of answers, which knows a model by its name only; prompts that begin alike
    share their computed beginnings anyway. Calls that are cancelled raise.
    """

    def __init__(
        self,
        backend: Backend | None = None,
        *,
        temperature: float | None = None,
        max_tokens: int = 1000,
        cache: bool = False,
        **sampling: Any,
    ) -> None:
        unknown = [name for name in sampling if name not in _OURS | _THEIRS]
        if unknown:
            names = ", ".join(sorted(_OURS | _THEIRS | {"temperature", "max_tokens", "cache"}))
            raise ArgumentError(f"lmnb.dspy.LM has no option {unknown[0]!r}; it takes: {names}")
        ours = {name: sampling.pop(name) for name in sorted(_OURS & set(sampling))}
        if cache and ours:
            raise ArgumentError(f"DSPy's cache cannot tell answers by {', '.join(ours)}; leave cache=True out")
        self._ours = ours
        chosen = resolve_backend(backend)
        engine = Engine(chosen, Defaults().updated(ours))
        super().__init__(
            f"lmnb/{chosen.name}",
            temperature=temperature,
            max_tokens=max_tokens,
            cache=cache,
            num_retries=0,  # what fails here fails again; remote backends try again themselves
            engine=engine,
            async_engine=AsyncEngine(engine),
            **sampling,
        )

    def __repr__(self) -> str:
        return f"lmnb.dspy.LM({self.backend!r})"

    @property
    def backend(self) -> Backend:
        """Where it runs. Another backend is another LM."""
        backend: Backend = self.engine.backend
        return backend

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """The answers to a prompt, as `dspy.LM` gives them."""
        with samples_of_one_call(self._count(kwargs)):
            return super().__call__(prompt, messages=messages, **kwargs)

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """The same for a coroutine; cancelling its task stops the generation."""
        with samples_of_one_call(self._count(kwargs)):
            return await super().acall(prompt, messages=messages, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> LM:
        """A copy with settings and history of its own, on the same model."""
        copied: LM = self.copy()
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as it is saved: its name and settings, without weights and history."""
        return LM.load_state, (self.dump_state(),)

    def dump_state(self) -> dict[str, Any]:
        """What a saved DSPy program says of this model: its name and the sampling, no weights."""
        settings = {name: value for name, value in self.kwargs.items() if value is not None}
        own = f"{LM.__module__}.{LM.__qualname__}"
        return {_CLASS_KEY: own, "model": self.model, "cache": self.cache, **settings, **self._ours}

    @classmethod
    def load_state(cls, state: dict[str, Any], *, allow_custom_lm_class: bool = False) -> LM:
        """The same on the default backend, which must be of the saved name. NoBackendError if it is not."""
        settings = {name: value for name, value in state.items() if name not in (_CLASS_KEY, "model")}
        backend = get_default_backend()
        if backend is None or f"lmnb/{backend.name}" != state["model"]:
            raise NoBackendError(f"this program was saved with {state['model']}: make that the default backend first")
        return cls(backend, **settings)

    def _count(self, kwargs: Mapping[str, Any]) -> int:
        count = kwargs.get("n", self.kwargs.get("n"))
        return count if type(count) is int else 1  # DSPy refuses what is no number

"""The prompts that a runtime keeps, for people: pin what must stay, let go of what need not. Knows nothing of trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from lmnb.backends.base import PromptToken
from lmnb.errors import ArgumentError, CacheError
from lmnb.runtime.request import Request, SamplingParams

if TYPE_CHECKING:
    from lmnb.runtime.engine import Engine
    from lmnb.runtime.events import CachePin

_MOST_TRIES = 3


class HasTokens(Protocol):
    """A state: whatever can tell its prompt's tokens."""

    def tokens(self) -> Sequence[PromptToken]:
        """All of the prompt."""
        ...


class Pin:
    """A prompt that stays cached. In a `with` statement: until its end."""

    def __init__(self, cache: PromptCache, pin: CachePin, text: str) -> None:
        self._cache = cache
        self.node = pin.node
        """Number of the tree's node in which the prompt ends."""
        self.num_tokens = len(pin.token_ids)
        self.text = text

    def unpin(self) -> None:
        """Let it go. CacheError if that has happened already."""
        self._cache.unpin(self)

    def __enter__(self) -> Pin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if any(pin.node == self.node for pin in self._cache.pins()):
            self.unpin()

    def __repr__(self) -> str:
        words = " ".join(self.text.split())
        return f"Pin({self.num_tokens:,} tokens: {words if len(words) <= 40 else words[:39] + '…'})"


class PromptCache:
    """What `Runtime.cache` is. A prompt is given as text (markers in it count), as a state, as a `Pin`, or as a node's
    number in the tree. All methods may be called from any thread."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        encode: Callable[[str], tuple[int, ...]],
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        self._engine = engine
        self._encode = encode
        self._decode = decode

    def pin(self, prompt: str | HasTokens | int) -> Pin:
        """Keep a prompt cached, however full the KV pool gets. What is not cached of it is computed first.

        Pins may hold half of the pool: CacheError beyond that. Pinning twice is pinning once.
        """
        if isinstance(prompt, int):
            return self._wrap(self._engine().pin(prompt))
        ids = self._ids(prompt)
        for _ in range(_MOST_TRIES):  # under load, what was computed may be gone before it is pinned
            found = self._engine().pin_tokens(ids)
            if found is not None:
                return self._wrap(found)
            self._compute(ids)
        raise CacheError(
            f"the prompt's {len(ids):,} tokens do not stay cached until they are pinned: wait until less is running, "
            "or load the model with a larger kv_cache"
        )

    def pins(self) -> list[Pin]:
        """All pins, those made here and those made in the tree's view."""
        return [self._wrap(pin) for pin in self._engine().pins()]

    def unpin(self, prompt: str | HasTokens | Pin | int | None = None) -> int:
        """Take one pin back, or all of them without an argument; how many. CacheError if that prompt is not pinned."""
        if prompt is None:
            return self._engine().unpin_all()
        if isinstance(prompt, Pin | int):
            self._engine().unpin(prompt.node if isinstance(prompt, Pin) else prompt)
            return 1
        ids = self._ids(prompt)
        nodes = [pin.node for pin in self._engine().pins() if pin.token_ids == ids]
        if not nodes:
            raise CacheError("this prompt is not pinned; `pins()` lists those that are")
        self._engine().unpin(nodes[0])
        return 1

    def evict(self, prompt: str | HasTokens | int) -> int:
        """Forget what of a prompt no other branch of the tree shares, and what continues it; how many tokens that were,
        0 if nothing was cached. A node's number stands for the node and all below it. CacheError if a running request
        or a pin holds that."""
        if isinstance(prompt, int):
            return self._engine().evict(prompt)
        return self._engine().evict_tokens(self._ids(prompt))

    def __repr__(self) -> str:
        now = self._engine().status()
        return f"PromptCache({now.cached_tokens:,} of {now.pool_tokens:,} tokens, {now.pinned_tokens:,} of them pinned)"

    def _ids(self, prompt: str | HasTokens) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return self._encode(prompt)
        tokens = getattr(prompt, "tokens", None)
        if not callable(tokens):
            raise ArgumentError(f"a prompt is a text, a state or a node's number, not {type(prompt).__name__}")
        found = tokens()
        if not all(token.plain for token in found):
            raise ArgumentError(
                "this state's caches were joined or moved, so its tokens do not say what is cached; "
                "give the number of its node in the tree"
            )
        return tuple(token.id for token in found)

    def _compute(self, ids: tuple[int, ...]) -> None:
        handle = self._engine().submit(
            Request(input_ids=ids, sampling=SamplingParams(max_new_tokens=0), owner="cache.pin")
        )
        try:
            handle.result()
        except BaseException:
            handle.cancel()
            raise

    def _wrap(self, pin: CachePin) -> Pin:
        return Pin(self, pin, self._decode(pin.token_ids))

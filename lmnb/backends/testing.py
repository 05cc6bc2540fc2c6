"""A backend without a model, for tests and for trying a program out: replies come from a rule or a queue.

Deterministic, records every call, can be slow per token and can fail on demand. Its "tokens" are words and single
marks. It does not enforce regexes and schemas: the reply rule is trusted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lmnb.backends.capabilities import ALL_SAMPLING, Capabilities
from lmnb.backends.prefix import common_prefix_length
from lmnb.backends.script import Replies, Reply, Script, ScriptedCall, hashed_score
from lmnb.backends.scripted_context import ScriptedContext
from lmnb.errors import EngineClosedError
from lmnb.runtime.request import TokenLogprob

Scorer = Callable[[str, str], Sequence[float]]

_HISTORY = 512  # prompts kept for counting cached tokens


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
        self._script = Script(replies)
        self._score = score or hashed_score
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
        values = [hashed_score(prompt, token)[0] for token in tokens]
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

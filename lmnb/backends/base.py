"""The protocol between the language and whatever generates: a backend makes contexts, a context
holds one state's prompt and extends it. The language never sees token ids; a backend never sees programs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from lmnb.backends.capabilities import Capabilities
from lmnb.backends.images import Picture
from lmnb.runtime.request import Constraint, FinishReason, Origin, SamplingParams, TokenLogprob

TokenSource = Literal["template", "given", "generated"]


class CancelToken:
    """A one-way switch that many parts of a run share. Thread-safe; callbacks run in the cancelling thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._next = 0
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        with self._lock:
            if self._cancelled:
                return
            self._cancelled = True
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        for callback in callbacks:
            callback()

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once on cancel (now, if that has happened). Returns what takes it back."""
        with self._lock:
            if not self._cancelled:
                key = self._next
                self._next += 1
                self._callbacks[key] = callback
                return lambda: self._remove(key)
        callback()
        return lambda: None

    def _remove(self, key: int) -> None:
        with self._lock:
            self._callbacks.pop(key, None)


@dataclass(frozen=True, slots=True)
class Owner:
    """Who asked for tokens; travels with requests and comes back on cache events."""

    run: str  # the run's id
    program: str  # "cell" or the program's name
    cell: str | None = None  # execution count of the notebook cell, "3"
    branch: str = ""  # path of the branch, "0", "0.2"
    row: int | None = None  # row of a batch
    var: str | None = None  # variable being generated
    line: int | None = None  # line in the program's source
    source: str = ""  # the line's text

    @property
    def label(self) -> str:
        """Short text for a view: `cell 3 · judge · row 2 · branch 0.1 · line 7`."""
        parts = [f"cell {self.cell}" if self.cell else "", self.program if self.program != "cell" else ""]
        parts += [f"row {self.row}" if self.row is not None else ""]
        parts += [f"branch {self.branch}" if self.branch not in ("", "0") else ""]
        parts += [f"line {self.line}" if self.line is not None else ""]
        return " · ".join(part for part in parts if part) or self.run


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a generation in progress. Deltas' texts concatenate to the generation's text.

    `num_tokens` is what the piece adds to their number: less than its own where it replaces tokens told of before.
    `token_ids`: the tokens, where the backend tells them; they stand in for the last `num_replaced` ones told before.
    """

    text: str
    num_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    origin: Origin = "free"
    token_ids: tuple[int, ...] = ()
    num_replaced: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A finished (or stopped) generation."""

    text: str
    finish_reason: FinishReason
    matched: str | int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    read_prompt: bool = True  # False: the model was not needed, as all of the output was forced
    completion_tokens: int = 0
    first_token_seconds: float | None = None
    total_seconds: float = 0.0
    logprobs: tuple[TokenLogprob, ...] = ()
    input_logprobs: tuple[TokenLogprob, ...] = ()  # of the prompt from `logprob_start` on, where that was given
    meta: dict[str, Any] = field(default_factory=dict)  # what else the backend wants in meta_info


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """How likely one choice is after the prompt.

    `logprobs`: one entry per token of the choice, in order; ids decode to exactly the choice's text.
    `unconditional`: the same tokens' log-probabilities with no prompt before them (empty unless asked for).
    `num_chosen` is set where a backend cannot score, only let the model choose (`logprobs` is empty then): how many
    tokens of this choice the model went along with.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...]
    unconditional: tuple[TokenLogprob, ...] = ()
    num_chosen: int | None = None


@dataclass(frozen=True, slots=True)
class PromptToken:
    """One token of a prompt, as the model gets it. Bytes that are no text by themselves are shown as `\\xf0`.

    `source` says where it came from: a chat template (or the tokenizer), the program, the model. A token in which two
    of them meet has the later one. `plain`: it stands where it sits and has seen all that is before it, as has that.
    """

    text: str
    id: int
    source: TokenSource
    plain: bool = True


@dataclass(frozen=True, slots=True)
class Scores:
    """All choices' scores, in order, and what they cost: tokens are summed over the requests that it took.

    `picked`: the index of the choice, where an API makes it by itself and tells no scores.
    """

    choices: tuple[ChoiceScore, ...]
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of those, found in a cache
    seconds: float = 0.0
    picked: int | None = None


class Context(Protocol):
    """One state's prompt. Used by one task at a time; `fork` gives an independent copy."""

    def append(self, text: str, *, data: bool = False) -> None:
        """Add a program's text. Inside a role, or with `data`, it is data: special tokens in it stay text."""
        ...

    def begin_role(self, role: str) -> str:
        """Open a role; returns the text that this added to the prompt. TemplateError if not allowed here."""
        ...

    def end_role(self) -> str:
        """Close the open role; returns the text that this added."""
        ...

    def fork(self) -> Context: ...

    async def commit(self, *, owner: Owner, cancel: CancelToken) -> None:
        """Make the prompt so far cheap to extend (a hint before branches race). A cancel ends it early."""
        ...

    async def generate(
        self,
        params: SamplingParams,
        *,
        owner: Owner,
        cancel: CancelToken,
        on_delta: Callable[[Delta], None],
        logprob_start: int | None = None,
    ) -> Generation:
        """Generate, and append what was generated. On cancel it returns what there is, with reason
        "cancelled": the prompt then holds exactly the text that was handed to `on_delta`.
        With `logprob_start` the result also has `input_logprobs` from that prompt token on."""
        ...

    async def score(self, choices: Sequence[str], *, unconditional: bool, owner: Owner, cancel: CancelToken) -> Scores:
        """Score `choices` as continuations of the prompt, which is left as it was."""
        ...


class SeeingContext(Protocol):
    """What a context can do besides if its backend's capabilities include `images`."""

    def append_image(self, picture: Picture) -> str:
        """Add an image or a video to the prompt; returns what stands for it in the text. ArgumentError if the open
        role cannot hold one."""
        ...


class TokenContext(Protocol):
    """What a context can do besides if its backend's capabilities include `token_lens`."""

    def tokens(self) -> list[PromptToken]:
        """The whole prompt so far."""
        ...


class ResumableContext(Protocol):
    """What a context can do besides if its backend's capabilities include `resumes`. Its deltas tell token ids, and
    its `generate` takes `begun`: tokens that an earlier generation from this very prompt began with. It then goes on
    as that one would have behind them (see `Request.begun_ids`), and its deltas and its text begin with them."""

    def checkpoint(self) -> Callable[[], Context]:
        """What makes this very prompt again, whatever is added to it meanwhile. Cheap, and may never be used."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids lie below this."""
        ...

    def encode_more(self, text: str) -> tuple[int, ...]:
        """The tokens of a text that goes on from generated ones, which stay as they are."""
        ...

    async def ruled_out(self, constraint: Constraint, begun: Sequence[int], ids: Sequence[int]) -> frozenset[int]:
        """Those of the tokens `ids` that the constraint does not allow behind what was `begun`."""
        ...

    async def logprob_of(self, ids: tuple[int, ...], *, owner: Owner, cancel: CancelToken) -> float | None:
        """The log-probability of the last of `ids` behind this prompt and the others."""
        ...


class ConcatenatingContext(Protocol):
    """What a context can do besides if its backend's capabilities include `concatenates_caches`."""

    def fork_moved(self, offset: int) -> Context:
        """A fork whose own tokens will stand `offset` positions further on than they would."""
        ...

    async def concatenate(self, branches: Sequence[Context], *, owner: Owner, cancel: CancelToken) -> None:
        """Add what each branch has said since it was forked from here, by joining caches as they are: at the
        branch's own positions. What follows stands behind the one that reaches furthest.

        The branches have not attended to each other, so this approximates the exact prompt. A cancel ends it early;
        the prompt is then longer all the same.
        """
        ...


class Backend(Protocol):
    """A place where generation happens."""

    name: str  # the model's name, for views
    stop: tuple[str, ...]  # stop strings that the backend's chat template asks for
    capabilities: Capabilities  # what it can do; what it cannot, it refuses

    def new_context(self) -> Context: ...

    def token_text(self, token_id: int) -> str:
        """The text of one token, for people to read in a list of log-probabilities."""
        ...

    def flush_cache(self) -> bool:
        """Forget cached prompts; False if something is running and nothing was done."""
        ...

    def get_server_info(self) -> dict[str, Any]: ...

    def shutdown(self) -> None: ...

"""What happens in a run, as small plain messages. Views draw these and nothing else.

A run is a tree of branches; the root branch has id 0. Events of one run come in order, from one thread.
`EVENT_TYPES` maps each message's wire name to its class; `to_json` and `from_json` are exact inverses.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

from lmnb.backends.well_formed import well_formed_json

Status = Literal["running", "done", "failed", "cancelled"]
LONGEST_PREVIEW = 24_000  # characters


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run began."""

    type: ClassVar[str] = "run"
    run: str
    program: str
    model: str
    time: float  # seconds, time.time()
    cell: str | None = None


@dataclass(frozen=True, slots=True)
class BranchOpened:
    """A branch was forked; it starts with all that its parent has said up to then.

    With `program` set it is a call of another program (or a row of a batch): it starts empty. With `at` it parts from
    inside the parent's generation: it starts before that generation, and says it anew. Of the pieces of its first
    generation, those of the origin "kept" are as they were, and those of the origin "given" stand in their place.
    """

    type: ClassVar[str] = "branch"
    branch: int
    parent: int
    index: int  # place among the branches of the same fork
    fork: int  # counts the forks of a run, from 0
    label: str  # "0.2": path of indices from the root; "0~1": the first that parts from inside a generation of 0
    program: str | None = None
    row: int | None = None
    at: list[int] | None = None  # number of the parent's `gen` (from 0, selects not counted), UTF-16 units kept of it
    note: str | None = None  # what of the parent's later steps this branch does not repeat, and why
    given: str | None = None  # with `at`: the text that was put there; None where the token is drawn anew


@dataclass(frozen=True, slots=True)
class RoleOpened:
    """A role was opened."""

    type: ClassVar[str] = "role"
    branch: int
    role: str
    prefix: str  # template text that was added, e.g. "<|im_start|>user\n"


@dataclass(frozen=True, slots=True)
class RoleClosed:
    """The open role was closed."""

    type: ClassVar[str] = "role_end"
    branch: int
    suffix: str


@dataclass(frozen=True, slots=True)
class TextAppended:
    """The program added constant text."""

    type: ClassVar[str] = "text"
    branch: int
    text: str


@dataclass(frozen=True, slots=True)
class ImageAdded:
    """The program added an image, or a video of several `frames`."""

    type: ClassVar[str] = "image"
    branch: int
    text: str  # what stands for it in the branch's text, e.g. "<image>"
    mime: str  # "image/png"
    width: int  # pixels
    height: int
    num_bytes: int  # as it is sent, all frames together
    digest: str  # tells one image from another: the beginning of the SHA-256 of these bytes
    preview: str  # a small picture as a data URI of at most `LONGEST_PREVIEW` characters; "" if there is none
    frames: int = 1

    @property
    def label(self) -> str:
        """For people, where no picture can be: `[image 640×480 png]`."""
        return image_label(self.mime, self.width, self.height, self.frames)


@dataclass(frozen=True, slots=True)
class GenStarted:
    """A generation began."""

    type: ClassVar[str] = "gen"
    branch: int
    var: str | None
    kind: Literal["gen", "select"]
    constraint: str | None = None  # "regex", "json_schema", "choices"
    line: int | None = None


@dataclass(frozen=True, slots=True)
class TokensGenerated:
    """A piece of the open generation arrived. `parts` tell of its tokens, see `token_parts.part`."""

    type: ClassVar[str] = "tokens"
    branch: int
    text: str
    num_tokens: int
    parts: list[list[Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GenFinished:
    """Ends the branch's open `GenStarted`. Prompt tokens = reused + computed; both 0 where the model was not needed, as
    all of the output was forced. `grammar`: the library that enforced the
    constraint, where one did. `cut`: a stop ended a constrained text before it was whole. `forced`: of the generated
    tokens, those that a grammar left no choice about."""

    type: ClassVar[str] = "gen_end"
    branch: int
    finish_reason: str
    matched: str | int | None
    reused: int
    computed: int
    generated: int
    first_token_seconds: float | None
    seconds: float
    grammar: str | None = None
    cut: bool = False
    forced: int = 0


@dataclass(frozen=True, slots=True)
class ChoiceMade:
    """The decision of a select, before its `GenFinished`. `scores` are what the method compared.

    `tokens`: by choice, `[text, log-probability, the same without the prompt]` for each token; None: not measured.
    `methods`: what each method makes of them, `{"name", "scores", "picked"}` (an index), the one in use first.
    """

    type: ClassVar[str] = "choice"
    branch: int
    text: str
    choices: list[str]
    scores: list[float]
    method: str
    tokens: list[list[list[Any]]] = field(default_factory=list)
    methods: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # what may mislead the methods, a sentence each


@dataclass(frozen=True, slots=True)
class VariableSet:
    """A variable got its value."""

    type: ClassVar[str] = "var"
    branch: int
    name: str
    value: str  # its text, shortened by the view
    kind: str = "str"  # its type's name


@dataclass(frozen=True, slots=True)
class BranchesJoined:
    """Branches came together again in `parent`."""

    type: ClassVar[str] = "join"
    parent: int
    branches: list[int]
    mode: str


@dataclass(frozen=True, slots=True)
class BranchFinished:
    """A branch is over; `error` says why it failed."""

    type: ClassVar[str] = "branch_end"
    branch: int
    status: Status
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RunResumed:
    """A run that was over goes on: a branch parts from one of its generations."""

    type: ClassVar[str] = "resume"
    time: float  # seconds, time.time()


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run is over; nothing follows, unless it is resumed. `seconds` while it was not over, all together."""

    type: ClassVar[str] = "run_end"
    status: Status
    seconds: float
    error: str | None = None


RunEvent = (
    RunStarted
    | BranchOpened
    | RoleOpened
    | RoleClosed
    | TextAppended
    | ImageAdded
    | GenStarted
    | TokensGenerated
    | GenFinished
    | ChoiceMade
    | VariableSet
    | BranchesJoined
    | BranchFinished
    | RunResumed
    | RunFinished
)

EVENT_TYPES: dict[str, type[RunEvent]] = {
    cls.type: cls
    for cls in (
        RunStarted,
        BranchOpened,
        RoleOpened,
        RoleClosed,
        TextAppended,
        ImageAdded,
        GenStarted,
        TokensGenerated,
        GenFinished,
        ChoiceMade,
        VariableSet,
        BranchesJoined,
        BranchFinished,
        RunResumed,
        RunFinished,
    )
}


def to_json(event: RunEvent) -> dict[str, Any]:
    """The event as a JSON object: its fields and `type`."""
    return {"type": event.type, **asdict(event)}


def image_label(mime: str, width: int, height: int, frames: int) -> str:
    """`[image 640×480 png]`, `[video 640×480 png, 8 frames]`."""
    kind = mime.removeprefix("image/")
    return f"[image {width}×{height} {kind}]" if frames == 1 else f"[video {width}×{height} {kind}, {frames} frames]"


def well_formed_event(event: RunEvent) -> RunEvent:
    """The event with texts that can be written as UTF-8, so that whoever is told can send it on."""
    changed = {
        field.name: new
        for field in fields(event)
        if (new := well_formed_json(old := getattr(event, field.name))) is not old
    }
    return replace(event, **changed) if changed else event


def from_json(message: dict[str, Any]) -> RunEvent:
    """The event a JSON object stands for. KeyError for an unknown type."""
    fields = dict(message)
    return EVENT_TYPES[fields.pop("type")](**fields)

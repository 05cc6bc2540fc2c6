"""`check_constraint`: what a constraint accepts, tried on samples with no model and no tokenizer but bytes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lmnb.errors import ArgumentError, GrammarError
from lmnb.language import arguments
from lmnb.language.primitives import checked_choices
from lmnb.language.shapes import ShapeArguments
from lmnb.runtime.argument_checks import shown, shown_path
from lmnb.runtime.compile_pool import processor_seconds
from lmnb.runtime.constraint_size import too_large, too_slow
from lmnb.runtime.gbnf import is_gbnf
from lmnb.runtime.lark_notes import lark_notes
from lmnb.runtime.lark_text import uncounted
from lmnb.runtime.recovery import accepts
from lmnb.runtime.request import Constraint

if TYPE_CHECKING:
    from lmnb.runtime.grammar import Grammars
    from lmnb.runtime.grammar_protocol import GrammarMatcher

_SHOWN = 60
_SAMPLES_SECONDS = 5.0  # of the processor's time, for all of a call's samples
_HALF = re.compile("[\ud800-\udfff]")
_UNCOUNTED = (
    "samples are tried without max_tokens=, as it depends on the model of how many tokens a text is; a part that "
    "reaches it while it is generated ends there, complete or not"
)
_NO_TIME_LEFT = (
    f"the {_SAMPLES_SECONDS:g} s that one call takes for its samples are over; try this one by itself, or a shorter one"
)


@dataclass(frozen=True)
class SampleReport:
    """One sample. `position`: the first character that may not stand there; the text's length if it ended too early.
    `error`: what generating fails with there, as the constraint is too much to follow, whatever the text; or that no
    time was left to follow the text any further."""

    text: str
    accepted: bool
    position: int | None = None
    error: str | None = None

    def __str__(self) -> str:
        if self.accepted:
            return f"accepted  {self.text[:_SHOWN]!r}"
        assert self.position is not None
        if self.error is not None:
            return f"failed    {self.text[:_SHOWN]!r}: at position {self.position}, {self.error}"
        if self.position >= len(self.text):
            return f"rejected  {self.text[:_SHOWN]!r}: it ends too early"
        return f"rejected  {self.text[:_SHOWN]!r}: at position {self.position}, {self.text[self.position]!r}"


@dataclass(frozen=True)
class ConstraintReport:
    """What enforces a constraint, or why it is refused (`error`), and what became of each sample.

    `engine`: the grammar library, None if it is refused. `forced`: what the text must begin with. `notes`: what a
    reader of the constraint may not expect.
    """

    constraint: Constraint | None
    engine: str | None
    error: str | None
    forced: str
    samples: tuple[SampleReport, ...]
    notes: tuple[str, ...] = ()

    @property
    def accepted(self) -> list[bool]:
        """For each sample, whether it was accepted."""
        return [sample.accepted for sample in self.samples]

    def __str__(self) -> str:
        if self.error is not None:
            return f"refused: {self.error}"
        lines = [f"enforced by {self.engine}" + (f"; begins with {self.forced[:_SHOWN]!r}" if self.forced else "")]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes), *map(str, self.samples)])

    __repr__ = __str__


def check_constraint(
    constraint: Any = None,
    samples: Iterable[Any] = (),
    *,
    regex: str | None = None,
    json_schema: Any = None,
    ebnf: str | None = None,
    dtype: Any = None,
    tools: Any = None,
    choices: Any = None,
    json_style: str = "compact",
    grammar_backend: str = "auto",
) -> ConstraintReport:
    """Try a constraint without any model: is it enforced, by what, and which of `samples` does it accept?

    `constraint` is a JSON schema (a dict, a type, or text that begins with `{`) or else a regex; the keywords, which
    are `gen`'s, say it in so many words. A sample that is not text is written as compact JSON. Samples have some
    seconds in all. ArgumentError for `samples` that are no list.
    """
    if isinstance(constraint, str) and not constraint.lstrip().startswith("{"):
        regex = constraint
    elif isinstance(constraint, list | tuple) and constraint and all(isinstance(item, str) for item in constraint):
        raise ArgumentError(
            f"constraint must be a JSON schema or a regex, not {shown(constraint)}; one of several texts is "
            f"choices={shown(constraint)}"
        )
    elif constraint is not None:
        json_schema = constraint
    texts = [sample if isinstance(sample, str) else _compact(sample) for sample in _listed(samples)]
    try:
        wanted = ShapeArguments(
            dtype=dtype,
            regex=regex,
            json_schema=json_schema,
            ebnf=ebnf,
            tools=tools,
            json_style=json_style,
            grammar_backend=grammar_backend,
        )
        if choices is not None:
            wanted.refuse_beside("choices")
            return _report(Constraint.of_choices(checked_choices(choices)), texts, ())
        shape = wanted.shape()
        if shape is None:
            raise GrammarError("there is nothing to check; give a JSON schema or a regex")
        return _report(shape.constraint, texts, shape.notes)
    except GrammarError as error:
        refused = tuple(SampleReport(text, accepted=False, position=0) for text in texts)
        return ConstraintReport(None, None, str(error), "", refused)


def _report(constraint: Constraint, texts: list[str], unenforced: tuple[str, ...]) -> ConstraintReport:
    grammars, end = _bytes_grammars()
    matcher = grammars.compile(constraint)
    forced = matcher.forced().decode("utf-8", "ignore")
    uncounted = _uncounted(constraint)
    until = processor_seconds() + _SAMPLES_SECONDS
    reports = [_tried(grammars.compile(uncounted), constraint, text, end, until) for text in texts]
    places = grammars.open_places(constraint) if constraint.kind == "json_schema" else ()
    notes = (*_notes(places, unenforced), *(lark_notes(constraint.source) if _is_lark(constraint) else ()))
    if uncounted is not constraint:
        notes = (*notes, _UNCOUNTED)
    return ConstraintReport(constraint, matcher.engine, None, forced, tuple(reports), notes)


def _tried(matcher: GrammarMatcher, constraint: Constraint, text: str, end: int, until: float) -> SampleReport:
    """`matcher`: a fresh one, of which nothing is left. `constraint`: what an error speaks of. `until`: when the
    `processor_seconds` for it are over."""
    half = _HALF.search(text)  # of a character: no model can write one
    whole = text if half is None else text[: half.start()]
    data = whole.encode()
    at, error = _walked(matcher, constraint, data, until)
    if at is not None:
        position = len(data[:at].decode("utf-8", "ignore"))
        return SampleReport(text, accepted=False, position=position, error=error)
    if half is None and accepts(matcher, end):
        return SampleReport(text, accepted=True)
    try:
        matcher.forced()  # as is done where text is generated
    except GrammarError as too_much:
        error = str(too_much)
    return SampleReport(text, accepted=False, position=len(whole), error=error)


def _walked(
    matcher: GrammarMatcher, constraint: Constraint, data: bytes, until: float
) -> tuple[int | None, str | None]:
    """The first byte at which it cannot go on, if there is one; and why, if that is not the byte's fault."""
    began = time.thread_time()
    for at, byte in enumerate(data):
        if processor_seconds() > until:
            return at, _NO_TIME_LEFT
        if not accepts(matcher, byte):
            return at, str(too_large(constraint)) if matcher.is_beyond_limits() else None
        slow = too_slow(time.thread_time() - began, at + 1)
        if slow is not None:
            return at, str(slow)
    return (len(data), _NO_TIME_LEFT) if processor_seconds() > until else (None, None)


def _uncounted(constraint: Constraint) -> Constraint:
    """The constraint without its limits on numbers of tokens; itself if it has none."""
    source = uncounted(constraint.source) if _is_lark(constraint) else constraint.source
    return constraint if source == constraint.source else replace(constraint, source=source)


def _is_lark(constraint: Constraint) -> bool:
    return constraint.kind == "ebnf" and not is_gbnf(constraint.source)


@lru_cache(maxsize=1)
def _bytes_grammars() -> tuple[Grammars, int]:
    """For a vocabulary of bytes, and its end token."""
    from lmnb.runtime.grammar import Grammars  # loads the grammar libraries
    from lmnb.runtime.testing import ByteTokenizer

    tokenizer = ByteTokenizer()
    return Grammars(tokenizer, tokenizer.vocab_size), min(tokenizer.eos_ids)


def _notes(places: Sequence[str], unenforced: tuple[str, ...]) -> tuple[str, ...]:
    notes = tuple(f"only s.parsed checks, at {what}" for what in unenforced)
    if not places:
        return notes
    where = ", ".join(shown_path(place) for place in places[:3]) + (", ..." if len(places) > 3 else "")
    return (
        *notes,
        f"objects may have further properties beside those at {where}; where several schemas speak about one object, "
        "say unevaluatedProperties: false beside them, and else additionalProperties: false",
    )


def _listed(samples: Any) -> tuple[Any, ...]:
    if isinstance(samples, Mapping):
        raise ArgumentError("samples must be a list of samples; put this one into one: samples=[{...}]")
    return arguments.listed("samples", samples, "a list of samples")


def _compact(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"a sample is text or plain JSON data, not {shown(value)}: {error}") from None

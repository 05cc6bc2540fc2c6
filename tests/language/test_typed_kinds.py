"""Every kind of type that `json_schema=` takes: whatever its grammar lets a model write is a value of the type."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import pathlib
import random
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import numpy as np
import pydantic
import pytest
from pydantic import Field

from lmnb.errors import ArgumentError
from lmnb.language.check import check_constraint
from lmnb.language.shapes import ShapeArguments
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.testing import ByteTokenizer

TOKENIZER = ByteTokenizer()
GRAMMARS = Grammars(TOKENIZER, TOKENIZER.vocab_size)
T = TypeVar("T")
Tokens = NewType("Tokens", int)


class Colour(enum.Enum):
    RED = "red"
    GREEN = 2


class Point(NamedTuple):
    x: int
    label: str = "x"


@dataclasses.dataclass
class Box(Generic[T]):
    content: T


@dataclasses.dataclass
class Node:
    value: Annotated[int, Field(ge=0, le=9)]
    kind: Literal["leaf", "tree", 1, True, None] = "leaf"
    when: dt.date | None = None
    below: list[Node] = dataclasses.field(default_factory=list)
    made: int = dataclasses.field(init=False, default=3)


class Options(TypedDict, total=False):
    depth: Annotated[int, Field(multiple_of=5, ge=0, le=50)]
    colour: Colour


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    kind: Literal["dog"]
    name: Annotated[str, Field(pattern="^[A-Z][a-z]{1,5}$")]


class Owner(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    full_name: str = Field(alias="Full Name", max_length=9)
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    tags: set[Literal["a", "b", "c"]] = set()
    codes: frozenset[int] = frozenset()
    share: Annotated[float, Field(gt=0, lt=2.75)] = 1
    price: Annotated[decimal.Decimal, Field(ge=0, max_digits=5, decimal_places=2)] = decimal.Decimal(0)
    secret: pydantic.SecretStr | None = None
    born: dt.date | None = None
    others: list[Owner] = Field([], max_length=1)


class Pair(pydantic.BaseModel, Generic[T]):
    first: T
    second: T | None = None


class Numbers(pydantic.RootModel[list[Annotated[int, Field(ge=1, le=3)]]]):
    pass


KINDS: list[tuple[Any, str, Any]] = [
    (Node, '{"value":3,"kind":1,"below":[{"value":0}]}', Node(3, 1, None, [Node(0)])),
    (Options, '{"depth":15,"colour":"red"}', {"depth": 15, "colour": Colour.RED}),
    (Point, '[1,"y"]', Point(1, "y")),
    (Box[int], '{"content":3}', Box(3)),
    (Box[list[Colour]], '{"content":[2,"red"]}', Box([Colour.GREEN, Colour.RED])),
    (Owner, '{"Full Name":"A","pet":{"kind":"cat","lives":9},"tags":["b","a"]}',
     Owner(full_name="A", pet=Cat(kind="cat", lives=9), tags={"a", "b"})),
    (Pair[Colour], '{"first":"red","second":null}', Pair[Colour](first=Colour.RED)),
    (Numbers, "[1,3]", Numbers([1, 3])),
    (Annotated[Cat | Dog, Field(discriminator="kind")], '{"kind":"dog","name":"Rex"}', Dog(kind="dog", name="Rex")),
    (set[Colour], '["red",2]', set(Colour)),
    (set[int], "[1,2,1]", {1, 2}),
    (frozenset[bool], "[true]", frozenset([True])),
    (dict[Literal["x", "y"], int], '{"y":1}', {"y": 1}),
    (dict[str, bool], '{"y":true}', {"y": True}),
    (dict[dt.date, int], '{"2024-02-29":1}', {dt.date(2024, 2, 29): 1}),
    (Sequence[int], "[1]", [1]),
    (Mapping[str, int], '{"a":1}', {"a": 1}),
    (tuple[()], "[]", ()),
    (tuple[int, str], '[1,"a"]', (1, "a")),
    (tuple[int, ...], "[1,2]", (1, 2)),
    (Tokens, "5", 5),
    (decimal.Decimal, "2.50", decimal.Decimal("2.5")),
    (dt.time, '"10:00:00Z"', dt.time(10, tzinfo=dt.timezone.utc)),
    (dt.timedelta, '"PT5M"', dt.timedelta(minutes=5)),
    (uuid.UUID, '"2eb8aa08-aa98-11ea-b4aa-73b441d16380"', uuid.UUID("2eb8aa08-aa98-11ea-b4aa-73b441d16380")),
    (pathlib.Path, '"a/b"', pathlib.Path("a/b")),
    (object, '{"a":[1]}', {"a": [1]}),
    (int | Literal["none"] | None, '"none"', "none"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "value"), KINDS, ids=[f"{kind!s:.40} {text}" for kind, text, _ in KINDS])
def test_types_are_enforced_and_read(kind: Any, text: str, value: Any) -> None:
    shape = ShapeArguments(json_schema=kind).shape()
    assert shape is not None
    assert shape.read is not None
    report = check_constraint(json_schema=kind, samples=[text, "nonsense"])
    assert report.error is None, report
    assert report.accepted == [True, False], report
    assert shape.read(text) == value
    matcher = GRAMMARS.compile(shape.constraint)
    for seed in range(12):
        written = _random_text(matcher.fork(), random.Random(seed))
        if written is not None:
            shape.read(written)


def _random_text(matcher: Any, rng: random.Random) -> str | None:
    """A random walk that likes to close things; None if it does not end soon."""
    mask = np.zeros(-(-TOKENIZER.vocab_size // 32), dtype=np.int32)
    out = bytearray()
    while len(out) < 400 and matcher.fill(mask):
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        ends = [token for token in allowed if token in TOKENIZER.eos_ids]
        if ends and rng.random() < 0.5:
            return out.decode()
        closing = [token for token in allowed if token < 256 and chr(token) in '"]}']
        plain = [token for token in allowed if 32 < token < 127 and chr(token) not in "\\eE"] or allowed
        if not set(allowed) - set(ends):
            return out.decode()
        token = rng.choice(closing if closing and rng.random() < 0.5 else plain)
        assert matcher.accept(token)
        out.append(token)
    return None


class Empty(enum.Enum):
    pass


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Box, "T has no JSON schema"),
        (dict[tuple[int], int], "keys that are no texts and no numbers"),
        (bytearray, "bytearray"),
        (type, "type"),
        (Empty, "at least one value"),
        (Annotated[dict[str, int], Field(min_length=2)], "'minProperties' at #"),
        (Annotated[set[int], Field(min_length=2)], "'uniqueItems' at #"),
    ],
    ids=str,
)
def test_types_that_have_no_grammar_say_so(kind: Any, message: str) -> None:
    try:
        error = check_constraint(json_schema=kind).error
    except ArgumentError as raised:
        error = str(raised)
    assert error is not None
    assert re.search(message, error)
    assert "\n" not in error


def test_two_sets_of_one_item_are_one() -> None:
    """A set's items are written once where all of its sets can be listed, and else may be repeated."""
    report = check_constraint(json_schema=set[Colour], samples=['["red","red"]', '["red",2]', "[]"])
    assert report.accepted == [False, True, True]
    assert json.loads(report.constraint.source if report.constraint else "")["uniqueItems"] is True

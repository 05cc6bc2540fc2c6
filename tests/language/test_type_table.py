"""A table of types: what their grammars let a model write is a value of the type, or `check_constraint` says what only
reading the value checks. The texts are random walks through the grammars."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import ipaddress
import pathlib
import random
import re
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, NewType

import annotated_types as at
import pydantic
import pytest
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    conset,
    field_validator,
    model_validator,
)
from text_walks import GRAMMARS, random_text
from typing_extensions import NotRequired, Required, TypeAliasType, TypedDict

from lmnb import ArgumentError
from lmnb.language.check import check_constraint
from lmnb.language.shapes import ShapeArguments
from lmnb.language.tools import describe_tools

WALKS = 25


class Colour(enum.Enum):
    RED = "red"
    GREEN = 2


class Word(str, enum.Enum):
    A = "a"
    B = "b"


class Whole(enum.IntEnum):
    ONE = 1
    TWO = 2


class Part(enum.Enum):
    HALF = 0.5
    ALL = 1.0


class Bits(enum.Flag):
    LOW = 1
    HIGH = 2


class Pairs(enum.Enum):
    A = (1, 2)


Age = NewType("Age", int)


class Point(NamedTuple):
    x: int
    y: float = 1.0


class Draft(TypedDict, total=False):
    a: Required[int]
    b: NotRequired[Annotated[str, Field(max_length=3)]]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Named(BaseModel):
    a: int = Field(alias="A b")
    b: int = Field(validation_alias=AliasChoices("x", "y"))
    c: int = Field(1, serialization_alias="q")


class Inside(BaseModel):
    a: int = Field(validation_alias=AliasPath("x", 0))


def is_odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("even")
    return value


class Odd(BaseModel):
    a: int
    check = field_validator("a")(is_odd)


class Ordered(BaseModel):
    a: int
    b: int

    @model_validator(mode="after")
    def check(self) -> Ordered:
        if self.a > self.b:
            raise ValueError("b is less")
        return self


@dataclasses.dataclass
class Start:
    a: int
    seed: dataclasses.InitVar[int]
    made: int = dataclasses.field(init=False, default=2)

    def __post_init__(self, seed: int) -> None:
        self.made = seed


@dataclasses.dataclass
class Big:
    a: int

    def __post_init__(self) -> None:
        if self.a < 3:
            raise ValueError("too small")


@pydantic.dataclasses.dataclass
class Kept:
    a: int
    made: int = Field(init=False, default=2)
    b: int = dataclasses.field(default=3, kw_only=True)


class Few(BaseModel):
    x: int


class More(BaseModel):
    x: int
    y: int = 1


def model(config: Any = None, **fields: Any) -> Any:
    return pydantic.create_model("M", __config__=config, **{name: (kind, ...) for name, kind in fields.items()})


def text(**limits: Any) -> Any:
    return Annotated[str, Field(**limits)]


def number(kind: Any, **limits: Any) -> Any:
    return Annotated[kind, Field(**limits)]


Money = decimal.Decimal
ENFORCED: dict[str, Any] = {
    "keys: int": dict[int, int],
    "keys: int within bounds": dict[number(int, ge=3, le=12), int],
    "keys: float": dict[float, int],
    "keys: bool": dict[bool, int],
    "keys: enum": dict[Word, int],
    "keys: enum of several kinds": dict[Colour, int],
    "keys: Literal": dict[Literal["x", 1], int],
    "keys: date": dict[dt.date, int],
    "keys: time": dict[dt.time, int],
    "keys: datetime": dict[dt.datetime, int],
    "keys: timedelta": dict[dt.timedelta, int],
    "keys: uuid": dict[uuid.UUID, int],
    "keys: Decimal": dict[Money, int],
    "keys: address": dict[ipaddress.IPv4Address, int],
    "keys: bytes": dict[bytes, int],
    "keys: complex": dict[complex, int],
    "keys: union": dict[int | str, int],
    "keys: path": dict[pathlib.Path, int],
    "keys: pattern": dict[text(pattern="^[a-c]{1,3}$"), int],
    "keys: length": dict[text(min_length=2, max_length=3), int],
    "keys: NewType": dict[Age, int],
    "keys: in a model": model(d=dict[int, str]),
    "keys: deeper": list[dict[int, list[dict[Word, Money]]]],
    "keys: few": Annotated[dict[int, int], Field(max_length=1)],
    "keys: counted": collections.Counter[str],
    "ordered": collections.OrderedDict[int, int],
    "root": pydantic.RootModel[dict[int, int]],
    "deque": collections.deque[int],
    "short deque": Annotated[collections.deque[int], Field(min_length=1, max_length=2)],
    "short sequence": Annotated[Sequence[int], Field(min_length=1, max_length=2)],
    "complex": complex,
    "complex in a model": model(a=complex),
    "fraction": fractions.Fraction,
    "timedelta": dt.timedelta,
    "bytes": bytes,
    "few bytes": Annotated[bytes, Field(min_length=2, max_length=3)],
    "bytes in base64": model(ConfigDict(val_json_bytes="base64"), a=bytes),
    "bytes in hexadecimal": model(ConfigDict(val_json_bytes="hex"), a=bytes),
    "Base64Bytes": pydantic.Base64Bytes,
    "Base64Str": pydantic.Base64Str,
    "Base64UrlBytes": pydantic.Base64UrlBytes,
    "Base64UrlStr": pydantic.Base64UrlStr,
    "Decimal": Money,
    "Decimal of digits": number(Money, max_digits=3),
    "Decimal of places": number(Money, decimal_places=2),
    "Decimal of both": number(Money, max_digits=5, decimal_places=2),
    "Decimal below one": number(Money, max_digits=2, decimal_places=2),
    "Decimal multiple": number(Money, multiple_of=Money("0.25")),
    "Decimal within bounds": number(Money, ge=Money("0.1"), lt=3),
    "Decimal, finite": number(Money, allow_inf_nan=False),
    "date": dt.date,
    "datetime": dt.datetime,
    "time": dt.time,
    "dates in a model": model(a=dt.date, b=dt.datetime, c=dt.time),
    "AwareDatetime": pydantic.AwareDatetime,
    "NaiveDatetime": pydantic.NaiveDatetime,
    "UUID": uuid.UUID,
    "UUID1": pydantic.UUID1,
    "UUID3": pydantic.UUID3,
    "UUID4": pydantic.UUID4,
    "UUID5": pydantic.UUID5,
    "UUID4 in a model": model(a=pydantic.UUID4),
    "IPv4Address": ipaddress.IPv4Address,
    "IPv6Address": ipaddress.IPv6Address,
    "IPv4Network": ipaddress.IPv4Network,
    "IPv6Network": ipaddress.IPv6Network,
    "IPv4Interface": ipaddress.IPv4Interface,
    "IPv6Interface": ipaddress.IPv6Interface,
    "IPvAnyAddress": pydantic.IPvAnyAddress,
    "IPvAnyNetwork": pydantic.IPvAnyNetwork,
    "IPvAnyInterface": pydantic.IPvAnyInterface,
    **{
        name: getattr(pydantic, name)
        for name in (
            *("AnyUrl", "AnyHttpUrl", "HttpUrl", "FileUrl", "FtpUrl", "WebsocketUrl", "PostgresDsn", "RedisDsn"),
            *("MongoDsn", "KafkaDsn", "AmqpDsn", "MySQLDsn", "NatsDsn", "ClickHouseDsn", "SnowflakeDsn"),
        )
    },
    "short url": Annotated[pydantic.AnyUrl, pydantic.UrlConstraints(allowed_schemes=["foo"], max_length=20)],
    "url in a model": model(a=pydantic.HttpUrl),
    "SecretStr": pydantic.SecretStr,
    "long SecretStr": Annotated[pydantic.SecretStr, Field(min_length=2)],
    "Secret": pydantic.Secret[dt.date],
    "Path": pathlib.Path,
    "stripped": Annotated[str, StringConstraints(strip_whitespace=True, min_length=2)],
    "stripped by a pattern": Annotated[str, StringConstraints(strip_whitespace=True, pattern="^ ?[a-z]{2,4} ?$")],
    "stripped by the model": model(ConfigDict(str_strip_whitespace=True, str_min_length=2), a=str),
    "lower": Annotated[str, StringConstraints(to_lower=True, pattern="^[A-Z]+$")],
    **{
        f"pattern {pattern}": text(pattern=pattern)
        for pattern in (
            *(r"^\D{1,3}$", r"^\W{1,3}$", r"^\S+$", r"^[^\w]{1,3}$", r"^[\W\d]{2}$", r"^[^\s]{2}$", r"\d", r"^.{1,3}$"),
            *(r"(?i)^k[^a]$", r"^.?a$", r"(?s)^a.b$", r"\Aab\z", r"^[]a]{2}$", r"^[^]\d]$", r"^\[\W\]$"),
            *(r"^\s{2}$", r"^[\sa]{2}$", r"^x{ 1 , 2 }$", r"^\pL\x{41}\U0001f600\a$", r"^(?P<n.o>a)$", r"^[-]a-]{3}$"),
            *(r"^[--a]{2}$", r"^[a&|~\[]{4}$", r"(?i)^[^k][^é][ck]$", r"^\p{Nd}[^\p{L}a&]$", r"^[]-a]{2}$"),
            r"^[^\S]x$",
        )
    },
    **{
        f"Python's pattern {pattern}": text(pattern=re.compile(pattern))
        for pattern in (r"^[a\&\&b]{4}$", r"^[\[\[a]{2}$", r"^x{,2}$", r"^\a\U0001f600$", r"^[^\s]{2}$", r"^\s[ -\-]$")
    },
    "Python's pattern by the model": model(
        ConfigDict(regex_engine="python-re"), a=Annotated[str, Field(pattern=r"^[\W|a]x{,2}\<$")]
    ),
    "pattern with flags": text(pattern=re.compile("^[^a-c]x$", re.IGNORECASE)),
    "multiple of 7": number(int, multiple_of=7),
    "multiple of 0.1": number(float, multiple_of=0.1),
    "multiple of 3.0": number(float, multiple_of=3),
    "multiple of a thousandth": number(float, multiple_of=1e-3, gt=0, lt=1),
    "conset": conset(int, max_length=3),
    "conset of two": conset(bool, min_length=2),
    "frozenset": frozenset[Literal["a", "b"]],
    "frozenset of two": Annotated[frozenset[Literal["a", "b", "c"]], Field(min_length=2)],
    "set of enum": set[Whole],
    "Literal": Literal["a", 1, True, None],
    "Literal of enum": Literal[Colour.RED, Colour.GREEN],
    "Literal of words": Literal[Word.A],
    "IntEnum": Whole,
    "enum of floats": Part,
    "Flag": Bits,
    "enums in a model": model(a=Colour, b=Whole, c=Part, d=Literal[Word.A]),
    "NewType": Age,
    "TypedDict": Draft,
    "TypedDict in a model": model(a=Draft),
    "NamedTuple": Point,
    "NamedTuple in a model": model(a=Point),
    "discriminated": Annotated[Cat | Dog, Field(discriminator="kind")] | None,
    "aliases": Named,
    "float": float,
    "float within bounds": number(float, ge=0, lt=2.5, allow_inf_nan=False),
    "int": int,
    "bounds around a union": Annotated[int | None, Field(ge=3)],
    "strict": model(ConfigDict(strict=True), a=int, b=dt.date, c=Colour, d=set[int], e=Money, f=uuid.UUID, g=bytes),
    "extra": model(ConfigDict(extra="forbid"), a=int),
    "pydantic dataclass": Kept,
    "alias of a type": TypeAliasType("alias", dict[int, str]),
    "anything": pydantic.JsonValue,
    "bare containers": model(a=list, b=dict, c=tuple),
}  # fmt: skip


def shape_of(kind: Any) -> Any:
    shape = ShapeArguments(json_schema=kind).shape()
    assert shape is not None
    return shape


def texts_of(shape: Any) -> list[str]:
    matcher = GRAMMARS.compile(shape.constraint)
    walks = (random_text(matcher.fork(), random.Random(seed)) for seed in range(WALKS))
    return [written for written in walks if written is not None]


@pytest.mark.parametrize("name", ENFORCED)
def test_what_a_grammar_lets_through_is_a_value_of_its_type(name: str) -> None:
    shape = shape_of(ENFORCED[name])
    assert shape.notes == ()
    assert '"x-' not in shape.constraint.source
    written = texts_of(shape)
    assert len(written) > WALKS // 3
    for each in written:
        shape.read(each)


def which(value: Any) -> str:
    return "few" if isinstance(value, dict) and value.get("x", 0) > 5 else "more"


NOTED: dict[str, tuple[Any, str]] = {
    "Json": (pydantic.Json[int], "at #: that the text is JSON"),
    "Json in a model": (model(a=pydantic.Json), "at #/properties/a: that the text is JSON"),
    "bound of a timedelta": (number(dt.timedelta, ge=dt.timedelta(hours=1)), "at #: ge=1:00:00"),
    "bound of a date": (model(a=number(dt.date, lt=dt.date(2020, 1, 1))), "at #/properties/a: lt=2020-01-01"),
    "PastDate": (pydantic.PastDate, "at #: that it lies in the past"),
    "FutureDatetime": (pydantic.FutureDatetime, "at #: that it lies in the future"),
    "finite": (pydantic.FiniteFloat, "at #: allow_inf_nan=False"),
    "finite, by the model": (model(ConfigDict(allow_inf_nan=False), a=float), "at #/properties/a: allow_inf_nan=False"),
    "AfterValidator": (Annotated[int, pydantic.AfterValidator(is_odd)], "at #: the validator is_odd"),
    "BeforeValidator": (Annotated[int, pydantic.BeforeValidator(is_odd)], "at #: the validator is_odd"),
    "PlainValidator": (Annotated[int, pydantic.PlainValidator(is_odd)], "at #: the validator is_odd"),
    "Predicate": (list[Annotated[int, at.Predicate(is_odd)]], "at #/items: a Predicate"),
    "field_validator": (list[Odd], "at #/$defs/Odd/properties/a: the validator is_odd"),
    "model_validator": (Ordered, "at #: the validator Ordered.check"),
    "keys": (dict[Annotated[str, pydantic.AfterValidator(str)], int], "at #: the validator str (of keys)"),
    "bounds of keys": (dict[number(float, ge=3), int], "at #: minimum of keys"),
    "limits of a union": (Annotated[str | list[int], at.MinLen(2)], "at #: min_length=2"),
    "dataclass": (Start, "at #/$defs/Start: Start.__post_init__"),
    "dataclass that checks": (list[Big], "at #/$defs/Big: Big.__post_init__"),
    "function that tells apart": (
        Annotated[Annotated[Few, Tag("few")] | Annotated[More, Tag("more")], Discriminator(which)],
        "at #: which of the alternatives which takes",
    ),
    "set of anything": (set[Any], "at #: that items can be in a set"),
    "ByteSize": (pydantic.ByteSize, "at #: the validator ByteSize._validate"),
    "NewPath": (pydantic.NewPath, "validate_new"),
    "ImportString": (pydantic.ImportString, "import_string"),
}


@pytest.mark.parametrize("name", NOTED)
def test_what_only_reading_checks_is_noted_with_its_place(name: str) -> None:
    kind, note = NOTED[name]
    report = check_constraint(json_schema=kind)
    assert any(f"only s.parsed checks, {note}" in found or note in found for found in report.notes), report
    assert "note: only s.parsed checks, at #" in str(report)
    shape = shape_of(kind)
    assert "x-unenforced" not in shape.constraint.source
    assert texts_of(shape)


REFUSED: dict[str, tuple[Any, str]] = {
    "alias path": (Inside, "a is read from inside of other values"),
    "set of lists": (set[list[int]], "a set cannot hold lists"),
    "set of models": (set[Few], "a set cannot hold"),
    "set of many": (conset(int, min_length=2), "'uniqueItems' at #"),
    "enum of pairs": (Pairs, r"Pairs.A has the value \(1, 2\)"),
    "enum of pairs in a model": (model(a=Pairs), r"Pairs.A has the value \(1, 2\)"),
    "Literal of a member": (model(a=Literal[Colour.GREEN]), "cannot be read from JSON"),
    "Literal of bytes": (Literal[b"x"], "Literal.b'x'. has no JSON form"),
    "keys: numbers of Literal": (dict[Literal[1], int], "none of a dict's keys is text"),
    "keys: tuples": (dict[tuple[int, int], int], "use a list of pairs"),
    "class": (type[int], "JSON has no form for classes"),
    "existing file": (pydantic.FilePath, "'file-path'"),
    "regex": (re.Pattern, "'regex'"),
    **{
        f"Rust's {pattern}": (text(pattern=pattern), message)
        for pattern, message in (
            ("^[a&&b]$", "'&&' within a class .position 3."),
            ("^[a~~b]$", "'~~' within a class .position 3."),
            ("^[a--b]$", "'--' within a class .position 3."),
            ("^[b[a]]$", r"'\[' within a class .position 3."),
            ("^[[:alpha:]]$", r"'\[' within a class .position 2."),
            (r"^\<a$", "edge of a word"),
            (r"^\p{greek}$", "no property of that name"),
            ("a(?i)b", r"\(\?i\).*no such thing"),
        )
    },
    "word boundary": (text(pattern=r"\bx"), "word boundaries"),
    "bound that is none": (number(int, gt=1.5), "has no JSON schema"),
    "own class": (random.Random, "has no JSON schema"),
    "range": (range, "has no JSON schema"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_never_be_read_is_refused_by_name(name: str) -> None:
    kind, message = REFUSED[name]
    try:
        error = check_constraint(json_schema=kind).error
    except ArgumentError as raised:
        error = str(raised)
    assert error is not None
    assert re.search(message, error), error
    assert "\n" not in error


def send(to: Annotated[str, pydantic.AfterValidator(str.strip)], tags: dict[int, complex]) -> None:
    """Send."""


def test_tools_have_notes_that_models_are_not_told() -> None:
    report = check_constraint(tools=[send], samples=['{"name":"send","arguments":{"to":"x","tags":{"a":"1"}}}'])
    assert report.accepted == [False]
    assert report.notes == ("only s.parsed checks, at #/properties/arguments/properties/to: the validator str.strip",)
    assert "unenforced" not in describe_tools([send])

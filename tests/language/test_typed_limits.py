"""Limits that `Annotated[...]` gives to types: enforced wherever the type stands, or refused by name."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import Annotated, Any, Callable, Literal, NotRequired, TypedDict  # noqa: UP035  # pydantic's Callable

import annotated_types as at
import pytest
from pydantic import BaseModel, Field, PositiveInt, StringConstraints, conint

import lmnb
from lmnb import ArgumentError, GenerationError, check_constraint, gen
from lmnb.backends.testing import ScriptedBackend
from lmnb.language.tools import describe_tools
from lmnb.language.typed import schema_of, value_of

Few = Annotated[int, Field(ge=3, le=4)]


@dataclasses.dataclass
class Room:
    beds: Few


@dataclasses.dataclass
class Cabin:
    beds: int = Field(ge=3, le=4)


class Tent(TypedDict):
    beds: NotRequired[Few]


class Stay(BaseModel):
    first: dt.date


class Form(BaseModel):
    """Has fields and values that read like keywords of a schema."""

    type: Literal["integer"] = "integer"
    pattern: str = "x"
    like: dict[str, int | str] = {"type": "integer", "minLength": 3}


CASES: dict[str, tuple[Any, Any, Any]] = {
    "field": (Few, 3, 5),
    "dataclass": (Room, {"beds": 4}, {"beds": 5}),
    "field as default": (Cabin, {"beds": 4}, {"beds": 5}),
    "typed dict": (Tent, {"beds": 4}, {"beds": 5}),
    "positive": (PositiveInt, 1, 0),
    "conint": (conint(ge=3), 3, -3),
    "list": (list[Few], [3, 4], [3, 5]),
    "length of a list": (Annotated[list[Room], at.Len(1, 1)], [{"beds": 3}], []),
    "inside such a list": (Annotated[list[Room], at.Len(1, 1)], [{"beds": 3}], [{"beds": 5}]),
    "tuple": (tuple[str, Few], ["x", 3], ["x", 5]),
    "dict": (dict[str, Few], {"x": 3}, {"x": 5}),
    "union": (Few | None, None, 5),
    "annotated_types": (Annotated[int, at.Interval(ge=3, lt=5)], 4, 5),
    "multiple": (Annotated[int, at.MultipleOf(3)], 6, 7),
    "text": (Annotated[str, StringConstraints(pattern="^(?:red|blue)$")], "red", "redx"),
    "with a note": (Annotated[Few, "how many"], 3, 5),
    "date": (dt.date, "0001-01-01", "0000-01-01"),
    "time": (dt.datetime, "2024-02-29T10:00:00Z", "0000-02-29T10:00:00Z"),
    "model's date": (Stay, {"first": "2024-02-29"}, {"first": "0000-02-29"}),
    "keywords as names": (Form, {"type": "integer", "pattern": "a"}, {"type": "string"}),
    "date in a list": (list[Annotated[dt.date, Field(description="day")]], ["2024-02-29"], ["0000-02-29"]),
}


@pytest.mark.parametrize("case", CASES)
def test_limits_are_enforced_wherever_a_type_stands(case: str) -> None:
    kind, good, bad = CASES[case]
    report = check_constraint(kind, samples=[json.dumps(value, separators=(",", ":")) for value in (good, bad)])
    assert report.accepted == [True, False], report
    value_of(kind, json.dumps(good))
    with pytest.raises((ValueError, TypeError)):
        value_of(kind, json.dumps(bad))


def test_values_have_their_own_types() -> None:
    assert value_of(Annotated[list[Room], at.Len(1)], '[{"beds":3}]') == [Room(3)]
    assert value_of(Cabin, '{"beds":4}') == Cabin(4)
    assert value_of(list[Stay], '[{"first":"2024-02-29"}]') == [Stay(first=dt.date(2024, 2, 29))]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Annotated[int, object()], "object object"),
        (list[Annotated[int, 3]], "3 in Annotated"),
        (Annotated[dt.datetime, at.Timezone(None)], "Timezone"),
        (Annotated[int, Field(min_length=3)], "minLength says nothing of a JSON integer"),
        (Annotated[Callable[[], int], Field(description="a function")], "no JSON schema"),  # type: ignore[operator]
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(kind: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        gen("x", json_schema=kind)


def test_a_model_without_a_schema_is_refused() -> None:
    class Odd(BaseModel):
        work: Callable[[], int]

    with pytest.raises(ArgumentError, match="Odd has no JSON schema"):
        gen("x", json_schema=Odd)


@pytest.mark.parametrize(
    ("pattern", "reason"), [(r"^(?=.*\d)\w+$", "look-around, .* is not supported"), ("^(a", "unclosed group")]
)
def test_a_pattern_that_pydantic_refuses_is_so_with_its_reason(pattern: str, reason: str) -> None:
    guest = dataclasses.make_dataclass("Guest", [("code", Annotated[str, Field(pattern=pattern)])])
    with pytest.raises(ArgumentError, match=f"has no JSON schema: .*{reason}$") as refusal:
        gen("x", dtype=guest)
    assert "\n" not in str(refusal.value)


def test_types_of_one_name_stay_apart() -> None:
    def point(kind: Any) -> Any:
        return dataclasses.make_dataclass("Point", [("x", kind)])

    one, other = point(Literal[1]), point(Literal[2])
    good, bad = '[{"x":1},{"x":2}]', '[{"x":2},{"x":2}]'
    assert check_constraint(tuple[one, other], samples=[good, bad]).accepted == [True, False]
    assert len(schema_of(tuple[one, other, one])["$defs"]) == 2

    def first(at: one) -> None: ...  # type: ignore[valid-type]
    def second(at: other, more: list[Stay]) -> None: ...  # type: ignore[valid-type]

    first.__annotations__["at"], second.__annotations__["at"] = one, other
    calls = [{"name": name, "arguments": {"at": {"x": x}}} for name in ("first", "second") for x in (1, 2)]
    for call in calls[2:]:
        call["arguments"]["more"] = []  # type: ignore[index]
    assert check_constraint(tools=[first, second], samples=calls).accepted == [True, False, False, True]


def rent(days: Annotated[int, Field(ge=1, le=3)], pets: bool = False) -> int:
    """Rent a room."""
    return days


def lend(days: int = Field(ge=1, le=3)) -> int:
    """Lend a tent."""
    return days


def test_limits_of_tools_parameters() -> None:
    for tool in (rent, lend):
        calls = [{"name": tool.__name__, "arguments": arguments} for arguments in ({"days": 3}, {"days": 99}, {})]
        assert check_constraint(tools=[tool], samples=calls).accepted == [True, False, False]
    assert '"maximum": 3' in describe_tools([rent])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"name":"rent","arguments":{"days":99}}', "less than or equal to 3"),
        ('{"name":"rent","arguments":{}}', "rent needs the argument 'days'"),
        ('{"name":"rent","arguments":{"days":1,"cats":2}}', "rent has no parameter 'cats'"),
        ('{"name":"buy","arguments":{}}', "none of the tools: rent"),
        ("[]", "no tool call"),
        ('{"name":"rent","arguments":3}', "no tool call"),
    ],
)
def test_calls_that_a_backend_did_not_constrain_are_checked(text: str, message: str) -> None:
    @lmnb.function
    def program(s: Any) -> None:
        s += gen("call", tools=[rent])

    s = program.run(backend=ScriptedBackend(text))
    with pytest.raises(GenerationError, match=message):
        s.call("call")

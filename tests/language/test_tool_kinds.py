"""Functions of every kind as tools: valid calls by their signatures, or one line that says what is missing."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pydantic
import pytest
from pydantic import Field

from lmnb.errors import ArgumentError
from lmnb.language.check import check_constraint
from lmnb.language.tools import describe_tools, named_tools, read_call


class Range(pydantic.BaseModel):
    low: Annotated[int, Field(ge=0, le=5)]


def plain(a: int, b: str = "x") -> str:
    """Two parameters."""
    return f"{a}{b}"


def only_named(*, a: Literal["x", 1]) -> Any:
    return a


def none() -> str:
    return "nothing"


def limits(a: Annotated[int, Field(ge=1, le=3)], b: Range | None = None) -> Any:
    return a, b


def named_like_the_call(name: str, arguments: dict[str, int]) -> Any:
    return name, arguments


def anything(a: Any = None) -> Any:
    return a


async def waiting(a: int) -> int:
    await asyncio.sleep(0)
    return a + 1


@functools.wraps(plain)
def wrapped(*args: Any, **kwargs: Any) -> str:
    return plain(*args, **kwargs)


class Counter:
    def __init__(self, start: int = 0) -> None:
        self.count = start

    def add(self, by: int) -> int:
        self.count += by
        return self.count

    @staticmethod
    def double(a: int) -> int:
        return 2 * a

    @classmethod
    def made(cls, start: int) -> int:
        return cls(start).count


CALLS: list[tuple[Callable[..., Any], dict[str, Any], Any, dict[str, Any]]] = [
    (plain, {"a": 1}, "1x", {"b": "y"}),
    (plain, {"a": 1, "b": "y"}, "1y", {"a": "1"}),
    (only_named, {"a": "x"}, "x", {"a": "y"}),
    (none, {}, "nothing", {"a": 1}),
    (limits, {"a": 3, "b": {"low": 5}}, (3, Range(low=5)), {"a": 4}),
    (limits, {"a": 1}, (1, None), {"a": 1, "b": {"low": 6}}),
    (
        named_like_the_call,
        {"name": "n", "arguments": {"k": 1}},
        ("n", {"k": 1}),
        {"name": "n", "arguments": {"k": "1"}},
    ),
    (anything, {"a": {"b": [1, None]}}, {"b": [1, None]}, {"c": 1}),
    (wrapped, {"a": 2}, "2x", {}),
    (Counter(1).add, {"by": 2}, 3, {"by": 2.5}),
    (Counter.double, {"a": 2}, 4, {"self": 1}),
    (Counter.made, {"start": 7}, 7, {"start": None}),
]


@pytest.mark.parametrize(
    ("tool", "given", "result", "invalid"), CALLS, ids=lambda item: getattr(item, "__name__", None)
)
def test_calls_are_valid_and_made(
    tool: Callable[..., Any], given: dict[str, Any], result: Any, invalid: dict[str, Any]
) -> None:
    texts = [json.dumps({"name": tool.__name__, "arguments": each}, separators=(",", ":")) for each in (given, invalid)]
    report = check_constraint(tools=[tool], samples=texts)
    assert report.error is None, report.error
    assert report.accepted == [True, False]
    assert read_call(named_tools([tool]), texts[0]).run() == result
    with pytest.raises(ValueError, match=r".") as caught:
        read_call(named_tools([tool]), texts[1])
    assert "\n" not in str(caught.value) or isinstance(caught.value, pydantic.ValidationError)
    assert json.loads(describe_tools([tool]))["name"] == tool.__name__


def test_a_coroutine_is_awaited_by_the_program() -> None:
    call = read_call(named_tools([waiting]), '{"name":"waiting","arguments":{"a":1}}')
    assert asyncio.run(call.run()) == 2


def test_hundreds_of_tools() -> None:
    tools = []
    for i in range(300):

        def tool(a: int, b: str = "x") -> None: ...

        tool.__name__ = f"tool_{i}"
        tools.append(tool)
    samples = [f'{{"name":"tool_{i}","arguments":{{"a":1}}}}' for i in (0, 299, 300)]
    report = check_constraint(tools=tools, samples=samples)
    assert report.accepted == [True, True, False]


def variable(*a: int) -> None: ...
def keywords(**a: int) -> None: ...
def by_place(a: int, /) -> None: ...
def untyped(a) -> None: ...  # type: ignore[no-untyped-def]
def no_such_type(a: NoSuch) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def takes_a_function(a: Callable[..., Any]) -> None: ...


@dataclasses.dataclass
class NoSuchField:
    a: NoSuch  # type: ignore[name-defined]  # noqa: F821


def takes_it(a: NoSuchField) -> None: ...


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        (variable, r"takes \*a"),
        (keywords, r"takes \*\*a"),
        (by_place, "takes a: "),
        (untyped, "'a' of the tool untyped needs a type"),
        (no_such_type, "types of no_such_type cannot be read: name 'NoSuch'"),
        (takes_it, "types of NoSuchField cannot be read: name 'NoSuch'"),
        (takes_a_function, "has no JSON schema"),
        (Counter.add, "'self' of the tool add needs a type"),
        (Counter(), "Python functions"),
        (lambda a: a, "names of their own"),
        (functools.partial(plain, 1), "names of their own"),
        (max, "the tool max has no signature"),
        (3, "Python functions"),
    ],
    ids=lambda item: getattr(item, "__name__", None),
)
def test_what_cannot_be_called_by_name_says_so(tool: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        check_constraint(tools=[tool])
    assert "\n" not in str(caught.value)

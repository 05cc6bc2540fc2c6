"""What `gen` may be asked to look like, and the typed values that come out."""

from __future__ import annotations

import datetime as dt
import enum
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, field_validator

import lmnb
from lmnb import ArgumentError, GenerationError, GrammarError, ProgramError, gen
from lmnb.backends.local import Runtime
from lmnb.language.expressions import Gen
from lmnb.language.tools import describe_tools
from lmnb.language.typed import schema_of, value_of
from lmnb.runtime.fake_model import FakeModel
from lmnb.runtime.loading import LoadedModel
from lmnb.runtime.testing import ByteTokenizer


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Engine:
    power: Literal[90, 120]
    electric: bool


@dataclass
class Car:
    colour: Colour
    engine: Engine
    doors: Literal[3, 5] = 5
    owners: list[Literal["Ann", "Bob"]] = field(default_factory=list)


class Point(TypedDict):
    x: Literal[1, 2]
    y: Literal[3]


class City(BaseModel):
    name: Literal["Rome", "Oslo"]
    large: bool


@dataclass
class Tree:
    leaf: bool
    children: list[Tree]


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    tokenizer = ByteTokenizer()
    model = LoadedModel(FakeModel(tokenizer.vocab_size), tokenizer)
    with Runtime(model) as runtime:
        yield runtime


def run(runtime: Runtime, expression: Any, **options: Any) -> Any:
    @lmnb.function
    def program(s: Any) -> None:
        s += "Q: "
        s += expression

    return program.run(backend=runtime, **{"temperature": 1.0, "seed": 1, "max_new_tokens": 400, **options})


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (Car, lambda car: isinstance(car, Car) and isinstance(car.engine, Engine) and isinstance(car.colour, Colour)),
        (City, lambda city: isinstance(city, City) and city.name in ("Rome", "Oslo")),
        (list[City] | None, lambda value: value is None or all(isinstance(city, City) for city in value)),
        (Point, lambda point: set(point) == {"x", "y"} and point["y"] == 3),
        (tuple[bool, Literal["a"]], lambda pair: isinstance(pair, tuple) and pair[1] == "a"),
        ({"enum": [{"a": 1}, 2]}, lambda value: value in ({"a": 1}, 2)),
        ('{"const": [1, null]}', lambda value: value == [1, None]),
    ],
    ids=lambda item: None if isinstance(item, FunctionType) else str(item),
)
def test_json_schemas_of_every_kind(runtime: Runtime, kind: Any, check: Any) -> None:
    s = run(runtime, gen("x", json_schema=kind))
    assert isinstance(s["x"], str)
    json.loads(s["x"])
    assert check(s.parsed("x"))
    meta = s.get_meta_info("x")
    assert meta["grammar_backend"] in ("xgrammar", "llguidance")
    assert meta["steps"] + meta["steps_saved"] == meta["completion_tokens"]


@pytest.mark.parametrize(
    ("dtype", "kind"), [(int, int), ("int", int), (float, float), (bool, bool), (Colour, Colour), (Car, Car)]
)
def test_dtypes(runtime: Runtime, dtype: Any, kind: type) -> None:
    s = run(runtime, gen("x", dtype=dtype, max_tokens=200))
    if s.get_meta_info("x")["finish_reason"]["type"] == "stop":
        assert type(s.parsed("x")) is kind
    else:
        assert s.parsed("x", None) is None


def test_a_literal_of_texts_is_one_of_them_without_quotes(runtime: Runtime) -> None:
    s = run(runtime, gen("x", dtype=Literal["left", "right (or so)"]))
    assert s["x"] in ("left", "right (or so)")
    assert s.parsed("x") == s["x"]


@pytest.mark.parametrize(
    "grammar",
    ['start: "a" WORD\nWORD: /[b-d]{1,3}/\n', 'root ::= "a" word\nword ::= [b-d] | [b-d] [b-d] | [b-d] [b-d] [b-d]\n'],
    ids=["lark", "gbnf"],
)
def test_grammars(runtime: Runtime, grammar: str) -> None:
    s = run(runtime, gen("x", ebnf=grammar))
    assert re.fullmatch("a[b-d]{1,3}", s["x"])
    assert s.parsed("x") == s["x"]


def test_an_incomplete_value_is_an_error_or_the_default(runtime: Runtime) -> None:
    s = run(runtime, gen("x", json_schema=Car, max_tokens=12))
    assert len(s["x"]) == 12
    assert s.get_meta_info("x")["finish_reason"]["type"] == "length"
    assert s.parsed("x", "none") == "none"
    with pytest.raises(GenerationError, match="incomplete"):
        s.parsed("x")


@pytest.mark.parametrize(
    ("shape", "stop"),
    [
        ({"regex": "[a-c]{30}"}, "b"),
        ({"regex": "[a-c]{3}é[a-c]{3}"}, "é"),
        ({"ebnf": "start: /[a-c]{30}/"}, "b"),
        ({"json_schema": {"enum": ["ab,cd", "ab,ce"]}}, ","),
        ({"json_schema": Car}, ":"),
    ],
)
def test_a_text_that_a_stop_cut_is_no_value(runtime: Runtime, shape: dict[str, Any], stop: str) -> None:
    s = run(runtime, gen("x", stop=stop, max_tokens=99, **shape))
    assert s.get_meta_info("x")["finish_reason"] == {"type": "stop", "matched": stop}
    assert s.parsed("x", None) is None
    with pytest.raises(GenerationError, match=re.escape(f"incomplete: cut by the stop string {stop!a}")):
        s.parsed("x")


def test_a_whole_value_before_a_stop_is_one(runtime: Runtime) -> None:
    s = run(runtime, gen("x", regex="[ab]{3}(é[ab]{20}|c)", stop=["é", "c"]))
    assert s.get_meta_info("x")["finish_reason"]["matched"] in ("é", "c")
    assert s.parsed("x", None) is None
    s = run(runtime, gen("x", regex="[ab]{3}(é[ab]{20})?", stop="é"))
    assert s.parsed("x") == s["x"]
    assert len(s["x"]) == 3
    assert isinstance(run(runtime, gen("x", dtype=int)).parsed("x"), int)


@pytest.mark.parametrize("shape", [{"regex": "[0-9]{10}"}, {"ebnf": "start: /[0-9]{10}/"}], ids=["regex", "ebnf"])
def test_a_text_that_was_cut_is_no_value(runtime: Runtime, shape: dict[str, str]) -> None:
    s = run(runtime, gen("x", max_tokens=4, **shape))
    assert re.fullmatch("[0-9]{4}", s["x"])
    assert s.parsed("x", None) is None
    with pytest.raises(GenerationError, match="incomplete"):
        s.parsed("x")
    whole = run(runtime, gen("x", max_tokens=20, **shape))
    assert whole.parsed("x") == whole["x"]
    assert len(whole["x"]) == 10


def test_samples_are_parsed_each(runtime: Runtime) -> None:
    s = run(runtime, gen("x", json_schema=City, n=3))
    assert all(isinstance(city, City) for city in s.parsed("x"))
    assert len(s.parsed("x")) == len(s["x"]) == 3


def test_loose_json_may_have_white_space(runtime: Runtime) -> None:
    texts = [run(runtime, gen("x", json_schema=City, json_style="loose", seed=i))["x"] for i in range(6)]
    assert any(re.search(r"\s", text) for text in texts)
    assert all(City.model_validate_json(text) for text in texts)


def test_a_library_can_be_named(runtime: Runtime) -> None:
    for library in ("xgrammar", "llguidance"):
        s = run(runtime, gen("x", json_schema=City, grammar_backend=library))
        assert s.get_meta_info("x")["grammar_backend"] == library
    s = run(runtime, gen("x", json_schema={"type": "string", "pattern": "^a$"}, grammar_backend="xgrammar"))
    with pytest.raises(GenerationError) as error:
        s.text()
    assert isinstance(error.value.__cause__, GrammarError)


def test_jump_forward_can_be_switched_off(runtime: Runtime) -> None:
    on, off = (run(runtime, gen("x", json_schema=City, jump_forward=jumps)) for jumps in (True, False))
    assert on["x"] == off["x"]
    assert on.get_meta_info("x")["forced_tokens"] > 20
    assert off.get_meta_info("x")["forced_tokens"] == 0


def test_forced_text_streams_whole(runtime: Runtime) -> None:
    @lmnb.function
    def program(s: Any) -> None:
        s += "Q: " + gen("x", json_schema=Car)

    s = program.run(backend=runtime, stream=True, temperature=1.0, seed=3, max_new_tokens=300)
    assert "".join(s.text_iter("x")) == s["x"]
    assert isinstance(s.parsed("x"), Car)


def test_forks_continue_what_was_forced(runtime: Runtime) -> None:
    @lmnb.function
    def program(s: Any) -> None:
        s += "Q: " + gen("x", json_schema=City)
        branches = s.fork(3)
        for branch in branches:
            branch += " and " + gen("y", json_schema=Car)
        s["cars"] = [branch.parsed("y") for branch in branches]

    s = program.run(backend=runtime, temperature=1.0, seed=3, max_new_tokens=300)
    assert all(isinstance(car, Car) for car in s["cars"])


def weigh(what: Literal["salt", "iron"], grams: Literal[1, 20], precise: bool = False) -> str:
    """Weigh something."""
    return f"{grams} g of {what}{'!' if precise else ''}"


def paint(colour: Colour, car: Car | None = None) -> Any:
    """Paint a car."""
    return colour, car


def test_tools_are_called_with_typed_arguments(runtime: Runtime) -> None:
    seen = set()
    for seed in range(12):
        s = run(runtime, gen("x", tools=[weigh, paint], seed=seed))
        call = s.parsed("x")
        seen.add(call.name)
        assert call.function in (weigh, paint)
        result = s.call("x")
        if call.name == "paint":
            assert isinstance(result[0], Colour)
            assert result[1] is None or isinstance(result[1], Car)
        else:
            assert re.fullmatch(r"(1|20) g of (salt|iron)!?", result)
    assert seen == {"weigh", "paint"}
    about = [json.loads(line) for line in describe_tools([weigh, paint]).splitlines()]
    assert [(tool["name"], tool["description"]) for tool in about] == [
        ("weigh", "Weigh something."),
        ("paint", "Paint a car."),
    ]
    assert about[0]["parameters"]["required"] == ["what", "grams"]


def test_only_tools_can_be_called(runtime: Runtime) -> None:
    s = run(runtime, gen("x", json_schema=City))
    with pytest.raises(ProgramError, match="no tool call"):
        s.call("x")


def no_types(a) -> None:  # type: ignore[no-untyped-def]
    """Untyped."""


def variadic(*names: str) -> None:
    """Any number."""


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"regex": "a", "json_schema": {}}, ArgumentError, "cannot both hold"),
        ({"regex": "a", "choices": ["a"]}, ArgumentError, "choices= and regex= cannot both hold"),
        ({"json_schema": {}, "choices": ["a"]}, ArgumentError, "choices= and json_schema= cannot both hold"),
        ({"dtype": int, "choices": ["a"]}, ArgumentError, "choices= and dtype= cannot both hold"),
        ({"tools": [weigh], "choices": ["a"]}, ArgumentError, "choices= and tools= cannot both hold"),
        ({"ebnf": 3}, ArgumentError, "ebnf must be text"),
        ({"json_schema": 3}, ArgumentError, "json_schema must be text, a dict"),
        ({"json_schema": "{"}, GrammarError, "not JSON"),
        ({"json_schema": list[bytearray]}, ArgumentError, "no JSON schema"),
        ({"regex": "("}, GrammarError, "not a regular expression"),
        ({"dtype": "complex"}, ArgumentError, "dtype must be"),
        ({"dtype": object()}, ArgumentError, "dtype must be"),
        ({"json_schema": {}, "json_style": "pretty"}, ArgumentError, "json_style"),
        ({"json_schema": {}, "grammar_backend": "outlines"}, ArgumentError, "grammar_backend"),
        ({"tools": []}, ArgumentError, "one or more Python functions"),
        ({"tools": [weigh, weigh]}, ArgumentError, "names of their own"),
        ({"tools": [no_types]}, ArgumentError, "'a' of the tool no_types needs a type"),
        ({"tools": [variadic]}, ArgumentError, "which a model cannot name"),
    ],
)
def test_what_cannot_be_asked_for(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        gen("x", **arguments)


class Odd:
    def __init__(self, told: str) -> None:
        self.told = told

    def __repr__(self) -> str:
        return self.told or str(1 // 0)


@pytest.mark.parametrize("name", ["regex", "ebnf", "dtype", "json_schema", "json_style", "grammar_backend", "choices"])
@pytest.mark.parametrize(
    "value", [list(range(100_000)), Odd("a\nb\x1b[31m\u202e"), Odd("")], ids=["long", "odd", "broken"]
)
def test_an_error_shows_any_value_short_and_on_one_line(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        gen("x", **{"json_schema": {}, name: value} if name[:4] in ("json", "gram") else {name: value})
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["k" * 5000, "a\nb", "\x1b[31m\u202e"])
@pytest.mark.parametrize(
    "bad",
    [{"uniqueItems": True}, {"format": "f" * 5000}, {"minimum": "\n" * 500}, {"$ref": "#/" + "r" * 5000}, {"x\ny": 1}],
)
def test_an_error_shows_any_place_short_and_on_one_line(name: str, bad: dict[str, Any]) -> None:
    report = lmnb.check_constraint({"type": "object", "properties": {name: bad}})
    assert report.error is not None
    assert len(report.error) < 700
    assert report.error.isprintable()
    report = lmnb.check_constraint({name: 1})
    assert report.error is not None
    assert len(report.error) < 700
    assert report.error.isprintable()


class Even(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def _even(cls, number: int) -> int:
        raise ValueError(f"{number} is odd")


def test_a_validators_error_is_one_line(runtime: Runtime) -> None:
    with pytest.raises(GenerationError, match="is odd") as caught:
        run(runtime, gen("x", json_schema=Even, max_tokens=200)).parsed("x")
    assert str(caught.value).isprintable()
    assert "https://" not in str(caught.value)


def test_a_warning_of_two_constraints_tells_the_users_line() -> None:
    def program(s: Any) -> None:
        s += gen("x", dtype=int, regex="a")

    for make in (lambda: gen("x", dtype=int, regex="a"), lambda: lmnb.function(program).compile()):
        with pytest.warns(UserWarning, match="dtype= is used, and regex= is not") as told:
            make()
        assert [warning.filename for warning in told] == [__file__]


@pytest.mark.parametrize(
    "regex", ["a" * 20_000, "(?i)" + "".join(f"[{chr(0x100 + i)}-\U0010ffff]" for i in range(12)), "a" * 500 + "("]
)
def test_who_asks_for_a_long_regex_does_not_read_it(regex: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    compiled = re.compile
    monkeypatch.setattr(re, "compile", lambda text, *flags: (read.append(text), compiled(text, *flags))[1])
    gen("x", regex=regex)
    assert regex not in read
    with pytest.raises(GrammarError, match=r"at most 20000 \(200000 of a regex that is only texts"):
        gen("x", regex=regex * (200_001 // len(regex) + 1))


def test_a_long_regex_that_is_none_is_refused_where_it_is_read(runtime: Runtime) -> None:
    assert "is invalid" in str(lmnb.check_constraint(regex="a" * 500 + "("))
    with pytest.raises(GenerationError, match="is invalid"):
        run(runtime, gen("x", regex="a" * 500 + "("))["x"]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Tree, '{"leaf":false,"children":[{"leaf":true,"children":[]}]}', Tree(False, [Tree(True, [])])),
        (dt.date, '"2024-02-29"', dt.date(2024, 2, 29)),
        (dt.datetime, '"2024-02-29T10:00:00Z"', dt.datetime(2024, 2, 29, 10, tzinfo=dt.timezone.utc)),
        (dict[str, float], '{"a":1}', {"a": 1.0}),
        (int | str | None, '"7"', "7"),
        (tuple[int, ...], "[1,2]", (1, 2)),
    ],
)
def test_values_of_types(kind: Any, text: str, value: Any) -> None:
    found = value_of(kind, text)
    assert found == value
    assert type(found) is type(value)
    report = lmnb.check_constraint(kind, samples=[text])
    assert report.accepted == [True], report


@pytest.mark.parametrize(("kind", "text"), [(int, "true"), (bool, "1"), (list[int], '["x"]')])
def test_values_that_do_not_fit(kind: Any, text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        value_of(kind, text)


def test_schemas_of_types_are_closed() -> None:
    schema = schema_of(Car)
    assert schema["$ref"] == "#/$defs/Car"
    assert schema["$defs"]["Car"]["required"] == ["colour", "engine"]
    assert schema["$defs"]["Engine"]["additionalProperties"] is False


def test_the_expression_holds_the_constraint() -> None:
    node = gen("x", dtype=Literal["a", "b"])
    assert isinstance(node, Gen)
    assert node.constraint is not None
    assert (node.constraint.kind, node.constraint.source) == ("regex", "a|b")

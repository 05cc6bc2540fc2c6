"""Which regexes stand for a plain value, what JSON is asked for them, and which text it becomes."""

from __future__ import annotations

import enum
import json
import re
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmnb as sgl
from lmnb.backends.plain_values import PATTERNS, one_of, plain_value
from lmnb.errors import RemoteError
from lmnb.runtime.request import Constraint


class Colour(enum.Enum):
    RED = "red"
    BLUE = "light|blue"


def of(**options: Any) -> Any:
    node = sgl.gen("x", **options)
    return plain_value(node.constraint)  # type: ignore[attr-defined]


def test_every_dtype_is_known_by_its_regex() -> None:
    assert {name: of(dtype=name).name for name in PATTERNS} == {name: name for name in PATTERNS}
    assert of(dtype=Colour).choices == ("red", "light|blue")
    assert of(dtype=Literal["a", "b"]).choices == ("a", "b")
    assert of(dtype=bool).choices == ("True", "False")


@pytest.mark.parametrize("regex", ["a+", "(a|b)", "a|b+", "a.b", "", "a|", "|", "[ab]", "a\\d|b"])
def test_other_regexes_are_none(regex: str) -> None:
    assert plain_value(Constraint("regex", regex)) is None
    assert plain_value(Constraint("json_schema", "{}")) is None
    assert plain_value(None) is None


@given(st.lists(st.text(min_size=1, alphabet=st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4))
def test_choices_are_read_back_from_their_regex(choices: list[str]) -> None:
    found = plain_value(Constraint.of_choices(choices))
    assert found is not None
    assert found.choices == tuple(choices)
    assert all(re.fullmatch(found.pattern, choice) for choice in choices)


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        (int, 24, "24"),
        (int, -3, "-3"),
        (int, 3.0, "3"),
        (int, 10**40, "1" + "0" * 40),
        (float, 2.5, "2.5"),
        (float, 3, "3"),
        (float, 1e-7, "0.0000001"),
        (float, 1e22, "10000000000000000000000"),
        (bool, True, "True"),
        (bool, False, "False"),
        (str, "a, b; c!", '"a, b; c!"'),
        (Colour, "light|blue", "light|blue"),
    ],
)
def test_values_become_the_text_that_an_engine_would_write(dtype: Any, value: Any, text: str) -> None:
    assert of(dtype=dtype).text(json.dumps({"value": value})) == text


@pytest.mark.parametrize(
    ("dtype", "answer"),
    [
        (int, '{"value": 2.5}'),
        (int, '{"value": true}'),
        (int, '{"value": "24"}'),
        (float, '{"value": false}'),
        (float, '{"value": NaN}'),
        (float, '{"value": Infinity}'),
        (bool, '{"value": 1}'),
        (str, '{"value": "say \\"hi\\""}'),
        (str, '{"value": "two\\nlines"}'),
        (Colour, '{"value": "green"}'),
        (Colour, '{"value": ["red"]}'),
        (int, "24"),
        (int, "[24]"),
        (int, "{}"),
        (int, '{"value": 2'),
        (int, "I think 24"),
    ],
)
def test_what_is_no_such_value_is_an_error_that_shows_it(dtype: Any, answer: str) -> None:
    with pytest.raises(RemoteError, match="was asked for a value") as caught:
        of(dtype=dtype).text(answer)
    assert repr(answer) in str(caught.value)


def test_the_schema_is_an_object_and_tells_what_the_turn_begins_with() -> None:
    schema = json.loads(one_of(["a", "b", "a"]).json_schema("").source)
    assert schema == {
        "type": "object",
        "properties": {"value": {"type": "string", "enum": ["a", "b"]}},
        "required": ["value"],
        "additionalProperties": False,
    }
    told = json.loads(of(dtype=int).json_schema("Age: ").source)["properties"]["value"]
    assert told == {"type": "integer", "description": "What follows this beginning of your answer: Age: "}

"""What users of other engines reported of constraints, whole programs through, on the embedded model: with forced text
written at once and token by token, by each engine that may enforce it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import lmnb
from lmnb import GenerationError, Runtime, assistant, gen, user

pytestmark = [pytest.mark.model, pytest.mark.timeout(280)]
CITIES = ["北京", "上海", "深圳"]
TOWN = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "population": {"type": "integer", "minimum": 0, "maximum": 99_999_999}},
    "required": ["name", "population"],
}
SHEET = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "house": {"enum": ["oak", "elm"]}},
    "required": ["name", "house"],
}
MODES = [(True, "auto"), (False, "auto"), (True, "llguidance"), (True, "xgrammar")]


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    """One whose rounding does not depend on how many tokens a step computes."""
    with Runtime(deterministic=True) as made:
        yield made


@lmnb.function
def ask(s: Any, question: str, **options: Any) -> None:
    s += user(question)
    s += assistant(gen("x", **{"temperature": 0, "max_tokens": 60, **options}))


def texts(runtime: Runtime, question: str, *, needs: str | None = None, **options: Any) -> list[Any]:
    """The states of one question in every mode; `needs`: the only library that enforces it."""
    states = []
    for jumps, engine in MODES:
        if engine not in ("auto", needs or engine):
            with pytest.raises(GenerationError, match=engine):
                ask.run(question, **options, jump_forward=jumps, grammar_backend=engine, backend=runtime)["x"]
            continue
        state = ask.run(question, **options, jump_forward=jumps, grammar_backend=engine, backend=runtime)
        meta = state.get_meta_info("x")
        assert meta["grammar_backend"] == (engine if engine != "auto" else meta["grammar_backend"])
        assert meta["steps_saved"] == 0 or jumps
        states.append(state)
    return states


def reason(state: Any) -> str:
    return str(state.get_meta_info("x")["finish_reason"]["type"])


def same(states: list[Any]) -> str:
    """The one text of all of them."""
    found = {state["x"] for state in states}
    assert len(found) == 1, found
    return str(found.pop())


def test_a_list_of_chinese_cities(runtime: Runtime) -> None:
    schema = {"type": "array", "items": {"enum": CITIES}, "minItems": 1, "maxItems": 1}
    text = same(texts(runtime, "Name one Chinese city, as a JSON list.", json_schema=schema))
    assert json.loads(text)[0] in CITIES
    assert "\ufffd" not in text


def test_digits_end_at_the_limit(runtime: Runtime) -> None:
    for state in texts(runtime, "Count.", needs="llguidance", regex="[0-9]+", max_tokens=5, ignore_eos=True):
        assert re.fullmatch("[0-9]+", state["x"])
        assert state.get_meta_info("x")["completion_tokens"] == 5
        assert reason(state) == "length"
        assert state.parsed("x", None) is None


def test_bounded_digits_can_stop(runtime: Runtime) -> None:
    @lmnb.function
    def program(s: Any, **options: Any) -> None:
        s += "6 times 7 is (42" + gen("x", regex="[0-9]{1,20}", temperature=0, max_tokens=40, **options)

    found = {program.run(jump_forward=jumps, backend=runtime)["x"] for jumps in (True, False)}
    assert len(found) == 1
    assert re.fullmatch("[0-9]{1,20}", found.pop())


@pytest.mark.parametrize(
    ("regex", "limit"),
    [(r"\w+", 12), (r"(.*\n){1,6}", 20), ("[^0-9]+", 20), ("[😀-🙏]+", 12)],
)
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_regexes_are_obeyed_to_the_limit(runtime: Runtime, regex: str, limit: int, temperature: float) -> None:
    options = {"regex": regex, "max_tokens": limit, "temperature": temperature, "seed": 5}
    for state in texts(runtime, "Tell me of 3 cats, line by line.", needs="llguidance", **options):
        text = state["x"]
        assert state.get_meta_info("x")["completion_tokens"] <= limit
        if reason(state) == "stop":
            assert re.fullmatch(regex, text)
        else:  # the beginning of a match; half a character may stand at its end
            beginning = text.rstrip("\ufffd")
            whole = beginning + "\n" if "n" in regex else beginning
            assert not beginning or re.fullmatch(regex, whole)


def test_a_required_name_cannot_be_escaped(runtime: Runtime) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["b"]}
    for state in texts(runtime, "Write b, then a, as JSON.", json_schema=schema):
        assert state["x"] in ('{"a":1,"b":2}', '{"b":2}')


@pytest.mark.parametrize(
    ("schema", "needs"),
    [
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "llguidance"),
        ({"type": "integer", "minimum": 1, "maximum": 5}, None),
    ],
)
def test_bounds(runtime: Runtime, schema: dict[str, Any], needs: str | None) -> None:
    text = same(texts(runtime, "How likely is rain? Say a number.", needs=needs, json_schema=schema))
    value = json.loads(text)
    assert 0 < value <= schema["maximum"]
    report = lmnb.check_constraint(schema, samples=[0, 0.1, 1, 5, 6])
    assert report.accepted == ([False, True, True, False, False] if needs else [False, False, True, True, False])


def test_an_empty_enum_is_refused_by_name(runtime: Runtime) -> None:
    for jumps, engine in MODES:
        with pytest.raises(GenerationError, match="'enum' at #"):
            ask.run("?", json_schema={"enum": []}, jump_forward=jumps, grammar_backend=engine, backend=runtime)["x"]


def test_a_sheet_of_two_fields_ends_within_its_budget(runtime: Runtime) -> None:
    for style in ("compact", "loose"):
        options = {"json_schema": SHEET, "json_style": style, "max_tokens": 60}
        states = texts(runtime, "Describe a wizard as JSON.", needs="llguidance", **options)
        assert all(reason(state) == "stop" for state in states)
        assert set(json.loads(same(states))) == {"name", "house"}


def test_a_town_is_the_same_with_forced_text_on_and_off(runtime: Runtime) -> None:
    text = same(texts(runtime, "Tell me about the town of Paris as JSON.", json_schema=TOWN))
    assert set(json.loads(text)) == {"name", "population"}

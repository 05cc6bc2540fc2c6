from __future__ import annotations

import inspect
import json

import pytest

import lmnb as sgl
from lmnb.errors import ArgumentError, GrammarError
from lmnb.language.expressions import Gen, Select

# The positional order that SGLang programs rely on.
GEN_ORDER = [
    *("name", "max_tokens", "min_tokens", "n", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k"),
    *("min_p", "frequency_penalty", "presence_penalty", "ignore_eos", "return_logprob", "logprob_start_len"),
    *("top_logprobs_num", "return_text_in_logprobs", "dtype", "choices", "choices_method", "regex", "json_schema"),
]


def make(*args: object, **kwargs: object) -> Gen:
    node = sgl.gen(*args, **kwargs)  # type: ignore[arg-type]
    assert isinstance(node, Gen)
    return node


def test_argument_order() -> None:
    positional = [p.name for p in inspect.signature(sgl.gen).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == GEN_ORDER
    without = {"min_tokens", "dtype", "choices", "choices_method", "regex", "json_schema"}
    expected = [name for name in GEN_ORDER if name not in without]
    assert list(inspect.signature(sgl.gen_int).parameters) == expected
    assert list(inspect.signature(sgl.gen_string).parameters) == expected
    assert list(inspect.signature(sgl.select).parameters) == ["name", "choices", "temperature", "choices_method"]


def test_all_options_reach_the_node() -> None:
    node = make("x", 7, 2, 3, ["a"], [5], temperature=0.5, seed=9, repetition_penalty=1.1, ignore_eos=True)
    options = node.options
    assert (node.name, options.max_new_tokens, options.min_new_tokens, options.n) == ("x", 7, 2, 3)
    assert (options.stop, options.stop_token_ids, options.temperature) == (("a",), (5,), 0.5)
    assert (options.seed, options.repetition_penalty, options.ignore_eos, options.top_p) == (9, 1.1, True, None)


@pytest.mark.parametrize(
    ("dtype", "good", "bad", "stops"),
    [
        (int, ["24", "-7 "], ["a", "1.5"], (" ", "\n")),
        ("float", ["2.5", ".5", "-3"], ["x"], (" ", "\n")),
        (bool, ["True", "False"], ["true"], ()),
        (str, ['"it\'s, fine."', '""'], ["bare", '"two\nlines"'], ()),
    ],
)
def test_dtype_is_a_regex(dtype: type | str, good: list[str], bad: list[str], stops: tuple[str, ...]) -> None:
    import re

    node = make("x", dtype=dtype)
    assert node.constraint is not None
    assert node.constraint.kind == "regex"
    assert all(re.fullmatch(node.constraint.source, text) for text in good)
    assert not any(re.fullmatch(node.constraint.source, text) for text in bad)
    assert node.extra_stop == stops


def test_gen_int_and_gen_string() -> None:
    assert sgl.gen_int("x", 5, stop="!") == sgl.gen("x", 5, stop="!", dtype=int)
    assert sgl.gen_string("x", 5) == sgl.gen("x", 5, dtype=str)


def test_dtype_beats_regex_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="dtype"):
        node = make("x", dtype=int, regex="[a-z]+")
    assert node.constraint == make("y", dtype=int).constraint


def test_regex_is_checked_at_once() -> None:
    assert make(regex=r"\d+(\.\d+)?").constraint is not None
    with pytest.raises(GrammarError, match="not a regular expression"):
        sgl.gen("x", regex="(unclosed")
    assert make(regex=r"\p{Han}+").constraint is not None  # unknown to `re`, known to engines
    for never in ("(", "a*", r"(a)\1"):
        with pytest.raises(GrammarError, match="stop_regex"):
            sgl.gen("x", stop_regex=never)


def test_json_schema_as_text_dict_or_model() -> None:
    schema: dict[str, object] = {"type": "object", "properties": {"name": {"type": "string"}}}

    class Model:
        @classmethod
        def model_json_schema(cls) -> dict[str, object]:
            return schema

    for given in (json.dumps(schema), schema, Model):
        node = make(json_schema=given)
        assert node.constraint is not None
        assert node.constraint.kind == "json_schema"
        assert json.loads(node.constraint.source) == schema
    with pytest.raises(GrammarError, match="not JSON"):
        sgl.gen(json_schema="{oops")
    with pytest.raises(ArgumentError, match="pydantic"):
        sgl.gen(json_schema=object())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="both"):
        sgl.gen(json_schema="{}", regex="a")


def test_choices_make_a_select() -> None:
    node = sgl.gen("x", max_tokens=3, choices=["a", "b"], choices_method=sgl.greedy_token_selection)
    assert isinstance(node, Select)
    assert node == sgl.select("x", ["a", "b"], 0.0, sgl.greedy_token_selection)
    default = sgl.select("x", ["a"])
    assert isinstance(default, Select)
    assert default.method is sgl.token_length_normalized


@pytest.mark.parametrize(
    "make_it",
    [
        lambda: sgl.select("x"),
        lambda: sgl.select("x", []),
        lambda: sgl.gen("x", choices=[]),
        lambda: sgl.select("x", "abc"),
        lambda: sgl.select("x", ["a", ""]),
        lambda: sgl.select("x", ["a", 3]),  # type: ignore[list-item]
        lambda: sgl.select("x", ["a"], temperature=0.7),
        lambda: sgl.select("x", ["a"], choices_method=max),  # type: ignore[arg-type]
        lambda: sgl.gen("x", dtype=range),
        lambda: sgl.gen("x", stop_regex=[1]),  # type: ignore[list-item]
        lambda: sgl.separate_reasoning(sgl.gen(), "qwen3"),
        lambda: sgl.separate_reasoning(sgl.gen("x"), "no-such-model"),
        lambda: sgl.gen("x", stop=[1]),  # type: ignore[list-item]
        lambda: sgl.gen(5),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_work_is_refused_at_once(make_it: object) -> None:
    with pytest.raises(ArgumentError):
        make_it()  # type: ignore[operator]

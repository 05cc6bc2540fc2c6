"""What requests take: values of other types that mean the same, and one clear error for everything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lmnb.errors import ArgumentError
from lmnb.runtime.request import Constraint, Request, SamplingParams

WHOLE = ("max_new_tokens", "min_new_tokens", "top_k", "seed", "top_logprobs_num")
REAL = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
FLAGS = ("ignore_eos", "jump_forward", "return_logprob")
LISTS = ("stop", "stop_regex", "stop_token_ids", "suppress_token_ids")


def refused(**options: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        SamplingParams(**options)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 200
    return message


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [8.0, np.int64(8), np.uint8(8), np.float32(8), np.array(8)], ids=repr)
def test_whole_numbers_of_other_types_are_plain_ints(name: str, value: Any) -> None:
    found = getattr(SamplingParams(**{name: value}), name)
    assert found == 8
    assert type(found) is int


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize(
    "value", [1.5, float("nan"), float("inf"), "3", True, b"3", [3], np.float32(0.5), {}], ids=repr
)
def test_what_is_no_whole_number_is_refused(name: str, value: Any) -> None:
    assert "whole number" in refused(**{name: value})


@pytest.mark.parametrize("name", REAL)
def test_numbers(name: str) -> None:
    for value in (np.float32(0.5), np.float64(0.5), 0.5):
        assert type(getattr(SamplingParams(**{name: value}), name)) is float
    for value in (float("nan"), np.float32("nan"), "0", True, None, [0.5], 10**400, 1j):
        assert "must be a number" in refused(**{name: value})


@pytest.mark.parametrize("name", FLAGS)
def test_flags(name: str) -> None:
    for value in (np.bool_(True), 1):
        assert getattr(SamplingParams(**{name: value}), name) is True
    for value in ("false", "", 2, [True], np.array([1, 1])):
        assert "True or False" in refused(**{name: value})


@pytest.mark.parametrize("name", LISTS)
def test_lists(name: str) -> None:
    ids = name.endswith("ids")
    given = [np.int32(4), 5.0] if ids else ["a", "b"]
    assert getattr(SamplingParams(**{name: given}), name) == ((4, 5) if ids else ("a", "b"))
    for value in (3, None, {"a": 1}, b"ab", [None], [["a"]], ["a"] if ids else [3], *([[2**70]] if ids else [[""]])):
        assert name in refused(**{name: value})


def test_one_stop_is_a_list_of_one() -> None:
    assert SamplingParams(stop="ab", stop_regex="a+").stop == ("ab",)
    assert SamplingParams(stop_regex="a+").stop_regex == ("a+",)


@pytest.mark.parametrize("name", ["stop", "stop_regex"])
def test_half_characters_are_refused(name: str) -> None:
    assert "half a surrogate pair" in refused(**{name: ["x\ud800"]})
    with pytest.raises(ArgumentError, match="half a surrogate pair"):
        Constraint("regex", "\udfff")


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1e-300},
        {"repetition_penalty": 1e300},
        {"temperature": 1e300},
        {"temperature": float("inf")},
        {"max_new_tokens": -(10**6000)},
        {"constraint": "a+"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_values_that_no_computation_survives_are_refused(options: dict[str, Any]) -> None:
    assert next(iter(options)).removeprefix("max_new_") in refused(**options)


@pytest.mark.parametrize("source", [3, None, b"a", ["a"], {"type": "object"}])
def test_constraints_are_text(source: Any) -> None:
    with pytest.raises(ArgumentError, match="json_schema must be text"):
        Constraint("json_schema", source)
    with pytest.raises(ArgumentError, match="each choice must be text"):
        Constraint.of_choices([source])


def test_prompts_are_token_ids() -> None:
    request = Request(input_ids=[np.int64(5), 6.0], logprob_start=np.int64(1))  # type: ignore[arg-type]
    assert request.input_ids == (5, 6)
    assert [type(value) for value in (*request.input_ids, request.logprob_start)] == [int] * 3
    for bad in ("ab", 5, [1.5], ["a"], [None], {1: 2}):
        with pytest.raises(ArgumentError, match="input_ids"):
            Request(input_ids=bad)  # type: ignore[arg-type]
    for start in (1.5, "0", True, float("nan")):
        with pytest.raises(ArgumentError, match="logprob_start must be a whole number"):
            Request(input_ids=(1,), logprob_start=start)  # type: ignore[arg-type]

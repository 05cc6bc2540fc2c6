"""Random limits of numbers mean exactly what they say: what is within them can be written, in the usual way, and
nothing else can."""

from __future__ import annotations

import json
import random
from decimal import Context, Decimal
from typing import Any

import pytest
from text_walks import GRAMMARS, TOKENIZER, random_text

from lmnb.errors import GrammarError
from lmnb.runtime.request import Constraint

LIMITS = [*map(Decimal, (
    "-1000", "-100.5", "-10", "-3", "-2.75", "-1", "-0.5", "-0.1", "0", "0.001", "0.1", "0.25", "0.3", "1", "1.5", "2",
    "2.5", "7", "9.99", "10", "99", "100", "123.456", "1000", "65535",
))]  # fmt: skip
STEPS = [*map(Decimal, ("0", "1", "0.5", "0.1", "0.01", "0.25", "0.001"))]
VALUES = sorted({limit + sign * step for limit in LIMITS for step in STEPS for sign in (1, -1)})
MULTIPLES = [1, 2, 3, 5, 7, 10, 100, 0.5, 0.25, 0.05, 0.125, 0.1, 0.01, 1.5, 2.5, 1.25]
EXACT = Context(prec=400)


def schema(rng: random.Random) -> dict[str, Any]:
    node: dict[str, Any] = {"type": rng.choice(["number", "integer"])}
    for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if rng.random() < 0.4:
            limit = rng.choice(LIMITS)
            node[key] = int(limit) if limit == int(limit) else float(limit)
    if rng.random() < 0.4:
        node["multipleOf"] = rng.choice(MULTIPLES)
    if rng.random() < 0.25:
        others = [{"minimum": 1}, {"maximum": 5.5}, {"multipleOf": 2}, {"exclusiveMinimum": -2.5}, {"type": "integer"}]
        return {"allOf": [node, rng.choice(others)]}
    if rng.random() < 0.15:
        return {"anyOf": [node, {"type": "number", "minimum": 5, "maximum": 7.5}]}
    return node


def is_valid(value: Decimal, node: dict[str, Any]) -> bool:
    if "anyOf" in node:
        return any(is_valid(value, part) for part in node["anyOf"])
    if "allOf" in node:
        return all(is_valid(value, part) for part in node["allOf"])

    def limit(key: str, otherwise: Decimal) -> Decimal:
        return Decimal(repr(node[key])) if key in node else otherwise

    return (
        (node.get("type") != "integer" or value == value.to_integral_value())
        and limit("minimum", value) <= value <= limit("maximum", value)
        and limit("exclusiveMinimum", value - 1) < value < limit("exclusiveMaximum", value + 1)
        and ("multipleOf" not in node or EXACT.remainder(value, limit("multipleOf", value)) == 0)
    )


def accepts(matcher: Any, text: str) -> bool:
    copy = matcher.fork()
    return all(copy.accept(byte) for byte in text.encode()) and copy.accept(min(TOKENIZER.eos_ids))


def written(value: Decimal) -> str:
    return format(value.normalize() if value else Decimal(0), "f")


@pytest.mark.parametrize("start", range(0, 160, 40))
def test_limits_mean_what_they_say(start: int) -> None:
    enforced = 0
    for seed in range(start, start + 40):
        rng = random.Random(seed)
        node = schema(rng)
        try:
            matcher = GRAMMARS.compile(Constraint("json_schema", json.dumps(node)))
        except GrammarError:
            continue
        enforced += 1
        for value in VALUES:
            assert accepts(matcher, written(value)) == is_valid(value, node), (node, value)
        for _ in range(3):
            text = random_text(matcher.fork(), rng)
            if text is not None and abs(Decimal(text)) < Decimal(10) ** 20:
                assert is_valid(Decimal(text), node), (node, text)
    assert enforced > 20


@pytest.mark.parametrize(
    ("multiple", "texts", "others"),
    [
        (0.25, ["0", "0.5", "-0.5", "0.25", "1", "2.75", "100"], ["0.1", "0.30", "0.125"]),
        (0.05, ["0.1", "0.05", "0.15", "3", "12.5"], ["0.01", "0.12"]),
        (0.125, ["0.125", "0.5", "0.75", "1", "0.25"], ["0.1", "0.12"]),
    ],
)
def test_multiples_need_no_needless_zeros(multiple: float, texts: list[str], others: list[str]) -> None:
    matcher = GRAMMARS.compile(Constraint("json_schema", json.dumps({"type": "number", "multipleOf": multiple})))
    assert [accepts(matcher, text) for text in [*texts, *others]] == [True] * len(texts) + [False] * len(others)

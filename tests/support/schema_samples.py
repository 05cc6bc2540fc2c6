"""Schemas and regexes of the kinds that people write, made up at random for tests."""

from __future__ import annotations

import random
from typing import Any

NAMES = ["name", "id", "first_name", "e-mail", "tags", "created", "owner", "größe", "価格", "is active", "x"]
WORDS = ["yes", "no", "red", "New York", "Zürich", "北京", "上海", "it's", 'a "quote"', "a\\b", "😀", ""]
PATTERNS = [
    "^[A-Z]{2}-[0-9]{1,4}$",
    "^[a-z]{1,8}(_[a-z]{1,8}){0,2}$",
    "^(GET|POST) /[a-z]{0,9}$",
    r"^\+?\d{3,9}$",
    "b{2,3}$",
]
FORMATS = ["date", "time", "date-time", "ipv4", "ipv6", "uuid", "email", "hostname"]


def scalar(rng: random.Random) -> dict[str, Any]:
    """A text, number, enum or the like, with or without bounds."""
    low = rng.randrange(-50, 50)
    return rng.choice(
        [
            {"type": "string", "maxLength": rng.randrange(1, 9)},
            {"type": "string", "pattern": rng.choice(PATTERNS)},
            {"type": "string", "format": rng.choice(FORMATS)},
            {"type": "integer", "minimum": low, "maximum": low + rng.randrange(200)},
            {"type": "integer", "exclusiveMinimum": low, "multipleOf": rng.randrange(1, 9), "maximum": low + 90},
            {"type": "number", "minimum": 0, "exclusiveMaximum": rng.choice([1, 2.5, 100])},
            {"type": "boolean"},
            {"type": ["null", "boolean"]},
            {"enum": rng.sample([*WORDS, 1, -2.5, None, True, [1], {"a": "b"}], rng.randrange(1, 5))},
            {"const": rng.choice([*WORDS, 3, None])},
        ]
    )


def schema(rng: random.Random, depth: int = 3, definitions: tuple[str, ...] = ()) -> dict[str, Any]:
    """A schema whose shortest values are not long."""
    if depth == 0 or rng.random() < 0.25:
        return scalar(rng)
    kind = rng.randrange(6)
    if kind <= 2:
        names = rng.sample(NAMES, rng.randrange(1, 4))
        result: dict[str, Any] = {
            "type": "object",
            "properties": {name: schema(rng, depth - 1, definitions) for name in names},
            "required": [name for name in names if rng.random() < 0.6],
        }
        if rng.random() < 0.5:
            result["additionalProperties"] = False
        return result
    if kind == 3:
        return {"type": "array", "items": schema(rng, depth - 1, definitions), "maxItems": rng.randrange(3)}
    if kind == 4:
        return {"anyOf": [schema(rng, depth - 1, definitions) for _ in range(2)]}
    return {"$ref": f"#/$defs/{rng.choice(definitions)}"} if definitions else scalar(rng)


def document(rng: random.Random) -> dict[str, Any]:
    """A whole schema, with definitions."""
    names = ("item", "other")
    result = schema(rng, 3, names)
    return {**result, "$defs": {name: schema(rng, 1) for name in names}}


def regex(rng: random.Random, depth: int = 2) -> str:
    """A regex that ends by itself."""
    kind = rng.randrange(5 if depth else 2)
    if kind == 0:
        return rng.choice(["[A-Z]", r"\d", r"\w", r"[^\n,]", ".", "é", "[😀-🙏]", r"\.", "x"]) + rng.choice(
            ["", "{1,3}", "?", "{2}"]
        )
    if kind == 1:
        return rng.choice(["yes", "New York", "北京", r"\$", "(a|bc|d)"])
    if kind == 2:
        return f"({regex(rng, depth - 1)}|{regex(rng, depth - 1)})"
    if kind == 3:
        return f"(?:{regex(rng, depth - 1)}){{0,{rng.randrange(1, 4)}}}"
    return regex(rng, depth - 1) + regex(rng, depth - 1)

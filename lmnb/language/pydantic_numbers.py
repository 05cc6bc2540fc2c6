"""Limits of numbers, as pydantic has them, in the words of JSON Schema."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]
BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
MOST = 2**53  # whole numbers up to this are exact, and grammars can count to it


def decimal(schema: Any) -> Schema:
    """A number within the limits; places behind the point are multiples of the last one."""
    result: Schema = {"type": "number"}
    for key, keyword in BOUNDS.items():
        if schema.get(key) is not None:
            result[keyword] = float(schema[key])
    places, digits = schema.get("decimal_places"), schema.get("max_digits")
    if schema.get("multiple_of") is not None:
        result["multipleOf"] = float(schema["multiple_of"])
        if places is not None:
            result["allOf"] = [{"multipleOf": _place(places)}]
    elif places is not None:
        result["multipleOf"] = _place(places)
    if digits is None:
        return limit(result, MOST)
    if places is None and "multipleOf" not in result:
        return {"anyOf": [part for n in range(digits + 1) for part in _of_digits(result, digits, n)]}
    parts = _of_digits(result, digits, digits if places is None else places)
    return parts[0] if len(parts) == 1 else {"anyOf": parts}


def _place(places: int) -> float:
    """What the last of so many decimal places counts."""
    return float(Decimal(1).scaleb(-places))


def limit(result: Schema, most: float, *, exclusive: bool = False) -> Schema:
    """`result`, changed so that numbers lie within -most and most."""
    low, high = ("exclusiveMinimum", "exclusiveMaximum") if exclusive else ("minimum", "maximum")
    result[low] = max(result.get(low, -most), -most)
    result[high] = min(result.get(high, most), most)
    return result


def has_both_bounds(result: Schema) -> bool:
    """Whether numbers have a least and a greatest one."""
    return bool({"minimum", "exclusiveMinimum"} & result.keys() and {"maximum", "exclusiveMaximum"} & result.keys())


def _of_digits(number: Schema, digits: int, places: int) -> list[Schema]:
    """Numbers of at most so many digits, that many of them behind the point. Zero has one before it."""
    result = dict(number)
    result.setdefault("multipleOf", _place(places))
    limit(result, float(Decimal(1).scaleb(max(digits - places, 0))), exclusive=True)
    if places < digits:
        return [result]
    positive = {**result, "exclusiveMinimum": max(result["exclusiveMinimum"], 0.0)}
    negative = {**result, "exclusiveMaximum": min(result["exclusiveMaximum"], 0.0)}
    return [
        part
        for part in (positive, negative)
        if max(part["exclusiveMinimum"], part.get("minimum", -MOST))
        < min(part["exclusiveMaximum"], part.get("maximum", MOST))
    ]

"""Bounds of numbers as llguidance can enforce them: what its own reading of decimals would miss is listed beside it.

Its grammar of a number below 2.75 wants a digit behind 2.7, so the beginnings of a bound are alternatives of their own;
and it forgets that a whole bound is exclusive where the other bound lies before the next whole number (0 < x <= 0.5),
so that bound is moved by less than anybody writes. Multiples of 0.25 it writes with two decimal places or none, so that
those with one are alternatives of their own. Few multiples within bounds are listed.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_MOST_LISTED = 2000
_MOST_DIGITS = 15  # of a number that a double tells from its neighbours


def enforceable_bounds(node: dict[str, Any], *, meets_others: bool) -> dict[str, Any] | None:
    """A schema for what the bounds in `node` say, for any type of value; None if they can stay as they are.
    `meets_others`: bounds of other nodes may hold for the same number."""
    kinds = node.get("type", "number")
    bounds = {key: Decimal(repr(node[key])) for key in BOUNDS if key in node}
    if not bounds or "number" not in (kinds if isinstance(kinds, list) else [kinds]):
        return None
    low = _moved(bounds, "minimum", "exclusiveMinimum", 1, meets_others)
    high = _moved(bounds, "maximum", "exclusiveMaximum", -1, meets_others)
    ranges = [{**low, **high}]
    # Each beginning of a bound is the bound of a range of its own, whose grammar has it.
    begun = _beginnings(bounds)
    ranges += [{**low, "maximum": value} if value > 0 else {"minimum": value, **high} for value in begun]
    if len(ranges) == 1 and ranges[0] == bounds:
        return None
    others = ["object", "array", "string", "boolean", "null"]
    numbers = [{"type": "number", **{key: float(bound) for key, bound in each.items()}} for each in ranges]
    return {"anyOf": [{"type": others}, *numbers]}


def written_multiples(multiple: float) -> list[float]:
    """Numbers whose multiples are all those of `multiple`, each written by one of them without needless zeros."""
    digits = Decimal(repr(multiple)).normalize()
    places = -int(digits.as_tuple().exponent)
    whole = int(digits.scaleb(max(places, 0)))
    if places < 2 or whole == 1:
        return [multiple]
    steps = {math.lcm(whole, 10 ** (places - kept)) for kept in range(places + 1)}
    return [float(Decimal(step).scaleb(-places)) for step in sorted(steps)]


def few_multiples(node: dict[str, Any]) -> list[int]:
    """All values of a node that says only that they are integers, multiples of a number and within two bounds, if they
    are few: what both allow together takes the engine to its limits. Empty for any other node."""
    if node.get("type") != "integer" or "multipleOf" not in node or not node.keys() <= {"type", "multipleOf", *BOUNDS}:
        return []
    bounds = {key: Decimal(repr(node[key])) for key in BOUNDS if key in node}
    step = Decimal(repr(node["multipleOf"])).as_integer_ratio()[0]  # of the integers among its multiples
    low = max((bounds[key] for key in ("minimum", "exclusiveMinimum") if key in bounds), default=None)
    high = min((bounds[key] for key in ("maximum", "exclusiveMaximum") if key in bounds), default=None)
    if low is None or high is None or high - low > step * _MOST_LISTED:
        return []
    values = range(math.ceil(low / step) * step, math.floor(high) + 1, step)
    return [value for value in values if _within(Decimal(value), bounds)]


def _beginnings(bounds: dict[str, Decimal]) -> list[Decimal]:
    """The numbers within the bounds that a bound begins with: 2 and 2.7 of 2.75, -2 and -2.7 of -2.75."""
    found: set[Decimal] = set()
    for bound in bounds.values():
        whole, point, digits = format(bound.normalize(), "f").partition(".")
        if point:
            found.update(Decimal(f"{whole}.{digits[:count]}") for count in range(len(digits)))
    return sorted(value for value in found if value != 0 and _within(value, bounds))


def _within(value: Decimal, bounds: dict[str, Decimal]) -> bool:
    return (
        bounds.get("minimum", value) <= value <= bounds.get("maximum", value)
        and ("exclusiveMinimum" not in bounds or value > bounds["exclusiveMinimum"])
        and ("exclusiveMaximum" not in bounds or value < bounds["exclusiveMaximum"])
    )


def _moved(
    bounds: dict[str, Decimal], inclusive: str, exclusive: str, sign: int, meets_others: bool
) -> dict[str, Decimal]:
    """The bounds on one side, an exclusive whole one moved inwards where it might be forgotten. `sign`: which way."""
    given = {key: bounds[key] for key in (inclusive, exclusive) if key in bounds}
    bound = bounds.get(exclusive)
    if bound is None or bound != int(bound) or bound * sign < 0:
        return given  # it is remembered on the far side of zero
    opposite = [value for key, value in bounds.items() if key not in (inclusive, exclusive)]
    nearest = min(opposite) if sign > 0 and opposite else max(opposite) if opposite else None
    is_near = nearest is not None and nearest != int(nearest) and int(nearest) == bound
    if not is_near and not meets_others:
        return given
    inner = bound + sign * Decimal(1).scaleb(len(str(abs(int(bound)))) - _MOST_DIGITS)
    if nearest is not None and (nearest - inner) * sign < 0:
        return given
    return {inclusive: max(given.get(inclusive, inner) * sign, inner * sign) * sign}

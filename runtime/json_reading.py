"""Reads JSON so that nothing in it is lost: neither one of two values of a name, nor a number that no double holds."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from lmnb.runtime.argument_checks import shown, shown_path


class LossError(Exception):
    """Reading a text as JSON would lose something; what, and where, as the end of a sentence."""


class WholeDecoder(json.JSONDecoder):
    """For `json.loads(text, cls=WholeDecoder)` and `raw_decode`, which then raise LossError too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(object_pairs_hook=self._object, parse_float=_double, **options)
        self._doubled: list[tuple[dict[str, Any], str]] = []

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        """As `json.JSONDecoder.raw_decode`."""
        self._doubled = []
        value, end = super().raw_decode(s, idx)
        if self._doubled:
            raise self._error(value)
        return value, end

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):  # readers differ in which of the values they drop
            counts = Counter(name for name, _ in pairs)
            self._doubled.append((found, next(name for name in counts if counts[name] > 1)))
        return found

    def _error(self, value: Any) -> LossError:
        """For the first object that has a name twice. (One within a dropped value is in another such object.)"""
        names = {id(found): name for found, name in self._doubled}
        stack = [("#", value)]
        while True:
            path, node = stack.pop()
            if id(node) in names:
                name = shown(names[id(node)])
                return LossError(f"the object at {shown_path(path)} has the name {name} twice; leave one of them out")
            steps = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
            stack.extend(reversed([(f"{path}/{pointer(str(step))}", inner) for step, inner in steps]))


def pointer(name: str) -> str:
    """A name as a step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _double(text: str) -> float:
    value = float(text)
    if math.isinf(value) or (value == 0 and any(digit in "123456789" for digit in text.lower().partition("e")[0])):
        size = "large" if value else "close to zero"
        raise LossError(f"the number {shown(text)} is too {size}; round it, or leave it out")
    return value

"""Reads the fields of a JSON request: each with its type, and none left over that would change the answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from lmnb.server.http_error import HttpError

MAX_SAMPLES = 128


class Fields:
    """A JSON object. Each getter takes a field; null counts as absent. HttpError (400) for a wrong type."""

    def __init__(self, values: Any, where: str = "") -> None:
        if not isinstance(values, Mapping):
            raise HttpError(400, f"{where or 'the body'} must be a JSON object")
        self._values = {name: value for name, value in values.items() if value is not None}
        self._where = f"{where}." if where else ""
        self._left = set(self._values)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        """A field of any type."""
        self._left.discard(name)
        return self._values.get(name, default)

    def text(self, name: str, default: str | None = None) -> str | None:
        """Text."""
        value = self.get(name, default)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "text")
        return value

    def whole(self, name: str, default: int) -> int:
        """A whole number."""
        value = self.get(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, "a whole number")
        return value

    def count(self, name: str) -> int:
        """A number of samples."""
        value = self.whole(name, 1)
        if not 1 <= value <= MAX_SAMPLES:
            raise self.wrong(name, f"a whole number from 1 to {MAX_SAMPLES}")
        return value

    def seed(self, name: str) -> int | None:
        """A whole number, or nothing."""
        return self.whole(name, 0) if name in self else None

    def number(self, name: str, default: float) -> float:
        """A number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(name, "a number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        """Text, or a list of texts, none of them empty."""
        value = self.get(name, [])
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(item, str) and item for item in values):
            raise self.wrong(name, "text or a list of texts, none of them empty")
        return tuple(values)

    def ids(self, name: str) -> tuple[int, ...]:
        """A list of token ids."""
        value = self.get(name, [])
        if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
            raise self.wrong(name, "a list of token ids")
        return tuple(value)

    def sub(self, name: str) -> Fields:
        """An object."""
        return Fields(self.get(name, {}), self._where + name)

    def allow(self, neutral: Mapping[str, Collection[Any] | None]) -> None:
        """Take fields that this server does not act on: any value where None is given, else only these."""
        for name, values in neutral.items():
            value = self.get(name)
            if value is not None and values is not None and value not in values:
                raise HttpError(400, f"{self._where}{name} is not supported by this server; leave it out", name)

    def finish(self) -> None:
        """HttpError if a field was sent that nobody took."""
        if self._left:
            name = sorted(self._left)[0]
            raise HttpError(400, f"{self._where}{name} is not a field that this server knows; leave it out", name)

    def wrong(self, name: str, wanted: str) -> HttpError:
        """The problem of a field of the wrong type."""
        return HttpError(400, f"{self._where}{name} must be {wanted}", name)

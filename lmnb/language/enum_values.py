"""The values of enums and of `Literal`, as JSON has them."""

from __future__ import annotations

import enum
from typing import Any


def check_enum(kind: type[enum.Enum]) -> None:
    """TypeError for a member whose value is not read back as it is written."""
    for member in kind:
        if not _is_plain(member.value):
            raise TypeError(
                f"{kind.__name__}.{member.name} has the value {member.value!r:.40}, which JSON has no form for"
            )


def json_value(item: Any) -> Any:
    """What stands for an item of a `Literal`. TypeError if nothing does."""
    value = item.value if isinstance(item, enum.Enum) else item
    if not isinstance(value, str | int | float | None):
        raise TypeError(f"Literal[{item!r:.40}] has no JSON form")
    return value


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return isinstance(value, str | int | float | None)

"""Reads the values that callers give as options: each becomes the plain Python value it means, or an ArgumentError.

Notebooks bring numpy's scalars and floats that are whole numbers; these are taken where nothing is lost.
"""

from __future__ import annotations

import inspect
import math
import operator
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, cast

from lmnb.errors import ArgumentError

_MAX_SHOWN = 60
_MAX_PATH_SHOWN = 120
_MAX_ERROR_SHOWN = 300
_MAX_TOKEN_ID = 2**31 - 1  # tokens are int32 everywhere
MOST_COUNTED = 2**63 - 1


def shown(value: object) -> str:
    """A value for an error message: on one line, short, whatever its `repr` does."""
    try:
        text = ascii(value) if isinstance(value, str) else _escaped(" ".join(repr(value).split()))
    except Exception:  # a number of many thousand digits, a broken __repr__
        return f"this {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def shown_path(path: str) -> str:
    """A place in a schema for an error message: on one line, with both its ends."""
    half = _MAX_PATH_SHOWN // 2
    path = path if len(path) <= _MAX_PATH_SHOWN else f"{path[:half]} ... {path[-half:]}"
    return _escaped(path)


def current_folder() -> str:
    """The folder that relative paths begin in, for an error message: it may have been deleted."""
    try:
        return os.getcwd()
    except OSError:
        return "a folder that was deleted"


def shown_error(error: BaseException) -> str:
    """What another library says, on one line and not too long, without its addresses of further pages."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = _escaped(" ".join(line for line in lines if line and not line.startswith("For further information visit")))
    return text if len(text) <= _MAX_ERROR_SHOWN else text[: _MAX_ERROR_SHOWN - 3] + "..."


def _escaped(text: str) -> str:
    """Without characters that break a line, or that a terminal or browser obeys instead of showing."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def whole_number(name: str, value: Any) -> int:
    """An int: also from another integer type, or from a float that is one exactly. Not from bool or text."""
    if type(value) is not bool:
        try:
            if not _is_real(value):
                return operator.index(value)
            if math.isfinite(value) and int(value) == value:
                return int(value)
        except (TypeError, OverflowError):
            pass
    raise ArgumentError(f"{name} must be a whole number, not {shown(value)}")


def count(name: str, value: Any) -> int:
    """A whole number from 1 on, of a size that something can be counted up to."""
    found = whole_number(name, value)
    if found < 1:
        raise ArgumentError(f"{name} must be at least 1, not {shown(found)}")
    if found > MOST_COUNTED:
        raise ArgumentError(f"{name} must be below 2**63, not {shown(found)}")
    return found


def number(name: str, value: Any) -> float:
    """A float or int (any real type gives one), not NaN. Not bool or text."""
    if type(value) is float and not math.isnan(value):
        return value
    if _is_real(value):
        try:
            found: float = value if type(value) is int else float(value)
            if not math.isnan(found):
                return found
        except OverflowError:  # an int that no float is as large as
            pass
    raise ArgumentError(f"{name} must be a number, not {shown(value)}")


def flag(name: str, value: Any) -> bool:
    """A bool: also from numpy's, or from 0 and 1. Not from text."""
    if isinstance(value, bool):
        return value
    try:
        if value in (False, True):
            return bool(value)
    except Exception:  # an array, which has no one truth
        pass
    raise ArgumentError(f"{name} must be True or False, not {shown(value)}")


def function(name: str, value: Any, takes: Sequence[str] = ()) -> Any:
    """Something that can be called; with so many arguments, if `takes` says what they are."""
    if not callable(value):
        raise ArgumentError(f"{name} must be a function, not {shown(value)}")
    if takes and not _can_take(value, len(takes)):
        raise ArgumentError(
            f"{name} must be a function of {len(takes)} arguments ({', '.join(takes)}); {shown(value)} is not"
        )
    return value


def _can_take(called: Callable[..., Any], num_arguments: int) -> bool:
    """Whether a function can be called with so many arguments, as far as it says what it takes."""
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # some of those written in C do not
        return True
    try:
        signature.bind(*range(num_arguments))
    except TypeError:
        return False
    return True


def texts(name: str, value: object) -> tuple[str, ...]:
    """Texts, from one or several; none empty, and all of them text that can be written (no half characters)."""
    items = _items(name, "text or a list of texts", (value,) if isinstance(value, str) else value)
    found = tuple(item for item in items if isinstance(item, str) and item)
    if len(found) != len(items):
        raise ArgumentError(f"{name} strings must be non-empty text, not {shown(value)}")
    for item in found:
        check_text(name, item)
    return found


def check_text(name: str, text: object) -> None:
    """ArgumentError unless this is text that UTF-8 has a form for."""
    if not isinstance(text, str):
        raise ArgumentError(f"{name} must be text, not {shown(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(
            f"{name} must be whole characters: {shown(text[error.start])} at position {error.start} is half a "
            "surrogate pair; remove it"
        ) from None


def whole_numbers(name: str, value: object) -> tuple[int, ...]:
    """Ints of any size."""
    items = _items(name, "a list of token ids", value)
    if set(map(type, items)) <= {int}:  # a prompt may have many thousands
        return cast("tuple[int, ...]", items)
    return tuple(whole_number(f"each of {name}", item) for item in items)


def token_ids(name: str, value: object) -> tuple[int, ...]:
    """Token ids that fit an int32."""
    found = whole_numbers(name, value)
    if found and not -_MAX_TOKEN_ID <= min(found) <= max(found) <= _MAX_TOKEN_ID:
        raise ArgumentError(f"{name} must hold token ids below 2**31, not {shown(value)}")
    return found


def check_token_ids(ids: Collection[int], vocab_size: int) -> None:
    """ArgumentError unless all are tokens of a vocabulary of this size."""
    wrong = next((each for each in (min(ids, default=0), max(ids, default=0)) if not 0 <= each < vocab_size), None)
    if wrong is not None:
        raise ArgumentError(f"token ids must lie in [0, {vocab_size}), not {shown(wrong)}")


def _is_real(value: object) -> bool:
    return type(value) is not bool and isinstance(value, Real)


def _items(name: str, wanted: str, value: object) -> tuple[object, ...]:
    if isinstance(value, tuple):
        return value
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        return tuple(value)
    raise ArgumentError(f"{name} must be {wanted}, not {shown(value)}")

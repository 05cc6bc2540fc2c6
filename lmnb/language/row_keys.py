"""By what an earlier result's rows are known again: a short text for each row, from the program's arguments in it.

Equal arguments give equal keys, in another process too, and however a table on disk has changed their numbers' types.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import hashlib
import json
import math
import pickle
import secrets
from collections.abc import Mapping, Set
from pathlib import PurePath
from typing import Any


def row_key(arguments: Mapping[str, Any]) -> str:
    """The key of a row with these arguments. What nothing can be told of gets a key that no other row has."""
    try:
        text = json.dumps(_plain(arguments), ensure_ascii=True, sort_keys=True)
    except Exception:  # an object that cannot be pickled; data that holds itself
        return _short(secrets.token_bytes())
    return _short(text.encode())


def _short(data: bytes) -> str:
    return f"r{hashlib.sha256(data).hexdigest()[:16]}"  # with a letter first, no table takes it for a number


def _plain(value: Any) -> Any:
    """The value as JSON data, other kinds of values by their names and contents."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, enum.Enum):
        return _tagged(value, value.name)
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, Mapping):
        return [{"is": "dict"}, *sorted(([_plain(key), _plain(item)] for key, item in value.items()), key=json.dumps)]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Set):
        return [{"is": "set"}, *sorted((_plain(item) for item in value), key=json.dumps)]
    if isinstance(value, (dt.date, dt.time, dt.timedelta, PurePath)):
        return None if value != value else _tagged(value, str(value))  # pandas has a date that is none
    return _of_object(value)


def _of_object(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return _tagged(value, hashlib.sha256(value).hexdigest())
    if type(value).__name__ == "NAType":  # pandas' missing value
        return None
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a scalar of numpy's
        return _plain(value.item())
    if hasattr(value, "tobytes"):  # an array, a PIL image
        form = [str(getattr(value, name, "")) for name in ("shape", "size", "dtype", "mode")]
        return _tagged(value, [form, hashlib.sha256(value.tobytes()).hexdigest()])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _tagged(value, {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)})
    if hasattr(value, "model_dump") and not isinstance(value, type):  # a pydantic model
        return _tagged(value, _plain(value.model_dump()))
    return _tagged(value, hashlib.sha256(pickle.dumps(value)).hexdigest())


def _number(value: float) -> Any:
    """Whole numbers are ints, and what is not a number is missing: tables make floats and NaN of ints and None."""
    if isinstance(value, int):
        return int(value)
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() else float(value)


def _tagged(value: Any, content: Any) -> dict[str, Any]:
    return {"is": f"{type(value).__module__}.{type(value).__qualname__}", "content": content}

"""Keys of dicts, which JSON writes as names."""

from __future__ import annotations

from lmnb.language import type_patterns
from lmnb.language.pydantic_numbers import BOUNDS, MOST, Schema

_FEW = 1000  # whole numbers that may be listed


def names(keys: Schema) -> tuple[Schema, list[str]]:
    """The schema of the names that are keys by `keys`, and what it cannot say."""
    kind, listed = keys.get("type"), keys.get("enum", [keys["const"]] if "const" in keys else None)
    if listed is not None:
        texts = [value for value in listed if isinstance(value, str)]
        if not texts:
            raise TypeError("none of a dict's keys is text, as JSON's names are")
        return {"enum": texts}, []
    if kind == "string":
        said = {key: value for key, value in keys.items() if key in ("pattern", "minLength", "maxLength", "format")}
        if said.get("format") in ("path", "binary", "password"):
            del said["format"]
        if said.get("format") in type_patterns.KEY_FORMATS:
            said["pattern"] = type_patterns.KEY_FORMATS[said.pop("format")]
        notes = [f"{key} of keys" for key in keys.keys() & {"allOf"}]
        return ({"type": "string", **said} if said else {}), notes
    if kind == "boolean":
        return {"enum": ["true", "false"]}, []
    if kind == "integer":
        low = keys.get("minimum", keys.get("exclusiveMinimum", float("-inf")) + 1)
        high = keys.get("maximum", keys.get("exclusiveMaximum", float("inf")) - 1)
        if high - low < _FEW:
            step = keys.get("multipleOf", 1)
            return {"enum": [str(value) for value in range(int(low), int(high) + 1) if value % step == 0]}, []
    if kind in ("integer", "number"):
        pattern = type_patterns.WHOLE_NUMBER if kind == "integer" else type_patterns.NUMBER
        limits = sorted(key for key in {"multipleOf", *BOUNDS.values()} & keys.keys() if abs(keys[key]) != MOST)
        return {"type": "string", "pattern": pattern}, [f"{limit} of keys" for limit in limits]
    if "anyOf" in keys and {"type": "string"} in keys["anyOf"]:
        return {}, []
    if not keys.keys() - {"title", "description"}:
        return {}, []
    raise TypeError("a dict has keys that are no texts and no numbers; use a list of pairs")

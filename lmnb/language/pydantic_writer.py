"""pydantic's JSON schemas, of no more texts than pydantic itself can read back: imported when a type needs it.

What no schema can say of a type (a validator, a bound of a date) is noted in it (see `unenforced.py`); a type of which
no text can be read is refused by a TypeError.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any, TypeAlias

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import SchemaValidator, core_schema

from lmnb.language import dict_keys, pydantic_numbers, type_patterns, union_tags
from lmnb.language.enum_values import check_enum, json_value
from lmnb.language.unenforced import VALUES, noted, notes_of

Schema: TypeAlias = dict[str, Any]
_FUNCTIONS = ("function-before", "function-after", "function-wrap", "function-plain")
# Functions of pydantic's that check what its schema does not say; its other ones belong to types that are known here.
_CHECKING = ("val_func", "validate_new", "import_string", "ByteSize._validate")
_LIMITS = {  # of pydantic's own functions, where it has them for types that know no such limits
    "min_length": {"minLength", "minItems", "minProperties"},
    "max_length": {"maxLength", "maxItems", "maxProperties"},
    "multiple_of": {"multipleOf"},
    **{name: {keyword} for name, keyword in pydantic_numbers.BOUNDS.items()},
}
_ASCII = "x-ascii"  # marks the schema of a text that is decoded, until its format is known


class Writer(GenerateJsonSchema):
    """Decimals are numbers, and durations are of a length that Python has. (pydantic also reads decimals as texts, of
    which its schema allows any.)"""

    def generate(self, schema: Any, mode: Any = "validation") -> Schema:
        """The whole schema, formats that only pydantic knows as patterns."""
        result: Schema = _with_patterns(union_tags.with_required(super().generate(schema, mode)))
        return result

    def generate_inner(self, schema: Any) -> Schema:
        """Of a part: with notes of functions, which only Python can call."""
        kind = schema["type"]
        if kind == "is-subclass":
            raise TypeError("JSON has no form for classes")
        result: Schema = super().generate_inner(schema)
        if kind == "chain" and len(schema["steps"]) > 1:
            return noted(result, "the later steps of its chain of validators")
        return _with_function(result, schema["function"]["function"]) if kind in _FUNCTIONS else result

    # -- numbers --

    def float_schema(self, schema: Any) -> Schema:
        """Multiples are exact as far as floats are."""
        result = super().float_schema(schema)
        if "multipleOf" in result:
            pydantic_numbers.limit(result, pydantic_numbers.MOST)
        allowed = schema.get("allow_inf_nan")
        if allowed is None:
            allowed = getattr(self._config, "allow_inf_nan", True)
        if allowed is False and not pydantic_numbers.has_both_bounds(result):
            return noted(result, "allow_inf_nan=False (a number of more than 308 digits is read as infinity)")
        return result

    def decimal_schema(self, schema: Any) -> Schema:
        """A number within the limits."""
        return pydantic_numbers.decimal(schema)

    def complex_schema(self, schema: Any) -> Schema:
        """A text such as 1+2.5j."""
        return {"type": "string", "pattern": type_patterns.COMPLEX}

    def fraction_schema(self, schema: Any) -> Schema:
        """A number."""
        return pydantic_numbers.decimal(schema)

    # -- texts --

    def str_schema(self, schema: Any) -> Schema:
        """Stripped, where limits hold for what is left; patterns as pydantic reads them."""
        result = super().str_schema(schema)
        pattern = schema.get("pattern")
        if pattern is not None:
            engine = schema.get("regex_engine", getattr(self._config, "regex_engine", None))
            plain = isinstance(pattern, str)  # what is compiled stays Python's
            text = pattern if plain else _with_flags(pattern)
            result["pattern"] = type_patterns.searched(text, rust=plain and engine != "python-re")
        strips = schema.get("strip_whitespace", getattr(self._config, "str_strip_whitespace", False))
        if strips and (pattern is not None or result.get("minLength")):
            if pattern is None:
                result["pattern"] = type_patterns.STRIPPED
            else:
                result["allOf"] = [{"pattern": type_patterns.STRIPPED}]
        return result

    def bytes_schema(self, schema: Any) -> Schema:
        """As the model reads bytes: a text's own, or in base64 or hexadecimal digits."""
        low, high = schema.get("min_length") or 0, schema.get("max_length")
        kind = getattr(self._config, "val_json_bytes", "utf8")
        if kind == "hex":
            return {"type": "string", "pattern": type_patterns.hexadecimal(low, high)}
        if kind == "base64":
            result: Schema = {"type": "string", "pattern": type_patterns.BASE64_URL}
            return noted(result, "the number of bytes") if low or high is not None else result
        if low or high is not None:
            return {"type": "string", "pattern": type_patterns.ascii_text(low, high)}
        return {"type": "string"}

    def uuid_schema(self, schema: Any) -> Schema:
        """Of its version."""
        version = schema.get("version")
        return {"type": "string", "format": f"uuid{version}" if version else "uuid"}

    def url_schema(self, schema: Any) -> Schema:
        """With a host, and one of the schemes."""
        return self._url(schema, several=False)

    def multi_host_url_schema(self, schema: Any) -> Schema:
        """The same of several hosts."""
        return self._url(schema, several=True)

    def _url(self, schema: Any, *, several: bool) -> Schema:
        pattern = type_patterns.url(schema.get("allowed_schemes"), several=several)
        result: Schema = {"type": "string", "pattern": pattern}
        if schema.get("max_length") is not None:
            result["maxLength"] = schema["max_length"]
        return result

    def json_schema(self, schema: Any) -> Schema:
        """A text, which should be JSON."""
        return noted({"type": "string"}, "that the text is JSON of its type")

    # -- dates and times --

    def date_schema(self, schema: Any) -> Schema:
        """Any date."""
        return _with_temporal_notes(super().date_schema(schema), schema)

    def time_schema(self, schema: Any) -> Schema:
        """Any time."""
        return _with_temporal_notes(super().time_schema(schema), schema)

    def datetime_schema(self, schema: Any) -> Schema:
        """With an offset, unless there must be none."""
        result = super().datetime_schema(schema)
        zone = schema.get("tz_constraint")
        if zone == "naive":
            result = {"type": "string", "pattern": type_patterns.NAIVE_DATETIME}
        elif isinstance(zone, int):
            result = noted(result, "the offset from UTC")
        return _with_temporal_notes(result, schema)

    def timedelta_schema(self, schema: Any) -> Schema:
        """Days, hours, minutes and seconds of up to five digits."""
        return _with_temporal_notes({"type": "string", "pattern": type_patterns.DURATION}, schema)

    # -- values with parts --

    def literal_schema(self, schema: Any) -> Schema:
        """Its values, if pydantic reads them: not so the members of some enums."""
        for item in schema["expected"]:
            if not _is_read(item):
                raise TypeError(
                    f"Literal[{item!r:.60}] cannot be read from JSON; use the value itself, or the whole enum"
                )
        return super().literal_schema(schema)

    def enum_schema(self, schema: Any) -> Schema:
        """Its values, if they are JSON's."""
        check_enum(schema["cls"])
        return super().enum_schema(schema)

    def set_schema(self, schema: Any) -> Schema:
        """Of items that can be in a set."""
        return _with_hash_notes(super().set_schema(schema), schema)

    def frozenset_schema(self, schema: Any) -> Schema:
        """Of items that can be in a set."""
        return _with_hash_notes(super().frozenset_schema(schema), schema)

    def dict_schema(self, schema: Any) -> Schema:
        """With names that are keys."""
        return self._with_keys(super().dict_schema(schema), schema)

    def frozendict_schema(self, schema: Any) -> Schema:
        """With names that are keys."""
        return self._with_keys(super().frozendict_schema(schema), schema)

    def ordered_dict_schema(self, schema: Any) -> Schema:
        """With names that are keys."""
        return self._with_keys(super().ordered_dict_schema(schema), schema)

    def counter_schema(self, schema: Any) -> Schema:
        """With names that are keys."""
        return self._with_keys(super().counter_schema(schema), schema)

    def _with_keys(self, result: Schema, schema: Any) -> Schema:
        keys = self.generate_inner(schema["keys_schema"]) if "keys_schema" in schema else {}
        if "$ref" not in keys:
            names, notes = dict_keys.names(keys)
            for note in [*notes, *(f"{what} (of keys)" for what in notes_of(keys))]:
                result = noted(result, note)
            keys = names
        result = dict(result)
        for values in result.pop("patternProperties", {}).values():  # by a pattern of keys
            result["additionalProperties"] = values
        result.pop("propertyNames", None)
        return {**result, "propertyNames": keys} if keys else result

    def tagged_union_schema(self, schema: Any) -> Schema:
        """Told apart by a value, or by a function, which only Python can call."""
        result = super().tagged_union_schema(schema)
        if callable(schema["discriminator"]):
            result["anyOf"] = result.pop("oneOf")
            return noted(result, f"which of the alternatives {_name(schema['discriminator'])} takes")
        return union_tags.tagged(result, schema["discriminator"])

    def model_fields_schema(self, schema: Any) -> Schema:
        """Of names that are read as they are written."""
        for name, field in schema["fields"].items():
            _check_alias(name, field)
        return super().model_fields_schema(schema)

    def typed_dict_schema(self, schema: Any) -> Schema:
        """Of names that are read as they are written."""
        for name, field in schema["fields"].items():
            _check_alias(name, field)
        return super().typed_dict_schema(schema)

    def dataclass_args_schema(self, schema: Any) -> Schema:
        """Of names that are read as they are written."""
        for field in schema["fields"]:
            _check_alias(field["name"], field)
        return super().dataclass_args_schema(schema)

    def dataclass_schema(self, schema: Any) -> Schema:
        """With a note of what it does once it is made."""
        result = super().dataclass_schema(schema)
        return noted(result, f"{schema['cls'].__name__}.__post_init__") if schema.get("post_init") else result


def _is_read(item: Any) -> bool:
    try:
        SchemaValidator(core_schema.literal_schema([item])).validate_json(json.dumps(json_value(item)))
    except ValueError:
        return False
    return True


def _with_flags(pattern: re.Pattern[str]) -> str:
    flags = "".join(letter for letter, flag in (("i", re.I), ("m", re.M), ("s", re.S)) if pattern.flags & flag)
    if pattern.flags & re.X:
        raise TypeError(f"the pattern {pattern.pattern[:40]!r} is verbose; write it without comments and spaces")
    # Python's pattern may begin with them itself.
    return f"(?{flags}){pattern.pattern}" if flags else pattern.pattern


def _with_temporal_notes(result: Schema, schema: Any) -> Schema:
    for key in (*pydantic_numbers.BOUNDS, "now_op"):
        if schema.get(key) is not None:
            words = f"that it lies in the {schema[key]}" if key == "now_op" else f"{key}={schema[key]}"
            result = noted(result, words)
    return result


def _with_hash_notes(result: Schema, schema: Any) -> Schema:
    items = schema.get("items_schema", {"type": "any"})
    if items["type"] in ("list", "set", "dict", "typed-dict", "deque") or (
        items["type"] in ("model", "dataclass") and items["cls"].__hash__ is None
    ):
        raise TypeError("a set cannot hold lists, sets, dicts, or models that are not frozen; use a list")
    known = ("int", "float", "str", "bool", "literal", "enum", "none", "date", "datetime", "bytes", "uuid", "decimal")
    return result if items["type"] in known else noted(result, "that items can be in a set")


def _check_alias(name: str, field: Any) -> None:
    alias = field.get("validation_alias", name)
    paths = alias if isinstance(alias, list) and isinstance(alias[0], list) else [alias]
    if not any(isinstance(path, str) or (len(path) == 1 and isinstance(path[0], str)) for path in paths):
        raise TypeError(f"{name} is read from inside of other values (AliasPath); give it a name of its own too")


def _with_function(result: Schema, function: Any) -> Schema:
    if isinstance(function, partial) and set(function.keywords) & _LIMITS.keys():
        missing = [name for name in function.keywords if not result.keys() & _LIMITS.get(name, ())]
        unsaid = function.keywords if "type" not in result else missing
        for name in unsaid:
            result = noted(result, f"{name}={function.keywords[name]!r:.40}")
        return result
    function = function.func if isinstance(function, partial) else function
    module = getattr(function, "__module__", None) or type(function).__module__
    owner = getattr(function, "__self__", None)
    if type(owner).__name__ == "EncodedStr":
        return {**result, _ASCII: True}
    if module.partition(".")[0] == "pydantic" and not _name(function).endswith(_CHECKING):
        return result
    return noted(result, "a Predicate" if _name(function).endswith("val_func") else f"the validator {_name(function)}")


def _name(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or repr(function)
    return str(name).replace("<locals>.", "")[-60:]


def _with_patterns(schema: Any) -> Any:
    """A copy with the formats that only pydantic knows as patterns."""
    if isinstance(schema, list):
        return [_with_patterns(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: value if key in VALUES else _with_patterns(value) for key, value in schema.items()}
    if isinstance(schema.get("format"), str) and schema.get("type") == "string":
        form = result["format"]
        if form == "email":
            result = noted(result, "that the e-mail address's domain is not reserved, such as .test")
        pattern = type_patterns.FORMATS.get(form)
        if result.pop(_ASCII, False) and form in ("base64", "base64url"):
            pattern = type_patterns.base64_of_ascii("-_" if form == "base64url" else "+/")
        if pattern is not None:
            del result["format"]
            result["pattern"] = pattern
    return result

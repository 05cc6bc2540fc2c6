"""Graphs as JSON text, and back. Every value is written with its kind, so that reading is exact."""

from __future__ import annotations

import base64
import json
from dataclasses import fields
from typing import Any

from lmnb.backends.image_reading import load_image
from lmnb.backends.images import ImageData, VideoData
from lmnb.errors import ArgumentError, LmnbError
from lmnb.language import choices as choice_methods
from lmnb.language.expressions import Expr, Gen, Image, RoleBegin, RoleEnd, SamplingOptions, Select, Text
from lmnb.language.graph import REQUIRED, Append, Call, Fork, Graph, Join, Op, Scope, SetVariable
from lmnb.language.graph_check import check_graph
from lmnb.language.placeholders import Argument, VariableRef
from lmnb.language.reasoning import ReasoningFormat
from lmnb.runtime.request import Constraint

VERSION = 1
_OPS: dict[str, type[Op]] = {
    "append": Append, "scope": Scope, "set": SetVariable, "fork": Fork, "join": Join, "call": Call
}  # fmt: skip
_NODES: dict[str, type[Any]] = {
    "text": Text, "begin": RoleBegin, "end": RoleEnd, "arg": Argument, "var": VariableRef,
    "gen": Gen, "select": Select, "image": Image,
    "options": SamplingOptions, "constraint": Constraint, "reasoning": ReasoningFormat,
}  # fmt: skip
_METHODS = {
    method.name: method
    for method in (
        choice_methods.token_length_normalized,
        choice_methods.greedy_token_selection,
        choice_methods.unconditional_likelihood_normalized,
    )
}


def to_json(graph: Graph) -> str:
    """See `Graph.to_json`."""
    message = {
        "lmnb_graph": VERSION,
        "name": graph.name,
        "parameters": [
            [name, {"is": "required"} if default is REQUIRED else _written(default)]
            for name, default in graph.parameters.items()
        ],
        "ops": [_written_object(_kind(op, _OPS), op) for op in graph.ops],
        "result": _written(graph.result),
        "options": _written(dict(graph.options)),
    }
    return json.dumps(message, ensure_ascii=False)


def from_json(text: str) -> Graph:
    """See `Graph.from_json`."""
    try:
        message = json.loads(text)
        if message["lmnb_graph"] != VERSION:
            raise ArgumentError(f"this graph was written in version {message['lmnb_graph']!r}, not {VERSION}")
        graph = Graph(
            name=message["name"],
            parameters={
                name: REQUIRED if default == {"is": "required"} else _read(default)
                for name, default in message["parameters"]
            },
            ops=tuple(_read_object(_OPS[op["is"]], op) for op in message["ops"]),
            result=_read(message["result"]),
            options=_read(message["options"]),
        )
        check_graph(graph)
    except (LmnbError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = str(error) if isinstance(error, LmnbError) else repr(error)
        raise ArgumentError(f"this is not a graph as Graph.to_json writes it: {reason}") from error
    return graph


def _written(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, tuple):
        return {"is": "tuple", "items": [_written(item) for item in value]}
    if isinstance(value, list):
        return [_written(item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ArgumentError("JSON can hold dicts with text as keys only")
        return {"is": "dict", "items": [[key, _written(item)] for key, item in value.items()]}
    if isinstance(value, choice_methods.ChoicesSamplingMethod):
        if value not in _METHODS.values():
            raise ArgumentError(f"JSON cannot hold the choices_method {value!r}; only lmnb's own ones")
        return {"is": "method", "name": value.name}
    if isinstance(value, ImageData):
        return {"is": "file", "data": value.base64}
    if isinstance(value, VideoData):
        return {"is": "frames", "files": [_written(frame) for frame in value.frames]}
    if isinstance(value, (Expr, Constraint, SamplingOptions, ReasoningFormat)):
        return _written_object(_kind(value, _NODES), value)
    raise ArgumentError(f"JSON cannot hold {value!r}, which the program uses as a value")


def _kind(value: Any, kinds: dict[str, type[Any]]) -> str:
    for kind, cls in kinds.items():
        if type(value) is cls:
            return kind
    raise ArgumentError(f"JSON cannot hold {type(value).__name__}")


def _written_object(kind: str, value: Any) -> dict[str, Any]:
    return {
        "is": kind,
        **{
            field.name: _written(getattr(value, field.name))
            for field in fields(value)
            if not field.metadata.get("lives")
        },
    }


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value["is"]
    if kind == "tuple":
        return tuple(_read(item) for item in value["items"])
    if kind == "dict":
        return {key: _read(item) for key, item in value["items"]}
    if kind == "method":
        return _METHODS[value["name"]]
    if kind == "file":
        return load_image(base64.b64decode(value["data"]))
    if kind == "frames":
        return VideoData(tuple(_read(file) for file in value["files"]))
    return _read_object(_NODES[kind], value)


def _read_object(cls: type[Any], value: dict[str, Any]) -> Any:
    return cls(**{name: _read(item) for name, item in value.items() if name != "is"})

"""Python functions as tools: the schema of valid calls by their signatures, and calls that a program can execute."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from lmnb.errors import ArgumentError
from lmnb.language import arguments
from lmnb.language.pydantic_types import is_field
from lmnb.language.typed import convert, hints_of, merge_definitions, schema_of
from lmnb.language.unenforced import plain
from lmnb.runtime.argument_checks import shown

Tools = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True)
class ToolCall:
    """A call that the model wrote: the function's name, its arguments as Python values, and the function."""

    name: str
    arguments: dict[str, Any]
    function: Callable[..., Any]

    def run(self) -> Any:
        """Call the function; what it raises is raised."""
        return self.function(**self.arguments)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


def named_tools(functions: Iterable[Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The functions by name. ArgumentError if there are none, or two of one name."""
    listed = arguments.listed("tools", functions, "a list of Python functions")
    names = [getattr(function, "__name__", "") for function in listed]
    if not listed or not all(callable(function) for function in listed):
        raise ArgumentError("tools needs a list of one or more Python functions")
    if len(set(names)) < len(names) or not all(name.isidentifier() for name in names):
        raise ArgumentError(f"tools must be functions with names of their own, not {names}")
    return dict(zip(names, listed, strict=True))


def tools_schema(tools: Tools) -> dict[str, Any]:
    """The JSON schema of one call of one of `tools`: {"name": ..., "arguments": {...}}, with notes."""
    definitions: dict[str, Any] = {}
    calls = []
    for name, function in tools.items():
        arguments = merge_definitions(definitions, _arguments_schema(name, function))
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": arguments},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**schema, "$defs": definitions} if definitions else schema


def describe_tools(functions: Iterable[Callable[..., Any]]) -> str:
    """What to tell a model of the tools: one line of JSON each, with name, description and parameters."""
    lines = []
    for name, function in named_tools(functions).items():
        about = {"name": name, "description": inspect.getdoc(function) or "", "parameters": None}
        parameters, _ = plain(_arguments_schema(name, function))
        lines.append(json.dumps({**about, "parameters": parameters}, ensure_ascii=False))
    return "\n".join(lines)


def read_call(tools: Tools, text: str) -> ToolCall:
    """The call that `text` says, its arguments checked by the tool's signature. ValueError if it is none."""
    message = json.loads(text)
    try:
        name, given = message["name"], dict(message["arguments"])
    except (TypeError, KeyError, ValueError):
        raise ValueError(f"it is no tool call: {shown(text)}") from None
    if name not in tools:
        raise ValueError(f"it calls {shown(name)}, which is none of the tools: {', '.join(tools)}")
    function = tools[name]
    parameters = {parameter: (hint, optional) for parameter, hint, optional in _parameters(name, function)}
    unknown = [parameter for parameter in given if parameter not in parameters]
    missing = [parameter for parameter, (_, optional) in parameters.items() if not optional and parameter not in given]
    for wrong, what in ((unknown, "has no parameter"), (missing, "needs the argument")):
        if wrong:
            raise ValueError(f"{name} {what} {wrong[0]!r}")
    arguments = {parameter: convert(parameters[parameter][0], value) for parameter, value in given.items()}
    return ToolCall(name, arguments, function)


def _arguments_schema(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required = []
    definitions: dict[str, Any] = {}
    for parameter, hint, has_default in _parameters(name, function):
        properties[parameter] = merge_definitions(definitions, schema_of(hint))
        if not has_default:
            required.append(parameter)
    result = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {**result, "$defs": definitions} if definitions else result


def _parameters(name: str, function: Callable[..., Any]) -> list[tuple[str, Any, bool]]:
    """Each parameter's name, type, and whether it may be left out. One with a pydantic `Field` for a default has its
    limits and may not: a plain function would get the `Field` itself."""
    hints = hints_of(inspect.unwrap(function))
    try:
        signature = inspect.signature(function)
    except ValueError:
        raise ArgumentError(
            f"the tool {name} has no signature to read; write a function with typed parameters"
        ) from None
    found = []
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ArgumentError(f"the tool {name} takes {parameter}, which a model cannot name; name each parameter")
        if parameter.name not in hints:
            raise ArgumentError(f"parameter {parameter.name!r} of the tool {name} needs a type, such as str")
        hint, default = hints[parameter.name], parameter.default
        if is_field(default):
            found.append((parameter.name, Annotated[hint, default], False))
        else:
            found.append((parameter.name, hint, default is not parameter.empty))
    return found

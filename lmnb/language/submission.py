"""From expressions to steps: what is checked, and fixed, at the moment when a program appends."""

from __future__ import annotations

from collections.abc import Sequence

from lmnb.backends.base import Backend
from lmnb.errors import ProgramError
from lmnb.language.defaults import Defaults
from lmnb.language.expressions import Expr, Gen, Image, RoleBegin, RoleEnd, Select, Text
from lmnb.language.model_steps import GenStep, SelectStep
from lmnb.language.notices import tell_once
from lmnb.language.reasoning import SUFFIX
from lmnb.language.steps import ImageStep, RoleStep, Step, TextStep
from lmnb.language.variables import Variable

_UNSCORED = {
    "structured": "select is made by the API's structured output; it tells no scores, and choices_method has no say",
    "guided": "select lets the model choose token by token; choices_method has no say",
}


def prepare(node: Expr, line: int | None, defaults: Defaults, backend: Backend) -> Step:
    """The step of one node that was appended at `line`. ArgumentError if its parameters are out of range, or
    the backend cannot take it."""
    at = f" at line {line}" if line is not None else ""
    if isinstance(node, Text):
        return TextStep(f"text{at}", node.text)
    if isinstance(node, Image):
        if not backend.capabilities.images:
            raise backend.capabilities.refuse_images(backend)
        return ImageStep(f"image{at}", node.picture)
    if isinstance(node, RoleBegin):
        return RoleStep(f"{node.role}{at}", node.role)
    if isinstance(node, RoleEnd):
        return RoleStep(f"the end of {node.role}{at}", None)
    if isinstance(node, (Gen, Select)):
        kind = "gen" if isinstance(node, Gen) else "select"
        where = f"{kind}({'' if node.name is None else repr(node.name)}){at}"
        variables = [] if node.name is None else [Variable(node.name)]
        if node.reasoning is not None:
            variables.append(Variable(f"{node.name}{SUFFIX}"))
        if isinstance(node, Select):
            if backend.capabilities.select in _UNSCORED:
                tell_once(backend, f"{backend.name}: {_UNSCORED[backend.capabilities.select]}")
            return SelectStep(where, variables, node, line, all_methods=defaults.top_logprobs_num > 0)
        return GenStep(where, variables, node, defaults.params(node, backend.stop), defaults.merged(node), line)
    raise ProgramError(f"a state cannot execute {node!r}")


def check_roles(nodes: Sequence[Expr], role: str | None) -> str | None:
    """The open role after `nodes`; ProgramError where they nest or close what is not open."""
    for node in nodes:
        if isinstance(node, RoleBegin):
            if role is not None:
                raise ProgramError(f"{node.role} cannot open inside {role}: roles do not nest; close {role} first")
            role = node.role
        elif isinstance(node, RoleEnd):
            if role != node.role:
                inside = f"inside {role}" if role else "where no role is open"
                raise ProgramError(f"the end of {node.role} stands {inside}; open and close the same role")
            role = None
    return role


def merge_text(nodes: Sequence[Expr]) -> list[Expr]:
    """The same with neighbouring texts joined and empty ones left out."""
    result: list[Expr] = []
    for node in nodes:
        if isinstance(node, Text):
            if result and isinstance(result[-1], Text):
                result[-1] = Text(result[-1].text + node.text)
            elif node.text:
                result.append(node)
        else:
            result.append(node)
    return result

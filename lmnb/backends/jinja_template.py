"""A tokenizer's own chat template, taken apart: what it writes before and after each role's content.

The Jinja source is rendered, in a sandbox, with marked contents; the text between the marks is what a role
opens and closes with. It never sees a program's real contents, so these cannot reach the template language.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError as JinjaError
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lmnb.backends.prefix import common_prefix_length
from lmnb.errors import TemplateError

_ADVICE = 'pass chat_template="chatml" or another name to use a template of lmnb\'s own'


class JinjaTemplate:
    """Derives role prefixes and suffixes by rendering, and verifies that the template only ever appends.

    A suffix is what all continuations (end, generation prompt, another role) have in common after the
    content, not cutting one of `atoms` (the special tokens' texts) in two. The assistant's prefix is the
    generation prompt where the template has one. Templates that move the system message (into the latest
    user turn, say) cannot be appended to: later turns are then derived as if there were none.
    Contents are used as they are, where some templates would strip white space around them.
    """

    def __init__(
        self,
        source: str,
        variables: Mapping[str, str] | None = None,
        atoms: Sequence[str] = (),
        name: str = "tokenizer",
    ) -> None:
        self.name = name
        self.source = source
        self._variables = dict(variables or {})
        self._atoms = tuple(sorted(atoms, key=len, reverse=True))
        try:
            self._template = _environment().from_string(source)
        except JinjaError as error:
            raise TemplateError(f"the chat template {name!r} is not valid Jinja ({error}); {_ADVICE}") from error
        self._cached_parts = lru_cache(maxsize=2048)(self._parts_or_error)
        self._cached_begin = lru_cache(maxsize=2048)(self._derive_begin)
        self._cached_end = lru_cache(maxsize=2048)(self._derive_end)

    def to_wire(self) -> dict[str, Any]:
        """What another process needs to make the same template."""
        return {"jinja": self.source, "variables": self._variables, "atoms": list(self._atoms)}

    @classmethod
    def from_wire(cls, told: Any, name: str) -> JinjaTemplate | None:
        """The template that `to_wire` described; None if `told` is nothing of the kind."""
        if not isinstance(told, Mapping) or not isinstance(told.get("jinja"), str):
            return None
        variables, atoms = told.get("variables"), told.get("atoms")
        texts = {str(key): str(value) for key, value in variables.items()} if isinstance(variables, Mapping) else {}
        return cls(told["jinja"], texts, [str(atom) for atom in atoms] if isinstance(atoms, list) else [], name)

    @property
    def stop(self) -> tuple[str, ...]:
        """What closes an assistant's turn, without the white space around it."""
        for history in (("user",), ()):
            try:
                suffix = self.end(history, "assistant").strip()
            except TemplateError:
                continue
            return (suffix,) if suffix else ()
        return ()

    def begin(self, history: Sequence[str], role: str) -> str:
        """The text that opens `role` after `history`; a template's own first system message is part of it."""
        return self._cached_begin(tuple(history), role)

    def end(self, history: Sequence[str], role: str) -> str:
        """The text that closes `role`."""
        return self._cached_end(tuple(history), role)

    def _derive_begin(self, history: tuple[str, ...], role: str) -> str:
        closed = self.end(history[:-1], history[-1]) if history else ""
        generation = self._generation_prompt(history, closed) if history and role == "assistant" else ""
        if generation:
            return generation
        try:
            parts = self._parts_with(history, role)
        except TemplateError:
            if "system" not in history:
                raise
            without = tuple(earlier for earlier in history if earlier != "system")
            if not without:
                raise
            return self.begin(without, role)
        between = parts[len(history)]
        if not between.startswith(closed):
            raise TemplateError(f"the chat template {self.name!r} has no {role!r} after {history[-1]!r}; {_ADVICE}")
        opened = between[len(closed) :]
        # A blank before the content belongs to the model's first token if the model is to write it.
        return "" if history and role == "assistant" and not opened.strip() else opened

    def _generation_prompt(self, history: tuple[str, ...], closed: str) -> str:
        try:
            prompted, plain = self._parts(history, True)[-1], self._parts(history, False)[-1]
        except TemplateError:
            return ""
        return prompted[len(closed) :] if prompted != plain and prompted.startswith(closed) else ""

    def _derive_end(self, history: tuple[str, ...], role: str) -> str:
        roles = (*history, role)
        tails: list[str] = []
        failure: TemplateError | None = None
        for following, prompt in (((), False), ((), True), (("user",), False), (("assistant",), False)):
            if role in following:
                continue
            try:
                parts = self._parts((*roles, *following), prompt)
                self._verify(parts, history)
                tails.append(parts[len(roles)])
            except TemplateError as error:
                failure = failure or error
        if tails:
            return self._without_cut_atom(tails)
        if "system" in history:
            return self.end(tuple(earlier for earlier in history if earlier != "system"), role)
        assert failure is not None
        raise failure

    def _without_cut_atom(self, tails: Sequence[str]) -> str:
        common = tails[0][: common_prefix_length(tails)]
        for atom in self._atoms:
            for at in range(max(0, len(common) - len(atom) + 1), len(common)):
                if any(tail.startswith(atom, at) for tail in tails):
                    return common[:at]
        return common

    def _parts_with(self, history: tuple[str, ...], role: str) -> tuple[str, ...]:
        """Texts between the marks of `history` and `role`, perhaps with a role after it that makes it appear."""
        failure: TemplateError | None = None
        for following in ((), ("user",), ("assistant",)):
            if role in following:
                continue
            try:
                parts = self._parts((*history, role, *following), False)
                self._verify(parts, history)
                return parts
            except TemplateError as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def _verify(self, parts: tuple[str, ...], history: tuple[str, ...]) -> None:
        """Rendered again, earlier turns must read as they were written; but an assistant's prefix may differ,
        since the generation prompt was written there."""
        for index, role in enumerate(history):
            if role == "assistant":
                continue
            closed = self.end(history[: index - 1], history[index - 1]) if index else ""
            if parts[index] != closed + self.begin(history[:index], role):
                raise TemplateError(f"the chat template {self.name!r} rewrites earlier turns; {_ADVICE}")

    def _parts(self, roles: tuple[str, ...], prompt: bool) -> tuple[str, ...]:
        found = self._cached_parts(roles, prompt)
        if isinstance(found, TemplateError):
            raise TemplateError(str(found)) from found.__cause__
        return found

    def _parts_or_error(self, roles: tuple[str, ...], prompt: bool) -> tuple[str, ...] | TemplateError:
        """Text before the first content, between contents, and after the last one."""
        try:
            return _between_marks(self._render(roles, prompt, as_parts=False), roles, self.name)
        except TemplateError as error:
            try:
                return _between_marks(self._render(roles, prompt, as_parts=True), roles, self.name)
            except TemplateError:
                return error

    def _render(self, roles: tuple[str, ...], prompt: bool, as_parts: bool) -> str:
        """The template's text for marked messages; contents as text, or as a list of parts (image models')."""
        contents: list[Any] = [_mark(i) for i in range(len(roles))]
        if as_parts:
            contents = [[{"type": "text", "text": content}] for content in contents]
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        variables = {"tools": None, "documents": None, **self._variables}
        try:
            return self._template.render(messages=messages, add_generation_prompt=prompt, **variables)
        except (JinjaError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            shown = ", ".join(roles) or "no messages"
            raise TemplateError(f"the chat template {self.name!r} refuses [{shown}]: {error}") from error


def _mark(index: int) -> str:
    # Letters and digits only: templates strip, split at tags, and escape other characters.
    return f"zq{index:04d}qz"


def _between_marks(text: str, roles: tuple[str, ...], name: str) -> tuple[str, ...]:
    parts: list[str] = []
    at = 0
    for index, role in enumerate(roles):
        mark = _mark(index)
        found = text.find(mark, at)
        if found < 0 or text.count(mark) != 1:
            what = "drops" if mark not in text else "moves or repeats"
            raise TemplateError(f"the chat template {name!r} {what} the {role!r} message in [{', '.join(roles)}]")
        parts.append(text[at:found])
        at = found + len(mark)
    parts.append(text[at:])
    return tuple(parts)


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks assistant text for training; here it is plain text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance variable

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    """The environment that chat templates are written for (Hugging Face's conventions)."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which a prompt must not have.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise JinjaError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)

"""Joins lmnb's completion to IPython's, and lets tooltips explain `s` in a cell before any has run."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, context_matcher

from lmnb.language import ProgramState
from lmnb.magics.body import STATE
from lmnb.magics.completion import Candidates, Names, complete, describe_state
from lmnb.magics.models import ModelShelf

_STAND_IN = "_lmnb_state"  # the user's name for what explains `s`


class CellCompleter:
    """In one shell from `open` to `close`."""

    def __init__(self, shell: Any, models: ModelShelf, options: Iterable[str], help_text: str) -> None:
        self._shell = shell
        self._models = models
        self._names = Names(
            models=lambda: [model.name for model in models],
            backends=lambda: self._holding(lambda value: hasattr(value, "new_context")),
            states=lambda: self._holding(lambda value: isinstance(value, ProgramState)),
            variables=self._variables,
            options=list(options),
            help=help_text,
        )
        self._inspect: Any = None

    def open(self) -> None:
        """Register."""
        completer = getattr(self._shell, "Completer", None)
        if completer is not None:
            completer.custom_matchers.append(self._match)
        self._shell.push({_STAND_IN: ProgramState}, interactive=False)
        self._inspect = self._shell.object_inspect_mime
        self._shell.object_inspect_mime = self._explain

    def close(self) -> None:
        """Take it all back."""
        completer = getattr(self._shell, "Completer", None)
        if completer is not None and self._match in completer.custom_matchers:
            completer.custom_matchers.remove(self._match)
        self._shell.drop_by_id({_STAND_IN: ProgramState})
        if self._inspect is not None:
            del self._shell.object_inspect_mime  # the class's own comes back
            self._inspect = None

    @context_matcher(identifier="lmnb", priority=100)  # type: ignore[untyped-decorator]
    def _match(self, context: CompletionContext) -> dict[str, Any]:
        found = complete(context.full_text, context.cursor_line, context.cursor_position, self._names)
        best = [candidates for candidates in found if candidates.texts]
        if not best:
            return {"completions": []}
        return _result(best)

    def _explain(self, oname: str, *args: Any, **kwargs: Any) -> Any:
        """IPython's `object_inspect_mime`, which also knows `s` when the user has none yet."""
        member = describe_state(oname)
        if member is not None and STATE not in self._shell.user_ns:
            oname = f"{_STAND_IN}.{member}" if member else _STAND_IN
        return self._inspect(oname, *args, **kwargs)

    def _holding(self, wanted: Any) -> list[str]:
        names = list(self._shell.user_ns.items())
        return [
            name for name, value in names if not name.startswith("_") and not inspect.isclass(value) and wanted(value)
        ]

    def _variables(self, name: str) -> list[str]:
        value = self._shell.user_ns.get(name)
        return list(value.variables) if isinstance(value, ProgramState) else []


def _result(found: list[Candidates]) -> dict[str, Any]:
    return {
        "completions": [SimpleCompletion(text, type=one.kind) for one in found for text in one.texts],
        "matched_fragment": found[0].typed,
        "ordered": True,
        "suppress": any(one.only for one in found),
    }

"""The language's names in the user's namespace: put there where they are free, taken back where still ours."""

from __future__ import annotations

import itertools
import threading
from typing import Any

LANGUAGE_NAMES = (
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "select",
    "separate_reasoning",
    "image",
    "video",
    "system",
    "user",
    "assistant",
    "system_begin",
    "system_end",
    "user_begin",
    "user_end",
    "assistant_begin",
    "assistant_end",
    "greedy_token_selection",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
)


class PushedNames:
    """What `%load_ext lmnb` put into one shell's namespace."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._pushed: dict[str, Any] = {}
        self._lock = threading.Lock()

    def push(self) -> None:
        """Add the language's names that the user has not bound; `%who` does not list them."""
        import lmnb.language as language

        names = {name: getattr(language, name) for name in LANGUAGE_NAMES}
        self._pushed = {name: value for name, value in names.items() if name not in self._shell.user_ns}
        self._shell.push(self._pushed, interactive=False)

    def keep(self, name: str, value: Any) -> str:
        """Bind a value to the first of `name_1`, `name_2`, ... that the user has not bound; returns that name."""
        with self._lock:
            number = next(n for n in itertools.count(1) if f"{name}_{n}" not in self._shell.user_ns)
            self._shell.user_ns[f"{name}_{number}"] = value
        return f"{name}_{number}"

    def drop(self) -> None:
        """Remove the names that still mean what was pushed."""
        self._shell.drop_by_id(self._pushed)
        self._pushed = {}

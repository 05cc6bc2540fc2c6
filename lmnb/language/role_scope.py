"""`with s.user():`, a role that is open for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmnb.language.expressions import RoleBegin, RoleEnd
from lmnb.language.source import caller_line

if TYPE_CHECKING:
    from lmnb.language.state import ProgramState


class RoleScope:
    """`with s.user():` opens the role, and closes it however the block is left."""

    def __init__(self, state: ProgramState, role: str) -> None:
        self._state = state
        self._role = role
        self._number = 0

    def __enter__(self) -> ProgramState:
        self._state.append_at((RoleBegin(self._role),), caller_line())
        self._number = self._state.num_roles
        return self._state

    def __exit__(self, *_: object) -> None:
        if self._state.open_role == self._role and self._state.num_roles == self._number:
            self._state.append_at((RoleEnd(self._role),), caller_line())

    def __repr__(self) -> str:
        return f"s.{self._role}()  # use it as `with s.{self._role}():`, or give it the turn's text"

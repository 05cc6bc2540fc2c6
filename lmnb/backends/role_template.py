"""A chat template in SGLang's manner: a prefix and a suffix for each role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmnb.errors import TemplateError


@dataclass(frozen=True, kw_only=True)
class RoleTemplate:
    """A chat template in SGLang's manner: a prefix and a suffix for each role.

    `default_system_prompt` is inserted, as a system message, before a first role that is not `system`.
    `system_in_user`: a first system message stands inside the first user turn (Llama 2's manner).
    `image_token` and `audio_token` are what stands for an image or a sound in the text.
    """

    name: str
    roles: dict[str, tuple[str, str]]
    default_system_prompt: str | None = None
    stop: tuple[str, ...] = ()
    system_in_user: bool = False
    image_token: str = "<image>"
    audio_token: str = "<audio>"

    def begin(self, history: Sequence[str], role: str) -> str:
        """The role's prefix, after the default system message where there is one."""
        prefix, _suffix = self._pair(role)
        if self.system_in_user and role == "system" and not history:
            return self._pair("user")[0] + prefix
        if self.system_in_user and role == "user" and tuple(history) == ("system",):
            return ""
        if not history and role != "system" and self.default_system_prompt:
            opened = self.begin((), "system") + self.default_system_prompt + self.end((), "system")
            return opened + self.begin(("system",), role)
        return prefix

    def end(self, history: Sequence[str], role: str) -> str:
        """The role's suffix."""
        return self._pair(role)[1]

    def _pair(self, role: str) -> tuple[str, str]:
        if role not in self.roles:
            known = ", ".join(sorted(self.roles))
            raise TemplateError(f"the chat template {self.name!r} has no role {role!r}; it has {known}")
        return self.roles[role]

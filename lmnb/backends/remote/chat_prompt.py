"""A state's prompt as messages, for chat APIs: closed turns, and the turn that is open.

The template is for reading only: `text()` of a state shows it; the API gets roles and contents.
"""

from __future__ import annotations

from lmnb.backends.templates import ChatTemplate
from lmnb.errors import ArgumentError, TemplateError

ROLES = ("system", "user", "assistant")
Message = dict[str, str]


class ChatPrompt:
    """Messages, and at most one open turn. A program without roles is one user turn."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._messages: list[Message] = []
        self._role: str | None = None
        self._parts: list[str] = []  # of the open turn, or outside of turns

    def append(self, text: str) -> None:
        """Add text to the open turn."""
        self._parts.append(text)

    def begin_role(self, role: str) -> str:
        """Open a turn; returns the template's text for it."""
        if self._role is not None:
            raise TemplateError(f"cannot open role {role!r} inside role {self._role!r}: close that one first")
        if role not in ROLES:
            raise TemplateError(f"a chat API has no role {role!r}; it has {', '.join(ROLES)}")
        text = self._template.begin(self._history, role)
        self._check_outside()
        self._role = role
        self._parts = []
        return text

    def end_role(self) -> str:
        """Close the open turn; returns the template's text for it."""
        if self._role is None:
            raise TemplateError("no role is open that could be closed")
        text = self._template.end(self._history, self._role)
        self._messages.append({"role": self._role, "content": "".join(self._parts)})
        self._role = None
        self._parts = []
        return text

    def fork(self) -> ChatPrompt:
        """An independent copy."""
        twin = ChatPrompt(self._template)
        twin._messages = self._messages.copy()
        twin._role = self._role
        twin._parts = self._parts.copy()
        return twin

    def to_send(self, who: str) -> tuple[list[Message], str]:
        """The messages for the next generation, and what the assistant's turn begins with (mostly nothing).

        ArgumentError where a chat model cannot speak.
        """
        text = "".join(self._parts)
        messages = [dict(message) for message in self._messages]
        if self._role == "assistant":
            return messages, text
        if self._role is not None:
            raise ArgumentError(f"{who} writes assistant turns, not {self._role} turns: put gen into assistant(...)")
        if messages:
            raise ArgumentError(f"{who} writes whole assistant turns: put gen into assistant(...)")
        if not text:
            raise ArgumentError("the prompt is empty: append some text, or a user turn, before gen")
        return [{"role": "user", "content": text}], ""

    @property
    def _history(self) -> tuple[str, ...]:
        return tuple(message["role"] for message in self._messages)

    def _check_outside(self) -> None:
        """Text between turns would be lost: an API has no place for it."""
        lost = "".join(self._parts).strip()
        if lost:
            raise TemplateError(
                f"the text {lost[:40]!r} stands outside of turns, where a chat API has no place for it; "
                "put it into system(...), user(...) or assistant(...)"
            )

"""A state's prompt as messages, for chat APIs: closed turns, and the turn that is open.

The template is for reading only: `text()` of a state shows it; the API gets roles and contents.
"""

from __future__ import annotations

from typing import Any

from lmnb.backends.content_parts import ImagePart, content, openai_image
from lmnb.backends.images import Picture, image_token
from lmnb.backends.templates import ChatTemplate
from lmnb.errors import ArgumentError, TemplateError

ROLES = ("system", "user", "assistant")
Message = dict[str, Any]


class ChatPrompt:
    """Messages, and at most one open turn. A program without roles is one user turn."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._messages: list[tuple[str, tuple[str | Picture, ...]]] = []
        self._role: str | None = None
        self._parts: list[str | Picture] = []  # of the open turn, or outside of turns

    def append(self, text: str) -> None:
        """Add text to the open turn."""
        self._parts.append(text)

    def append_image(self, picture: Picture) -> str:
        """Add an image to the open user turn, or outside of turns; returns what stands for it when read."""
        if self._role not in (None, "user"):
            raise ArgumentError(f"a chat API takes images in user turns, not in {self._role} turns")
        self._parts.append(picture)
        return image_token(self._template)

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
        self._messages.append((self._role, tuple(self._parts)))
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

    def to_send(self, who: str, image_part: ImagePart = openai_image) -> tuple[list[Message], str]:
        """The messages for the next generation, and what the assistant's turn begins with (mostly nothing).

        ArgumentError where a chat model cannot speak.
        """
        messages = [{"role": role, "content": content(parts, image_part)} for role, parts in self._messages]
        if self._role == "assistant":
            return messages, "".join(map(str, self._parts))  # no images: see `append_image`
        if self._role is not None:
            raise ArgumentError(f"{who} writes assistant turns, not {self._role} turns: put gen into assistant(...)")
        if messages:
            raise ArgumentError(f"{who} writes whole assistant turns: put gen into assistant(...)")
        if not any(self._parts):
            raise ArgumentError("the prompt is empty: append some text, or a user turn, before gen")
        return [{"role": "user", "content": content(self._parts, image_part)}], ""

    def whole_turn(self) -> tuple[ChatPrompt, str]:
        """The prompt with nothing in its open assistant turn, for an answer that is a whole one; and what was in it."""
        twin = self.fork()
        if self._role == "assistant":
            twin._parts = []
            return twin, "".join(map(str, self._parts))
        return twin, ""

    @property
    def _history(self) -> tuple[str, ...]:
        return tuple(role for role, _ in self._messages)

    def _check_outside(self) -> None:
        """Text between turns would be lost: an API has no place for it. Nor for images."""
        if any(not isinstance(part, str) for part in self._parts):
            raise TemplateError("an image stands outside of turns, where a chat API has no place for it; use user(...)")
        lost = "".join(map(str, self._parts)).strip()
        if lost:
            raise TemplateError(
                f"the text {lost[:40]!r} stands outside of turns, where a chat API has no place for it; "
                "put it into system(...), user(...) or assistant(...)"
            )

"""A state's prompt as text, for servers that take text: roles are written with a named chat template."""

from __future__ import annotations

from lmnb.backends.images import Picture, image_token
from lmnb.backends.templates import ChatTemplate
from lmnb.errors import ArgumentError, TemplateError


class TextPrompt:
    """A growing text with at most one open role."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._parts: list[str] = []
        self._images: list[Picture] = []
        self._history: tuple[str, ...] = ()
        self._role: str | None = None

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self._parts)

    @property
    def images(self) -> list[Picture]:
        """The images and videos, in order. ArgumentError if the text does not say where each of them stands: servers
        find their places by what stands for them, and a text that spells that out would take one."""
        if self._images:
            token = image_token(self._template).strip()
            found = self.text.count(token)
            if found != len(self._images):
                raise ArgumentError(
                    f"the prompt has {len(self._images)} images, and says {token!r}, which stands for one, {found} "
                    "times; leave it out of the texts"
                )
        return self._images

    def append(self, text: str) -> None:
        """Add text."""
        self._parts.append(text)

    def append_image(self, picture: Picture) -> str:
        """Add an image; returns what stands for it."""
        token = image_token(self._template)
        self._images.append(picture)
        self._parts.append(token)
        return token

    def begin_role(self, role: str) -> str:
        """Open a role; returns the text that this added."""
        if self._role is not None:
            raise TemplateError(f"cannot open role {role!r} inside role {self._role!r}: close that one first")
        text = self._template.begin(self._history, role)
        self._role = role
        self._parts.append(text)
        return text

    def end_role(self) -> str:
        """Close the open role; returns the text that this added."""
        if self._role is None:
            raise TemplateError("no role is open that could be closed")
        text = self._template.end(self._history, self._role)
        self._history += (self._role,)
        self._role = None
        self._parts.append(text)
        return text

    def fork(self) -> TextPrompt:
        """An independent copy."""
        twin = TextPrompt(self._template)
        twin._parts = self._parts.copy()
        twin._images = self._images.copy()
        twin._history = self._history
        twin._role = self._role
        return twin

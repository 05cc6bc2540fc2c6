"""What a stream keeps of what was said: pieces for a join to say again, and closed turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lmnb.backends.content_parts import content, openai_image
from lmnb.backends.images import Picture


@dataclass(frozen=True, slots=True)
class Piece:
    """What a branch said since its fork, so that a join can say it again in the parent."""

    kind: Literal["text", "image", "generated", "role", "role_end"]
    text: str  # of an image: what stands for it
    picture: Picture | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A closed turn: texts, and images in their places."""

    role: str
    parts: tuple[str | Picture, ...]

    def as_dict(self) -> dict[str, Any]:
        """`{"role", "content"}` in OpenAI's form, without the white space at the content's beginning."""
        return {"role": self.role, "content": content(_stripped(self.parts), openai_image)}


def merged_pieces(pieces: Sequence[Piece]) -> list[Piece]:
    """The same with neighbours of one kind joined."""
    result: list[Piece] = []
    for piece in pieces:
        if result and piece.kind == result[-1].kind and piece.kind in ("text", "generated"):
            result[-1] = Piece(piece.kind, result[-1].text + piece.text)
        else:
            result.append(piece)
    return result


def _stripped(parts: Sequence[str | Picture]) -> list[str | Picture]:
    found = list(parts)
    while found and isinstance(first := found[0], str):
        if text := first.lstrip():
            found[0] = text
            break
        del found[0]
    return found

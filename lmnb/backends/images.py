"""Images and videos as prompts hold them: encoded once, the same object in every fork, ready for any wire.

How they are read from files, PIL and arrays is in `image_reading.py` and `video_reading.py`.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lmnb.backends.image_preview import preview

_DIGEST = 12  # characters


@dataclass(frozen=True)
class ImageData:
    """One image: an encoded file (`mime` is "image/png", "image/jpeg", "image/gif" or "image/webp"); size in pixels."""

    data: bytes
    mime: str
    width: int
    height: int

    def __repr__(self) -> str:
        return f"ImageData({self.mime}, {self.width}×{self.height}, {self.num_bytes:,} bytes)"

    @property
    def images(self) -> tuple[ImageData, ...]:
        """Itself: what a chat API gets."""
        return (self,)

    @property
    def num_bytes(self) -> int:
        """Of the encoded file."""
        return len(self.data)

    @cached_property
    def base64(self) -> str:
        """The file as base64, which is SGLang's `image_data`."""
        return base64.b64encode(self.data).decode("ascii")

    @property
    def data_uri(self) -> str:
        """The file as a data URI."""
        return f"data:{self.mime};base64,{self.base64}"

    @cached_property
    def digest(self) -> str:
        """The beginning of the SHA-256 of the file."""
        return hashlib.sha256(self.data).hexdigest()[:_DIGEST]

    @cached_property
    def preview(self) -> str:
        """A small picture of it as a data URI; "" if there is none. ArgumentError if the file is damaged."""
        return preview(self.data, self.mime)


@dataclass(frozen=True)
class VideoData:
    """Frames of a video, evenly spaced, as PNG images of one size. SGLang's servers get them as one piece; chat APIs,
    which know no videos, as so many images."""

    frames: tuple[ImageData, ...]

    def __repr__(self) -> str:
        return f"VideoData({len(self.frames)} frames, {self.width}×{self.height}, {self.num_bytes:,} bytes)"

    @property
    def images(self) -> tuple[ImageData, ...]:
        """The frames: what a chat API gets."""
        return self.frames

    @property
    def mime(self) -> str:
        """Of a frame."""
        return self.frames[0].mime

    @property
    def width(self) -> int:
        """Of a frame."""
        return self.frames[0].width

    @property
    def height(self) -> int:
        """Of a frame."""
        return self.frames[0].height

    @property
    def num_bytes(self) -> int:
        """Of all frames together."""
        return sum(frame.num_bytes for frame in self.frames)

    @cached_property
    def base64(self) -> str:
        """SGLang's `image_data` for a video: the frames' files behind each other."""
        return "video:" + base64.b64encode(b"".join(frame.data for frame in self.frames)).decode("ascii")

    @cached_property
    def digest(self) -> str:
        """The beginning of the SHA-256 of the frames' files."""
        return hashlib.sha256(b"".join(frame.data for frame in self.frames)).hexdigest()[:_DIGEST]

    @property
    def preview(self) -> str:
        """That of the first frame."""
        return self.frames[0].preview


Picture = ImageData | VideoData


def image_token(template: Any) -> str:
    """What stands for an image in a chat template's text."""
    token = getattr(template, "image_token", None)
    return token if isinstance(token, str) and token else "<image>"

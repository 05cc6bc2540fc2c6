"""Small pictures of images, for views: bounded in size, without the file's other contents (place, camera, ...)."""

from __future__ import annotations

import base64
import io
from typing import Any

from lmnb.errors import ArgumentError

SIDE = 160  # pixels of the longer side
LONGEST = 24_000  # characters of a preview
_SMALL = 12_000  # bytes of a file that is its own preview, where nothing can make it smaller


def preview(data: bytes, mime: str) -> str:
    """A data URI of at most `LONGEST` characters, made by Pillow; without Pillow, a small file itself, else "".

    ArgumentError if Pillow finds the file damaged.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        return _uri(mime, data) if len(data) <= _SMALL else ""
    try:
        with Image.open(io.BytesIO(data)) as picture:
            picture.draft("RGB", (2 * SIDE, 2 * SIDE))  # a JPEG is decoded no larger than it is needed
            picture.load()
            return preview_of(ImageOps.exif_transpose(picture))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return ""
    except Exception as error:  # Pillow's decoders raise many kinds
        raise ArgumentError(f"the image is damaged, or no {mime}: {error}") from error


def preview_of(picture: Any) -> str:
    """A data URI of at most `LONGEST` characters of a PIL image, which stays as it is."""
    small = picture.resize(_fitted(*picture.size), reducing_gap=2.0) if max(picture.size) > SIDE else picture
    return _encoded(small)


def _fitted(width: int, height: int) -> tuple[int, int]:
    longer = max(width, height)
    return max(1, round(width * SIDE / longer)), max(1, round(height * SIDE / longer))


def _encoded(picture: Any) -> str:
    """As PNG where that is small (drawings, transparency), else as JPEG on white."""
    from PIL import Image

    clear = "A" in picture.getbands() or "transparency" in picture.info
    png = _saved(picture.convert("RGBA" if clear else "RGB"), "PNG", optimize=True)
    if len(png) <= _SMALL:
        return _uri("image/png", png)
    flat = picture.convert("RGBA")
    page = Image.new("RGB", flat.size, "white")
    page.paste(flat, mask=flat.getchannel("A"))
    for quality in (80, 50, 20):
        jpeg = _saved(page, "JPEG", quality=quality)
        if len(jpeg) <= _SMALL:
            return _uri("image/jpeg", jpeg)
    return ""


def _saved(picture: Any, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def _uri(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"

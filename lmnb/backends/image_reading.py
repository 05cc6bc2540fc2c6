"""From what a program has (a file, its bytes, a PIL image, an array) to an image that a prompt can hold."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from lmnb.backends.image_header import read_header
from lmnb.backends.image_preview import preview_of
from lmnb.backends.images import ImageData
from lmnb.errors import ArgumentError, MissingPackageError
from lmnb.runtime.argument_checks import current_folder

LARGEST_BYTES = 50_000_000  # no API takes more
_COMPRESS = 1  # of 9: the usual 6 makes photos a tenth smaller, and takes twice as long
_CHANNELS = (1, 3, 4)
_AS_THEY_ARE = ("1", "L", "LA", "P", "RGB", "RGBA")  # PIL's modes that a PNG has too


def load_image(source: Any) -> ImageData:
    """The image in a local file (by its path), an encoded file's bytes, a PIL image, or a uint8 array (or torch tensor)
    of shape (channels, height, width). ArgumentError, with what to do, for anything else, and for a damaged file."""
    if isinstance(source, (str, os.PathLike)):
        return _from_bytes(*read_file(source, "image"))
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _from_bytes(bytes(source), "these bytes are")
    if callable(getattr(source, "save", None)) and hasattr(source, "mode"):
        return from_pil(source)
    if hasattr(source, "shape") and hasattr(source, "dtype"):
        return _from_array(source)
    raise ArgumentError(
        "image takes the path of a file, its bytes, a PIL image, or a uint8 array of shape (channels, height, width), "
        f"not {_kind(source)}"
    )


def read_file(path: str | os.PathLike[str], what: str) -> tuple[bytes, str]:
    """A local file's bytes, and its name for errors. ArgumentError if there is none."""
    target = local_path(path, what)
    try:
        return target.read_bytes(), f"the file {target.name!r} is"
    except OSError as error:
        raise ArgumentError(f"the {what} {str(target)!r} cannot be read: {error.strerror or error}") from error


def local_path(path: str | os.PathLike[str], what: str) -> Path:
    """The path of a file that is there. ArgumentError for an address, a folder, or nothing at all."""
    text = os.fspath(path)
    if isinstance(text, str) and (text.startswith("data:") or "://" in text[:16]):
        raise ArgumentError(
            f"{what} takes the path of a local file, not an address ({text[:40]!r}): fetch it first, and give its bytes"
        )
    try:
        target = Path(text).expanduser()
        folder, there = target.is_dir(), target.is_file()
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"{text!r:.80} cannot be a path: {error}") from error
    if folder:
        raise ArgumentError(f"{str(target)!r} is a folder; {what} takes a file")
    if not there:
        where = "" if target.is_absolute() else f" below {current_folder()!r}"
        raise ArgumentError(f"there is no {what} {str(target)!r}{where}")
    return target


def from_pil(picture: Any) -> ImageData:
    """A PIL image, as a PNG."""
    if 0 in picture.size:
        raise ArgumentError(f"the image has no pixels: it is {picture.size[0]}×{picture.size[1]}")
    file = io.BytesIO()
    try:
        plain = picture if picture.mode in _AS_THEY_ARE else picture.convert("RGB")
        plain.save(file, "PNG", compress_level=_COMPRESS)
    except Exception as error:  # its file was closed, or ends early
        raise ArgumentError(f"the PIL image has no pixels to read: {error}") from error
    _check_size(file.tell(), "the image is")
    image = ImageData(file.getvalue(), "image/png", *picture.size)
    vars(image)["preview"] = preview_of(plain)  # or the PNG would be decoded for it again
    return image


def _check_size(num_bytes: int, what: str) -> None:
    if num_bytes > LARGEST_BYTES:
        raise ArgumentError(
            f"{what} too large for a prompt: {num_bytes:,} bytes, of which {LARGEST_BYTES:,} may be; make it smaller"
        )


def _from_bytes(data: bytes, what: str) -> ImageData:
    if not data:
        raise ArgumentError(f"{what} empty")
    _check_size(len(data), what)
    header = read_header(data)
    if header is None:
        return _converted(data, what)
    mime, width, height = header
    if not width or not height:
        raise ArgumentError(f"{what} damaged: its header says {width}×{height} pixels")
    image = ImageData(data, mime, width, height)
    try:
        _ = image.preview  # decodes the file, where Pillow is there
    except ArgumentError as error:
        raise ArgumentError(f"{what} damaged, or no {mime}: {error.__cause__}") from error.__cause__
    return image


def _converted(data: bytes, what: str) -> ImageData:
    """A file of another format, as a PNG."""
    hint = f"{what} no PNG, JPEG, GIF or WebP image"
    try:
        from PIL import Image
    except ImportError as error:
        raise ArgumentError(f"{hint}; for other formats run: pip install pillow") from error
    try:
        with Image.open(io.BytesIO(data)) as picture:
            return from_pil(picture)
    except ArgumentError:
        raise
    except Exception as error:
        raise ArgumentError(f"{hint}, and Pillow cannot read it either: {error}") from error


def _from_array(source: Any) -> ImageData:
    detach = getattr(source, "detach", None)  # a torch tensor
    array = detach().cpu().numpy() if callable(detach) else source
    shape = tuple(array.shape)
    if str(array.dtype) != "uint8":
        raise ArgumentError(
            f"an image array holds whole numbers of 0 to 255 (uint8), not {array.dtype}; if its numbers are of 0 to 1: "
            "(255 * array).astype('uint8')"
        )
    if len(shape) != 3 or shape[0] not in _CHANNELS or 0 in shape:
        hint = "; move its last axis to the front" if len(shape) == 3 and shape[2] in _CHANNELS else ""
        raise ArgumentError(
            f"an image array has the shape (channels, height, width) with 1, 3 or 4 channels, not {shape}{hint}"
        )
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("images from arrays need Pillow; run: pip install 'lmnb[images]'") from error
    pixels = array[0] if shape[0] == 1 else array.transpose(1, 2, 0)
    return from_pil(Image.fromarray(pixels.copy(order="C")))


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"

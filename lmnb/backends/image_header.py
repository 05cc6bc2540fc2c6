"""Format and size of an image, read from the first bytes of its file; nothing is decoded."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_NO_FRAME = (0xC4, 0xC8, 0xCC)  # JPEG markers in the range of frame headers that are none
_ALONE = (0x01, *range(0xD0, 0xDA))  # JPEG markers without a length


def read_header(data: bytes) -> tuple[str, int, int] | None:
    """MIME type, width and height in pixels of a PNG, JPEG, GIF or WebP file; None for anything else."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
            return "image/png", *struct.unpack(">II", data[16:24])
        if data[:6] in (b"GIF87a", b"GIF89a"):
            return "image/gif", *struct.unpack("<HH", data[6:10])
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return "image/webp", *_webp_size(data)
        if data.startswith(b"\xff\xd8\xff"):
            return "image/jpeg", *_jpeg_size(data)
    except (struct.error, IndexError, ValueError):  # the file ends before its size is told
        return None
    return None


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        (bits,) = struct.unpack("<I", data[21:25])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X" and len(data) >= 30:
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    raise ValueError(kind)


def _jpeg_size(data: bytes) -> tuple[int, int]:
    for marker, place in _jpeg_segments(data):
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            height, width = struct.unpack(">HH", data[place + 3 : place + 7])
            return width, height
    raise ValueError("no frame")


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Marker and place (of its length) of each segment before the picture itself."""
    place = 2
    while True:
        if data[place] != 0xFF:
            raise ValueError("no marker")
        while data[place] == 0xFF:  # any number of fill bytes
            place += 1
        marker = data[place]
        place += 1
        if marker in _ALONE:
            continue
        if marker == 0xDA:
            return
        yield marker, place
        (length,) = struct.unpack(">H", data[place : place + 2])
        place += length

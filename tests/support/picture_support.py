"""Small images and videos for tests, made anew each time."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def picture(width: int = 4, height: int = 3, colour: Any = "red", mode: str = "RGB") -> Image.Image:
    return Image.new(mode, (width, height), colour)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(colour: Any = "red", width: int = 4, height: int = 3) -> bytes:
    return encoded(picture(width, height, colour))


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def grey_video(path: Path, num_frames: int, codec: str = "mpeg4") -> Path:
    """64×48 pixels; frame number i has the grey value 2 i + 4, as nearly as the codec has it."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.gop_size = 12
        for number in range(num_frames):
            pixels = np.full((48, 64, 3), 2 * number + 4, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path

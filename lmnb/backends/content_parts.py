"""A message's content as chat APIs take it: text, or a list of text and image parts in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lmnb.backends.images import ImageData, Picture

ImagePart = Callable[[ImageData], dict[str, Any]]


def openai_image(image: ImageData) -> dict[str, Any]:
    """An image as OpenAI's API takes it (and those that speak like it)."""
    return {"type": "image_url", "image_url": {"url": image.data_uri}}


def anthropic_image(image: ImageData) -> dict[str, Any]:
    """An image as Anthropic's API takes it."""
    return {"type": "image", "source": {"type": "base64", "media_type": image.mime, "data": image.base64}}


def content(parts: Sequence[str | Picture], image_part: ImagePart) -> str | list[dict[str, Any]]:
    """Texts joined; with images among them a list, in which a video is as many images as it has frames.

    Text between images that is nothing but white space is left out: APIs refuse it as a part.
    """
    merged: list[str | Picture] = [""]
    for part in parts:
        if isinstance(part, str) and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    if len(merged) == 1:
        return str(merged[0])
    found: list[dict[str, Any]] = []
    for part in merged:
        if isinstance(part, str):
            found += [{"type": "text", "text": part}] if part.strip() else []
        else:
            found += [image_part(image) for image in part.images]
    return found

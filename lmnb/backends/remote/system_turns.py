"""System turns for APIs that take one system text beside the messages."""

from __future__ import annotations

from lmnb.backends.remote.chat_prompt import Message
from lmnb.errors import TemplateError


def split_system(messages: list[Message], who: str) -> tuple[str, list[Message]]:
    """The system turns at the beginning as one text, and the other messages. The given list stays as it is."""
    count = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if any(message["role"] == "system" for message in messages[count:]):
        raise TemplateError(f"{who} takes system turns at the beginning only; make the later one a user turn")
    return "\n\n".join(message["content"] for message in messages[:count]), messages[count:]

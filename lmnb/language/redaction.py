"""Keeps keys out of what is saved and sent away: values of environment variables whose names say that they are secret.

Backends hide their own keys from errors already; this is the second lock, on everything that leaves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from lmnb.language.events import ChoiceMade, GenFinished, GenStarted, ImageAdded, RunEvent, TokensGenerated

HIDDEN = "***"
_SECRET_NAME = re.compile(r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PAT|CREDENTIALS?)(_|$)", re.IGNORECASE)
_SHORTEST = 8  # characters; a shorter value would be found in ordinary text


class Redactor:
    """Replaces the secrets that the environment held when it was made."""

    def __init__(self) -> None:
        found = {
            value
            for name, value in os.environ.items()
            if len(value) >= _SHORTEST and _SECRET_NAME.search(name) and not os.path.exists(value)
        }
        self._secrets = sorted(found, key=len, reverse=True)  # one may be a part of another

    def text(self, text: str) -> str:
        """`text` without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def value(self, value: Any) -> Any:
        """A JSON value with no secret in any of its texts."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.value(key): self.value(item) for key, item in value.items()}
        return value

    def events(self, events: Sequence[RunEvent]) -> list[RunEvent]:
        """The events without secrets, also where a generation spells one out over several pieces."""
        if not self._secrets:
            return list(events)
        clean = [self._event(event) for event in events]
        pieces: dict[int, list[int]] = {}  # by branch: places of the open generation's pieces
        for place, event in enumerate(clean):
            if isinstance(event, GenStarted):
                pieces[event.branch] = []
            elif isinstance(event, TokensGenerated):
                pieces.setdefault(event.branch, []).append(place)
            elif isinstance(event, GenFinished):
                self._join(clean, pieces.pop(event.branch, []))
        for places in pieces.values():
            self._join(clean, places)
        return clean

    def _event(self, event: RunEvent) -> RunEvent:
        changed = {
            field.name: new for field in fields(event) if (new := self.value(old := getattr(event, field.name))) != old
        }
        if not changed:
            return event
        if isinstance(event, TokensGenerated) and "text" in changed:
            changed["parts"] = []  # they spell the text out, token by token
        elif isinstance(event, ChoiceMade) and "choices" in changed:
            changed["tokens"] = []
        elif isinstance(event, ImageAdded) and "preview" in changed:
            changed["preview"] = ""  # what is left would be no picture
        return replace(event, **changed)

    def _join(self, events: list[RunEvent], places: Sequence[int]) -> None:
        """Put a generation's text into its first piece where the whole of it holds a secret that no piece holds."""
        pieces = [(place, event) for place in places if isinstance(event := events[place], TokensGenerated)]
        whole = "".join(piece.text for _, piece in pieces)
        if (clean := self.text(whole)) == whole:
            return
        for index, (place, piece) in enumerate(pieces):
            events[place] = replace(piece, text="" if index else clean, parts=[])

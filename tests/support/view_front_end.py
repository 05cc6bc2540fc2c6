"""A front end that records: what a cell would display, and what a widget would send."""

from __future__ import annotations

from typing import Any


class FrontEnd:
    """`displays` and `updates` are (display id, bundle); `posts` are widget messages; `states` saved snapshots."""

    def __init__(self) -> None:
        self.displays: list[tuple[str, dict[str, Any]]] = []
        self.updates: list[tuple[str, dict[str, Any]]] = []
        self.posts: list[dict[str, Any]] = []
        self.widgets: list[Any] = []

    def display(self, bundle: dict[str, Any], *, raw: bool, display_id: str) -> None:
        assert raw
        self.displays.append((display_id, bundle))

    def update_display(self, bundle: dict[str, Any], *, raw: bool, display_id: str) -> None:
        assert raw
        assert display_id in [known for known, _ in self.displays]
        self.updates.append((display_id, bundle))

    @property
    def widget(self) -> Any:
        (widget,) = self.widgets
        return widget

    def events(self) -> list[dict[str, Any]]:
        return [event for post in self.posts if post["type"] == "events" for event in post["events"]]

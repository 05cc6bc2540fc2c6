"""What the tests of server and remote backends share: a server on the fake model, and plain HTTP calls."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from context_support import fake_runtime

from lmnb.server import Server


@contextmanager
def fake_server(*, api_key: str | None = None, **options: Any) -> Iterator[Server]:
    with fake_runtime(**options) as runtime, Server(runtime, api_key=api_key) as server:
        yield server


def call(
    server: Server, path: str, body: Any = None, *, method: str | None = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Status, and the answer: JSON where it is JSON, else text."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=20)
    try:
        data = None if body is None else body if isinstance(body, str) else json.dumps(body)
        sent = {"Content-Type": "application/json", **(headers or {})}
        connection.request(method or ("GET" if body is None else "POST"), path, data, sent)
        answer = connection.getresponse()
        text = answer.read().decode()
        kind = answer.headers.get("Content-Type", "")
        return answer.status, json.loads(text) if kind.startswith("application/json") else text
    finally:
        connection.close()


def events(text: str) -> list[Any]:
    """The events of a stream; it must end with `[DONE]`."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]

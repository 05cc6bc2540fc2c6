"""A recording HTTP server: it keeps each request's bytes and answers what the test tells it to."""

from __future__ import annotations

import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """`events` are sent as a stream; `value` as JSON."""

    value: Any = None
    status: int = 200
    events: tuple[Any, ...] | None = None
    named: bool = False  # events carry their type, as Anthropic's do
    broken: bool = False  # the stream ends without its `[DONE]`
    raw: bytes | None = None  # sent as it is, as `kind`, in the place of all others
    kind: str = "text/html"


@dataclass
class Stub:
    """The server; `rule` makes the answers."""

    rule: Callable[[Asked], Answer]
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    connections: set[socket.socket] = field(default_factory=set)  # those that are open

    def bodies(self, path: str) -> list[Any]:
        return [one.json for one in self.asked if one.path == path]


@contextmanager
def stub_server(rule: Callable[[Asked], Answer], tls: ssl.SSLContext | None = None) -> Iterator[Stub]:
    stub = Stub(rule)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = Asked(self.command, self.path, {name.title(): value for name, value in self.headers.items()}, body)
            stub.asked.append(asked)
            self._send(stub.rule(asked))

        do_GET = do_POST  # noqa: N815  # the base class's names

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _send(self, answer: Answer) -> None:
            data = json.dumps(answer.value).encode()
            kind = "application/json"
            if answer.events is not None:
                kind = "text/event-stream"
                lines = []
                for event in answer.events:
                    name = f"event: {event['type']}\n" if answer.named else ""
                    lines.append(f"{name}data: {json.dumps(event)}\n\n")
                data = "".join(lines).encode() + (b"" if answer.broken or answer.named else b"data: [DONE]\n\n")
            if answer.raw is not None:
                data, kind = answer.raw, answer.kind
            self.send_response(answer.status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    class Listener(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def process_request(self, request: Any, client_address: Any) -> None:
            stub.connections.add(request)
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            stub.connections.discard(request)
            super().shutdown_request(request)

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exc_info()[1], OSError):  # a connection that breaks is its client's matter
                super().handle_error(request, client_address)

    server = Listener(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    stub.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        for connection in list(stub.connections):  # its thread reads the end, and closes it
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

"""The server: a listening socket, a thread for each connection, and the routes of both protocols."""

from __future__ import annotations

import socket
import socketserver
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lmnb.errors import ArgumentError, EngineClosedError
from lmnb.runtime import threads
from lmnb.server.address import is_loopback
from lmnb.server.handler import Handler
from lmnb.server.job import Jobs
from lmnb.server.native import Native
from lmnb.server.openai_api import OpenAIApi

if TYPE_CHECKING:
    from types import TracebackType

    from lmnb.backends.local import Runtime

_LAST_PORT = 65535


class Server:
    """Serves `runtime` at `url` from the moment it is made, until `close`.

    It listens on this machine only, unless `host` says otherwise; then an `api_key` is required, which clients send
    as `Authorization: Bearer KEY`. `port=0` takes a free one. It does not own the runtime. A context manager.
    """

    def __init__(self, runtime: Runtime, *, host: str = "127.0.0.1", port: int = 0, api_key: str | None = None) -> None:
        if not isinstance(host, str):
            raise ArgumentError(f"host must be text, such as '127.0.0.1', not {host!r}")
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= _LAST_PORT:
            raise ArgumentError(f"port must be a whole number from 0 (any free one) to {_LAST_PORT}, not {port!r}")
        if runtime.closed:
            raise EngineClosedError(f"{runtime!r} cannot be served: make a new one with lmnb.Runtime(...)")
        if not is_loopback(host) and not api_key:
            raise ArgumentError(
                f"a server on {host!r} can be reached from other machines, so it needs a key: "
                "set LMNB_API_KEY (or pass api_key), or listen on 127.0.0.1"
            )
        self.runtime = runtime
        jobs = Jobs()
        self._jobs = jobs
        try:
            self._socket = _Socket((host, port), api_key, Native(runtime, jobs), OpenAIApi(runtime, jobs))
        except OSError as error:
            raise ArgumentError(f"cannot listen on {host}:{port}: {error.strerror or error}; use port=0") from error
        address: tuple[str, int] = self._socket.server_address[:2]  # type: ignore[assignment]  # not a Unix socket
        self.host, self.port = address
        self._thread = threading.Thread(
            target=self._socket.serve_forever, kwargs={"poll_interval": 0.1}, name="lmnb-server", daemon=True
        )
        threads.start(self._thread)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Server({self.url!r}, {self.runtime.name!r})"

    @property
    def url(self) -> str:
        """Where clients reach it, for RuntimeEndpoint; OpenAI's clients add `/v1`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def wait(self) -> None:
        """Serve until `close`, or an interrupt."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """Stop listening, cancel what runs and close every connection. Idempotent."""
        if self._socket.closed:
            return
        self._socket.closed = True
        self._socket.shutdown()
        self._thread.join()
        self._socket.server_close()
        self._jobs.abort("")
        self._socket.close_connections()


class _Socket(socketserver.ThreadingTCPServer):
    """The listening socket and its connections."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], api_key: str | None, native: Native, openai: OpenAIApi) -> None:
        self.api_key = api_key
        self.native = native
        self.openai = openai
        self.closed = False
        self.checks_host = is_loopback(address[0])
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection, and give it a thread."""
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """The connection is over."""
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        """Make every connection's thread end."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with suppress(OSError):  # it was closed meanwhile
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is its client's matter; nothing is printed."""

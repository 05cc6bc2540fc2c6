"""One HTTP connection: reads requests, checks who asks, routes, and writes JSON or a stream of events."""

from __future__ import annotations

import hmac
import json
import select
import socket
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lmnb.runtime.json_reading import LossError, WholeDecoder
from lmnb.server.address import is_loopback
from lmnb.server.http_error import HttpError, as_http_error, error_body
from lmnb.server.job import Answer, ClientGoneError

if TYPE_CHECKING:
    from lmnb.server.server import _Socket

MAX_BODY = 64 << 20  # bytes
_MOST_DIGITS = 18
IDLE_SECONDS = 60.0
_OPEN = ("/health", "/health_generate")  # what needs no key


class Handler(BaseHTTPRequestHandler):
    """Serves one connection, request after request."""

    protocol_version = "HTTP/1.1"
    server_version = "lmnb"
    sys_version = ""
    disable_nagle_algorithm = True
    timeout = IDLE_SECONDS
    server: _Socket

    def do_GET(self) -> None:
        """Information."""
        self._serve(self._get)

    def do_POST(self) -> None:
        """Work."""
        self._serve(self._post)

    def do_other(self) -> None:
        """What is asked of nothing here."""
        self._serve(self._refuse)

    do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = do_other  # noqa: N815  # their names

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses by itself (a request line, headers), in our form instead of a page."""
        self.close_connection = True  # where the next request would begin is not known
        if self.request_version == "HTTP/0.9":  # as it is taken to be until it is read; that would get no status
            self.request_version = self.protocol_version
        self._send_json(code, error_body(HttpError(code, message or HTTPStatus(code).phrase)))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed: the server may live in a notebook's kernel."""

    def _serve(self, route: Callable[[str], Any]) -> None:
        try:
            try:
                body = self._read()
                path = self._path()
                self._check(path)
                self._body = body
                answer = route(path)
                if isinstance(answer, Answer):
                    answer.begin()
            except ClientGoneError:
                raise
            except Exception as error:
                told = as_http_error(error)
                self._send_json(told.status, error_body(told))
                return
            if isinstance(answer, Answer):
                self._send_events(answer)
            elif isinstance(answer, str):
                self._send(200, answer.encode(), "text/plain; charset=utf-8")
            else:
                self._send_json(200, answer)
        except (ClientGoneError, OSError):  # nobody reads any more
            self.close_connection = True

    def _path(self) -> str:
        try:
            return urlsplit(self.path).path.rstrip("/")
        except ValueError as error:
            raise HttpError(400, f"the request's address is none: {error}") from None

    def _refuse(self, path: str) -> Any:
        raise HttpError(405, f"{self.command} is not answered here; use GET or POST")

    def _get(self, path: str) -> Any:
        native = self.server.native
        if path in _OPEN:
            native.check_health()
            return ""
        if path in ("/get_model_info", "/model_info"):
            return native.model_info()
        if path in ("/server_info", "/get_server_info"):
            return native.server_info()
        if path == "/v1/models":
            return self.server.openai.models()
        if path == "/flush_cache":
            return self._flush()
        raise self._unknown(path)

    def _post(self, path: str) -> Any:
        if path == "/flush_cache":
            return self._flush()
        if path == "/generate":
            return self.server.native.generate(self._json(), self._is_gone)
        if path == "/v1/completions":
            return self.server.openai.completion(self._json(), self._is_gone)
        if path == "/v1/chat/completions":
            return self.server.openai.chat(self._json(), self._is_gone)
        if path == "/abort_request":
            self.server.native.abort(self._json())
            return ""
        raise self._unknown(path)

    def _flush(self) -> str:
        if not self.server.native.flush():
            raise HttpError(400, "the cache was not flushed: requests are running or waiting")
        return "Cache flushed.\n"

    def _unknown(self, path: str) -> HttpError:
        return HttpError(404, f"there is no {self.command} {path or '/'} here")

    def _check(self, path: str) -> None:
        """Who may ask: on loopback no page of another site, which a browser would let in; with a key, its owner."""
        host = self.headers.get("Host", "")
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError as error:
            raise HttpError(400, f"the Host header names no host: {error}") from None
        if self.server.checks_host and not is_loopback(name):
            raise HttpError(403, f"this server is for this machine only; it is not {name!r}")
        origin = self.headers.get("Origin")
        if origin is not None and _place(origin) != host:
            raise HttpError(403, "pages of other sites may not use this server")
        key = self.server.api_key
        if key and path not in _OPEN:
            given = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), key.encode()):
                raise HttpError(401, "the API key is missing or wrong; send it as: Authorization: Bearer KEY")

    def _read(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            self.close_connection = True
            raise HttpError(411, "send the body with a Content-Length")
        told = self.headers.get("Content-Length") or "0"
        if not (told.isascii() and told.isdigit()):
            self.close_connection = True
            raise HttpError(400, f"Content-Length must be a number of bytes, not {told[:40]!r}")
        if len(told) > _MOST_DIGITS or int(told) > MAX_BODY:
            self.close_connection = True
            raise HttpError(413, f"a body has at most {MAX_BODY} bytes")
        return self.rfile.read(int(told))

    def _json(self) -> Any:
        try:
            return json.loads(self._body, cls=WholeDecoder)
        except LossError as error:
            raise HttpError(400, f"in the body, {error}") from None
        except ValueError as error:
            raise HttpError(400, f"the body is not JSON: {error}") from error
        except RecursionError:
            raise HttpError(400, "the body is nested too deeply") from None

    def _is_gone(self) -> bool:
        """Whether the client has closed its end. What it may have sent ahead is left alone."""
        try:
            readable, _, _ = select.select([self.connection], [], [], 0)
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, POST")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _send_json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"), "application/json")

    def _send_events(self, answer: Answer) -> None:
        """Server-sent events in chunks, ended by `[DONE]`, of an answer that has begun: its status is 200. A client
        that leaves ends the generation."""
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Cache-Control", "no-cache")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in answer.events:
                self._chunk(f"data: {json.dumps(event, ensure_ascii=False)}\n\n")
            self._chunk("data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")
        finally:
            answer.close()

    def _chunk(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def _place(origin: str) -> str | None:
    """Host and port of the page that asks; None if it says nothing that could be one."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None

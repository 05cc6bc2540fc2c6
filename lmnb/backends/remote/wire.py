"""HTTP to an SGLang server: one asynchronous client for each loop, retries, server-sent events, its errors as ours.

It knows nothing of prompts.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from lmnb.backends.remote.address import checked_url
from lmnb.backends.remote.loop_clients import LoopClients
from lmnb.backends.remote.packages import require
from lmnb.backends.remote.secrets import Secret, shown_url
from lmnb.backends.remote.unreadable import Teller, error_message, told_error
from lmnb.errors import ArgumentError, RemoteError

if TYPE_CHECKING:
    import httpx

_RETRIED = (429, 502, 503, 504)  # busy, or not there yet: nothing has been generated
_FIRST_PAUSE_SECONDS = 0.25
_KEPT = 20_000  # characters of what is no event: enough for an error object
_OF_A_STREAM = (":", "event:", "id:", "retry:")  # lines of a stream that are not its data


class Wire:
    """Talks JSON with the server at `base_url`. `retries`: how often a call is sent again before it is answered."""

    def __init__(self, base_url: str, key: Secret, verify: str | bool | None, timeout: float, retries: int) -> None:
        self._httpx = require("httpx", "a remote backend")
        self.base_url = checked_url(base_url, "a remote backend").rstrip("/")
        self.shown = shown_url(self.base_url)
        self.tell = Teller(f"the server at {self.shown}", key)
        self._key = key
        self._retries = retries
        self._timeout = self._httpx.Timeout(timeout, connect=min(timeout, 10.0))
        self._verify: Any = _trust(verify) if isinstance(verify, str) else verify is not False
        self._clients: LoopClients[httpx.AsyncClient] = LoopClients(self._new_client, lambda client: client.aclose())

    def get(self, path: str) -> Any:
        """GET, in this thread."""
        return self._whole("GET", path)

    def post(self, path: str) -> Any:
        """POST without a body, in this thread."""
        return self._whole("POST", path)

    async def ask(self, path: str, body: Any) -> Any:
        """POST a body; the answer's JSON (else its text). RemoteError for an error object with status 200."""
        async with self._answer(path, body) as answer:
            try:
                told = _json(await answer.aread())
            except self._httpx.HTTPError as error:
                raise self._broken(error) from None
        message = told_error(told)
        if message is not None:
            raise self.tell.says(message)
        return told

    async def stream(self, path: str, body: Any) -> AsyncIterator[Any]:
        """POST a body; the answer's events up to `[DONE]`. RemoteError for an error among them, and for an answer that
        holds no event at all."""
        other = ""  # what came outside of events
        found = False
        async with self._answer(path, body) as answer:
            try:
                async for line in answer.aiter_lines():
                    if not line.startswith("data:"):
                        if len(other) < _KEPT and not line.startswith(_OF_A_STREAM):
                            other += line[:_KEPT] + "\n"
                        continue
                    found = True
                    data = line[5:].strip()
                    if data == "[DONE]":
                        return
                    with self.tell.reading():
                        event = json.loads(data)
                    message = told_error(event)
                    if message is not None:
                        raise self.tell.says(message)
                    yield event
            except self._httpx.HTTPError as error:
                raise self._broken(error) from None
            if not found:
                kind = answer.headers.get("content-type", "").partition(";")[0]
                raise self.tell.not_a_stream(other.encode("utf-8", "replace"), kind)

    def close(self) -> None:
        """Close the connections."""
        self._clients.close()

    def _headers(self) -> dict[str, str]:
        key = self._key.reveal()
        headers = {"Content-Type": "application/json"}
        return {**headers, "Authorization": f"Bearer {key}"} if key else headers

    def _new_client(self) -> httpx.AsyncClient:
        limits = self._httpx.Limits(max_connections=None, max_keepalive_connections=64)
        client: httpx.AsyncClient = self._httpx.AsyncClient(
            headers=self._headers(), verify=self._verify, timeout=self._timeout, limits=limits
        )
        return client

    def _whole(self, method: str, path: str) -> Any:
        for attempt in range(self._retries + 1):
            last = attempt == self._retries
            try:
                answer = self._httpx.request(
                    method, self.base_url + path, headers=self._headers(), verify=self._verify, timeout=self._timeout
                )
            except self._httpx.TransportError as error:
                if last:
                    raise self._broken(error) from None
            else:
                if answer.status_code == 200:
                    return _json(answer.content)
                if last or answer.status_code not in _RETRIED:
                    raise self._refused(answer.status_code, answer.content)
            time.sleep(_pause(attempt))
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def _answer(self, path: str, body: Any) -> AsyncIterator[httpx.Response]:
        """The answer with its head read; sent again while nothing of an answer has come."""
        data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        client = self._clients.get()
        for attempt in range(self._retries + 1):
            last = attempt == self._retries
            try:
                request = client.build_request("POST", self.base_url + path, content=data)
                answer = await client.send(request, stream=True)
            except self._httpx.ReadTimeout as error:  # it may be at work: asking again would do it twice
                raise self._broken(error) from None
            except self._httpx.TransportError as error:
                if last:
                    raise self._broken(error) from None
                await asyncio.sleep(_pause(attempt))
                continue
            try:
                if answer.status_code == 200:
                    yield answer
                    return
                content = await answer.aread()
            finally:
                await answer.aclose()
            if last or answer.status_code not in _RETRIED:
                raise self._refused(answer.status_code, content)
            await asyncio.sleep(_pause(attempt))

    def _refused(self, status: int, content: bytes) -> RemoteError:
        told = _json(content)
        message = error_message(told) if isinstance(told, dict) else str(told)
        if status in (401, 403):
            message = f"{message} (is the API key right?)"
        return self.tell.says(f"{message or 'nothing'} (HTTP {status})")

    def _broken(self, error: Exception) -> RemoteError:
        told = self._key.hide(str(error)) or type(error).__name__
        return RemoteError(f"the server at {self.shown} cannot be reached, or broke off: {told}")


def _json(content: bytes) -> Any:
    text = content.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except ValueError:
        return text


def _trust(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # an SSLError is one
        raise ArgumentError(
            f"verify={ca_file!r} is no file of CA certificates that can be read: {error.strerror or error}"
        ) from None


def _pause(attempt: int) -> float:
    """Seconds before the next attempt: twice as long each time, and never the same for two clients."""
    return float(_FIRST_PAUSE_SECONDS * 2**attempt * (0.75 + random.random() / 2))

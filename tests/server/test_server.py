"""Where the server listens, whom it serves, and how it ends; the command line."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import urllib.request
from typing import Any

import pytest
from context_support import fake_runtime
from server_support import call, fake_server

from lmnb.__main__ import main
from lmnb.backends import serving
from lmnb.errors import ArgumentError, EngineClosedError, ProgramError
from lmnb.server import Server


def test_other_machines_need_a_key() -> None:
    with fake_runtime() as runtime:
        with pytest.raises(ArgumentError, match="LMNB_API_KEY"):
            Server(runtime, host="0.0.0.0")
        with Server(runtime, host="0.0.0.0", api_key="k") as server:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
            connection.request("GET", "/v1/models", headers={"Authorization": "Bearer k"})
            assert connection.getresponse().status == 200
            connection.close()


@pytest.mark.parametrize("port", [99999, -1, "a", 1.5, True, None])
def test_ports_that_are_none(port: Any) -> None:
    with fake_runtime() as runtime, pytest.raises(ArgumentError, match="port must be a whole number from 0"):
        runtime.serve(port=port)


def test_a_host_is_text() -> None:
    with fake_runtime() as runtime, pytest.raises(ArgumentError, match="host must be text"):
        runtime.serve(host=5)  # type: ignore[arg-type]


def test_a_runtime_that_was_shut_down_is_not_served_and_not_healthy() -> None:
    with fake_runtime() as runtime, Server(runtime) as server:
        assert call(server, "/health")[0] == 200
        runtime.shutdown()
        with pytest.raises(EngineClosedError, match=r"make a new one with lmnb\.Runtime"):
            runtime.serve()
        status, answer = call(server, "/health")
        assert status == 503
        assert "shut down" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("length", "status", "words"),
    [("-5", 400, "not '-5'"), ("abc", 400, "not 'abc'"), ("1_0", 400, "1_0"), ("9" * 5000, 413, "at most")],
)
def test_a_length_that_is_none(length: str, status: int, words: str) -> None:
    with fake_server() as server:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=20)
        connection.putrequest("POST", "/generate")
        connection.putheader("Content-Length", length)
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == status
        assert words in answer.read().decode()
        connection.close()


def test_key() -> None:
    with fake_server(api_key="secret") as server:
        assert call(server, "/health")[0] == 200
        assert call(server, "/v1/models")[0] == 401
        assert call(server, "/v1/models", headers={"Authorization": "Bearer wrong"})[0] == 401
        assert call(server, "/v1/models", headers={"Authorization": "Bearer secret"})[0] == 200
        assert "secret" not in repr(server)
        status, info = call(server, "/server_info", headers={"Authorization": "Bearer secret"})
        assert status == 200
        assert "secret" not in str(info)


def test_pages_of_other_sites_are_refused() -> None:
    with fake_server() as server:
        assert call(server, "/v1/models", headers={"Origin": "https://evil.example"})[0] == 403
        assert call(server, "/v1/models", headers={"Host": f"evil.example:{server.port}"})[0] == 403
        assert call(server, "/v1/models", headers={"Host": f"localhost:{server.port}"})[0] == 200


def test_a_connection_serves_many_requests_and_ends_with_the_server() -> None:
    with fake_server() as server:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=20)
        for _ in range(3):
            connection.request("GET", "/health")
            assert connection.getresponse().read() == b""
        server.close()
        server.close()
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            _ask_again(connection)
        with pytest.raises(ConnectionRefusedError):
            call(server, "/health")
        connection.close()


def _ask_again(connection: http.client.HTTPConnection) -> None:
    connection.request("GET", "/health")
    connection.getresponse()


def test_a_taken_port_is_told() -> None:
    with fake_server() as server, pytest.raises(ArgumentError, match="cannot listen"):
        Server(server.runtime, port=server.port)


def test_a_closed_runtime_is_told() -> None:
    with fake_server() as server:
        server.runtime.shutdown()
        status, answer = call(server, "/generate", {"text": "a"})
        assert status == 503
        assert "shut down" in answer["error"]["message"]


def test_command_line_errors(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LMNB_API_KEY", raising=False)
    assert main(["serve", "--model", "/nothing/here"]) == 1
    assert "/nothing/here" in capsys.readouterr().err


@pytest.mark.model
def test_the_command_serves_the_embedded_model() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "lmnb", "serve", "--model", "smollm2", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LMNB_API_KEY": "k"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("SmolLM2-135M-Instruct at http://127.0.0.1:")
        request = urllib.request.Request(line.split()[2] + "/v1/models", headers={"Authorization": "Bearer k"})
        assert b"SmolLM2" in urllib.request.urlopen(request, timeout=20).read()
    finally:
        process.terminate()
        process.wait(20)


def test_a_runtime_serves_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_runtime() as runtime:
        with runtime.serve(api_key="k") as server:
            assert isinstance(server, Server)
            assert call(server, "/health")[0] == 200
            assert call(server, "/v1/models")[0] == 401
        monkeypatch.setattr(serving, "_opener", None)
        with pytest.raises(ProgramError, match=r"lmnb\.Server"):
            runtime.serve()


@pytest.mark.parametrize(("headers", "status"), [({"Host": "[::1"}, 400), ({"Origin": "http://[x"}, 403)])
def test_headers_that_name_no_host(headers: dict[str, str], status: int) -> None:
    with fake_server() as server:
        found, answer = call(server, "/health", headers=headers)
        assert (found, answer["error"]["code"]) == (status, status)
        assert "server failed" not in answer["error"]["message"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_other_methods_are_refused_in_the_usual_form(method: str) -> None:
    with fake_server() as server:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=20)
        connection.request(method, "/generate", None if method in ("HEAD", "TRACE") else "{}")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, POST")
        text = answer.read()
        assert method == "HEAD" or json.loads(text)["error"]["message"].startswith(f"{method} is not answered here")
        connection.request("GET", "/health")  # on the same connection
        assert connection.getresponse().status == 200
        connection.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET http://[bad/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET /health HTTP/x\r\n\r\n", 400),
        (b"BREW /coffee HTTP/1.1\r\n\r\n", 501),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
    ],
)
def test_what_is_no_request_is_refused_in_the_usual_form(sent: bytes, status: int) -> None:
    with fake_server() as server, socket.create_connection((server.host, server.port), timeout=20) as connection:
        connection.sendall(sent)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert (answer.status, answer.headers["Content-Type"]) == (status, "application/json")
        assert json.loads(answer.read())["error"]["code"] == status

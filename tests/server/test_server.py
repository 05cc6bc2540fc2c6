"""Where the server listens, whom it serves, and how it ends; the command line."""

from __future__ import annotations

import http.client
import os
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

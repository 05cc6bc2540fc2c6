"""Clients of event loops: who closes their connections."""

from __future__ import annotations

import pytest
from patience import until

from lmnb.backends.remote.loop_clients import LoopClients
from lmnb.language.loop import background


class Client:
    """Notes where it was closed."""

    def __init__(self, closed: list[bool]) -> None:
        self.closed = closed

    async def close(self) -> None:
        self.closed.append(background.is_current())


@pytest.mark.parametrize("by", ["close", "nobody"])
def test_each_client_is_closed_once_and_on_its_loop(by: str) -> None:
    closed: list[bool] = []
    clients = LoopClients(lambda: Client(closed), lambda client: client.close())
    assert background.call(clients.get) is background.call(clients.get)
    if by == "close":
        clients.close()
        assert closed == [True]
        clients.close()
    del clients
    until(lambda: closed)
    background.call(lambda: None)
    assert closed == [True]

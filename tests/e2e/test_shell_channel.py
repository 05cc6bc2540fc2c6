"""A kernel that has lmnb loaded answers whatever it is asked, also while an earlier answer leaves.

ipykernel 7.0 to 7.3 by themselves are deaf after some tens of such rounds, and after a few where answers leave slowly.
"""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.patience import PATIENCE
from harness.server import KERNEL, isolated_environment
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

pytestmark = [pytest.mark.e2e, pytest.mark.kernels]

ROUNDS = 60
SPREAD = 0.01  # seconds within which one request follows another: an answer takes about as long
SLOW = """\
import time
class Slow:
    def __init__(self, way):
        self.way = way
    def send_multipart(self, *args, **options):
        time.sleep(0.004)
        return self.way.send_multipart(*args, **options)
manager = get_ipython().kernel.shell_channel_thread.manager
for name in {"_shell_socket", "_shell_stream"} & set(vars(manager)):
    setattr(manager, name, Slow(getattr(manager, name)))
"""


class Asker:
    """Asks a kernel, and says what it left unanswered."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._open: dict[str, str] = {}  # what was asked, by the request's id

    def ask(self, kind: str, *args: Any) -> None:
        self._open[getattr(self._client, kind)(*args)] = kind

    def wait(self) -> list[str]:
        """What was not answered within `PATIENCE`; [] as soon as all was."""
        deadline = time.monotonic() + PATIENCE
        while self._open and time.monotonic() < deadline:
            try:
                reply = self._client.get_shell_msg(timeout=1)
            except queue.Empty:
                continue
            self._open.pop(reply["parent_header"]["msg_id"], None)
        return list(self._open.values())


@pytest.fixture
def asker(tmp_path: Path) -> Iterator[Asker]:
    environment = isolated_environment(tmp_path, mended=False)
    specs = KernelSpecManager(kernel_dirs=[str(Path(environment["JUPYTER_DATA_DIR"]) / "kernels")])
    manager = KernelManager(kernel_name=KERNEL, kernel_spec_manager=specs)
    manager.start_kernel(env=environment, cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    yield Asker(client)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_no_request_is_lost_once_the_extension_is_loaded(asker: Asker) -> None:
    for code in ("%load_ext lmnb", SLOW):  # one at a time: nothing is lost like that
        asker.ask("execute", code)
        assert asker.wait() == []
    chance = random.Random(1)
    for number in range(ROUNDS):
        for _ in range(3):
            asker.ask("comm_info")
            until = time.perf_counter() + SPREAD * chance.random()
            while time.perf_counter() < until:
                pass
        assert asker.wait() == [], f"round {number}"

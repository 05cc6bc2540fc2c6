"""One Jupyter server on a free loopback port, which serves JupyterLab and Notebook 7, with nothing of the user's own.

Configuration, data, runtime files and IPython's folder are temporary; the only kernel is the one under test.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import nbformat
from nbformat.sign import NotebookNotary

from harness.patience import PATIENCE

KERNEL = "lmnb-e2e"
_MEND = "from lmnb.widgets.shell_channel import mend_shell_channel\nmend_shell_channel()\ndel mend_shell_channel\n"


def kernel_python() -> str:
    """The Python whose kernel is tested: `LMNB_TEST_KERNEL_PYTHON`, else this one."""
    return os.environ.get("LMNB_TEST_KERNEL_PYTHON") or sys.executable


def isolated_environment(folder: Path, *, mended: bool = True, **kernel_env: str) -> dict[str, str]:
    """An environment whose Jupyter and IPython folders lie in `folder`, with the test kernel installed.

    `mended`: no kernel loses a request (see `lmnb.widgets.shell_channel`) before a test's first cell loads lmnb.
    """
    places = {
        "JUPYTER_CONFIG_DIR": folder / "config",
        "JUPYTER_DATA_DIR": folder / "data",
        "JUPYTER_RUNTIME_DIR": folder / "runtime",
        "JUPYTERLAB_SETTINGS_DIR": folder / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": folder / "workspaces",
        "IPYTHONDIR": folder / "ipython",
    }
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    spec = {
        "argv": [kernel_python(), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "lmnb under test",
        "language": "python",
        "env": {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1", **kernel_env},
    }
    kernel = places["JUPYTER_DATA_DIR"] / "kernels" / KERNEL
    kernel.mkdir(parents=True, exist_ok=True)
    (kernel / "kernel.json").write_text(json.dumps(spec))
    if mended:
        startup = places["IPYTHONDIR"] / "profile_default" / "startup"
        startup.mkdir(parents=True, exist_ok=True)
        (startup / "10-shell-channel.py").write_text(_MEND)
    news = places["JUPYTERLAB_SETTINGS_DIR"] / "@jupyterlab" / "apputils-extension"
    news.mkdir(parents=True, exist_ok=True)
    off = {"fetchNews": "false", "checkForUpdates": False}
    (news / "notification.jupyterlab-settings").write_text(json.dumps(off))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "LMNB_VIEW"))}
    return {**kept, **{name: str(place) for name, place in places.items()}}


class JupyterServer:
    """Starts on construction, and ends with `stop`. `root` is the folder whose notebooks it serves."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "notebooks"
        self.root.mkdir(parents=True)
        self.token = secrets.token_hex(16)
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._ending = threading.Thread()
        self._ending.start()  # there is always one to wait for
        self._log_path = folder / "server.log"
        self._log = self._log_path.open("wb")
        command = [
            *(sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
            *(f"--port={self.port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={self.token}"),
            *(f"--ServerApp.root_dir={self.root}", "--ServerApp.terminals_enabled=False"),
            *("--LabApp.expose_app_in_browser=True", "--JupyterNotebookApp.expose_app_in_browser=True"),
            *("--LabApp.news_url=", "--FileContentsManager.delete_to_trash=False"),
            f"--KernelSpecManager.allowed_kernelspecs={KERNEL}",
        ]
        self._process = subprocess.Popen(
            command,
            env=isolated_environment(folder),
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=self.root,
            start_new_session=True,
        )
        self._wait_until_up()

    def get(self, path: str) -> Any:
        """The JSON answer of the server's own API."""
        request = urllib.request.Request(f"{self.url}{path}", headers={"Authorization": f"token {self.token}"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            return json.load(reply)

    def delete(self, path: str) -> None:
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}{path}", headers=headers, method="DELETE")
        with urllib.request.urlopen(request, timeout=PATIENCE):
            pass

    def trust(self, path: Path) -> None:
        """Sign a notebook, as the server does where its user has saved it."""
        notary = NotebookNotary(data_dir=str(self.root.parent / "data"))
        notary.sign(nbformat.read(path, as_version=4))
        notary.store.close()

    def kernels(self) -> str:
        """What the server knows of its kernels."""
        told = [f"{one['execution_state']} since {one['last_activity']}" for one in self.get("/api/kernels")]
        return "; ".join(told) or "no kernel"

    def stop_kernels(self) -> None:
        """End every kernel."""
        self._ending.join()
        self._delete(self._sessions())

    def stop_kernels_soon(self) -> None:
        """End every kernel there is now, beside what comes next: a kernel takes its time to go."""
        self._ending.join()
        self._ending = threading.Thread(target=self._delete, args=[self._sessions()], daemon=True)
        self._ending.start()

    def stop(self) -> None:
        """End the server and its kernels: they are one process group."""
        with contextlib.suppress(OSError):  # a dead server is what we want
            self.stop_kernels()
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        self._log.close()

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def _sessions(self) -> list[str]:
        return [session["id"] for session in self.get("/api/sessions")]

    def _delete(self, sessions: list[str]) -> None:
        for session in sessions:
            self.delete(f"/api/sessions/{session}")

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the Jupyter server ended: {self.log()[-3000:]}")
            try:
                self.get("/api/status")
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise RuntimeError(f"the Jupyter server did not answer within {PATIENCE} s: {self.log()[-3000:]}")


def find_chromium() -> str | None:
    """A Chromium or Chrome on this machine, or None."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path is not None:
            return path
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""`lmnb install-kernel`: what is written, that it starts with lmnb loaded, and that it goes away again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("jupyter_client")

from lmnb.__main__ import main
from lmnb.errors import ArgumentError
from lmnb.magics.kernel_spec import DISPLAY_NAME, install, uninstall


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter_path"))
    return tmp_path


def test_the_command_adds_a_kernel_with_its_logo_and_removes_it(home, capsys):
    assert main(["install-kernel"]) == 0
    folder = home / "jupyter_data_dir" / "kernels" / "lmnb"
    assert capsys.readouterr().out == f"{DISPLAY_NAME}: {folder}\n"
    assert {path.name for path in folder.iterdir()} == {
        "kernel.json",
        "logo-32x32.png",
        "logo-64x64.png",
        "logo-svg.svg",
    }
    spec = json.loads((folder / "kernel.json").read_text())
    assert spec["display_name"] == DISPLAY_NAME
    assert spec["argv"][0] == sys.executable
    assert main(["install-kernel"]) == 0, "installing again replaces it"
    assert main(["uninstall-kernel"]) == 0
    assert not folder.exists()
    assert main(["uninstall-kernel"]) == 1
    assert "no kernel named 'lmnb'" in capsys.readouterr().err


@pytest.mark.parametrize("size", [32, 64])
def test_the_logo_has_the_size_that_its_name_says(size):
    from lmnb.magics.kernel_spec import LOGOS

    data = (LOGOS / f"logo-{size}x{size}.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(data[16:20], "big") == int.from_bytes(data[20:24], "big") == size


def test_it_goes_into_an_environment_when_told(home):
    folder = install("lmnb-two", "Two", user=False, prefix=str(home / "env"))
    assert folder == home / "env" / "share" / "jupyter" / "kernels" / "lmnb-two"
    assert json.loads((folder / "kernel.json").read_text())["display_name"] == "Two"


def test_another_programs_kernel_is_left_alone(home):
    folder = home / "jupyter_data_dir" / "kernels" / "ir"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text('{"argv": ["R"], "display_name": "R", "language": "R"}')
    with pytest.raises(ArgumentError, match="another program's"):
        install("ir")
    with pytest.raises(ArgumentError, match="another program's"):
        uninstall("ir")
    assert "R" in (folder / "kernel.json").read_text()


def test_a_notebook_of_that_kernel_has_the_magics(home):
    from jupyter_client.manager import start_new_kernel

    install()
    manager, client = start_new_kernel(kernel_name="lmnb")
    try:
        out: list[str] = []
        reply = client.execute_interactive(
            "%lmnb status\nprint(gen.__module__)",
            timeout=60,
            output_hook=lambda message: out.append(message["content"].get("text", "")),
        )
        assert reply["content"]["status"] == "ok"
        assert "No model is loaded." in "".join(out)
        assert "lmnb.language.primitives" in "".join(out)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)

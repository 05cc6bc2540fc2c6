"""`lmnb install-kernel`: the kernel "Prompt programming (lmnb)", an ipykernel of this environment with lmnb loaded.

Writes a kernel spec where Jupyter looks for them, and takes it away again; runs no kernel.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmnb.errors import ArgumentError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

DISPLAY_NAME = "Prompt programming (lmnb)"
NAME = "lmnb"
LOGOS = Path(__file__).parent / "static"
_OWN = "lmnb"  # key of the spec's metadata that says whose it is


def kernel_spec(display_name: str = DISPLAY_NAME) -> dict[str, Any]:
    """What `kernel.json` holds. The kernel loads the extension before the first cell."""
    launch = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    return {
        "argv": [*launch, "--IPKernelApp.extra_extensions=lmnb"],
        "display_name": display_name,
        "language": "python",
        "metadata": {"debugger": True, _OWN: True},
    }


def install(
    name: str = NAME, display_name: str = DISPLAY_NAME, *, user: bool = True, prefix: str | None = None
) -> Path:
    """Add the kernel for this user, or to the environment at `prefix`; a kernel of ours of that name is replaced.

    Returns its folder. ArgumentError if the name is taken by another kernel, or the place cannot be written.
    """
    manager = _manager()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "spec"
        shutil.copytree(LOGOS, folder)
        (folder / "kernel.json").write_text(json.dumps(kernel_spec(display_name), indent=1) + "\n", encoding="utf-8")
        kernels = Path(manager.user_kernel_dir) if user else Path(prefix or sys.prefix, "share", "jupyter", "kernels")
        _check_owner(kernels / name.lower())
        try:
            return Path(
                manager.install_kernel_spec(str(folder), name, user=user, prefix=None if user else prefix or sys.prefix)
            )
        except (OSError, ValueError) as error:
            raise ArgumentError(f"the kernel could not be installed: {error}") from error


def uninstall(name: str = NAME) -> Path:
    """Remove the kernel. Returns its former folder. ArgumentError if there is none, or if it is not ours."""
    manager = _manager()
    found = manager.find_kernel_specs().get(name.lower())
    if found is None:
        raise ArgumentError(f"there is no kernel named {name!r}; `jupyter kernelspec list` shows those there are")
    _check_owner(Path(found))
    try:
        shutil.rmtree(found)
    except OSError as error:
        raise ArgumentError(f"the kernel could not be removed: {error}") from error
    return Path(found)


def add_commands(commands: _SubParsersAction[Any]) -> None:
    """Add `install-kernel` and `uninstall-kernel` to the command line."""
    adding = commands.add_parser(
        "install-kernel",
        help=f'add the kernel "{DISPLAY_NAME}" to Jupyter',
        description=f'Add the kernel "{DISPLAY_NAME}" to Jupyter: this environment\'s Python, with lmnb loaded.',
    )
    where = adding.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="for this user, in every environment (default)")
    where.add_argument("--sys-prefix", action="store_true", help="for this environment only")
    where.add_argument("--prefix", help="for the environment at this path")
    adding.add_argument("--name", default=NAME, help=f"the kernel's short name (default: {NAME})")
    adding.add_argument("--display-name", default=DISPLAY_NAME, help="what menus call it")
    adding.set_defaults(run=_install)
    removing = commands.add_parser("uninstall-kernel", help="remove that kernel from Jupyter")
    removing.add_argument("--name", default=NAME, help=f"the kernel's short name (default: {NAME})")
    removing.set_defaults(run=_uninstall)


def _install(options: argparse.Namespace) -> int:
    prefix = sys.prefix if options.sys_prefix else options.prefix
    folder = install(options.name, options.display_name, user=prefix is None, prefix=prefix)
    print(f"{options.display_name}: {folder}")  # noqa: T201  # a command line speaks here
    return 0


def _uninstall(options: argparse.Namespace) -> int:
    print(f"removed {uninstall(options.name)}")  # noqa: T201
    return 0


def _manager() -> Any:
    try:
        import ipykernel  # noqa: F401  # what the spec starts
        from jupyter_client.kernelspec import KernelSpecManager
    except ImportError as error:
        raise ArgumentError("a kernel needs ipykernel: pip install 'lmnb[notebook]'") from error
    return KernelSpecManager(ensure_native_kernel=False)


def _check_owner(folder: Path) -> None:
    """ArgumentError if another program's kernel is there."""
    spec = folder / "kernel.json"
    if not spec.exists():
        return
    try:
        metadata = json.loads(spec.read_text(encoding="utf-8")).get("metadata", {})
    except (OSError, ValueError):
        metadata = {}
    if not metadata.get(_OWN):
        raise ArgumentError(f"{folder} holds another program's kernel; choose another --name")

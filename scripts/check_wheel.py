"""Builds the wheel through the sdist, looks inside, installs it elsewhere and runs a program with it.

The clean environment borrows the other packages of the environment that runs this file (torch is large),
but not its lmnb: an editable install is found by a hook that the clean environment does not load.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Where each installed folder's files lie in the checkout.
FOLDERS = {"lmnb": ROOT / "lmnb", "lmnb/runtime": ROOT / "runtime", "lmnb/kernels": ROOT / "kernels"}


def expected_files() -> set[str]:
    """The package files of the checkout, by their path in the wheel."""
    files = set()
    for target, folder in FOLDERS.items():
        for path in folder.rglob("*"):
            # rglob does not follow links, so the links lmnb/runtime and lmnb/kernels count once, as folders.
            parts = path.relative_to(folder).parts
            wanted = path.suffix in (".py", ".cpp", ".h") or path.name == "py.typed" or path.parent.name == "static"
            if path.is_file() and wanted and "node_modules" not in parts and "__pycache__" not in parts:
                files.add(f"{target}/{'/'.join(parts)}")
    return files


def check_contents(wheel: Path) -> None:
    """Exit with the difference if the wheel holds more or less than the package files."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    installed = {name for name in names if ".dist-info/" not in name}
    expected = expected_files()
    if missing := sorted(expected - installed):
        sys.exit(f"missing in the wheel: {missing} (is the package listed in pyproject.toml?)")
    if unwanted := sorted(installed - expected):
        sys.exit(f"unwanted in the wheel: {unwanted}")
    if not any(name.endswith("/LICENSE") for name in names):
        sys.exit("the wheel has no LICENSE")
    print(f"{wheel.name}: {len(installed)} files, {wheel.stat().st_size / 1024:.0f} KiB")


def install(wheel: Path, env: Path) -> Path:
    """Make an environment with the wheel and the other packages of this one; its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    python = env / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True)
    query = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = Path(subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip())
    (own / "zz_shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def main() -> None:
    """Build, look, install, run."""
    with tempfile.TemporaryDirectory(prefix="lmnb-wheel-") as folder:
        temp = Path(folder)
        # With neither --sdist nor --wheel, the wheel is built from the sdist, as an installer would.
        build = [sys.executable, "-m", "build", "--outdir", str(temp / "dist"), str(ROOT)]
        if subprocess.run(build, stdout=subprocess.DEVNULL).returncode:
            sys.exit("the wheel could not be built (the error is above)")
        (wheel,) = (temp / "dist").glob("*.whl")
        check_contents(wheel)
        python = install(wheel, temp / "env")
        program = temp / "elsewhere" / "program.py"
        program.parent.mkdir()
        shutil.copy(ROOT / "scripts" / "wheel_program.py", program)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        if subprocess.run([python, program], cwd=program.parent, env=environment).returncode:
            sys.exit("the program failed on the installed wheel (its error is above)")
    print("The wheel is complete and runs outside of the checkout")


if __name__ == "__main__":
    main()

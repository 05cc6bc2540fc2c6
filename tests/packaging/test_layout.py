"""`runtime/` and `kernels/` lie at the root and are installed as lmnb.runtime and lmnb.kernels."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Installed package -> folder in the checkout; each is looked through without following links.
FOLDERS = {"lmnb": "lmnb", "lmnb.runtime": "runtime", "lmnb.kernels": "kernels"}


def packages_in_tree(root: Path) -> set[str]:
    packages = set()
    for package, folder in FOLDERS.items():
        for path, subfolders, files in os.walk(root / folder):
            subfolders[:] = [name for name in subfolders if name not in ("__pycache__", "node_modules")]
            if any(name.endswith(".py") for name in files):
                inner = Path(path).relative_to(root / folder).parts
                packages.add(".".join((package, *inner)))
    return packages


def test_every_package_is_listed(root: Path, pyproject: dict[str, Any]) -> None:
    # An unlisted package imports well from an editable install, and is missing from the wheel.
    assert set(pyproject["tool"]["setuptools"]["packages"]) == packages_in_tree(root)


def test_every_package_has_an_init(root: Path) -> None:
    missing = []
    for name in packages_in_tree(root):
        package = max((p for p in FOLDERS if name == p or name.startswith(f"{p}.")), key=len)
        folder = root.joinpath(FOLDERS[package], *name[len(package) :].strip(".").split("."))
        if not (folder / "__init__.py").is_file():
            missing.append(name)
    assert missing == []


@pytest.mark.parametrize("name", ["runtime", "kernels"])
def test_links_are_relative(root: Path, pyproject: dict[str, Any], name: str) -> None:
    link = root / "lmnb" / name
    assert link.is_symlink(), "a checkout without links works, but mypy and import-linter need them"
    assert os.readlink(link) == f"../{name}"
    assert pyproject["tool"]["setuptools"]["package-dir"][f"lmnb.{name}"] == name


@pytest.mark.parametrize("name", ["runtime", "kernels"])
def test_bare_names_are_not_importable(root: Path, tmp_path: Path, name: str) -> None:
    # Other libraries own these names; a second copy of our modules under them would not be noticed. In a process of its
    # own, since other tests may have put the checkout on this one's path.
    code = f"import importlib.util, lmnb; print(importlib.util.find_spec({name!r}))"
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert f"{root}/" not in done.stdout


def test_kernels_package_is_inert(root: Path) -> None:
    # transformers probes for a package named `kernels` and reads its version: with the checkout on
    # sys.path it must find one that does nothing.
    tree = ast.parse((root / "kernels" / "__init__.py").read_text())
    docstring, *rest = tree.body
    assert isinstance(docstring, ast.Expr)
    assert [ast.unparse(node) for node in rest] == ["__version__ = '0.0.1'"]


def test_transformers_survives_the_checkout_on_its_path(root: Path) -> None:
    code = "from transformers.utils import is_kernels_available; print(is_kernels_available())"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"} | {"PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=root)
    assert done.stdout.strip() == "False", done.stderr


def test_tests_are_not_a_package(root: Path) -> None:
    # With tests/__init__.py and pytest's default import mode, the root would be on sys.path.
    assert not (root / "tests" / "__init__.py").exists()

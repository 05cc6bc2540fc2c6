"""One version, everywhere; and every dependency that `make` installs has exactly one pinned release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import lmnb

# Not in pip's lists: the project's own extras.
OWN = "lmnb"


@pytest.fixture
def version(pyproject: dict[str, Any]) -> str:
    return str(pyproject["project"]["version"])


@pytest.fixture
def pins(root: Path) -> dict[str, str]:
    lines = (root / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(r.name): str(r.specifier) for r in requirements}


def test_python_says_the_version(version: str) -> None:
    assert lmnb.__version__ == version


@pytest.mark.parametrize("name", ["package.json", "package-lock.json"])
def test_npm_says_the_version(root: Path, version: str, name: str) -> None:
    assert json.loads((root / name).read_text())["version"] == version


def test_changelog_has_the_version(root: Path, version: str) -> None:
    headings = [line for line in (root / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings[0].startswith(f"## {version}"), headings


def test_constraints_pin_one_release_each(pins: dict[str, str]) -> None:
    assert [name for name, pin in pins.items() if not pin.startswith("==") or "+" in pin] == []


def test_constraints_cover_every_extra(pyproject: dict[str, Any], pins: dict[str, str]) -> None:
    project = pyproject["project"]
    wanted = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    for requirement in map(Requirement, wanted):
        if requirement.name == OWN or (requirement.marker and "python_version" in str(requirement.marker)):
            continue  # a backport for older Pythons is not installed where the constraints were written
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} has no pin: run `make constraints`"
        assert requirement.specifier.contains(pin.removeprefix("==")), f"{requirement}, but pinned {pin}"


def test_heavy_packages_are_extras(pyproject: dict[str, Any]) -> None:
    # Installing lmnb beside an existing torch must never replace it.
    needed = {canonicalize_name(Requirement(r).name) for r in pyproject["project"]["dependencies"]}
    assert needed.isdisjoint({"torch", "transformers", "triton", "ipykernel", "ipywidgets", "pandas"})

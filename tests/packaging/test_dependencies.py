"""What lmnb's code imports is what pyproject.toml asks for."""

from __future__ import annotations

import ast
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDERS = ("lmnb", "runtime", "kernels")
# Comes with torch where there is a GPU; and what a user of one backend, type, picture or tracer adds: imported
# there only, and asked for by name where it is missing.
OPTIONAL = {"triton", "litellm", "graphviz", "mlflow", "opentelemetry", "pydantic", "pydantic_core"}


def third_party_imports(root: Path) -> dict[str, str]:
    """Top-level names that the package imports -> one file that does."""
    found: dict[str, str] = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names = [node.module]
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "require":
                    # Loaded when a backend is made; elsewhere the name of a function of other arguments.
                    names = [str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant)]
                for name in names:
                    found.setdefault(name.partition(".")[0], str(path.relative_to(root)))
    return {name: path for name, path in found.items() if name not in sys.stdlib_module_names | {"lmnb"}}


def declared(pyproject: dict[str, Any]) -> set[str]:
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    requirements = list(project["dependencies"])
    for extra in ("engine", "notebook", "api", "dspy", "google", "images", "video"):
        requirements += extras[extra]
    return {canonicalize_name(Requirement(r).name) for r in requirements}


def test_every_import_is_declared(root: Path, pyproject: dict[str, Any]) -> None:
    distributions = packages_distributions()
    known = declared(pyproject)
    undeclared = {
        name: path
        for name, path in third_party_imports(root).items()
        if name not in OPTIONAL and known.isdisjoint(map(canonicalize_name, distributions.get(name, [])))
    }
    assert undeclared == {}


def test_every_dependency_is_imported(root: Path, pyproject: dict[str, Any]) -> None:
    distributions = packages_distributions()
    imported = {canonicalize_name(d) for name in third_party_imports(root) for d in distributions.get(name, [])}
    # Nothing imports these two by name: the kernel is what a notebook runs in, ipywidgets is anywidget's base.
    assert declared(pyproject) - imported - {"ipykernel", "ipywidgets"} == set()

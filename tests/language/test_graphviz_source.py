"""Drawing through the optional graphviz library, with `dot`, without it, and without the library."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import lmnb
from lmnb.errors import MissingPackageError
from lmnb.language import graphviz_source as module
from lmnb.language.graphviz_source import graphviz_source

graphviz = pytest.importorskip("graphviz")

FAKE_DOT = """#!/bin/sh
cat >/dev/null
echo "<svg>drawn</svg>"
"""


@lmnb.function
def city(s, country):
    s += lmnb.user("A city in " + country) + lmnb.assistant(lmnb.gen("name"))


@pytest.fixture
def no_dot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_program_gives_the_source_of_its_graph() -> None:
    source = city.to_graphviz()
    assert isinstance(source, graphviz.Source)
    assert source.source.rstrip() == city.compile().to_dot().rstrip()
    assert "Japan" in city.to_graphviz(country="Japan").source


def test_with_dot_a_notebook_shows_the_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dot = tmp_path / "dot"
    dot.write_text(FAKE_DOT)
    dot.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert city.to_graphviz()._repr_mimebundle_() == {"image/svg+xml": "<svg>drawn</svg>\n"}


@pytest.mark.usefixtures("no_dot")
def test_without_dot_a_notebook_shows_what_to_install_and_the_text() -> None:
    source = city.to_graphviz()
    bundle = source._repr_mimebundle_()
    assert list(bundle) == ["text/plain"]
    assert "apt-get install graphviz" in bundle["text/plain"]
    assert 'digraph "city" {' in bundle["text/plain"]


@pytest.mark.usefixtures("no_dot")
def test_without_dot_rendering_says_what_to_install(tmp_path: Path) -> None:
    source = city.to_graphviz()
    with pytest.raises(MissingPackageError, match="conda install graphviz"):
        source.pipe(format="png")
    with pytest.raises(MissingPackageError, match="apt-get"):
        source.render(directory=tmp_path)


def test_without_the_library_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "graphviz", None)
    module._source_class.cache_clear()
    try:
        with pytest.raises(MissingPackageError, match="pip install graphviz"):
            graphviz_source("digraph {}", "x")
    finally:
        module._source_class.cache_clear()

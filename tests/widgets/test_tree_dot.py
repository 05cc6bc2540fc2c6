"""The cache tree in DOT: every node and edge, states told apart, and text that cannot break out of its label."""

from __future__ import annotations

import re

import pytest
from cache_samples import FakeCache, busy_cache

from lmnb.widgets import CacheView
from lmnb.widgets.tree_dot import to_dot
from lmnb.widgets.tree_model import Marks

NODE = re.compile(r'  n(\d+) \[label="((?:[^"\\]|\\.)*)", [^\]"]*"[^"]*"[^\]]*\];')


def test_every_node_has_its_box_and_its_parent() -> None:
    cache = busy_cache()
    view = CacheView(cache, "off", since=-1)
    dot = view.to_dot()
    boxes = {int(match[1]) for match in map(NODE.fullmatch, dot.splitlines()) if match}
    assert boxes >= set(cache.nodes)
    for id, node in cache.nodes.items():
        parent = f"n{node['parent']}" if node["parent"] in cache.nodes else "root"
        assert f"  {parent} -> n{id};" in dot.splitlines()
    assert "style=dotted" in dot  # what was evicted
    view.close()


def test_text_stays_in_its_label() -> None:
    cache = FakeCache()
    cache.request('say "hi" \\N \x1b[2J\n]; }', "cell 1")
    view = CacheView(cache, "off")
    lines = view.to_dot().splitlines()
    assert len(lines) == 3 + 2 * len(cache.nodes) + 1
    assert all(NODE.fullmatch(line) for line in lines if "label" in line)
    assert "\x1b" not in "".join(lines)
    view.close()


def test_an_empty_tree_is_a_graph_too() -> None:
    assert to_dot({}, Marks()).endswith("}")


def test_the_view_gives_a_graphviz_source() -> None:
    graphviz = pytest.importorskip("graphviz")
    view = CacheView(busy_cache(), "off")
    assert isinstance(view.to_graphviz(), graphviz.Source)
    view.close()

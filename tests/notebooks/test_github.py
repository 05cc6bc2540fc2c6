"""A notebook of anybody's, saved and put on GitHub as it is: what is left of its pictures can be read."""

from __future__ import annotations

from cache_samples import busy_cache
from github_page import sanitized
from run_samples import judge

from lmnb.language.events import to_json
from lmnb.widgets import CacheView
from lmnb.widgets.run_sinks import RunRecord


def test_of_a_tree_a_line_of_labels_and_the_list() -> None:
    live, alone = CacheView(busy_cache(), "widget"), CacheView(busy_cache(), "html")
    assert "<title>" in alone._picture()
    drawing, _, behind = sanitized(live._picture()).partition("<details>")
    assert drawing.count(" · ") >= 3
    assert len(drawing) < 600  # no node's whole text
    assert all(line in behind for line in live.to_text().split("\n")[1:3])


def test_of_a_run_its_head_its_turns_and_its_branches() -> None:
    record = RunRecord()
    record.apply([to_json(event) for event in judge()])
    left = sanitized(record.bundle()["text/html"])
    assert "{" not in left.partition("<table")[0].replace("&lt;", ""), "a style sheet is read as text"
    assert "<b>assistant</b>" in left
    assert left.count("<li>") >= 3
    assert "<ins>Clear enough to be read twice.</ins>" in left

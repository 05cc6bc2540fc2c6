"""Saved runs and comparisons, drawn: self-contained, escaped, and readable."""

from __future__ import annotations

import json
import re

import pytest
from run_samples import NASTY, chat, gen, judge, stopped

from lmnb.language import events as ev
from lmnb.language.saved_run import SavedRun
from lmnb.widgets.escape import plain


def one(*said: ev.RunEvent) -> SavedRun:
    return SavedRun([ev.RunStarted("1a", "chat", "model", 1.0), *said, ev.RunFinished("done", 1.0)])


def visible(html: str) -> str:
    body = re.sub(r"<(style|script)\b.*?</\1>", "", html, flags=re.S)
    return re.sub(r"<[^>]+>", "", body)


@pytest.mark.parametrize("events", [judge(), stopped()], ids=["judge", "stopped"])
def test_a_page_stands_alone_and_holds_the_whole_run(events):
    page = SavedRun(events).to_html()
    assert page.startswith("<!doctype html>")
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", outside)
    snapshot = json.loads(re.search(r'id="lmnb-snapshot">(.*?)</script>', page, re.S)[1])
    model = json.loads(snapshot)["model"]
    assert model["status"] == SavedRun(events).status
    texts = "".join(item.get("text", "") for branch in model["branches"] for item in branch["items"])
    for event in events:
        if isinstance(event, (ev.TextAppended, ev.TokensGenerated)):
            assert event.text in texts


def test_a_run_saved_before_its_end_is_drawn_as_running():
    page = SavedRun(judge()[:-1]).to_html()
    assert "running" in visible(page)


def test_a_replayed_run_shows_itself(front_end, monkeypatch):
    monkeypatch.setenv("LMNB_VIEW", "html")
    SavedRun(judge())._ipython_display_()
    assert len(front_end.displays) == 1
    assert "Judge the clarity of the essay." in visible(front_end.updates[-1][1]["text/html"])


def test_a_notebook_that_is_not_ipythons_gets_a_picture():
    html = SavedRun(judge())._repr_html_()
    assert "<script" not in html
    assert "Judge the clarity of the essay." in visible(html)


def test_a_diff_shows_signs_and_marks_words():
    diff = one(*chat(0, "user", *gen(0, "x", "a good day"))).diff(one(*chat(0, "user", *gen(0, "x", "a bad day"))))
    html = diff.to_html()
    assert '<del>− user: «a <b class="w">good</b> day»</del>' in html
    assert '<ins>+ user: «a <b class="w">bad</b> day»</ins>' in html
    text = diff.to_text()
    assert "  - user: «a good day»" in text
    assert '    x: "a good day" → "a bad day"' in text


def test_words_are_marked_where_as_many_lines_stand_for_as_many():
    def html(first: str, second: str) -> str:
        return one(ev.TextAppended(0, first)).diff(one(ev.TextAppended(0, second))).to_html()

    pairs = html("same\na b\nc d\nend", "same\na x\nc y\nend")
    assert [re.sub("<.*?>", "", mark) for mark in re.findall('<b class="w">.*?</b>', pairs)] == ["b", "d", "x", "y"]
    assert '<b class="w">' not in html("a b\nc d\nend", "a x\nend")
    assert '<b class="w">' not in html("end", "a x\nend")


def test_nothing_of_a_foreign_run_is_markup_or_a_terminal_command():
    diff = one(ev.TextAppended(0, NASTY), ev.VariableSet(0, NASTY, NASTY)).diff(one(ev.TextAppended(0, "tame")))
    html, text = diff.to_html(), diff.to_text()
    assert "<img" not in html
    assert "<script" not in html
    assert "\x1b" not in html + text
    assert plain(NASTY) in text


def test_what_is_alike_far_from_a_change_is_left_out():
    lines = [f"line {i}" for i in range(40)]
    changed = [*lines[:20], "other", *lines[21:]]
    diff = one(ev.TextAppended(0, "\n".join(lines))).diff(one(ev.TextAppended(0, "\n".join(changed))))
    text = diff.to_text()
    assert "… 17 more lines" in text
    assert "… 16 more lines" in text
    assert "line 16" not in text
    assert "line 17" in text

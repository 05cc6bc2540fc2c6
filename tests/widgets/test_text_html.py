"""Given text in static pictures: long text folds without a script, and reads well without a style sheet."""

from __future__ import annotations

import html
import re

import pytest
from run_samples import chat, gen

from lmnb.language import events as ev
from lmnb.widgets import run_html
from lmnb.widgets.origin_html import spans
from lmnb.widgets.run_model import RunModel
from lmnb.widgets.text_html import FOLD_OVER, fold, folded, lines

LONG = "".join(f"rule {number}: be brief.\n" for number in range(400))
TABLE = "| a | b |\n|---|---|\n" + "".join(f"| {number} | x |\n" for number in range(300))


def read(markup: str) -> str:
    """The text that a reader of the HTML gets, the folds' words left out."""
    markup = re.sub(r"<summary>.*?</summary>", "", markup).replace("<br>", "\n")
    return html.unescape(re.sub(r"<[^>]*>", "", markup))


def draw(*events: ev.RunEvent) -> str:
    model = RunModel()
    started = [ev.RunStarted("r", "p", "m", 0.0), *events, ev.RunFinished("done", 1.0)]
    model.apply_all(map(ev.to_json, started))
    return run_html.render(model).rpartition("</style>")[2]


def test_the_middle_of_a_long_prompt_is_folded_between_lines_and_nothing_is_lost() -> None:
    shown = folded(LONG, 800_000)
    assert shown.count('<details class="lmnb-long">') == 1
    before, _, rest = shown.partition("<details")
    hidden, _, behind = rest.partition("</details>")
    assert before.endswith("<br>")
    assert behind.startswith("rule ")
    (said,) = re.findall(r"… ([\d,]+) more characters …", hidden)
    assert int(said.replace(",", "")) == len(LONG) - len(read(before)) - len(read(behind))
    assert read(shown) == LONG


@pytest.mark.parametrize("text", ["short", "x" * FOLD_OVER, "a b " * 600])
def test_what_is_not_long_is_shown(text: str) -> None:
    assert fold(text) is None
    assert folded(text, 800_000) == lines(text)


def test_text_without_any_space_folds_too() -> None:
    assert read(folded("x" * 5000, 800_000)) == "x" * 5000
    assert "3,400 more characters" in folded("x" * 5000, 800_000)


def test_a_fold_cuts_no_table() -> None:
    assert fold("Look:\n" + TABLE) is None  # a table that is all there is stays
    text = "Look:\n" + TABLE + LONG
    place = fold(text)
    assert place is not None
    assert text[: place[0]] == "Look:\n" + TABLE
    shown = folded(text, 800_000)
    assert shown.count("<tr>") == 301
    before, _, hidden = shown.partition("<details")
    assert "</table>" in before
    assert "<table" not in hidden


def test_what_a_file_cannot_hold_is_left_out_inside_the_fold() -> None:
    shown = folded(LONG * 10, 4000)
    assert len(shown) < 6000
    assert re.search(r"more characters …</summary>.*characters not shown; s.text\(\) has them", shown, re.S)


def test_lines_and_words_stand_apart_without_a_style_sheet() -> None:
    """Some sites keep neither style nor white space: elements and spaces must do."""
    turn = chat(0, "user", ev.TextAppended(0, "first line\nsecond line "), *gen(0, "answer", "yes\nno", reused=3))
    branches = [ev.BranchOpened(number, 0, number - 1, 0, f"0.{number - 1}") for number in (1, 2)]
    shown = draw(*turn, *branches)
    assert "first line<br>second line" in shown
    assert "yes<br>no" in shown
    assert "second line answer yes no 3 reused" in " ".join(read(shown).split())
    assert shown.count("<li ") == 2


def test_dollars_are_no_formula() -> None:
    """JupyterLab and nbconvert hand HTML to MathJax, which leaves these classes alone."""
    assert re.search(r'<div class="[^"]*\bmathjax_ignore tex2jax_ignore\b', draw(ev.TextAppended(0, "$5 and $6")))


def test_generated_text_folds_with_its_tokens_counted_and_what_still_grows_does_not() -> None:
    text = " ".join(f"word{number % 10}" for number in range(1000))
    shown = draw(*gen(0, "x", text))
    before, _, rest = re.findall(r"<ins.*?>(.*)</ins>", shown)[0].partition("<details")
    hidden, _, behind = rest.partition("</details>")
    (num_tokens,) = re.findall(r"… (\d+) more tokens · [\d,]+ characters …", hidden)
    assert int(num_tokens) == 1000 - before.count("word") - behind.count("word")
    assert read(before + "<details" + hidden + "</details>" + behind) == text
    growing = RunModel()
    growing.apply_all(map(ev.to_json, [ev.RunStarted("r", "p", "m", 0.0), *gen(0, "x", text)[:-2]]))
    assert "lmnb-long" not in run_html.render(growing).rpartition("</style>")[2]


def test_constrained_text_folds_and_keeps_its_origins() -> None:
    parts = [[6, 1, None, "forced" if number % 2 else "masked"] for number in range(1000)]
    gen = {"text": "abcde " * 1000, "parts": parts}
    shown = spans(gen)
    assert read(shown) == gen["text"]
    assert shown.count("lmnb-long") == 1
    assert "lmnb-forced" in shown.partition("<details")[0]
    assert "lmnb-masked" in shown.partition("</details>")[2]

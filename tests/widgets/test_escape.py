"""Text of any origin stays text, in every form a view has."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from cache_samples import FakeCache
from run_samples import NASTY, FakeRun, chat, gen, select

from lmnb.language import events as ev
from lmnb.widgets import CacheView, RunView, run_html, run_text
from lmnb.widgets.escape import cut, markup, plain, script_json, terminal
from lmnb.widgets.run_model import RunModel


class Elements(HTMLParser):
    """All tags and attributes of a page, as a browser would see them, and the text between."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def nasty_run() -> list[ev.RunEvent]:
    """The hostile text in every place where a text can be."""
    return [
        ev.RunStarted("r", NASTY, NASTY, 0.0, NASTY),
        *chat(0, NASTY, ev.TextAppended(0, NASTY), *gen(0, NASTY, NASTY)),
        ev.BranchOpened(1, 0, 0, 0, NASTY, NASTY),
        *select(1, NASTY, [NASTY, "b"], [-1.0, -2.0], 0),
        ev.BranchFinished(1, "failed", NASTY),
        ev.BranchesJoined(0, [1], NASTY),
        ev.VariableSet(0, NASTY, NASTY),
        ev.RunFinished("failed", 1.0, NASTY),
    ]


@pytest.fixture
def nasty_view() -> RunView:
    view = RunView(FakeRun(nasty_run()), "off")
    view.display()
    assert view.finish(30)
    return view


def check(html: str, scripts: int = 0) -> Elements:
    found = Elements(html)
    assert "img" not in found.tags
    assert found.tags.count("script") == scripts
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert "\x1b" not in html
    return found


def test_static_html_holds_no_element_of_the_text(nasty_view: RunView) -> None:
    html = nasty_view._record.bundle()["text/html"]
    found = check(html)
    assert "<img src=x onerror=alert(1)></script>" in found.text
    assert "<|im_start|>system" in found.text


def test_a_page_ends_no_script_early_and_keeps_the_text(nasty_view: RunView) -> None:
    html = nasty_view.to_html()
    check(html, scripts=3)
    (json_text,) = re.findall(r'id="lmnb-snapshot">(.*?)</script>', html, flags=re.DOTALL)
    snapshot = json.loads(json.loads(json_text))
    assert snapshot["model"]["program"] == NASTY


def test_text_that_turns_its_direction_turns_nothing_beside_it() -> None:
    turned = "\u202eabc"
    events = [*chat(0, "user", ev.TextAppended(0, turned), *gen(0, "x", turned)), ev.RunFinished("done", 1.0)]
    view = RunView(FakeRun([ev.RunStarted("r", turned, "m", 0.0), *events]), "off")
    view.display()
    assert view.finish(30)
    html = view._record.read(run_html.render).removeprefix(run_html.style())
    inline = re.sub(r"<bdi>[^<]*</bdi>", "", html)
    assert html.count("<bdi>⟨U+202E⟩abc</bdi>") == 4  # its reader sees what the model saw
    assert "abc" not in inline
    assert "\u202e" not in html
    assert "<bdi>" not in run_html.isolated("plain <b> Straße")
    # Where style sheets work, each element is isolated, the live view's too; only tokens share their words.
    assert ".lmnb :not(.lmnb-tok){unicode-bidi:isolate}" in run_html.style()


def test_plain_text_holds_no_escape_sequence(nasty_view: RunView) -> None:
    text = nasty_view.to_text()
    assert "\x1b" not in text
    assert "␛[2J" in text
    assert "<img src=x onerror=alert(1)></script>" in text


def test_cache_views_show_hostile_prompts_as_text() -> None:
    cache = FakeCache()
    cache.request(NASTY * 2, owner=NASTY)
    view = CacheView(cache, "html")
    check(view._picture())
    check(view.to_svg())
    check(view.to_html(), scripts=3)
    assert "\x1b" not in view.to_text()
    assert "alert(1)" in view.to_text()


@pytest.mark.parametrize("text", ["<b>", '"', "'", "&lt;", "</script>", "<!--", "\u2028", "a\x00b"])
def test_markup_and_script_json_are_inert_and_exact(text: str) -> None:
    assert not set(markup(text)) & set("<>\"'\x00")
    inside = script_json({"text": text})
    assert not set(inside) & set("<>&\u2028\u2029")
    assert json.loads(inside) == {"text": text}


def test_plain_keeps_lines_tabs_and_every_script() -> None:
    assert plain("a\tb\r\nc 你好 👩‍🚀") == "a\tb\nc 你好 👩‍🚀"
    assert plain("\x1b]0;x\x07\x9b2J") == "␛]0;x␇\ufffd2J"


def test_cut_says_how_much_is_missing() -> None:
    assert cut("abc", 3) == ("abc", 0, "")
    head, missing, tail = cut("a" * 50 + "z" * 50, 40)
    assert (head, missing, tail) == ("a" * 30, 60, "z" * 10)


def test_in_a_terminal_text_that_turns_its_direction_turns_nothing_beside_it() -> None:
    assert terminal("plain Straße 你好") == "plain Straße 你好"
    assert terminal("he says שלום 12\nthen") == "he says \u2066שלום 12\u2069\nthen"
    assert terminal("a\u202eb\u2069") == "a⟨U+202E⟩b⟨U+2069⟩"  # it can neither turn nor end what is around it
    assert terminal("\x1b[2Jשלום", open_end=True) == "␛[2J\u2066שלום"
    turned = "x\u202eשלום"
    events = [*chat(0, "user", ev.TextAppended(0, turned), *gen(0, turned, turned)), ev.RunFinished("done", 1.0)]
    model = RunModel()
    model.apply_all(map(ev.to_json, [ev.RunStarted("r", turned, "m", 0.0), *events]))
    for text in (run_text.render(model), run_text.transcript(model)):
        assert "\u202e" not in text
        for line in text.splitlines():
            assert line.count("\u2066") == line.count("\u2069")


def test_streamed_text_of_any_direction_grows_by_its_end_only() -> None:
    """What was printed stays: each transcript begins with the one before."""
    model, before = RunModel(), ""
    pieces = ("abc של", "ום", " def\n", "שלום", " 12")
    events = [ev.RunStarted("r", "p", "m", 0.0), *(ev.TextAppended(0, piece) for piece in pieces)]
    events += [*gen(0, "x", "he says שלום to all\nand שלום"), ev.BranchFinished(0, "done"), ev.RunFinished("done", 1.0)]
    for event in events:
        model.apply(ev.to_json(event))
        now = run_text.transcript(model, stable=not model.ended)
        assert now.startswith(before)
        before = now
    assert before.count("\u2066") == before.count("\u2069") == 4

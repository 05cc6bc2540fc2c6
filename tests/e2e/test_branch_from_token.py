"""Branching from a token in real JupyterLab: by mouse, by keyboard, while the cell runs, and what comes of it."""

from __future__ import annotations

import pytest
from test_run_view import hold, setup, wait_for_text, words

pytestmark = pytest.mark.e2e

BACKEND = (
    "%load_ext lmnb\n"
    "import lmnb\n"
    "from lmnb.backends.testing import ScriptedBackend\n"
    "lmnb.set_default_backend(ScriptedBackend({'line': 'the sea at night is dark', 'more': 'so it is'}, "
    "alternatives={'sea': ['wind', 'moon'], 'night': ['noon']}, token_delay=0.03))\n"
)
CELL = "%%lmprog\ns += user('Say it.') + assistant(gen('line')) + user('Really?') + assistant(gen('more'))"


def click_word(page, index: int, word: str) -> None:
    """Click into the middle of a word of generated text, as a reader would."""
    place = (
        page.cell(index)
        .locator(".lmnb-gen")
        .first.evaluate(
            """(gen, word) => {
            const walker = document.createTreeWalker(gen, NodeFilter.SHOW_TEXT);
            for (let node = walker.nextNode(); node; node = walker.nextNode()) {
                const at = node.data.indexOf(word);
                if (at < 0) continue;
                const range = document.createRange();
                range.setStart(node, at);
                range.setEnd(node, at + word.length);
                const box = range.getBoundingClientRect();
                return [box.x + box.width / 2, box.y + box.height / 2];
            }
        }""",
            word,
        )
    )
    page.page.mouse.click(*place)


@pytest.mark.parametrize("app", ["lab", "notebook"])
def test_click_a_token_take_an_alternative_and_use_its_state(open_notebook, app):
    page = open_notebook(app, [BACKEND, CELL, "print(s_1['line'], '|', s_1['more'], '|', s['line'])"])
    page.run(0, 1)
    view = page.cell(1)
    click_word(page, 1, "sea")
    panel = view.locator(".lmnb-part")
    panel.get_by_role("button", name="wind").wait_for()
    assert view.locator(".lmnb-tok-name").inner_text() == "␣sea"
    page.screenshot(f"branch-choose-{app}")
    panel.get_by_role("button", name="wind").click()
    lane = view.locator('[data-branch="1"]')
    lane.locator(".lmnb-sign", has_text="✓").wait_for()
    assert lane.locator(".lmnb-lane-name").inner_text() == "branch 0~1 = s_1"
    assert lane.locator(".lmnb-gen").first.inner_text() == "the wind at night is dark"
    assert lane.locator('[data-o="kept"]').all_inner_texts() == ["the"]
    assert lane.locator('[data-o="given"]').all_inner_texts() == [" wind"]
    assert view.locator(".lmnb-parting").all_inner_texts() == ["↳1"]
    assert view.locator(".lmnb-status").inner_text().split(" · ")[0].endswith("done")
    assert not panel.is_visible()
    page.screenshot(f"branch-{app}")
    page.run(2)
    assert page.stream(2) == "the wind at night is dark | so it is | the sea at night is dark\n"


def test_by_keyboard_with_typed_text_and_what_is_refused(open_notebook):
    page = open_notebook("lab", [BACKEND, CELL + "\ns['line']", "print(s_1['line']); print(s_1.open_role)"])
    page.run(0, 1)
    view = page.cell(1)
    view.locator(".lmnb-gen").first.focus()
    keys = page.page.keyboard
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "Enter"):
        keys.press(key)
    view.locator(".lmnb-part").get_by_role("button", name="at").first.wait_for()
    keys.type(" under the moon")
    keys.press("Enter")
    lane = view.locator('[data-branch="1"]')
    lane.locator(".lmnb-sign", has_text="✓").wait_for()
    assert lane.locator(".lmnb-gen").first.inner_text() == "the sea under the moon dark"
    page.page.wait_for_function("() => document.activeElement.textContent === 'branch 0~1 = s_1'")
    page.run(2)
    assert page.stream(2).startswith("the sea under the moon dark\n")
    view.locator(".lmnb-gen").first.focus()
    keys.press("Enter")
    keys.type(" word" * 200)
    keys.press("Enter")
    view.locator(".lmnb-refused", has_text="may have").wait_for()
    keys.press("Escape")
    assert not view.locator(".lmnb-part").is_visible()


def test_while_the_cell_runs(open_notebook, tmp_path):
    page = open_notebook(
        "lab",
        [
            setup(words(120), 0.05),
            f"%%lmprog --max-tokens 120\ns += 'Count: ' + gen('x')\n{hold(tmp_path / 'seen')}",
            "print(s_1['x'].split()[:4], len(s['x'].split()), s.run.status)",
        ],
    )
    page.run(0)
    page.run(1, wait=False)
    wait_for_text(page, 1, "tok12 ")
    click_word(page, 1, "tok2")
    view = page.cell(1)
    view.get_by_label("Other text from this token on").fill(" TWO")
    view.get_by_role("button", name="Branch here").click()
    lane = view.locator('[data-branch="1"]')
    lane.locator(".lmnb-gen", has_text="tok4").wait_for()
    assert "running" in view.locator(".lmnb-status").inner_text()
    page.screenshot("branch-running")
    (tmp_path / "seen").touch()
    page.wait(1)
    page.run(2)
    assert page.stream(2) == "['tok0', 'tok1', 'TWO', 'tok3'] 120 done\n"

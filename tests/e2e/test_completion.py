"""Tab inside a program's cell, in real front ends."""

from __future__ import annotations

import pytest
from harness.patience import PATIENCE

pytestmark = pytest.mark.e2e

PRESS_AT_END = """index => {
    const notebook = e2e.panel().content;
    notebook.activeCellIndex = index;
    notebook.mode = 'edit';
    const editor = e2e.cell(index).editor;
    editor.focus();
    const line = editor.lineCount - 1;
    editor.setCursorPosition({ line, column: editor.getLine(line).length });
}"""


def after_tab(page, index: int) -> list[str]:
    """What is offered; one candidate alone is put in at once, and then the cell's text has it."""
    page.page.evaluate(PRESS_AT_END, index)
    before = page.page.evaluate("i => e2e.cell(i).model.sharedModel.source", index)
    from playwright.sync_api import TimeoutError

    for _ in range(PATIENCE // 3):  # JupyterLab waits a second for the kernel, and the first answer loads a library
        page.page.keyboard.press("Tab")
        try:
            page.page.wait_for_function(
                "([i, before]) => document.querySelector('.jp-Completer:not(.lm-mod-hidden) .jp-Completer-item')"
                " || e2e.cell(i).model.sharedModel.source !== before",
                arg=[index, before],
                timeout=3000,
            )
            break
        except TimeoutError:
            continue
    found = page.page.locator(".jp-Completer:not(.lm-mod-hidden) .jp-Completer-item").all_inner_texts()
    page.page.keyboard.press("Escape")
    return found or [page.page.evaluate("i => e2e.cell(i).model.sharedModel.source", index)]


@pytest.mark.parametrize(
    ("app", "cell", "expected"),
    [
        ("lab", "%%lmprog --ma", ["--max-tokens"]),
        ("lab", "%%lmprog\ns += user('Say it.') + assistant(gen('answer', max_to", ["max_tokens"]),
        ("lab", "%%lmprog\ns += user('x') + assistant(gen('answer') + gen('again'))\ns[\"a", ["answer", "again"]),
        ("notebook", "%%lmprog\ns += gen('x')\ns.bran", ["branch_at"]),
    ],
    ids=["an option", "an argument", "variables", "a member"],
)
def test_tab_offers_what_may_stand_there(open_notebook, app, cell, expected):
    page = open_notebook(app, ["%load_ext lmnb", cell])
    page.run(0)
    found = after_tab(page, 1)
    page.screenshot("completion")
    for name in expected:
        assert any(name in text for text in found), found

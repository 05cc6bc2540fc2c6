"""Two views of one run, side by side: they show the same while it streams, and one's Cancel is the other's, too."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.e2e

SETUP = """\
%load_ext lmnb
import lmnb
from lmnb.backends.testing import ScriptedBackend
lmnb.set_default_backend(ScriptedBackend(' '.join(f'tok{i}' for i in range(4000)), token_delay=0.02))
"""
RUN = "%%lmprog --bg --max-tokens 4000\nforks = s.fork(2)\nforks += lambda i: f'Branch {i}: ' + gen('x')"


def test_two_views_of_one_run_agree(open_notebook):
    page = open_notebook("lab", [SETUP, RUN])
    page.run(0, 1)
    first = page.cell(1).locator(".lmnb-run:not(.lmnb-static)")
    first.locator(".lmnb-gen", has_text="tok10 ").first.wait_for()
    page.page.evaluate("() => { e2e.panel().content.activeCellIndex = 1 }")
    page.page.evaluate("() => window.jupyterapp.commands.execute('notebook:create-output-view')")
    views = page.page.locator(".lmnb-run:not(.lmnb-static)")
    page.page.wait_for_function("() => document.querySelectorAll('.lmnb-run:not(.lmnb-static)').length === 2")
    for view in (views.nth(0), views.nth(1)):
        view.locator(".lmnb-gen", has_text="tok40 ").first.wait_for()
    same = """() => {
      const texts = [...document.querySelectorAll('.lmnb-run:not(.lmnb-static)')].map((view) =>
        [...view.querySelectorAll('.lmnb-gen')].map((gen) => gen.textContent));
      return JSON.stringify(texts[0]) === JSON.stringify(texts[1]) && texts[0].length === 2;
    }"""
    page.page.wait_for_function(same, polling=10)
    page.screenshot("two-views")
    views.nth(1).get_by_role("button", name="Cancel").click()
    for view in (views.nth(0), views.nth(1)):
        view.locator(".lmnb-status", has_text="stopped").first.wait_for()
    assert page.page.evaluate(same)

"""The cache tree of the embedded model in JupyterLab: it is there, its nodes can be asked, its past can be seen."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.model]


def test_a_real_model_and_its_tree(open_notebook):
    page = open_notebook(
        "lab",
        [
            "%load_ext lmnb\n%lmnb load --kv-cache 2048",
            "%%lmprog -t 0 --max-tokens 6\n"
            "s += system('You answer in one word.')\n"
            "forks = s.fork(2)\n"
            "forks += lambda i: user(['A city?', 'A river?'][i]) + assistant(gen('answer'))\n"
            "answers = [f['answer'] for f in forks]",
            "%lmnb tree",
            "%%lmprog -t 0 --max-tokens 6\ns += system('You answer in one word.') + user('A colour?')\n"
            "s += assistant(gen('answer'))\nprint(s.get_meta_info('answer')['cached_tokens'])",
            "%lmnb status",
            "%lmnb unload",
        ],
    )
    page.run(0)
    page.run(1, 2)
    tree = page.cell(2)
    canvas = tree.locator("canvas")
    canvas.wait_for()
    slider = tree.get_by_role("slider")
    events = int(slider.get_attribute("max"))
    assert events >= 3
    assert "tokens cached" in tree.locator(".lmnb-head").inner_text()

    # The tree is live: a later cell's prompt shares the first tokens and adds a branch.
    page.run(3)
    page.page.wait_for_function("([e, n]) => Number(e.max) > n", arg=[slider.element_handle(), events], polling=20)
    assert int(page.stream(3)) > 10

    page.page.wait_for_timeout(800)  # the animation
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] * 0.05, "y": box["height"] / 2})
    details = tree.locator(".lmnb-details")
    assert "You answer in one word." in details.locator(".lmnb-node-text").inner_text()
    for _ in range(2):  # to what the questions share, and to one of them
        tree.locator(".lmnb-tree-frame").press("ArrowRight")
    assert "city?" in details.locator(".lmnb-node-text").inner_text()
    assert "cell 2" in details.inner_text()
    page.screenshot("tree")

    last = int(slider.get_attribute("max"))
    slider.fill("0")
    assert tree.locator(".lmnb-caption").inner_text().startswith("0 /")
    slider.press("ArrowRight")  # the notebook has its own use for this key
    assert tree.locator(".lmnb-caption").inner_text().startswith("1 /")
    tree.get_by_role("button", name="Step forward").click()
    assert tree.locator(".lmnb-caption").inner_text().startswith("2 /")
    page.screenshot("tree-second-event")
    tree.get_by_role("button", name="Compare").click()
    tree.get_by_role("button", name="Live").click()
    assert tree.locator(".lmnb-caption").inner_text().startswith(f"{last} /")
    assert "since event 2:" in tree.locator(".lmnb-head").inner_text()
    tree.get_by_label("Colour of nodes").select_option("by owner")
    search = tree.get_by_role("searchbox")
    search.fill("a colour?")
    search.press("Enter")
    assert "colour?" in details.locator(".lmnb-node-text").inner_text()
    assert "cell 4" in details.inner_text()
    assert "kB" in details.inner_text()
    page.screenshot("tree-compared")
    page.run(4)
    assert "smollm2 (default): SmolLM2-135M-Instruct" in page.stream(4)

    page.run(5)
    tree.get_by_text("the model was unloaded").wait_for()
    assert slider.get_attribute("max") == str(last)  # its past can still be seen

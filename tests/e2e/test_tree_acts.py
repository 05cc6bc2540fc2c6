"""The cache tree in real front ends: every control clicked or typed, in two views at once, and through a reload.

The engine is the real one, on a model that computes nothing.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

APPS = pytest.mark.parametrize("app", ["lab", "notebook"])
SETUP = """\
%load_ext lmnb
%config Lmnb.view = "widget"
import lmnb
from lmnb.runtime.fake_model import FakeModel
from lmnb.runtime.loading import LoadedModel
from lmnb.runtime.testing import ByteTokenizer
tokenizer = ByteTokenizer()
rt = lmnb.Runtime(LoadedModel(FakeModel(tokenizer.vocab_size, step_seconds=STEP), tokenizer), kv_cache=POOL)
lmnb.set_default_backend(rt)
RULES = "The rules of the house come before every question that is asked here. "
"""
ASK = """\
%%lmprog --view off -t 0
for question in ("Who?", "When and where?", "Why is that so?"):
    with s.copy() as one:
        one += RULES + question + gen("x", max_tokens=4, ignore_eos=True)
        one["x"]"""
FILL = "%%lmprog --view off -t 0\ns += 'Something else altogether, and long. ' * 14 + gen('x', max_tokens=4)\ns['x']"
BACKGROUND = "%%lmprog --view off --bg -t 0\ns += RULES + 'Go on. ' + gen('x', max_tokens=3000, ignore_eos=True)"


def setup(step: float = 0.0, pool: int = 600) -> str:
    return SETUP.replace("STEP", str(step)).replace("POOL", str(pool))


class Tree:
    """The tree in one cell's output."""

    def __init__(self, page: Any, index: int) -> None:
        self.page = page
        self.el = page.cell(index)
        self.frame = self.el.locator(".lmnb-tree-frame")
        self.facts = self.el.locator(".lmnb-details dl")
        self.text = self.el.locator(".lmnb-node-text")
        self.notice = self.el.locator(".lmnb-notice")
        self.caption = self.el.locator(".lmnb-caption")
        self.slider = self.el.get_by_role("slider")
        self.frame.wait_for()

    def button(self, name: str) -> Any:
        return self.el.get_by_role("button", name=name, exact=True)

    def find(self, text: str) -> None:
        """Select the node in which a text ends, as a person would: by searching it."""
        search = self.el.get_by_role("searchbox")
        search.fill(text)
        search.press("Enter")
        search.fill("")
        self.text.wait_for()

    def says(self, where: Any, text: str) -> None:
        where.filter(has_text=text).first.wait_for()

    def count(self) -> int:
        return int(self.slider.get_attribute("max"))


def value(page: Any, index: int) -> Any:
    """Run a cell that prints JSON."""
    page.run(index)
    return json.loads(page.stream(index).splitlines()[-1])


@APPS
def test_a_node_is_pinned_unpinned_and_evicted_by_mouse_and_keys(open_notebook, app):
    page = open_notebook(
        app,
        [
            setup(),
            ASK,
            "%lmnb tree",
            "import json; print(json.dumps([pin.text for pin in rt.cache.pins()]))",
            FILL,
            "print(rt.status().cached_tokens)",
        ],
    )
    page.run(0)
    page.run(1, 2)
    tree = Tree(page, 2)
    tree.find("every question")
    tree.says(tree.facts, "4: one += RULES + question + gen(")
    tree.button("Pin").click()
    tree.says(tree.notice, "Pinned: it stays")
    tree.says(tree.facts, "⚑ pinned")
    assert tree.button("Unpin").get_attribute("aria-pressed") == "true"
    (pinned,) = value(page, 3)
    assert pinned.startswith("The rules of the house")
    page.screenshot("tree-pinned")

    tree.frame.focus()
    tree.frame.press("Delete")  # what is pinned is not evicted
    tree.says(tree.notice, "while it is pinned: unpin first")
    tree.frame.press("p")
    tree.says(tree.notice, "Unpinned.")
    tree.button("Pin").wait_for()
    assert value(page, 3) == []
    tree.frame.press("p")
    tree.says(tree.notice, "Pinned: it stays")

    tree.button("Unpin").wait_for()
    page.run(4)  # this needs nearly all of the pool: the questions must go, the rules stay
    tree.find("Something else")
    tree.says(tree.el.locator(".lmnb-model"), "pinned")
    tree.el.locator(".lmnb-list summary").click()
    tree.el.locator(".lmnb-list li", has_text="✕").first.click()
    tree.says(tree.facts, "made room for cell 6")
    page.screenshot("tree-evicted")

    tree.find("altogether")
    tree.button("Evict").click()
    tree.says(tree.notice, "Evicted ")
    tree.find("every question")
    tree.button("Flush").click()
    tree.says(tree.notice, "What was not pinned is forgotten.")
    page.run(5)
    assert int(page.stream(5)) == len(pinned)
    tree.frame.press("P")
    tree.says(tree.notice, "Unpinned.")
    tree.button("Flush").click()
    tree.says(tree.frame, "The cache is empty.")


@pytest.mark.kernels
@APPS
def test_what_a_run_uses_is_not_evicted_and_the_tree_says_who(open_notebook, app):
    page = open_notebook(
        app, [setup(0.004, 8000), ASK, "%lmnb tree", BACKGROUND, "%lmnb cancel", "print(rt.status().running)"]
    )
    page.run(0)
    page.run(1, 2)
    tree = Tree(page, 2)
    page.run(3)
    tree.says(tree.caption, "cell 4")  # its prompt splits the node that is looked for
    tree.find("every question")
    tree.says(tree.facts, "1 request: cell 4")
    tree.button("Evict").click()
    tree.says(tree.notice, "a running request uses node")
    assert "(cell 4" in tree.notice.inner_text()
    tree.button("Flush").click()
    tree.says(tree.notice, "Not flushed: requests are running.")
    page.screenshot("tree-in-use")
    page.run(4)
    page.page.wait_for_function(
        "e => !e.innerText.includes('running')", arg=tree.el.locator(".lmnb-head").element_handle()
    )
    assert "1 request" not in tree.facts.inner_text()
    tree.button("Evict").click()
    tree.says(tree.notice, "Evicted ")


def test_the_past_is_played_stepped_scrubbed_and_compared(open_notebook):
    page = open_notebook("lab", [setup(), ASK, "%lmnb tree", FILL, "1"])
    page.run(0)
    page.run(1, 2, 3)
    tree = Tree(page, 2)
    tree.says(tree.caption, "cell 4")
    total = tree.count()
    assert total > 6
    tree.slider.fill("2")
    assert tree.caption.inner_text().startswith(f"2 / {total}")
    assert tree.button("Flush").is_disabled()
    tree.frame.focus()
    tree.frame.press(".")
    assert tree.caption.inner_text().startswith("3 /")
    tree.frame.press(",")
    tree.button("Step forward").click()
    tree.button("Step back").click()
    assert tree.caption.inner_text().startswith("2 /")
    tree.frame.press("Home")
    assert tree.button("Evict").is_disabled()
    tree.frame.press("p")
    tree.says(tree.notice, "go back to Live")
    tree.button("Compare").click()
    tree.button("Live").click()
    tree.says(tree.el.locator(".lmnb-model"), "since event 2:")
    page.screenshot("tree-since")
    tree.button("Since 2").click()
    tree.button("Play").click()
    tree.says(tree.el, "Pause")
    tree.button("Play").wait_for()  # it played to the end
    assert tree.caption.inner_text().startswith(f"{total} /")
    tree.button("Live").click()
    for name in ("by owner", "by age", "by state"):
        tree.el.get_by_label("Colour of nodes").select_option(name)
        page.page.wait_for_timeout(100)
    tree.frame.press("Home")
    assert tree.facts.is_visible()
    tree.frame.press("Escape")
    assert not tree.facts.is_visible()
    tree.el.locator(".lmnb-list summary").click()
    items = tree.el.locator(".lmnb-list li")
    items.first.click()
    items.first.press("ArrowDown")
    assert items.nth(1).get_attribute("aria-selected") == "true"


@pytest.mark.kernels
def test_two_views_agree_and_a_reload_in_the_middle_loses_nothing(open_notebook):
    page = open_notebook(
        "lab",
        [
            setup(0.002, 8000),
            "%lmnb tree",
            "%lmnb tree",
            "%%lmprog --view off --bg -t 0\n"
            "forks = s.fork(6)\n"
            "for number, fork in enumerate(forks):\n"
            "    for turn in range(12):\n"
            "        fork += RULES + f'Question {number}.{turn}? ' + gen(f'x{turn}', max_tokens=12, ignore_eos=True)",
            "import json\nforks.join(); events = rt.cache_events()\n"
            "print(json.dumps({'events': len(events), 'nodes': len(rt.snapshot().nodes), 'last': events[-1].seq + 1}))",
        ],
    )
    page.run(0)
    page.run(1, 2, 3)
    views = [Tree(page, 1), Tree(page, 2)]
    begun = views[0].count()
    page.page.wait_for_function("([e, n]) => Number(e.max) > n + 5", arg=[views[0].slider.element_handle(), begun])
    page.save()
    page.reload()
    views = [Tree(page, 1), Tree(page, 2)]
    told = value(page, 4)
    assert told["events"] == told["last"]
    for view in views:
        view.page.page.wait_for_function(
            "([e, n]) => Number(e.max) === n", arg=[view.slider.element_handle(), told["last"]]
        )
    labels = [view.el.locator("canvas").get_attribute("aria-label") for view in views]
    assert labels[0] == labels[1]
    assert labels[0].startswith(f"Cache tree: {told['nodes']} node")
    page.screenshot("tree-two-views")
    for view in views:  # what one does, the other shows
        view.find("come before every")
    views[0].button("Pin").click()
    for view in views:
        view.says(view.facts, "⚑ pinned")


def test_a_view_displayed_again_beside_another_lives_on_when_its_cells_run_again(open_notebook):
    page = open_notebook(
        "lab",
        [
            setup(pool=8000) + "kept = lmnb.CacheView(rt)",
            "kept",
            "lmnb.CacheView(rt).display(); kept.display()",
            ASK,
            "1",
        ],
    )
    page.run(0)
    page.run(1, 2)
    page.run(2)  # the views of its first run are gone, but for the one that cell 1 shows, too
    page.run(1)
    page.run(3)
    views = [page.cell(1).locator(".lmnb-cache"), *page.cell(2).locator(".lmnb-cache").all()]
    assert len(views) == 3
    for view in views:
        view.locator(".lmnb-caption", has_text="cell 6").wait_for()
    assert len({view.locator("canvas").get_attribute("aria-label") for view in views}) == 1

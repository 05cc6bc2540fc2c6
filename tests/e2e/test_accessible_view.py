"""The views as axe-core sees them, and by keyboard alone: in light and dark, wide and narrow, at rest and in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cache_samples import busy_cache
from run_samples import FakeRun, branched, chat, gen, judge

from lmnb.language import events as ev
from lmnb.language.run_diff import RunDiff
from lmnb.widgets import CacheView, RunView, run_html
from lmnb.widgets.pictures import diff_html

pytestmark = pytest.mark.e2e

AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
LOOKS = [(1000, "light"), (400, "dark")]


def run_page(events: list[ev.RunEvent], *, static: bool = False) -> str:
    for _ in range(2):  # the second time there is a run to compare with
        view = RunView(FakeRun(events), "off")
        view.display()
        assert view.finish()
    if not static:
        return view.to_html()
    body = view._record.read(run_html.render)
    return (
        '<!doctype html><html lang="en"><head><title>A run</title><meta name="color-scheme" content="light dark">'
        f"</head><body><main>{body}</main></body></html>"
    )


def many_branches() -> list[ev.RunEvent]:
    lanes = [[*chat(i, "user", ev.TextAppended(i, f"Verse {i}?")), *gen(i, "x", "word " * i)] for i in range(1, 41)]
    return [
        ev.RunStarted("r", "poems", "m", 1000.0),
        *(ev.BranchOpened(i, 0, i - 1, 0, f"0.{i - 1}") for i in range(1, 41)),
        *(event for lane in lanes for event in lane),
        *(ev.VariableSet(i, "grade", str(i + 1), "int") for i in range(1, 41)),
        ev.BranchFinished(7, "failed", "GenerationError: no"),
        ev.RunFinished("done", 1.0),
    ]


def changed() -> list[ev.RunEvent]:
    run_page(judge())
    return [ev.TextAppended(e.branch, e.text + " Be brief.") if isinstance(e, ev.TextAppended) else e for e in judge()]


def open_all(page: Any) -> None:
    page.evaluate("() => document.querySelectorAll('details').forEach((one) => (one.open = true))")


def colour(name: str) -> Callable[[Any], None]:
    def act(page: Any) -> None:
        page.get_by_label("Colour of generated tokens").select_option(name)
        page.locator(".lmnb-body .lmnb-tok").nth(2).hover()

    return act


def use_tree(page: Any) -> None:
    page.get_by_label("Colour of nodes").select_option("by age")
    page.get_by_role("searchbox").fill("kind")
    page.get_by_role("searchbox").press("Enter")
    page.get_by_role("button", name="Compare").click()
    open_all(page)


def live_tree() -> str:
    """The page as a kernel's view: with what acts on the cache."""
    page = CacheView(busy_cache(), "off").to_html()
    assert page.count('=== "alone")') == 1
    return page.replace('=== "alone")', '=== "no")')


def live_run() -> str:
    """The page as a kernel's view: with the way to other tokens."""
    page = run_page(branched())
    assert page.count('=== "alone")') == 1
    return page.replace('=== "alone")', '=== "no")')


def hold_a_token(page: Any) -> None:
    page.locator(".lmnb-gen").first.focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert page.get_by_label("Other text from this token on").is_visible()
    open_all(page)


def act_on_tree(page: Any) -> None:
    page.locator(".lmnb-tree-frame").press("Home")
    assert page.get_by_role("button", name="Evict").is_enabled()
    open_all(page)


def open_lane(page: Any) -> None:
    page.get_by_label("Order of branches").select_option("value of grade")
    page.get_by_role("button", name="branch 0.2", exact=True).click()
    assert page.locator(".lmnb-score").first.inner_text() == "grade 41"


SCENES: dict[str, tuple[Callable[[], str], Callable[[Any], None] | None]] = {
    "run": (lambda: run_page(judge()), open_all),
    "rerun": (lambda: run_page(changed()), open_all),
    "origin": (lambda: run_page(judge()), colour("origin")),
    "probability": (lambda: run_page(judge()), colour("probability")),
    "branches": (lambda: run_page(many_branches()), open_lane),
    "parted": (live_run, hold_a_token),
    "static-parted": (lambda: run_page(branched(), static=True), open_all),
    "static": (lambda: run_page(judge(), static=True), open_all),
    "static-branches": (lambda: run_page(many_branches(), static=True), open_all),
    "tree": (lambda: CacheView(busy_cache(), "off").to_html(), use_tree),
    "tree-live": (live_tree, act_on_tree),
}


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    contexts: list[Any] = []
    errors: list[str] = []

    def open_(html: str, width: int = 1000, scheme: str = "light", **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: message.type == "error" and errors.append(message.text))
        path = tmp_path / "view.html"
        path.write_text(html, encoding="utf-8")
        page.goto(path.as_uri())
        page.locator(".lmnb").first.wait_for()
        return page

    yield open_
    for context in contexts:
        context.close()
    assert errors == []


@pytest.mark.parametrize("scene", SCENES)
def test_axe_finds_no_violation(open_page: Callable[..., Any], scene: str) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm ci")
    make, act = SCENES[scene]
    html = make()
    for width, scheme in LOOKS:
        page = open_page(html, width, scheme)
        if act is not None:
            act(page)
        page.wait_for_timeout(400)  # animations have ended
        page.add_script_tag(path=str(AXE))
        found = page.evaluate("async () => (await axe.run('.lmnb')).violations")
        told = [
            (v["id"], [node["html"][:160] + " | " + node["failureSummary"] for node in v["nodes"][:3]]) for v in found
        ]
        assert told == [], f"{scene} at {width} px, {scheme}"


def test_the_run_view_works_by_keyboard_alone(open_page: Callable[..., Any]) -> None:
    page = open_page(run_page(judge()))
    reached: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "() => { const e = document.activeElement;"
                " return e.getAttribute('aria-label') || e.textContent.slice(0, 20) }"
            )
        )
    assert "Colour of generated tokens" in reached
    assert "Transcript" in reached
    assert any(name.startswith("1 of 3") for name in reached)
    assert "branch 0.0" in reached
    page.locator(".lmnb-choices summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator(".lmnb-choices table").first.is_visible()
    menu = page.get_by_label("Colour of generated tokens")
    menu.focus()
    page.keyboard.press("ArrowDown")  # origin
    page.locator(".lmnb-gen.lmnb-coloured").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "be" not in page.locator(".lmnb-strip-token b").inner_text()
    assert "enough" in page.locator(".lmnb-strip-token b").inner_text()


def test_neighbouring_tables_stand_below_each_other(open_page: Callable[..., Any]) -> None:
    text = "Two:\n| fish | kg |\n|---|---|\n| hake | 2 |\n\n| boat | m |\n|---|---|\n| a | 12 |"
    events = [
        ev.RunStarted("r", "p", "m", 1000.0),
        *chat(0, "user", ev.TextAppended(0, text)),
        ev.RunFinished("done", 1.0),
    ]
    for static in (False, True):
        page = open_page(run_page(events, static=static))
        first, second = (table.bounding_box() for table in page.locator(".lmnb-table").all())
        above = page.locator(".lmnb-role").first.bounding_box()
        assert second["y"] >= first["y"] + first["height"]
        assert second["x"] == first["x"]
        assert first["y"] >= above["y"] + 16  # below the line before it


def test_lines_of_branches_are_as_high_with_text_as_without(open_page: Callable[..., Any]) -> None:
    started = [e for e in many_branches() if isinstance(e, ev.RunStarted | ev.BranchOpened)]
    spoken = [e for n in (1, 5) for e in (*chat(n, "user", ev.TextAppended(n, f"Verse {n}?")), *gen(n, "x", "Wort "))]
    page = open_page(run_page([*started, *spoken, ev.RunFinished("done", 1.0)]))
    lines = page.locator(".lmnb-lines > .lmnb-lane > .lmnb-lane-head")
    heights = {round(line.bounding_box()["height"], 2) for line in lines.all()[:10]}
    assert len(heights) == 1, heights  # with and without text


def test_a_long_value_makes_no_comparison_wider_than_its_place(open_page: Callable[..., Any]) -> None:
    def run(value: str) -> list[ev.RunEvent]:
        return [ev.RunStarted("r", "p", "m", 1000.0), ev.VariableSet(0, "x", value), ev.RunFinished("done", 1.0)]

    diff = RunDiff(run("some words of a value"), run("9" * 3000))
    page = open_page(f"<!doctype html><meta charset=utf-8>{diff_html(diff)}")
    assert page.evaluate(
        "() => { const e = document.querySelector('.lmnb-diff'); return e.scrollWidth <= e.clientWidth }"
    )
    assert page.locator("td", has_text="some words").bounding_box()["width"] > 200  # it keeps its room, too


def test_the_tree_works_by_keyboard_alone(open_page: Callable[..., Any]) -> None:
    page = open_page(live_tree())
    reached: list[str] = []
    page.keyboard.press("Tab")
    page.locator(".lmnb-tree-frame").press("Home")  # a node is selected, so that its buttons are there
    for _ in range(18):
        reached.append(
            page.evaluate(
                "() => { const e = document.activeElement;"
                " return e.getAttribute('aria-label') || e.textContent.slice(0, 20) }"
            )
        )
        page.keyboard.press("Tab")
    assert reached[0].startswith("Cache tree.")
    for name in ("Pin", "Evict", "Text of the node", "Play", "Step back", "Place in the recorded events", "Live"):
        assert name in reached


def test_nothing_moves_for_those_who_asked_for_that(open_page: Callable[..., Any]) -> None:
    events = judge()[:-3]  # a run that still goes on has a caret and a running sign
    view = RunView(FakeRun(events), "off")
    view.display()
    for html in (view.to_html(), CacheView(busy_cache(), "off").to_html()):
        moving = []
        for motion in ("no-preference", "reduce"):
            page = open_page(html, reduced_motion=motion)
            if page.locator("input[type=range]").count():
                page.get_by_role("button", name="Step back").click()
            moving.append(page.evaluate("() => document.getAnimations().length"))
        assert moving[1] == 0
    view._feed.close()

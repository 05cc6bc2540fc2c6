"""Makes docs/screenshots/ from the real thing: JupyterLab in Chromium, the embedded model, four cells.

make screenshots
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SHOTS = ROOT / "docs" / "screenshots"
SCALE = 1.5  # pixels of a picture in one of the page
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "e2e")]  # the tests' harness drives the browser

JUDGE = """%%lmprog -t 0
essay = "Every school should have a garden. A child who waters a bean learns patience."
aspects = ["clarity", "evidence", "style"]

s += system("You judge essays.")
s += user("Essay:\\n" + essay) + assistant("Thank you for the essay.")

branches = s.fork(len(aspects))
for branch, aspect in zip(branches, aspects):
    branch += user(f"What do you think of its {aspect}? Answer in one sentence.")
    branch += assistant(gen("note", max_tokens=40, stop=[".", "\\n"]))
branches.join()

s += user("Is the essay strong or weak?")
s += assistant("The essay is " + select("verdict", ["strong", "weak"]))"""

ASK = """%%lmprog -t 0 --logprobs 5
s += user("Name a city in Norway, and one thing to see there.")
s += assistant(gen("answer", max_tokens=48, stop="."))"""

CELLS = ["%load_ext lmnb\n%lmnb load", JUDGE, "%lmnb tree", ASK]


def branch(view: Any, keyboard: Any) -> None:
    """Take another token at one place, and hold a second place."""
    for tokens, act in ((9, lambda: view.locator(".lmnb-part button.lmnb-token").nth(1).click()), (4, lambda: None)):
        view.locator(".lmnb-gen").first.focus()
        keyboard.press("Escape")
        for key in ["ArrowRight"] * tokens + ["Enter"]:
            keyboard.press(key)
        view.locator(".lmnb-part button.lmnb-token").nth(1).wait_for()
        act()
        view.locator('[data-branch="1"] .lmnb-sign', has_text="✓").wait_for()


def main() -> None:
    """Run the cells and picture their outputs."""
    from harness.page import NotebookPage
    from harness.server import JupyterServer, find_chromium
    from notebook_saved import few_colours
    from playwright.sync_api import sync_playwright

    chromium = find_chromium()
    if chromium is None:
        raise SystemExit("no Chromium on this machine (on Debian: apt-get install chromium)")
    SHOTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = JupyterServer(Path(folder))
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        try:
            page = NotebookPage(browser, server, "lab", SHOTS, SCALE)
            page.open(CELLS)
            page.run(0)
            page.run(1)
            page.run(2)
            frame = page.cell(2).locator(".lmnb-tree-frame")
            for key in ("Home", "p"):  # the first node is selected, and pinned
                frame.press(key)
            page.page.wait_for_timeout(1500)  # until the tree has come to rest
            page.run(3)
            branch(page.cell(3), page.page.keyboard)
            page.page.evaluate("() => document.activeElement.blur()")
            page.page.mouse.move(0, 0)
            for index, name in ((1, "run"), (2, "tree"), (3, "branch")):
                view = page.cell(index).locator(".lmnb").first
                (SHOTS / f"{name}.png").write_bytes(few_colours(view.screenshot()))
                print(SHOTS / f"{name}.png")
            page.close()
        finally:
            browser.close()
            server.stop()


main()

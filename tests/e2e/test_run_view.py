"""A run's view in real front ends: it streams, it can be stopped, it survives a reload, and it trusts nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

APPS = pytest.mark.parametrize("app", ["lab", "notebook"])


def setup(reply: str, delay: float) -> str:
    """A first cell: the extension, and a backend that says `reply`, a word each `delay` seconds."""
    return (
        "%load_ext lmnb\n"
        "import lmnb\n"
        "from lmnb.backends.testing import ScriptedBackend\n"
        f"lmnb.set_default_backend(ScriptedBackend({reply}, token_delay={delay}))\n"
    )


def words(count: int) -> str:
    return f"' '.join(f'tok{{i}}' for i in range({count}))"


def shown_words(page, index: int) -> list[str]:
    """The generated words in the cell's view."""
    return " ".join(page.cell(index).locator(".lmnb-gen").all_inner_texts()).split()


def hold(gate: Path) -> str:
    """A program's line that lets it go on no sooner than a test has made the file."""
    return f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists():\n    time.sleep(0.01)\n"


def wait_for_text(page, index: int, text: str) -> None:
    """Until generated text holds `text` (in the whole view's text, "tok1" and "0 variables" would be "tok10")."""
    page.cell(index).locator(".lmnb-gen", has_text=text).first.wait_for()


@pytest.mark.kernels
@APPS
def test_text_streams_and_branches_and_variables_show(open_notebook, app, tmp_path):
    page = open_notebook(
        app,
        [
            setup("{'topic': 'the sea at night', '': 'a line of some words'}", 0.15),
            "%%lmprog\n"
            "s += system('You are brief.')\n"
            "s += user('Name a topic.') + assistant(gen('topic'))\n"
            f"{hold(tmp_path / 'seen')}"
            "forks = s.fork(3)\n"
            "forks += lambda i: user(f'Verse {i}.') + assistant(gen('verse', max_tokens=3))\n"
            "forks.join()\n"
            "s += user('Done?') + assistant(select('done', choices=['yes', 'no']))\n"
            "s['done']",
        ],
    )
    page.run(0)
    page.run(1, wait=False)
    wait_for_text(page, 1, "the sea at night")
    assert "running" in page.cell(1).locator(".lmnb-status").inner_text()
    (tmp_path / "seen").touch()
    page.wait(1)
    cell = page.cell(1)
    page.screenshot("run")
    assert cell.locator(".lmnb-role").all_inner_texts()[:3] == ["system", "user", "assistant"]
    assert cell.locator(".lmnb-lane").count() == 3
    assert cell.locator(".lmnb-lane .lmnb-gen").all_inner_texts() == ["a line of"] * 3
    assert "done" in cell.locator(".lmnb-status").inner_text()
    rows = cell.locator(".lmnb-vars tr").all_inner_texts()
    assert any("topic" in row and "the sea at night" in row for row in rows)
    value = next(o["data"]["text/plain"] for o in page.outputs(1) if o["output_type"] == "execute_result")
    assert value.strip("'") in ("yes", "no")


@pytest.mark.kernels
@APPS
def test_cancel_in_a_busy_cell(open_notebook, app):
    page = open_notebook(
        app,
        [
            setup(words(9000), 0.02),  # some minutes, if nothing stopped it
            "%%lmprog --max-tokens 9000\ns += user('Count.') + assistant(gen('x'))",
            "print(repr(s['x'])); print(s.run.status)",
            "%%lmprog\ns += gen('y', max_tokens=2)\ns['y']",
        ],
    )
    page.run(0)
    page.run(1, wait=False)
    wait_for_text(page, 1, "tok10 ")
    button = page.cell(1).get_by_role("button", name="Cancel")
    button.click()
    page.wait(1)
    assert page.error(1) == "CancelledError"
    page.run(2, 3)
    page.screenshot("cancelled")
    kept, status = page.stream(2).split("\n")[:2]
    assert status == "cancelled"
    assert kept.strip("'").split() == shown_words(page, 1)
    assert 10 <= len(shown_words(page, 1)) < 9000
    assert "stopped" in page.cell(1).inner_text()
    assert page.outputs(3)[-1]["data"]["text/plain"] == "'tok0 tok1'"


@pytest.mark.kernels
@APPS
def test_interrupting_the_kernel(open_notebook, app):
    page = open_notebook(
        app,
        [
            setup(words(9000), 0.02),  # some minutes, if nothing stopped it
            "%%lmprog --max-tokens 9000\ns += user('Count.') + assistant(gen('x'))\ns['x']",
            "print(repr(s['x'])); print(s.run.status)",
            "%%lmprog\ns += gen('y', max_tokens=2)\ns['y']",
        ],
    )
    page.run(0)
    page.run(1, wait=False)
    wait_for_text(page, 1, "tok10 ")
    page.interrupt()
    page.wait(1)
    assert page.error(1) == "KeyboardInterrupt"
    page.run(2, 3)
    kept, status = page.stream(2).split("\n")[:2]
    assert status == "cancelled"
    assert kept.strip("'").split() == shown_words(page, 1)
    assert 10 <= len(shown_words(page, 1)) < 9000
    assert "stopped" in page.cell(1).inner_text()
    assert page.outputs(3)[-1]["data"]["text/plain"] == "'tok0 tok1'"


@pytest.mark.kernels
def test_a_reload_in_the_middle_of_a_background_run(open_notebook):
    page = open_notebook(
        "lab",
        [
            setup(words(250), 0.02),
            "%%lmprog --bg --max-tokens 250\ns += 'Count: ' + gen('x')",
            "s.sync(); print(s.text())",
        ],
    )
    page.run(0, 1)
    wait_for_text(page, 1, "tok20 ")
    page.save()
    page.reload()
    wait_for_text(page, 1, "tok120 ")
    page.run(2)
    page.cell(1).locator(".lmnb-status", has_text="done").wait_for()
    page.screenshot("reloaded")
    assert shown_words(page, 1) == [f"tok{i}" for i in range(250)]
    assert page.stream(2) == "Count: " + " ".join(shown_words(page, 1)) + "\n"


def test_live_views_of_cells_that_ended_come_back_after_a_reload(open_notebook):
    page = open_notebook("lab", [setup(words(30), 0.0), "%%lmprog\ns += 'Count: ' + gen('x')"])
    page.run(0, 1)
    wait_for_text(page, 1, "tok29")
    page.save()
    page.reload()
    live = page.area(1).locator(".lmnb-run:not(.lmnb-static)")
    live.wait_for()
    assert not page.area(1).locator(".lmnb-still").is_visible()
    live.locator(".lmnb-gen").click()  # the kernel answers: it is not a picture
    live.locator(".lmnb-strip .lmnb-part").wait_for()
    assert live.locator(".lmnb-gen .lmnb-tok").count() == 30
    assert page.errors == []


@pytest.mark.parametrize("view", ["widget", "html"])
def test_untrusted_text_is_text(open_notebook, view):
    evil = "<img src=x onerror=alert(1)> </script><script>alert(2)</script> <|im_start|>system"
    page = open_notebook(
        "lab",
        [
            setup(repr(evil), 0.0),
            f"%%lmprog --view {view}\ns += user({evil!r}) + assistant(gen('<b>x</b>'))",
            "print(s['<b>x</b>'])",
        ],
    )
    page.run(0, 1, 2)
    page.page.wait_for_timeout(300)
    page.screenshot(f"untrusted-{view}")
    assert page.stream(2).strip() == evil
    text = " ".join(page.cell(1).inner_text().split())
    assert text.count("<img src=x onerror=alert(1)>") >= 2
    assert "</script><script>alert(2)</script>" in text
    assert "<|im_start|>system" in text
    assert page.cell(1).locator("img, script").count() == 0
    assert page.errors == []


def test_an_edited_cell_shows_what_changed_and_a_choice_why(open_notebook):
    cell = (
        "%%lmprog --logprobs 2\ns += system('You are brief.') + user('Name a {} in Norway.')\n"
        "s += assistant(gen('x')) + user('Big?') + assistant(select('big', choices=['yes', 'no, it is not']))"
    )
    page = open_notebook("lab", [setup("'Oslo it is'", 0.01), cell.format("city")])
    page.run(0, 1)
    view = page.cell(1)
    assert view.locator(".lmnb-mark").count() == 0
    page.page.evaluate("([i, text]) => e2e.cell(i).model.sharedModel.setSource(text)", [1, cell.format("town")])
    page.run(1)
    mark = view.locator(".lmnb-mark")
    mark.wait_for()
    assert mark.count() == 1
    why = mark.locator("summary").get_attribute("title")
    assert "“city” became “town”" in why
    assert "prompt tokens were reused" in why
    assert "reused" in view.locator(".lmnb-cost").first.inner_text()

    view.locator(".lmnb-choices summary").click()
    assert view.locator(".lmnb-choices thead th").all_inner_texts() == ["choice", "mean decides", "greedy", "gain"]
    view.get_by_label("Colour of generated tokens").select_option("probability")
    view.locator(".lmnb-body .lmnb-tok").first.hover()
    assert "✓ Oslo" in view.locator(".lmnb-strip").inner_text()
    mark.locator("summary").click()
    assert "became" in mark.inner_text()
    assert view.locator(".lmnb-choices").get_attribute("open") is not None  # recolouring left it open
    page.screenshot("rerun")


def test_the_dark_theme_is_followed_at_once(open_notebook):
    page = open_notebook(
        "lab",
        [
            setup("'Oslo it is'", 0.0),
            "%%lmprog --logprobs 2\nforks = s.fork(16)\n"
            "forks += lambda i: f'{i}: ' + gen('x') + select('y', choices=['a', 'an'])",
        ],
    )
    page.run(0, 1)
    view = page.cell(1).locator(".lmnb-run")
    view.get_by_role("button", name="branch 0.3", exact=True).click()
    view.locator(".lmnb-choices summary").first.click()
    colours = (
        "e => [getComputedStyle(e).backgroundColor, getComputedStyle(e).color]"
        ".map((colour) => colour.match(/\\d+/g).slice(0, 3).map(Number))"
    )
    paper, ink = view.evaluate(colours)
    assert min(paper) > 230
    assert max(ink) < 90
    page.page.evaluate(
        "() => window.jupyterapp.commands.execute('apputils:change-theme', { theme: 'JupyterLab Dark' })"
    )
    page.page.wait_for_function("() => document.body.dataset.jpThemeLight === 'false'")
    page.page.wait_for_function(
        f"(e) => {{ const [paper, ink] = ({colours})(e); return Math.max(...paper) < 60 && Math.min(...ink) > 200; }}",
        arg=view.element_handle(),
    )
    assert view.locator("select").first.evaluate("e => getComputedStyle(e).colorScheme") == "dark"
    page.screenshot("dark")


def test_a_kernel_that_is_restarted_leaves_no_view_waiting(open_notebook):
    page = open_notebook(
        "lab",
        [
            setup(words(4000), 0.05),  # longer than any machine takes to get to the restart
            "%%lmprog --bg --max-tokens 4000\ns += user('Go.') + assistant(gen('answer'))",
        ],
    )
    page.run(0, 1)
    wait_for_text(page, 1, "tok5 ")
    page.page.evaluate("() => e2e.panel().sessionContext.session.kernel.restart()")
    view = page.cell(1).locator(".lmnb-run")
    view.locator(".lmnb-status", has_text="stopped").wait_for()
    assert "The kernel is gone" in view.locator(".lmnb-lost").inner_text()
    assert not view.locator(".lmnb-cancel").is_visible()
    view.locator(".lmnb-gen").first.click()
    view.locator(".lmnb-refused", has_text="The kernel is gone").wait_for()
    view.get_by_role("button", name="Close").click()
    assert not view.locator(".lmnb-part").is_visible()

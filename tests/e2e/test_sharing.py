"""What leaves a notebook, in real front ends: frozen outputs, pages that stand alone, replays. And completion."""

from __future__ import annotations

import nbformat
import pytest

pytestmark = pytest.mark.e2e

APPS = pytest.mark.parametrize("app", ["lab", "notebook"])
WIDGET = "application/vnd.jupyter.widget-view+json"
SETUP = (
    "%load_ext lmnb\n"
    "import lmnb\n"
    "from lmnb.backends.testing import ScriptedBackend\n"
    "lmnb.set_default_backend(ScriptedBackend({'topic': 'the sea', '': 'one two'}))\n"
)
PROGRAM = (
    "%%lmprog\n"
    "s += user('Name a topic.') + assistant(gen('topic'))\n"
    "forks = s.fork(2)\n"
    "forks += lambda i: user(f'Verse {i}.') + assistant(gen('verse'))\n"
    "forks.join()"
)


@APPS
def test_frozen_outputs_are_pictures_in_the_saved_file(open_notebook, app):
    page = open_notebook(app, [SETUP, PROGRAM, "%lmnb freeze"])
    page.run(0, 1)
    assert any(WIDGET in output.get("data", {}) for output in page.outputs(1))
    page.run(2)
    assert "1 live view was replaced" in page.stream(2)
    page.area(1).locator(".lmnb-static").wait_for()
    assert "the sea" in page.area(1).inner_text()
    page.screenshot("frozen")
    page.save()
    output, gone = nbformat.read(page.server.root / page.path, as_version=4).cells[1].outputs
    assert gone.data == {"text/html": ""}
    assert WIDGET not in output.data
    assert "the sea" in output.data["text/html"]
    assert "<script" not in output.data["text/html"]


def test_a_saved_page_works_alone_and_a_replay_shows_the_run_again(open_notebook, tmp_path):
    files = f"s.run.save({str(tmp_path / 'run.html')!r}), s.run.save({str(tmp_path / 'run.json')!r})"
    replay = f"again = lmnb.replay({str(tmp_path / 'run.json')!r})\nagain"
    page = open_notebook("lab", [SETUP, PROGRAM, files, replay, "again.diff(s)"])
    page.run(0, 1, 2, 3, 4)
    assert page.cell(3).locator(".lmnb-lane").count() == 2
    assert "the sea" in page.cell(3).locator(".lmnb-run").inner_text()
    assert "Both runs say the same." in page.cell(4).inner_text()

    alone = page.page.context.new_page()
    requests: list[str] = []
    errors: list[str] = []
    alone.on("request", lambda request: requests.append(request.url))
    alone.on("pageerror", lambda error: errors.append(str(error)))
    alone.goto((tmp_path / "run.html").as_uri())
    alone.locator(".lmnb-lane").nth(1).wait_for()
    assert "the sea" in alone.locator("#lmnb-view").inner_text()
    assert [url for url in requests if not url.startswith(("file:", "blob:", "data:"))] == []
    assert errors == []
    alone.close()


def test_the_kernel_completes_in_a_programs_cell(open_notebook):
    code = "%%lmprog\ns += gen('topic')\nprint(s['to"
    page = open_notebook("lab", [SETUP, code])
    page.run(0)
    reply = page.page.evaluate(
        "async (code) => (await e2e.panel().sessionContext.session.kernel"
        ".requestComplete({ code, cursor_pos: code.length })).content",
        code,
    )
    assert (reply["matches"], reply["cursor_start"]) == (["topic"], len(code) - 2)
    shown = page.page.evaluate(
        "async (code) => (await e2e.panel().sessionContext.session.kernel"
        ".requestInspect({ code, cursor_pos: code.length, detail_level: 0 })).content",
        "%%lmprog\ns.fork",
    )
    assert "branches that start with all" in shown["data"]["text/plain"]

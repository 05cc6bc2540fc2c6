"""The harness itself: it drives both applications, and its limits and watchers are in force."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("app", ["lab", "notebook"])
def test_cells_run_and_are_read(open_notebook, app):
    page = open_notebook(app, ["print(6 * 7)", "1 / 0", "import time; print('asleep'); time.sleep(600)"])
    page.run(0, 1)
    assert page.stream(0) == "42\n"
    assert page.error(1) == "ZeroDivisionError"
    page.run(2, wait=False)
    page.area(2).get_by_text("asleep").wait_for()
    page.interrupt()
    page.wait(2)
    assert page.error(2) == "KeyboardInterrupt"


@pytest.mark.kernels
def test_the_kernel_is_the_one_under_test(open_notebook):
    from harness.server import kernel_python

    page = open_notebook("lab", ["import sys; print(sys.executable)"])
    page.run(0)
    assert page.stream(0).strip() == kernel_python()


def test_requests_and_errors_are_noticed(open_notebook):
    page = open_notebook("lab", ["print(1)"])
    page.page.route("http://192.0.2.1/", lambda route: route.abort())
    with page.page.expect_console_message(lambda message: "Failed to load" in message.text):
        page.page.evaluate("() => { console.error('seen'); fetch('http://192.0.2.1/').catch(() => 0) }")
    assert page.external == ["http://192.0.2.1/"]
    assert page.errors[0] == "console: seen"
    page.external.clear()
    page.errors.clear()


def test_a_notebook_that_is_stuck_can_be_described(open_notebook):
    page = open_notebook("lab", ["print('asleep')\nimport time; time.sleep(600)"])
    page.run(0, wait=False)
    page.area(0).get_by_text("asleep").wait_for()
    told = page.describe()
    # Where a subshell has been closed meanwhile, the kernel has called itself idle after that.
    assert re.search("the kernel: (busy|idle), connected; the server: (busy|idle) since", told)
    assert "cell 0: running, [None]\n    print('asleep')\n    import time" in told
    assert '"text": "asleep\\n"' in told or '"text": ["asleep\\n"]' in told
    assert "s send shell execute_request\n" in told
    assert "s recv iopub status busy (to execute_request)\n" in told


def test_the_databricks_like_client_drops_what_it_should(tmp_path):
    from harness.databricks import printed, run_like_databricks

    notebook, dropped = run_like_databricks(
        [
            "from IPython.display import HTML, clear_output, display\n"
            "h = display(HTML('first'), display_id=True)\n"
            "h.update(HTML('second'))\n"
            "display(HTML('stays'))\n"
            "clear_output()",
            "h.update(HTML('late'))\nprint(type(get_ipython()).__name__)",
            "import comm; comm.create_comm(target_name='x').close()",
        ],
        tmp_path,
    )
    shown = [output["data"]["text/html"] for output in notebook.cells[0].outputs]
    assert shown == ["second", "stays"]
    assert printed(notebook.cells[1]) == "DatabricksShell\n"
    assert dropped == {"clear_output": 1, "update_display_data": 1, "comm_open": 1, "comm_close": 1}

"""A body as code: whose names are whose, which lines are which, and what is refused."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from lmnb import language
from lmnb.magics.body import CellText, ProgramSyntaxError, compile_cell, compile_program, find_offset, parse


def cell(text: str, offset: int = 1) -> CellText:
    return CellText(textwrap.dedent(text), offset, "<cell>", "Cell In[1]")


def unchanged(text: str) -> str:
    return text


def run(text: str, state: Any = "state", **names: Any) -> tuple[Any, dict[str, Any]]:
    namespace = {"__name__": "__main__", **names}
    body = cell(text)
    value = compile_cell(body, parse(body, unchanged), namespace)(state)
    return value, namespace


def test_assignments_land_in_the_namespace_and_its_names_are_read():
    value, namespace = run(
        """
        import math as m
        total: int = 0
        unset: str
        for i in range(start, 4):
            total += i
        def double(x): return 2 * x
        class Thing: pass
        if (half := total / 2) > 1:
            big = [y for y in range(3)]
        try:
            1 / 0
        except ZeroDivisionError as error:
            message = str(error)
        del i
        doubled = double(total)
        doubled
        """,
        start=1,
    )
    assert value == 12
    assert namespace["total"] == 6
    assert namespace["half"] == 3.0
    assert namespace["big"] == [0, 1, 2]
    assert namespace["message"] == "division by zero"
    assert namespace["m"].pi > 3
    assert namespace["double"].__qualname__ == "double"
    assert namespace["Thing"].__module__ == "__main__"
    assert "i" not in namespace
    assert "unset" not in namespace


def test_a_walrus_in_a_comprehension_is_the_users_name():
    _, namespace = run("found = [last := x for x in (1, 2)]")
    assert namespace["last"] == 2


def test_s_is_the_bodys_own_in_closures_too():
    _, namespace = run(
        "texts = [s + str(i) for i in range(2)]\nlater = lambda: s\ns += '!'", "mine", s="someone else's"
    )
    assert namespace["texts"] == ["mine0", "mine1"]
    assert namespace["later"]() == "mine!"
    assert namespace["s"] == "someone else's"


@pytest.mark.parametrize(("text", "value"), [("1\n2", 2), ("x = 3", None), ("", None), ("'{a} $b'", "{a} $b")])
def test_the_last_expression_is_the_value(text: str, value: Any):
    assert run(text)[0] == value


def test_errors_point_at_the_cells_lines():
    with pytest.raises(ZeroDivisionError) as caught:
        run("a = 1\n\nb = a / 0\n")
    frame = caught.traceback[-1]
    assert (str(frame.frame.code.raw.co_filename), frame.lineno + 1) == ("<cell>", 4)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("x = 1\ny = (", 3, "never closed"),
        ("x = 1\nreturn x", 3, "%%lmprog judge"),
        ("await thing()", 2, "synchronous"),
        ("async with a: pass", 2, "synchronous"),
        ("x = [i async for i in a]", 2, "synchronous"),
        ("\nyield 1", 3, "text_iter"),
        ("from os import *", 2, "ordinary cell"),
        ("if True:\nx = 1", 3, "indented block"),
        ("break", 2, "outside loop"),
        ("def f():\n    nonlocal q", 3, "nonlocal"),
    ],
)
def test_what_a_body_cannot_hold_is_refused_with_its_line(text: str, line: int, words: str):
    with pytest.raises(ProgramSyntaxError, match=words) as caught:
        run(text)
    shown = "\n".join(caught.value._render_traceback_())
    assert f"Cell In[1], line {line}\n" in shown
    assert text.splitlines()[line - 2] in shown


def test_helpers_may_be_async_or_yield():
    _, namespace = run("async def f():\n    await g()\ndef h():\n    yield 1\n    return 2")
    assert list(namespace["h"]()) == [1]


def test_shell_lines_are_rewritten_only_if_the_body_is_not_python():
    def transform(text: str) -> str:
        return text.replace("!ls", "files = ['a']")

    body = cell("!ls\nfiles")
    assert compile_cell(body, parse(body, transform), {})("state") == ["a"]
    body = cell("'!ls'")
    assert compile_cell(body, parse(body, transform), {})("state") == "!ls"


def test_a_program_takes_its_parameters_after_s():
    body = cell("'''Judges.'''\ntotal = n * factor\nreturn s, essay, total", 2)
    judge = compile_program(
        body, parse(body, unchanged), "judge", "essay, n=base, *, loud: bool = False", ns := {"base": 3}
    )
    ns["factor"] = 10
    assert judge("state", "text") == ("state", "text", 30)
    assert judge.__doc__ == "Judges."
    assert "total" not in ns
    assert judge.__code__.co_firstlineno == 2


@pytest.mark.parametrize("params", ["", "s", "s, /", "*parts", "**kw"])
def test_s_is_the_first_parameter_however_it_is_written(params: str):
    body = cell("return s")
    assert compile_program(body, parse(body, unchanged), "f", params, {})("state") == "state"


def test_bad_parameters_are_named():
    body = cell("return s")
    with pytest.raises(ProgramSyntaxError, match=r"judge\(essay, 3\)"):
        compile_program(body, parse(body, unchanged), "judge", "essay, 3", {})


@pytest.mark.parametrize(
    ("text", "body", "offset"),
    [
        ("%%lmprog\nx\n", "x\n", 1),
        ("%%time\n%%lmprog\nx\ny", "x\ny\n", 2),
        ("\n\n%%lmprog\n\n\nx", "\n\nx\n", 3),
        ("get_ipython().run_cell_magic('lmprog', '', text)", "a\nb", 1),
    ],
)
def test_the_bodys_place_in_the_cell(text: str, body: str, offset: int):
    assert find_offset(text, body) == offset


@pytest.mark.parametrize("step", ["gen('x')", "user('Hi')", "select('x', ['a', 'b'])", "assistant_begin()"])
@pytest.mark.parametrize("place", ["s += 'a'\n{}", "if True:\n    {}\n    s += 'a'"])
def test_a_step_that_nothing_runs_is_refused(step: str, place: str) -> None:
    names = {name: getattr(language, name) for name in ("gen", "user", "select", "assistant_begin")}
    body = cell(place.format(step))
    name = step.partition("(")[0]
    for compiled in (compile_cell, lambda *args: compile_program(*args[:2], "ask", "", args[2])):
        with pytest.raises(
            ProgramSyntaxError, match=rf"{name}\(\.\.\.\) alone adds nothing .* `s \+= {name}"
        ) as caught:
            compiled(body, parse(body, unchanged), names)
        assert caught.value.line.strip() == step


def test_a_users_own_function_of_such_a_name_is_theirs() -> None:
    called: list[str] = []
    run("gen('x')", gen=called.append)
    assert called == ["x"]

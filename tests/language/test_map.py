"""Rows as data: what comes back, what a failure or a stop leaves, and what is computed once for all rows."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import lmnb as sgl
from lmnb.backends.script import ScriptedCall
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError, ProgramError
from lmnb.language.row_keys import row_key
from lmnb.language.row_usage import Usage

State = sgl.ProgramState
SHOTS = "Q: What is 1 + 1?\nA: 2\n\n" * 4
quiet = {"progress_bar": False}


@sgl.function
def ask(s: State, question: str, style: str = "plain") -> None:
    s += SHOTS + f"Style: {style}\n"
    s += "Q: " + question + "\nA:" + sgl.gen("answer", stop="\n")
    s += sgl.select("sure", ["yes", "no"])


@sgl.function
def picky(s: State, i: int) -> int:
    s += f"row{i} " + sgl.gen("x")
    if i == 1:
        raise ZeroDivisionError(f"in the body, after {s['x']}")
    s += sgl.gen("error")
    return i * 10


def test_dicts_and_tuples_give_rows_of_variables(backend: ScriptedBackend) -> None:
    rows = ask.map([{"question": "a"}, ("b", "fancy")], **quiet)
    assert isinstance(rows, sgl.Results)
    assert rows.columns == [
        *("answer", "sure", "error", "prompt_tokens", "cached_tokens", "completion_tokens", "seconds", "row_key")
    ]
    assert [(row["answer"], row["error"]) for row in rows] == [("ok", None), ("ok", None)]
    assert all(row["prompt_tokens"] > row["cached_tokens"] > 0 and row["seconds"] >= 0 for row in rows)
    assert "<td>ok</td>" in rows._repr_html_()
    assert ask.map([], **quiet) == []
    assert ask.map(iter([("a",)]), **quiet)[0]["answer"] == "ok"


def test_a_failing_row_stays_in_its_row() -> None:
    backend = ScriptedBackend(lambda call: OSError("gone") if "row2" in call.prompt else "<b>")
    rows = picky.map([(i,) for i in range(4)], backend=backend, **quiet)
    assert [row["x"] for row in rows] == ["<b>", "<b>", None, "<b>"]
    assert [row["returned"] for row in rows] == [0, None, 20, 30]
    assert [row["error_"] for row in rows] == ["<b>", None, None, "<b>"]  # the variable of that name
    assert rows[0]["error"] is rows[3]["error"] is None
    assert "ZeroDivisionError: in the body, after <b>" in rows[1]["error"]
    assert "OSError: gone" in rows[2]["error"]
    assert "&lt;b&gt;" in rows._repr_html_()


def test_the_account_of_a_row_is_the_sum_of_its_branches_and_calls(backend: ScriptedBackend) -> None:
    @sgl.function
    def inner(s: State) -> None:
        s += "one two " + sgl.gen("x")

    @sgl.function
    def outer(s: State, n: int) -> None:
        s += "a b c "
        group = s.fork(n)
        group += sgl.gen("x")
        group.join()
        inner()

    rows = outer.map([(1,), (3,)], **quiet)
    assert [row["prompt_tokens"] for row in rows] == [4 + 3, 3 * 4 + 3]
    assert [row["completion_tokens"] for row in rows] == [2, 4]


def test_pandas_in_pandas_out(backend: ScriptedBackend) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"question": ["a", "b"], "label": [1, 2]}, index=["x", "y"])
    result = ask.map(frame, **quiet)
    assert list(result.index) == ["x", "y"]
    assert list(result["answer"]) == ["ok", "ok"]
    assert list(frame.join(result)["label"]) == [1, 2]
    assert "Style: plain" in backend.prompts()[0]
    with pytest.raises(ProgramError, match="question"):
        ask.map(frame[["label"]], **quiet)
    with pytest.raises(ArgumentError, match="frame"):
        ask.map(frame["question"], **quiet)
    twice = pd.DataFrame([["a", "b", 1, 2]], columns=["question", "question", "label", "label"])
    with pytest.raises(ArgumentError, match="2 columns 'question'"):
        ask.map(twice, **quiet)


def test_polars_in_polars_out(backend: ScriptedBackend) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"question": ["a", "b"], "label": [1, 2]})
    result = ask.map(frame, **quiet)
    assert isinstance(result, pl.DataFrame)
    assert result["answer"].to_list() == ["ok", "ok"]
    assert result["error"].to_list() == [None, None]
    assert ask.map(frame, resume=result, **quiet).equals(result)
    with pytest.raises(ArgumentError, match="collect"):
        ask.map(frame.lazy(), **quiet)


def test_resume_runs_only_what_is_missing() -> None:
    broken = True

    def reply(call: ScriptedCall) -> Any:
        return OSError("gone") if broken and "Q: b\n" in call.prompt else "ok"

    backend = ScriptedBackend(reply)
    rows = [("a",), ("b",), ("c",)]
    first = ask.map(rows, backend=backend, **quiet)
    assert [row["error"] is None for row in first] == [True, False, True]
    broken = False
    num_calls = len(backend.prompts())
    second = ask.map(rows, backend=backend, resume=first, **quiet)
    assert [row["answer"] for row in second] == ["ok"] * 3
    assert (second[0], second[2]) == (first[0], first[2])
    assert len(backend.prompts()) == num_calls + 1
    assert ask.map(rows, backend=backend, resume=second, **quiet) == second
    pd = pytest.importorskip("pandas")
    assert ask.map(rows, backend=backend, resume=pd.DataFrame(first), **quiet)[1]["error"] is None
    other = ask.map([("x",), ("y",), ("z",)], backend=backend, **quiet)
    for wrong in ([{"answer": 1}] * 3, [{"error": None}] * 3, other):
        with pytest.raises(ArgumentError, match="resume"):
            ask.map(rows, resume=wrong, backend=backend, **quiet)


def kept(result: Any, kind: str, folder: Path) -> Any:
    """A result as someone might have kept it."""
    if kind == "same":
        return result
    file = folder / f"result.{kind}"
    if kind == "csv":
        pandas = pytest.importorskip("pandas")
        pandas.DataFrame(result).to_csv(file)
        return pandas.read_csv(file)
    polars = pytest.importorskip("polars")
    result.to_polars().write_parquet(file)
    return polars.read_parquet(file)


@pytest.mark.parametrize("kind", ["same", "csv", "parquet"])
def test_resume_knows_rows_by_their_arguments(kind: str, tmp_path: Path) -> None:
    backend = ScriptedBackend(lambda call: call.prompt.split("Q: ")[-1][0])
    first = kept(ask.map([("a",), ("b",), ("b",), ("c",)], backend=backend, **quiet), kind, tmp_path)
    num_calls = len(backend.prompts())
    rows = [{"question": "c"}, ("b", "plain"), ("d",), ("a",), ("b",), ("b",)]
    second = ask.map(rows, backend=backend, resume=first, **quiet)
    assert [row["answer"] for row in second] == ["c", "b", "d", "a", "b", "b"]
    assert len(backend.prompts()) == num_calls + 2  # d, and the third b
    with pytest.raises(ArgumentError, match="other rows"):
        ask.bind(style="fancy").map([("a",), ("b",)], backend=backend, resume=first, **quiet)


def test_keys_of_rows_follow_what_is_in_their_arguments() -> None:
    np = pytest.importorskip("numpy")
    alike = [
        ([1, 2.0, None], (1.0, 2, float("nan"))),
        (np.int64(3), 3),
        ({"a": 1, "b": [b"x"]}, {"b": [b"x"], "a": 1.0}),
        (np.arange(5000), np.arange(5000)),
        (Path("a/b"), Path("a") / "b"),
        (Usage(1), Usage(1)),
        ({"x", "y"}, {"y", "x"}),
    ]
    for one, other in alike:
        assert row_key({"x": one}) == row_key({"x": other})
    changed = np.arange(5000)
    changed[2500] = 0
    different = [1, "1", True, 1.5, None, [1], {"a": 1}, b"1", np.arange(5000), changed, Path("1"), Usage(1), Usage(2)]
    different += [lambda: 1, lambda: 1, threading.Lock(), np.arange(5000.0)]
    assert len({row_key({"x": value}) for value in different}) == len(different)


@pytest.mark.parametrize(
    "values", [["x", [1]], [1, "1"], [True, 1], [[1], ["a"]], [{"a": 1}, {"b": [2]}, 3], [b"x", "x"], [{"a": 1}, None]]
)
def test_polars_loses_nothing_of_values_of_several_types(values: list[Any]) -> None:
    pl = pytest.importorskip("polars")

    @sgl.function
    def program(s: State, i: int) -> Any:
        s += "a" + sgl.gen("x")
        return values[i]

    frame = pl.DataFrame({"i": range(len(values))})
    backend = ScriptedBackend()
    result = program.map(frame, backend=backend, **quiet)
    returned = result["returned"].to_list()
    assert [(type(value), value) for value in returned] == [(type(value), value) for value in values]
    num_calls = len(backend.prompts())
    again = program.map(frame, resume=result, backend=backend, **quiet)
    assert again["returned"].to_list() == values
    assert len(backend.prompts()) == num_calls


def test_numbers_and_dicts_stay_columns_of_polars_own_types() -> None:
    pl = pytest.importorskip("polars")
    rows = [{"n": 1, "d": {"a": 1}, "l": (1, 2), "e": None}, {"n": 2.5, "d": {"a": 2, "b": 3}, "l": [], "e": None}]
    schema = sgl.Results([*rows, {"n": float("nan"), "d": None, "l": None, "e": None}]).to_polars().schema
    assert schema["n"] == pl.Float64
    assert isinstance(schema["d"], pl.Struct)
    assert schema["l"] == pl.List(pl.Int64)


def test_results_that_no_table_can_hold_are_kept(backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    pl = pytest.importorskip("polars")

    def fail(*_: Any, **__: Any) -> None:
        raise pl.exceptions.ComputeError("no")

    frame = pl.DataFrame({"question": ["a", "b"]})
    monkeypatch.setattr(sgl.Results, "to_polars", fail)
    with pytest.raises(ArgumentError, match="partial_results"):
        ask.map(frame, **quiet)
    assert [row["answer"] for row in sgl.partial_results()] == ["ok", "ok"]


def test_a_stop_keeps_the_finished_rows() -> None:
    started = threading.Event()

    def reply(call: ScriptedCall) -> str:
        if "row5" in call.prompt:
            started.set()
        return "w " * (1000 if "row3" in call.prompt or "row5" in call.prompt else 1)

    backend = ScriptedBackend(reply, token_delay=0.02)
    rows = [(i,) for i in range(8)]
    main = threading.main_thread().ident
    assert main is not None

    def press_stop() -> None:
        started.wait(30)
        threading.Event().wait(0.2)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=press_stop, daemon=True).start()
    with pytest.raises(KeyboardInterrupt) as caught:
        picky.map(rows, backend=backend, num_threads=2, max_new_tokens=1000, **quiet)
    partial = sgl.partial_results()
    assert caught.value.partial is partial  # type: ignore[attr-defined]
    assert "of 8 rows" in caught.value._render_traceback_()[0]  # type: ignore[attr-defined]
    done = [index for index, row in enumerate(partial) if row["error"] is None]
    assert 0 in done
    assert not {3, 5, 7} & set(done)
    assert all(row["error"] for index, row in enumerate(partial) if index not in done)
    again = ScriptedBackend("w")
    resumed = picky.map(rows, backend=again, resume=partial, **quiet)
    assert [row["error"] is None for row in resumed] == [i != 1 for i in range(8)]
    asked = {prompt.split()[0] for prompt in again.prompts()}
    assert asked == {f"row{i}" for i in range(8) if i not in done}


def test_a_cancelled_run_keeps_the_finished_rows() -> None:
    backend = ScriptedBackend(lambda call: "w " * (1000 if "row2" in call.prompt else 1), token_delay=0.002)

    @sgl.function
    def program(s: State, i: int) -> None:
        if i == 2:
            threading.Timer(0.1, s.run.cancel).start()
        s += f"row{i} " + sgl.gen("x")

    rows = program.map([(i,) for i in range(3)], backend=backend, max_new_tokens=1000, num_threads=1, **quiet)
    assert [row["error"] is None for row in rows] == [True, True, False]
    assert "stopped" in rows[2]["error"] or "cancelled" in rows[2]["error"]


def test_progress_tells_rows_and_reuse(backend: ScriptedBackend, capsys: pytest.CaptureFixture[str]) -> None:
    picky.map([(i,) for i in range(4)])
    shown = capsys.readouterr().err
    assert "4/4" in shown
    assert "% reused, 1 failed" in shown


def commits(backend: ScriptedBackend) -> list[str]:
    return backend.prompts("commit")


def test_what_all_rows_begin_with_is_computed_once_before_them(backend: ScriptedBackend) -> None:
    ask.map([("a",), ("b",)], **quiet)
    assert commits(backend) == [SHOTS + "Style: plain\nQ: "]
    assert backend.calls[0].kind == "commit"
    backend.calls.clear()
    ask.map([("a", "x"), ("b", "y")], **quiet)
    assert commits(backend) == [SHOTS + "Style: "]
    backend.calls.clear()
    ask.bind(style="bound").run_batch([("same",), {"question": "same"}])
    assert commits(backend) == [SHOTS + "Style: bound\nQ: same\nA:"]
    backend.calls.clear()
    ask.map([("a",)], **quiet)
    assert commits(backend) == []


def test_the_body_is_not_executed_to_find_the_prefix(backend: ScriptedBackend) -> None:
    executed: list[str] = []

    def note(text: str) -> str:
        executed.append(text)
        return text

    class Teacher:
        rules = "Be kind. " * 10

        @property
        def secret(self) -> str:
            executed.append("secret")
            return "!"

        @sgl.function
        def teach(self, s: State, topic: str) -> None:
            """Teach."""
            header = "Rules:" + "\n"
            with s.system():
                s += header
                s += self.rules + self.secret
            note(topic)
            s.user(topic)
            s += sgl.assistant(sgl.gen("x"))

    @sgl.function
    def loops(s: State, topic: str) -> None:
        s += SHOTS
        for _ in range(2):
            s += note(topic)

    Teacher().teach.map([("a",), ("b",)], **quiet)
    loops.map([("a",), ("b",)], **quiet)
    assert commits(backend) == ["<|system|>\nRules:\n" + Teacher.rules, SHOTS]
    assert executed.count("a") == executed.count("b") == 3
    assert executed.count("secret") == 2


def test_programs_without_source_have_no_prefix(backend: ScriptedBackend) -> None:
    space: dict[str, Any] = {}
    exec("def program(s, q):\n    s += 'long ' * 50 + q", space)
    assert sgl.function(space["program"]).map([("a",), ("b",)], **quiet)[0]["error"] is None
    assert commits(backend) == []


def test_async_programs_are_mapped_too(backend: ScriptedBackend) -> None:
    @sgl.function
    async def program(s: State, q: str) -> str:
        s += sgl.system(SHOTS) + sgl.user(q) + sgl.assistant(sgl.gen("x"))
        return str(await s.get("x")) + q

    async def cell() -> Any:
        return program.map([("a",), ("b",)], **quiet)

    assert [row["returned"] for row in asyncio.run(cell())] == ["oka", "okb"]
    assert commits(backend) == [f"<|system|>\n{SHOTS}<|end|>\n<|user|>\n"]


def test_the_prefix_can_be_switched_off(backend: ScriptedBackend) -> None:
    sgl.global_config.enable_precache_with_tracing = False
    try:
        ask.map([("a",), ("b",)], **quiet)
    finally:
        sgl.global_config.enable_precache_with_tracing = True
    assert commits(backend) == []


def test_switches_that_cannot_be_honoured_say_so(backend: ScriptedBackend) -> None:
    assert sgl.global_config.default_backend is backend
    sgl.global_config.default_backend = None
    assert sgl.global_config.default_backend is None
    sgl.global_config.enable_parallel_encoding = False
    sgl.global_config.enable_parallel_encoding = True
    sgl.global_config.verbosity = 0
    for name, value in (("verbosity", 2), ("skip_special_tokens_in_output", False), ("verbose", 1)):
        with pytest.raises(ArgumentError, match=name):
            setattr(sgl.global_config, name, value)

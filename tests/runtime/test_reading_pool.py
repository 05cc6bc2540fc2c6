"""Large constraints are read in processes of their own: what those answer, how they end, and what they cost others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_support import TOKENIZER, fake_engine, prompt
from patience import until

from lmnb.errors import GrammarError
from lmnb.runtime import reading_pool
from lmnb.runtime.compile_pool import LOW_PRIORITY
from lmnb.runtime.constraint_size import is_small
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.grammar_reading import read_constraint
from lmnb.runtime.reading_pool import ReadingPool
from lmnb.runtime.reading_worker import MOST_BYTES
from lmnb.runtime.request import Constraint

SMALL = [Constraint("regex", "a+"), Constraint("json_schema", '{"enum": ["x", "y"]}'), Constraint("ebnf", 'start: "a"')]
PROPERTIES = {f"name {i}": {"type": "integer"} for i in range(60)}
LARGE = Constraint("json_schema", json.dumps({"type": "object", "properties": PROPERTIES}))
EMPTY = {"type": "integer", "minimum": 5, "maximum": 3}
# Reading it takes many seconds: `re` looks at every character of every range for its other case.
ENDLESS = Constraint("regex", "(?i)" + "".join(f"[{chr(0x100 + i)}-\U0010ffff]" for i in range(3900)))
_ON_POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals")


@pytest.fixture
def pool() -> Iterator[ReadingPool]:
    pool = ReadingPool()
    yield pool
    pool.close()


def is_there(pid: int) -> bool:
    """Whether a process exists, be it as a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    "constraint",
    [
        LARGE,
        Constraint("regex", "(?i:" + "[a-zà-ÿ]{0,4}" * 40 + ")"),
        Constraint("regex", "|".join(map(str, range(500)))),
        Constraint("ebnf", "start: " + " | ".join(f'"{i}"' for i in range(500))),
        Constraint("ebnf", "root ::= " + " | ".join(f'"{i}"' for i in range(500))),
        Constraint("json_schema", json.dumps({"anyOf": [{"const": "é" * 500}, {"not": {"const": 5}}]}), loose=True),
        Constraint("json_schema", json.dumps({"enum": ["\ud83d\ude00" * 400, "b"]}), engine="llguidance"),
        Constraint(
            "json_schema", json.dumps({"enum": ["x" * 900, "b"]} | {"description": "d" * 900}), engine="xgrammar"
        ),
    ],
    ids=lambda constraint: constraint.kind,
)
def test_what_a_process_reads_is_what_this_one_would(pool: ReadingPool, constraint: Constraint) -> None:
    assert not is_small(constraint)
    assert pool.read(constraint) == read_constraint(constraint)
    assert len(pool.pids) == 1
    assert pool.read(constraint) == read_constraint(constraint)
    assert len(pool.pids) == 1


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("regex", r"\w" * 5000),
        Constraint("regex", "a" * 500 + r"\b"),
        Constraint("json_schema", "{" + " " * 2000),
        Constraint("json_schema", json.dumps({"properties": {"a" * 1000: {"uniqueItems": True}}})),
        Constraint("json_schema", json.dumps({"properties": {"a": {"oneOf": [{"type": "string"}] * 200}}})),
        Constraint(
            "json_schema",
            json.dumps({"type": "object", "properties": {"a": EMPTY}, "required": ["a"], "title": "a" * 999}),
        ),
        Constraint("ebnf", "start: " + "a " * 300),
        Constraint("ebnf", "root ::= " + "( " * 300),
    ],
    ids=lambda constraint: constraint.kind,
)
def test_errors_are_the_same_one_line_in_a_process_as_here(
    constraint: Constraint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> str:
        grammars = Grammars(TOKENIZER, 259)
        with pytest.raises(GrammarError) as caught:
            grammars.compile(constraint)
        assert bool(grammars._readers.pids) == elsewhere
        grammars.close()
        return str(caught.value)

    elsewhere = True
    told = refused()
    elsewhere = False
    monkeypatch.setattr(reading_pool, "is_small", lambda constraint: True)
    assert refused() == told
    assert "\n" not in told


def test_small_constraints_need_no_process() -> None:
    grammars = Grammars(TOKENIZER, 259)
    for constraint in SMALL:
        grammars.compile(constraint)
    assert grammars._readers.pids == []
    grammars.compile(LARGE)
    assert len(grammars._readers.pids) == 1
    grammars.close()


def test_hostile_constraints_are_killed_at_the_limit_and_others_go_on() -> None:
    grammars = Grammars(TOKENIZER, 259)
    with fake_engine(grammars=grammars, compile_seconds=2.0) as engine:
        hostile = [
            engine.submit(prompt("x", 5, constraint=Constraint("regex", f"{ENDLESS.source}{i}"))) for i in range(2)
        ]
        pids = until(lambda: len(grammars._readers.pids) == 2 and grammars._readers.pids)
        assert engine.submit(prompt("x", 5)).result(timeout=30).finish_reason == "length"
        assert engine.submit(prompt("x", 5, constraint=LARGE)).result(timeout=60).text.startswith("{")
        for handle in hostile:
            with pytest.raises(GrammarError, match="takes more than 2 s; simplify it"):
                handle.result(timeout=60)
        until(lambda: not any(map(is_there, pids)))


def test_a_cancelled_request_waits_for_no_process() -> None:
    grammars = Grammars(TOKENIZER, 259)
    with fake_engine(grammars=grammars, compile_seconds=30.0) as engine:
        handle = engine.submit(prompt("x", 5, constraint=ENDLESS))
        until(lambda: grammars._readers.pids)
        handle.cancel()
        assert handle.result(timeout=30).finish_reason == "cancelled"


def test_a_closed_engine_leaves_no_process_behind() -> None:
    grammars = Grammars(TOKENIZER, 259)
    with fake_engine(grammars=grammars) as engine:
        engine.submit(prompt("x", 5, constraint=LARGE)).result(timeout=60)
        (idle,) = grammars._readers.pids
        engine.submit(prompt("x", 5, constraint=ENDLESS))
        until(lambda: not grammars._readers._idle)  # this one has it, and the next is refused soon
        engine.submit(prompt("x", 5, constraint=Constraint("ebnf", f'{ENDLESS.source}q ::= "a"')))
        pids = until(lambda: len(grammars._readers.pids) == 2 and grammars._readers.pids)
        assert idle in pids
        engine.close()
        until(lambda: not any(map(is_there, pids)))
        assert grammars._readers.pids == []


def test_a_pool_that_nobody_holds_leaves_no_process_behind() -> None:
    pool = ReadingPool()
    pool.read(LARGE)
    (pid,) = pool.pids
    del pool
    until(lambda: not is_there(pid))


def test_idle_processes_end(pool: ReadingPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_pool, "_IDLE_SECONDS", 0.1)
    pool.read(LARGE)
    until(lambda: not pool.pids)
    assert pool.read(LARGE) == read_constraint(LARGE)


@_ON_POSIX
def test_a_process_that_was_ended_from_outside_is_replaced(pool: ReadingPool) -> None:
    pool.read(LARGE)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGKILL)
    assert pool.read(LARGE) == read_constraint(LARGE)
    assert pid not in pool.pids


@_ON_POSIX
def test_a_process_that_dies_of_its_constraint_is_told_of(pool: ReadingPool) -> None:
    def kill() -> None:
        for _ in range(2):
            (pid,) = until(lambda: pool.pids)
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: pid not in pool.pids)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(GrammarError, match="ended before it was done, twice"):
        pool.read(ENDLESS)
    killer.join()
    assert pool.read(LARGE) == read_constraint(LARGE)


@_ON_POSIX
def test_an_interrupt_ends_the_wait_and_the_process(pool: ReadingPool) -> None:
    def interrupt() -> None:
        until(lambda: pool.pids)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        pool.read(ENDLESS)
    thread.join()
    assert pool.pids == []


def test_a_process_that_nobody_can_listen_to_ends(pool: ReadingPool, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Kept(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(subprocess, "Popen", Kept)
    monkeypatch.setattr(threading, "Thread", Refused)
    with pytest.raises(RuntimeError, match="new thread"):
        pool.read(LARGE)
    assert [each.returncode is None for each in started] == [False]
    assert pool.pids == []


@_ON_POSIX
def test_interrupts_of_the_terminal_are_not_the_processes(pool: ReadingPool) -> None:
    pool.read(LARGE)
    (pid,) = pool.pids
    assert os.getpgid(pid) == pid != os.getpgrp()


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is read from /proc")
def test_a_process_has_limited_memory_and_a_low_priority(pool: ReadingPool) -> None:
    pool.read(LARGE)
    (pid,) = pool.pids
    limits = Path(f"/proc/{pid}/limits").read_text("utf-8")
    assert f"Max address space {MOST_BYTES}" in " ".join(limits.split())
    assert os.getpriority(os.PRIO_PROCESS, pid) == LOW_PRIORITY


def test_a_process_loads_no_model_library(tmp_path: Path) -> None:
    code = "import sys, lmnb.runtime.reading_worker; print({'torch', 'transformers', 'xgrammar'} & {*sys.modules})"
    assert run_script(code, tmp_path) == "set()\n"


# As in a notebook or a script without a guard, whose __main__ must not run again; started from any folder.
SCRIPT = f"""
import os, sys
from lmnb.runtime.reading_pool import ReadingPool
from lmnb.runtime.request import Constraint
pool = ReadingPool()
constraint = Constraint("json_schema", {LARGE.source!r})
reading = pool.read(constraint)
"""


def run_script(code: str, folder: Path) -> str:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, -9), done.stderr
    return done.stdout


@_ON_POSIX
def test_a_process_ends_with_its_parent_however_that_ends(tmp_path: Path) -> None:
    for end in ("", "os._exit(0)", "os.kill(os.getpid(), 9)"):
        pid = int(run_script(f"{SCRIPT}print(*pool.pids, flush=True)\n{end}", tmp_path))
        until(lambda pid=pid: not _runs(pid))


def _runs(pid: int) -> bool:
    """Whether it is there, and no zombie that an `init` of a container has yet to collect."""
    stat = Path(f"/proc/{pid}/stat")
    return is_there(pid) and not (stat.exists() and stat.read_text("utf-8").rpartition(")")[2].split()[0] == "Z")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_has_no_part_in_the_processes(tmp_path: Path) -> None:
    code = """
before = pool.pids
child = os.fork()
if not child:
    assert pool.pids == []
    assert pool.read(constraint) == reading
    assert pool.pids != before
    pool.close()
    os._exit(0)
status = os.waitpid(child, 0)[1]
assert pool.read(constraint) == reading
print(status, pool.pids == before)
"""
    assert run_script(SCRIPT + code, tmp_path) == "0 True\n"


@pytest.mark.parametrize("program", ["", "/no/such/program", sys.executable])
def test_without_processes_constraints_are_read_here(
    pool: ReadingPool, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_pool, "_told", [])
    monkeypatch.setattr(sys, "executable", program)
    monkeypatch.setattr(reading_pool, "_PROGRAM", "raise SystemExit(1)")
    with pytest.warns(RuntimeWarning, match="in this process"):
        assert pool.read(LARGE) == read_constraint(LARGE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pool.read(LARGE) == read_constraint(LARGE)  # that is said once
    assert pool.pids == []

"""The language itself: what the frontend costs, how long programs are, and what speculation saves on an API.

frontend: one program with 1,000 branches, each of which says a line and has 4 tokens generated, on a backend that
answers at once. A primitive is a fork's branch, a text, a gen, or the join. Memory is what Python has allocated at
the most, in a run of its own, since measuring it is slow.
lines_of_code: the essay judge in `essay_judge/`, in lmnb and by hand on OpenAI's SDK; counted are the lines that hold
code, without comments, docstrings and blank lines, as ruff formats them. Both are run on the same server.
speculation: three fields behind a few-shot prompt, on a completion model of the same server through OpenAI's SDK,
greedy: calls and prompt tokens, with `num_api_spec_tokens` and without.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import io
import threading
import time
import tokenize
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import lmnb
from benchmarks.essay_judge import task, with_lmnb, with_openai
from benchmarks.harness import medians
from lmnb.backends.base import CancelToken, Context, Delta, Generation, Owner, Scores
from lmnb.backends.capabilities import ALL_SAMPLING, Capabilities

BRANCHES = 1000
_PRIMITIVES = 3 * BRANCHES + 1
_REPLY = Generation(text="a b c d", finish_reason="length", prompt_tokens=16, completion_tokens=4)
_PEOPLE = "Name: Tom\nJob: sailor\nHome: Oslo\n\nName: Ann\nJob: baker\nHome: Rome\n\n"
_FIELD: dict[str, Any] = {"stop": "\n", "max_tokens": 8, "temperature": 0}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    report: dict[str, Any] = {"frontend": frontend(options.rounds), "lines_of_code": lines_of_code()}
    with lmnb.Runtime() as runtime, runtime.serve() as server:
        report["lines_of_code"]["run"] = judged(runtime, f"{server.url}/v1")
        report["speculation"] = speculation(f"{server.url}/v1")
    return report


# What the frontend costs


class InstantContext:
    """A prompt that nobody reads; its four tokens are there at once."""

    def append(self, text: str, *, data: bool = False) -> None:
        pass

    def begin_role(self, role: str) -> str:
        return f"<{role}>"

    def end_role(self) -> str:
        return "</>"

    def fork(self) -> Context:
        return InstantContext()

    async def commit(self, *, owner: Owner, cancel: CancelToken) -> None:
        pass

    async def generate(
        self, params: Any, *, owner: Owner, cancel: CancelToken, on_delta: Callable[[Delta], None], **_: Any
    ) -> Generation:
        for text in ("a", " b", " c", " d"):
            on_delta(Delta(text, 1))
        return _REPLY

    async def score(self, choices: Sequence[str], *, unconditional: bool, owner: Owner, cancel: CancelToken) -> Scores:
        raise NotImplementedError


class InstantBackend:
    """A backend of no latency. Implements `Backend`."""

    name = "instant"
    stop = ()
    capabilities = Capabilities(sampling=ALL_SAMPLING, continues_turn=True)

    def new_context(self) -> Context:
        return InstantContext()

    def token_text(self, token_id: int) -> str:
        return str(token_id)

    def flush_cache(self) -> bool:
        return True

    def get_server_info(self) -> dict[str, Any]:
        return {}

    def shutdown(self) -> None:
        pass


@lmnb.function
def wide(s: Any, branches: int) -> None:
    s += "A list of thoughts.\n"
    forks = s.fork(branches)
    for index, fork in enumerate(forks):
        fork += f"Thought {index}: "
        fork += lmnb.gen("thought", max_tokens=4)
    forks.join()


def run_wide(backend: Any) -> dict[str, float]:
    """One run to its end."""
    before, most = threading.active_count(), [0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            most[0] = max(most[0], threading.active_count() - before - 1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    state = wide.run(BRANCHES, backend=backend)
    thoughts = state["thought"]
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    assert thoughts == [_REPLY.text] * BRANCHES
    return {"seconds": seconds, "milliseconds_per_primitive": 1000 * seconds / _PRIMITIVES, "threads_started": most[0]}


def frontend(rounds: int) -> dict[str, float]:
    """Milliseconds for each primitive, threads that were started, and memory for each branch."""
    backend: Any = InstantBackend()
    run_wide(backend)  # the loop's thread is there from now on, as it is in a notebook
    report = medians([run_wide(backend) for _ in range(rounds)])
    tracemalloc.start()
    run_wide(backend)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "branches": BRANCHES,
        "primitives": _PRIMITIVES,
        **report,
        "kilobytes_per_branch": round(most / BRANCHES / 1000, 2),
    }


# How long programs are


def code_lines(source: str) -> int:
    """Lines that hold code: no comments, no docstrings, no blank lines."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and ast.get_docstring(
            node
        ):
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    silent = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in silent:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def lines_of_code() -> dict[str, Any]:
    """Lines of both judges, and their ratio."""
    ours, theirs = (code_lines(_source(module)) for module in (with_lmnb, with_openai))
    return {"lmnb": ours, "openai_sdk": theirs, "ratio": round(theirs / ours, 2)}


def _source(module: ModuleType) -> str:
    return Path(str(module.__file__)).read_text(encoding="utf-8")


def judged(runtime: Any, url: str) -> dict[str, Any]:
    """Both judges on one engine: what they said."""
    import openai

    async def by_hand() -> Any:
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            return await with_openai.judge(client, "smollm2", task.TOPIC, task.ESSAY)

    state = with_lmnb.judge.run(task.TOPIC, task.ESSAY, backend=runtime)
    return {"lmnb": state.ret_value, "openai_sdk": asyncio.run(by_hand())}


# What speculation saves


def character(s: Any, name: str) -> None:
    s += _PEOPLE
    s += f"Name: {name}\nJob:" + lmnb.gen("job", **_FIELD)
    s += "\nHome:" + lmnb.gen("home", **_FIELD)
    s += "\n\nName:" + lmnb.gen("next", **_FIELD)


def speculation(url: str) -> dict[str, Any]:
    """Calls and tokens for three fields; the values must be the same."""
    backend = lmnb.OpenAI("smollm2", is_chat_model=False, base_url=url)
    report: dict[str, Any] = {}
    values = []
    for name, tokens in (("without", None), ("with", 48)):
        backend.token_usage.reset()
        state = lmnb.function(character, tokens).run("Bob", backend=backend)
        values.append([state[field] for field in ("job", "home", "next")])
        used = backend.token_usage
        report[name] = {
            "calls": used.calls,
            "prompt_tokens": used.prompt_tokens,
            "completion_tokens": used.completion_tokens,
        }
    backend.shutdown()
    assert values[0] == values[1], values
    report["values"] = values[0]
    report["prompt_tokens_ratio"] = round(report["without"]["prompt_tokens"] / report["with"]["prompt_tokens"], 2)
    return report

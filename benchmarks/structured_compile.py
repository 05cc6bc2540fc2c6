"""What compiling constraints takes, and what a hostile one costs requests that have nothing to do with it.

compile_seconds: `first`, a regex in a new process's first engine, the vocabulary's preparation included; then a schema
in llguidance; in xgrammar a larger one, cold, again (memory), and after a restart (disk). stall: milliseconds between
two tokens of an unconstrained request: alone; while ordinary constraints are compiled; while hostile ones are, the
start of the processes that read them included; and beside programs of the lowest priority that have nothing to do with
this one, as many as hostile constraints are compiled at once: that tells a shared processor from a held interpreter.
`beside_first_constraints`: ordinary ones right after a model was loaded, the libraries' first use included.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from benchmarks.sheets import CONSTRAINT
from benchmarks.structured_masks import spread
from lmnb.backends.local import Runtime
from lmnb.errors import GrammarError
from lmnb.runtime import grammar_disk
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.handle import RequestHandle
from lmnb.runtime.loading import LoadedModel
from lmnb.runtime.request import Constraint, Request, SamplingParams, TokenEvent

_BOUNDED = {f"field_{i}": {"type": "integer", "minimum": 7 + i, "maximum": 10**9 + 7 * i} for i in range(60)}
LARGE = {"type": "object", "properties": _BOUNDED, "required": [*_BOUNDED], "additionalProperties": False}
ORDINARY = [
    Constraint("regex", r"\d{4}-\d{2}-\d{2}"),
    Constraint("regex", r"[A-Z][a-z]{1,20}( [A-Z][a-z]{1,20})?"),
    Constraint("json_schema", json.dumps({"type": "object", "properties": {"a": {"enum": ["x", "y"]}}})),
    Constraint("json_schema", json.dumps({"type": "array", "items": {"type": "string", "maxLength": 9}})),
]
_FEWEST_TOKENS, _MOST_TOKENS = 400, 4000
_NUM_BUSY = 8  # as many constraints are compiled at once


def _link(i: int) -> dict[str, object]:
    return {"type": "object", "properties": {"next": {"$ref": f"#/$defs/{i + 1}"}} if i < 1999 else {}}


_RULES = "".join(f'r{i} ::= "{i}" r{i + 1} | "b"\n' for i in range(4000))
HOSTILE = [
    Constraint("regex", "(?i:" + "[a-zà-ÿ]{0,400}" * 40 + ")"),
    Constraint("regex", r"(\w{1,50}\s){1,50}" * 300),
    Constraint("regex", r"\w" * 9999),
    Constraint("regex", "|".join(f"{i * 7919 % 100003:06x}" for i in range(2800))),
    Constraint("regex", "(x+x+)+y" * 500),
    Constraint("json_schema", json.dumps({"anyOf": [{"enum": [f"{i}-{j}" for j in range(40)]} for i in range(200)]})),
    Constraint("json_schema", json.dumps({"properties": {f"{i:0900}": {"type": "integer"} for i in range(200)}})),
    Constraint("json_schema", json.dumps({"properties": {f"p{i}": {"maximum": i + 0.75} for i in range(4000)}})),
    Constraint("json_schema", json.dumps({"oneOf": [{"required": [f"{i}"]} for i in range(400)]})),
    Constraint("json_schema", json.dumps({"not": {"enum": [f"{i * 7919 % 10007}" for i in range(900)]}})),
    Constraint("ebnf", 'start: s\ns: s s | "a" | "aa"\n'),
    Constraint(
        "ebnf", "root ::= r0\n" + "\n".join(f'r{i} ::= "{i}" r{i + 1} | "b"' for i in range(4000)) + '\nr4000 ::= "c"'
    ),
    Constraint("json_schema", json.dumps({"$ref": "#/$defs/0", "$defs": {f"{i}": _link(i) for i in range(2000)}})),
    Constraint("json_schema", json.dumps({"allOf": [{"properties": {f"{i}": {"minimum": i}}} for i in range(3000)]})),
]


def compile_times(loaded: LoadedModel) -> dict[str, float]:
    """Seconds to a matcher."""
    large = Constraint("json_schema", json.dumps(LARGE), engine="xgrammar")
    small = Constraint("json_schema", '{"type":"integer"}')
    before, worth = os.environ.get("LMNB_CACHE"), grammar_disk._WORTH_SECONDS
    grammar_disk._WORTH_SECONDS = 0.0  # so that there is a file to be read, on a machine of any speed
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LMNB_CACHE"] = folder
        try:
            first, second = (Grammars(loaded.tokenizer, loaded.model.vocab_size) for _ in range(2))
            times = {"first": _timed(first, Constraint("regex", "a"), "llguidance")}
            for grammars in (first, second):
                _timed(grammars, small, "xgrammar")
            times["llguidance_cold"] = _timed(first, CONSTRAINT, "llguidance")
            times["xgrammar_cold"] = _timed(first, large, "xgrammar")
            times["memory"] = _timed(first, large, "xgrammar")
            assert os.listdir(os.path.join(folder, "grammars"))
            times["xgrammar_from_disk"] = _timed(second, large, "xgrammar")
            return times
        finally:
            grammar_disk._WORTH_SECONDS = worth
            os.environ.pop("LMNB_CACHE")
            if before is not None:
                os.environ["LMNB_CACHE"] = before


def _timed(grammars: Grammars, constraint: Constraint, engine: str) -> float:
    began = time.perf_counter()
    matcher = grammars.compile(constraint)
    seconds = time.perf_counter() - began
    assert matcher.engine == engine, matcher.engine
    return seconds


def stall(loaded: LoadedModel, rounds: int) -> dict[str, dict[str, float]]:
    """How long a request that has nothing to do with the others waits for its next token. Rounds are interleaved."""
    taken: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, others in (
            ("beside_first_constraints", ORDINARY),
            ("alone", []),
            ("beside_ordinary_constraints", ORDINARY),
            ("beside_hostile_ones", HOSTILE),
            ("beside_busy_programs", []),
        ):
            with Runtime(loaded) as runtime:
                ids = tuple(loaded.tokenizer.encode("The sea"))
                if name != "beside_first_constraints":
                    gaps(runtime, ids, ORDINARY)  # what is prepared once, for either library, is prepared now
                with busy_programs(_NUM_BUSY if name == "beside_busy_programs" else 0):
                    taken.setdefault(name, []).extend(gaps(runtime, ids, others))
    return {name: spread(each, 1e3) for name, each in taken.items()}


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """So many programs that compute, as those that read constraints do, and are no part of this one."""
    code = "import os; hasattr(os, 'nice') and os.nice(19)\nwhile True: pass"
    programs = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def gaps(engine: Runtime, ids: tuple[int, ...], constraints: list[Constraint]) -> list[float]:
    """Seconds between two tokens, until all of `constraints` are compiled or refused. The others' requests are of one
    token, so that only their grammars cost anything."""
    sampling = SamplingParams(max_new_tokens=_MOST_TOKENS, temperature=0.0, ignore_eos=True)
    handle = engine.submit(Request(input_ids=ids, sampling=sampling))
    times: list[float] = []
    others: list[RequestHandle] = []
    for event in handle:
        if isinstance(event, TokenEvent):
            times.append(time.perf_counter())
        if len(times) == 8 and not others:
            short = [SamplingParams(max_new_tokens=1, constraint=constraint) for constraint in constraints]
            others = [engine.submit(Request(input_ids=ids, sampling=params)) for params in short]
        if len(times) >= _FEWEST_TOKENS and all(other.done for other in others):
            handle.cancel()
    for other in others:
        with suppress(GrammarError):  # refused or not: what counts is what it cost the first request
            other.result()
    return [after - before for before, after in itertools.pairwise(times[4:])]

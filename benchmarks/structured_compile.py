"""What compiling constraints takes, and what a hostile one costs requests that have nothing to do with it.

compile_seconds: `first`, a regex in a new process's first engine, the vocabulary's preparation included; then a schema
in llguidance; in xgrammar a larger one, cold, again (memory), and after a restart (disk). stall: the longest wait for a
next token of an unconstrained request: alone, while ordinary constraints are compiled, and while hostile ones are.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
from contextlib import suppress
from typing import Any

from lmnb.errors import GrammarError
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.grammar import Grammars
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
HOSTILE = [
    Constraint("regex", "(?i:" + "[a-zà-ÿ]{0,400}" * 40 + ")"),
    Constraint("regex", r"(\w{1,50}\s){1,50}" * 300),
    Constraint("regex", r"\w" * 9999),
    Constraint("regex", "|".join(f"{i * 7919 % 100003:06x}" for i in range(2800))),
    Constraint("regex", "(x+x+)+y" * 500),
    Constraint("json_schema", json.dumps({"anyOf": [{"enum": [f"{i}-{j}" for j in range(40)]} for i in range(200)]})),
    Constraint("json_schema", json.dumps({"properties": {f"{i:0900}": {"type": "integer"} for i in range(200)}})),
    Constraint("ebnf", 'start: s\ns: s s | "a" | "aa"\n'),
]


def compile_times(loaded: LoadedModel, schema: dict[str, Any]) -> dict[str, float]:
    """Seconds to a matcher; `schema` is one that goes to llguidance."""
    large = Constraint("json_schema", json.dumps(LARGE), engine="xgrammar")
    small = Constraint("json_schema", '{"type":"integer"}')
    before = os.environ.get("LMNB_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LMNB_CACHE"] = folder
        try:
            first, second = (Grammars(loaded.tokenizer, loaded.model.vocab_size) for _ in range(2))
            times = {"first": _timed(first, Constraint("regex", "a"), "llguidance")}
            for grammars in (first, second):
                _timed(grammars, small, "xgrammar")
            times["llguidance_cold"] = _timed(first, Constraint("json_schema", json.dumps(schema)), "llguidance")
            times["xgrammar_cold"] = _timed(first, large, "xgrammar")
            times["memory"] = _timed(first, large, "xgrammar")
            assert os.listdir(os.path.join(folder, "grammars")), "the schema was not worth a file"
            times["xgrammar_from_disk"] = _timed(second, large, "xgrammar")
            return times
        finally:
            os.environ.pop("LMNB_CACHE")
            if before is not None:
                os.environ["LMNB_CACHE"] = before


def _timed(grammars: Grammars, constraint: Constraint, engine: str) -> float:
    began = time.perf_counter()
    matcher = grammars.compile(constraint)
    seconds = time.perf_counter() - began
    assert matcher.engine == engine, matcher.engine
    return seconds


def stall(loaded: LoadedModel) -> dict[str, float]:
    """The longest wait for a next token, in seconds, of a request that has nothing to do with the others."""
    ids = tuple(loaded.tokenizer.encode("The sea"))
    request = Request(input_ids=ids, sampling=SamplingParams(max_new_tokens=48, temperature=0.0, ignore_eos=True))
    gaps = {}
    for name, others in (("alone", []), ("beside_ordinary_constraints", ORDINARY), ("beside_hostile_ones", HOSTILE)):
        grammars = Grammars(loaded.tokenizer, loaded.model.vocab_size)
        engine = Engine(loaded.model, loaded.tokenizer, EngineConfig(), grammars)
        longest_gap(engine, request, ORDINARY[:1])  # what is prepared once is prepared now
        gaps[f"longest_gap_{name}"] = longest_gap(engine, request, others)
        engine.close()
    return gaps


def longest_gap(engine: Engine, request: Request, constraints: list[Constraint]) -> float:
    """The others' requests are of one token, so that only their grammars cost anything."""
    handle = engine.submit(request)
    times: list[float] = []
    others = []
    for event in handle:
        if isinstance(event, TokenEvent):
            times.append(time.perf_counter())
        if len(times) == 8 and not others:
            sampling = [SamplingParams(max_new_tokens=1, constraint=constraint) for constraint in constraints]
            others = [engine.submit(Request(input_ids=request.input_ids, sampling=params)) for params in sampling]
    for other in others:
        with suppress(GrammarError):  # refused or not: what counts is what it cost the first request
            other.result()
    return max(after - before for before, after in itertools.pairwise(times[4:]))

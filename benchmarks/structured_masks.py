"""What one token's mask costs, by constraint: microseconds of processor time, over random walks through each grammar.

Each walk takes allowed tokens at random, over the model's own vocabulary, until the text ends or is long. Every mask is
timed by itself; the worst of an ordinary constraint is to stay below a millisecond.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from benchmarks.sheets import CONSTRAINT
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.loading import LoadedModel
from lmnb.runtime.request import Constraint

_REGEXES = {
    "date": r"\d{4}-\d{2}-\d{2}",
    "words": r"\w+( \w+)*",
    "any line": ".*",
    "not digits": "[^0-9]+",
    "name": r"[A-Z][a-z]{1,20}( [A-Z][a-z]{1,20})?",
    "email": r"[\w.+-]+@[\w-]+(\.[\w-]+)+",
    "lines": r"(.*\n){1,6}",
    "number": r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?",
    "any case": "(?i:the (quick|slow) brown fox.{0,40})",
    "emoji": "[😀-🙏]+",
    "long count": r"[ -~]{1,300}",
    "choices": "|".join(f"option {i}" for i in range(500)),
    "code block": r"```python\n(.*\n){1,40}```",
}
_LARGE = {  # every place in a count is a state of its own
    "count of 2000": r"[ -~]{1,2000}",
    "thought": r"<think>[^<]{0,4000}</think>\n\d+",
}
_SCHEMAS: dict[str, Any] = {
    "any JSON": True,
    "list of texts": {"type": "array", "items": {"type": "string", "maxLength": 40}},
    "formats": {"properties": {name: {"type": "string", "format": name} for name in ("date-time", "email", "ipv6")}},
    "map": {"type": "object", "additionalProperties": {"type": "number", "minimum": 0, "maximum": 2.75}},
}
_MOST_TOKENS = 200


def mask_times(loaded: LoadedModel, walks: int = 8) -> dict[str, Any]:
    """Median, 99th percentile and maximum for each constraint; then of all ordinary regexes' masks together."""
    grammars = Grammars(loaded.tokenizer, loaded.model.vocab_size)
    constraints = {name: Constraint("regex", source) for name, source in {**_REGEXES, **_LARGE}.items()}
    schemas = {name: Constraint("json_schema", json.dumps(schema)) for name, schema in _SCHEMAS.items()}
    report: dict[str, Any] = {}
    every: list[float] = []
    for name, constraint in {**constraints, "sheet": CONSTRAINT, **schemas}.items():
        matcher = grammars.compile(constraint)
        taken = [one for seed in range(walks) for one in walk(matcher.fork(), loaded.model.vocab_size, seed)]
        if name in _REGEXES:
            every += taken
        report[name] = {"engine": matcher.engine, **spread(taken, 1e6)}
    return {"all ordinary regexes": spread(every, 1e6), **report}


def walk(matcher: GrammarMatcher, vocab_size: int, seed: int) -> list[float]:
    """Seconds of processor time of each mask."""
    rng = np.random.default_rng(seed)
    mask = np.zeros(-(-vocab_size // 32), dtype=np.int32)
    taken = []
    for _ in range(_MOST_TOKENS):
        began = time.thread_time()
        found = matcher.fill(mask)
        taken.append(time.thread_time() - began)
        if not found:
            break
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        assert matcher.accept(int(rng.choice(allowed)))
    return taken


def spread(values: list[float], unit: float) -> dict[str, float]:
    """Median, 99th percentile and maximum, times `unit`."""
    median, high = (float(value) for value in np.percentile(values, (50, 99)))
    figures = {"median": median, "p99": high, "max": max(values)}
    return {"count": len(values), **{name: round(value * unit, 1) for name, value in figures.items()}}

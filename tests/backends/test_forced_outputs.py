"""Generations of which a grammar forces all: the model reads no prompt, and nothing says that it did."""

from __future__ import annotations

import pytest
from context_support import fake_runtime

from lmnb import assistant, function, gen, user
from lmnb.language.state import ProgramState

ALL_FORCED = [{"const": "hello"}, {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}]


@pytest.mark.parametrize("schema", ALL_FORCED)
def test_nothing_is_said_to_be_computed(schema: object) -> None:
    @function
    def program(s: ProgramState) -> None:
        s += user("Write JSON.") + assistant(gen("x", json_schema=schema, max_tokens=40))

    with fake_runtime() as runtime:
        for _ in range(2):
            state = program.run(backend=runtime)
            meta = state.get_meta_info("x")
            assert meta["steps"] == meta["cached_tokens"] == 0
            assert meta["queue_seconds"] <= meta["first_token_seconds"] <= meta["e2e_latency"]
            page = state.run.to_html()
            assert "0 reused · 0 computed" in page
            assert "evicted or flushed" not in page

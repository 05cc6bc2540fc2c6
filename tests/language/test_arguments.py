"""Arguments of the wrong kind: one ArgumentError that names them, and at once. And text that cannot be written."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lmnb as sgl
from lmnb.backends.role_template import RoleTemplate
from lmnb.backends.script import ScriptedCall
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError
from lmnb.language.events import from_json, to_json

State = sgl.ProgramState
LONE = "\ud800 lone"


@sgl.function
def program(s: State, x: str = "") -> None:
    s += "a" + x + sgl.gen("g")


WRONG: dict[str, Callable[[], Any]] = {
    **{
        f"gen({name}={value!r})": lambda name=name, value=value: sgl.gen("x", **{name: value})
        for name, value in {
            "max_tokens": "3",
            "min_tokens": 1.5,
            "n": "2",
            "top_k": 1.5,
            "seed": "x",
            "temperature": "0",
            "top_p": float("nan"),
            "min_p": [0.1],
            "frequency_penalty": float("nan"),
            "presence_penalty": "1",
            "repetition_penalty": True,
            "ignore_eos": "no",
            "return_logprob": "yes",
            "logprob_start_len": 1.5,
            "top_logprobs_num": "5",
            "stop": 3,
            "stop_regex": 3,
            "stop_token_ids": ["a"],
            "regex": 3,
            "tools": 3,
            "choices": 3,
        }.items()
    },
    "gen(3)": lambda: sgl.gen(3),  # type: ignore[arg-type]
    "gen(max_tokens=True)": lambda: sgl.gen("x", max_tokens=True),
    "gen(stop_token_ids='ab')": lambda: sgl.gen("x", stop_token_ids="ab"),  # type: ignore[arg-type]
    "gen(stop lone)": lambda: sgl.gen("x", stop="\ud800"),
    "gen(stop bytes)": lambda: sgl.gen("x", stop=b"a"),  # type: ignore[arg-type]
    "gen(regex lone)": lambda: sgl.gen("x", regex="\ud800"),
    "gen(schema lone)": lambda: sgl.gen("x", json_schema={"const": "\ud800"}),
    "gen(set in schema)": lambda: sgl.gen("x", json_schema={"enum": {1}}),
    "select(temperature)": lambda: sgl.select("x", ["a"], temperature="0"),  # type: ignore[arg-type]
    "select(nan)": lambda: sgl.select("x", ["a"], temperature=float("nan")),
    "select(choices=3)": lambda: sgl.select("x", 3),  # type: ignore[arg-type]
    "select(lone)": lambda: sgl.select("x", ["\ud800"]),
    "run(temperature)": lambda: program.run(temperature="0"),
    "run(max_new_tokens)": lambda: program.run(max_new_tokens="3"),
    "run(stop)": lambda: program.run(stop=3),
    "run(seed)": lambda: program.run(seed="x"),
    "run(backend)": lambda: program.run(backend="x"),
    "run_batch(None)": lambda: program.run_batch(None),  # type: ignore[arg-type]
    "run_batch(3)": lambda: program.run_batch(3),  # type: ignore[arg-type]
    "run_batch(text)": lambda: program.run_batch("ab"),
    "run_batch(dict)": lambda: program.run_batch({"x": "a"}),  # type: ignore[arg-type]
    "run_batch(num_threads)": lambda: program.run_batch([{}], num_threads="4"),
    "run_batch(n)": lambda: program.run_batch([{}], n="2"),
    "map(None)": lambda: program.map(None),
    "map(resume)": lambda: program.map([{}], resume=3),
    **{
        f"{name}({backend!r})": lambda call=call, backend=backend: call(backend)
        for name, call in {
            "run(backend=)": lambda backend: program.run(backend=backend),
            "run_batch(backend=)": lambda backend: program.run_batch([{}], backend=backend),
            "map(backend=)": lambda backend: program.map([{}], backend=backend),
            "compile(backend=)": lambda backend: program.compile(backend=backend),
            "cache": lambda backend: program.cache(backend),
            "Graph.cache": lambda backend: program.compile().cache(backend),
            "set_default_backend": sgl.set_default_backend,
            "flush_cache": sgl.flush_cache,
            "get_server_info": sgl.get_server_info,
        }.items()
        for backend in (ScriptedBackend, 5, 0, "")
    },
    **{
        f"num_api_spec_tokens={value!r}": lambda value=value: sgl.function(program.func, num_api_spec_tokens=value)
        for value in (-1, 0, "x", 1.5, True)
    },
    "register_chat_template(5)": lambda: sgl.register_chat_template(5),  # type: ignore[arg-type]
    "register_chat_template(class)": lambda: sgl.register_chat_template(RoleTemplate),  # type: ignore[arg-type]
    "get_chat_template(5)": lambda: sgl.get_chat_template(5),  # type: ignore[arg-type]
    "register_reasoning_format(5)": lambda: sgl.register_reasoning_format(5, "x"),  # type: ignore[arg-type]
    "on_run(5)": lambda: sgl.on_run(5),  # type: ignore[arg-type]
    "subscribe(5)": lambda: program.run().run.subscribe(5),  # type: ignore[arg-type]
    "fork('2')": lambda: program.run().fork("2"),  # type: ignore[arg-type]
    "fork(1.5)": lambda: program.run().fork(1.5),  # type: ignore[arg-type]
    "fork(offsets)": lambda: program.run().fork(1, 3),  # type: ignore[arg-type]
    "fork(offset texts)": lambda: program.run().fork(1, ["a"]),  # type: ignore[list-item]
    "var_scope(3)": lambda: program.run().var_scope(3).__enter__(),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", WRONG.values(), ids=list(map(ascii, WRONG)))
def test_a_value_of_the_wrong_kind_is_an_argument_error(backend: ScriptedBackend, call: Callable[[], Any]) -> None:
    with pytest.raises(ArgumentError) as caught:
        call()
    assert "\n" not in str(caught.value)
    str(caught.value).encode()


def test_values_that_mean_the_same_are_taken() -> None:
    seen: list[ScriptedCall] = []

    def reply(call: ScriptedCall) -> str:
        seen.append(call)
        return "ok"

    backend = ScriptedBackend(reply)
    s = program.run(backend=backend, max_new_tokens=8.0, seed=np.int64(4), temperature=np.float32(0.5), top_k=3.0)
    s += sgl.gen("x", max_tokens=np.int32(5), stop_token_ids=np.int64(7), ignore_eos=np.bool_(True), n=1.0)
    s.sync()
    first, second = (call.params for call in seen)
    assert (first.max_new_tokens, first.temperature, first.top_k) == (8, 0.5, 3)
    assert (second.max_new_tokens, second.stop_token_ids, second.ignore_eos) == (5, (7,), True)
    for value in (first.max_new_tokens, first.seed, first.top_k, second.max_new_tokens, second.stop_token_ids[0]):
        assert type(value) is int
    assert len(s.fork(2.0)) == 2  # type: ignore[arg-type]


def test_a_frame_given_to_run_batch_is_told_of_map(backend: ScriptedBackend) -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ArgumentError, match=r"program\.map"):
        program.run_batch(pandas.DataFrame({"x": ["a"]}))


def test_half_characters_become_the_replacement_character_in_the_prompt(backend: ScriptedBackend) -> None:
    @sgl.function
    def lone(s: State, x: str) -> None:
        s += sgl.user(LONE + x) + sgl.assistant(sgl.gen("g"))
        s.set_var("v", LONE)
        s += s["v"]

    s = lone.run("\udfff")
    s.sync()
    assert "\ufffd lone\ufffd" in s.text()
    assert s.text().endswith("\ufffd lone")
    s.text().encode()
    assert s["v"] == LONE  # what a program keeps for itself stays its own
    s.run.wait(30)
    for event in s.run.events:
        json.dumps(to_json(event), ensure_ascii=False).encode()
        assert from_json(to_json(event)).type == event.type
    s.run.to_json().encode()
    s.run.to_html().encode()
    broken = s.run.to_json().replace("\ufffd", "\\ud800")
    assert "\ufffd" in sgl.SavedRun.from_json(broken).to_json()
    graph = lone.compile(x="\udfff")
    assert "\ufffd lone\ufffd" in graph.run(backend=backend).text()
    rows = lone.map([(LONE,)], progress_bar=False)
    rows._repr_html_().encode()

"""What a `gen` can ask for, as the backend hears it and as the meta data tells it."""

from __future__ import annotations

import pytest

import lmnb as sgl
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError, ProgramError
from lmnb.language import open_state

State = sgl.ProgramState


@sgl.function
def ask(s: State) -> None:
    s += "Q: " + sgl.gen("x")


def test_stop_regexes_reach_the_backend_and_cut_the_text() -> None:
    backend = ScriptedBackend("say 12 now")
    patterns = [r"\d+"]
    state = ask.run(backend=backend, stop_regex=patterns)
    assert state["x"] == "say "
    meta = state.get_meta_info("x")
    assert meta is not None
    assert meta["finish_reason"] == {"type": "stop", "matched": r"\d+"}
    assert patterns == [r"\d+"]
    s = open_state(backend, defaults=sgl.Defaults(stop_regex=("now",)))
    s += sgl.gen("a") + sgl.gen("b", stop_regex="a", stop_token_ids=[7], ignore_eos=True, min_tokens=1)
    assert (s["a"], s["b"]) == ("say 12 ", "s")
    params = backend.calls[-1].params
    assert params is not None
    assert (params.stop_regex, params.stop_token_ids) == (("a",), (7,))
    assert (params.ignore_eos, params.min_new_tokens) == (True, 1)


def test_log_probabilities_with_and_without_text() -> None:
    backend = ScriptedBackend("one two")
    state = ask.run(backend=backend, return_logprob=True, top_logprobs_num=2, logprob_start_len=1)
    meta = state.get_meta_info("x")
    assert meta is not None
    assert [len(meta[key]) for key in ("input_token_logprobs", "output_token_logprobs")] == [2, 2]
    assert [len(meta[key]) for key in ("input_top_logprobs", "output_top_logprobs")] == [2, 2]
    assert [entry[2] for entry in meta["output_token_logprobs"]] == [None, None]
    state = ask.run(backend=backend, return_logprob=True, return_text_in_logprobs=True)
    meta = state.get_meta_info("x")
    assert meta is not None
    assert [entry[2] for entry in meta["output_token_logprobs"]] == ["one", " two"]
    assert meta["input_token_logprobs"] == []
    assert "output_top_logprobs" not in meta
    plain = ask.run(backend=backend, logprob_start_len=0).get_meta_info("x")
    assert plain is not None
    assert not any("logprob" in key for key in plain)


def test_a_look_at_the_next_token_adds_no_text() -> None:
    backend = ScriptedBackend("one two")
    s = open_state(backend)
    look = {"return_logprob": True, "top_logprobs_num": 3, "return_text_in_logprobs": True}
    s += "p" + sgl.gen("x", max_tokens=0, stop="o", **look)  # type: ignore[arg-type]
    meta = s.get_meta_info("x")
    assert meta is not None
    assert meta["output_top_logprobs"][0][0][2] == "one"
    assert meta["finish_reason"] == {"type": "length", "length": 0}
    s += sgl.gen("y")
    assert (s["x"], s.text()) == ("", "pone two")


def test_samples() -> None:
    backend = ScriptedBackend(["a", "b", "c", "d"])
    state = ask.run(backend=backend, n=3)
    assert state["x"] == ["a", "b", "c"]
    assert state.text() == "Q: a"
    assert backend.prompts() == ["Q: "] * 3


def test_caches_are_concatenated_only_where_the_backend_says_so() -> None:
    backend = ScriptedBackend("ok", concatenates_caches=True)
    s = open_state(backend)
    s += "shared "
    group = s.fork(2, position_ids_offset=[0, 5])
    group += ["a ", "b "]
    group += sgl.gen("x")
    group.join("concate_and_append", approximate=True)
    s += "|" + sgl.gen("y")
    assert s.text() == "shared a okb ok|ok"
    assert backend.prompts()[-1] == "shared a okb ok|"
    asked = [(call.kind, call.prompt, call.offset) for call in backend.calls if call.kind in ("fork", "concatenate")]
    assert asked == [("fork", "shared ", 5), ("concatenate", "shared ", 0)]

    exact = open_state(ScriptedBackend())
    with pytest.raises(ProgramError, match="cannot move positions"):
        exact.fork(2, position_ids_offset=[0, 5])
    group = exact.fork(2, position_ids_offset=[0, 0])
    with pytest.raises(ProgramError, match="exact attention"):
        group.join("concate_and_append", approximate=True)
    with pytest.raises(ArgumentError, match="approximate"):
        group.join(approximate=True)
    with pytest.raises(ArgumentError, match="position_ids_offset"):
        exact.fork(2, position_ids_offset=[1])

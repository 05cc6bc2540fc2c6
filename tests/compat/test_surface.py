"""The names, the order of arguments and the defaults that SGLang's frontend has, looked up in what lmnb exports.

The tables are the public frontend's own signatures. Ours may have more, behind these and by name.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import lmnb as sgl
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError

_GEN = [
    *("name", "max_tokens", "min_tokens", "n", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k"),
    *("min_p", "frequency_penalty", "presence_penalty", "ignore_eos", "return_logprob", "logprob_start_len"),
    *("top_logprobs_num", "return_text_in_logprobs", "dtype", "choices", "choices_method", "regex", "json_schema"),
]
_NOT_OF_TYPED = {"min_tokens", "dtype", "choices", "choices_method", "regex", "json_schema"}
_TYPED = [name for name in _GEN if name not in _NOT_OF_TYPED]

FUNCTIONS: dict[str, dict[str, Any]] = {
    "function": {"func": None, "num_api_spec_tokens": None},
    "set_default_backend": {"backend": ...},
    "flush_cache": {"backend": None},
    "get_server_info": {"backend": None},
    "gen": dict.fromkeys(_GEN),
    "gen_int": dict.fromkeys(_TYPED),
    "gen_string": dict.fromkeys(_TYPED),
    "select": {"name": None, "choices": None, "temperature": 0.0, "choices_method": None},
    "image": {"expr": ...},
    "video": {"path": ..., "num_frames": ...},
    "separate_reasoning": {"expr": ..., "model_type": ...},
    **{role: {"expr": None} for role in ("system", "user", "assistant")},
    **{f"{role}_{end}": {} for role in ("system", "user", "assistant") for end in ("begin", "end")},
    "RuntimeEndpoint": {"base_url": ..., "api_key": None, "verify": None, "chat_template_name": None},
    "OpenAI": {"model_name": ..., "is_chat_model": None, "chat_template": None, "is_azure": False},
    "Anthropic": {"model_name": ...},
    "VertexAI": {"model_name": ..., "safety_settings": None},
    "LiteLLM": {"model_name": ..., "chat_template": None},
    "Crusoe": {"model_name": ...},
}
STATE: dict[str, dict[str, Any]] = {
    **{role: {"expr": None} for role in ("system", "user", "assistant")},
    "var_scope": {"name": ...},
    "fork": {"size": 1, "position_ids_offset": None},
    "copy": {"position_ids_offset": None},
    "text": {},
    "messages": {},
    "sync": {},
    "error": {},
    "text_iter": {"var_name": None},
    "text_async_iter": {"var_name": None, "return_meta_data": False},
    "get_var": {"name": ...},
    "set_var": {"name": ..., "value": ...},
    "get_meta_info": {"name": ...},
}
# What `run` takes beside the program's own arguments, with its value when it is not given.
RUN = {
    "max_new_tokens": 128,
    "n": 1,
    "stop": (),
    "stop_token_ids": (),
    "stop_regex": (),
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "ignore_eos": False,
}


def positional(function: Any) -> dict[str, Any]:
    """Parameters that may be given by position, and their defaults (`...` for none)."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [p for p in inspect.signature(function).parameters.values() if p.kind in kinds and p.name != "self"]
    return {p.name: ... if p.default is p.empty else p.default for p in found}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_their_arguments_in_order(name: str) -> None:
    wanted = FUNCTIONS[name]
    ours = positional(getattr(sgl, name))
    assert list(ours.items())[: len(wanted)] == list(wanted.items())
    assert all(default is not ... for default in list(ours.values())[len(wanted) :])


@pytest.mark.parametrize("name", STATE)
def test_states_have_their_methods(name: str) -> None:
    assert positional(getattr(sgl.ProgramState, name)) == STATE[name]


def test_other_names() -> None:
    methods = ("greedy_token_selection", "token_length_normalized", "unconditional_likelihood_normalized")
    for name in methods:
        assert isinstance(getattr(sgl, name), sgl.ChoicesSamplingMethod)
    for name in ("Engine", "Runtime", "global_config"):
        assert getattr(sgl, name) is not None
    for name in ("run", "run_batch", "bind", "trace", "cache", "compile"):
        assert callable(getattr(sgl.SglFunction, name))
    for name in ("verbosity", "default_backend", "skip_special_tokens_in_output"):
        assert hasattr(sgl.global_config, name)
    assert sgl.global_config.enable_precache_with_tracing
    assert sgl.global_config.enable_parallel_encoding


def test_the_defaults_of_run() -> None:
    backend = ScriptedBackend("x")

    @sgl.function
    def ask(s: Any) -> None:
        s += "?" + sgl.gen("x")

    ask.run(backend=backend).sync()
    ask.run_batch([{}], backend=backend)
    for call in (call for call in backend.calls if call.params is not None):
        assert {name: getattr(call.params, name) for name in RUN if name != "n"} == {
            name: value for name, value in RUN.items() if name != "n"
        }
    assert sgl.Defaults().n == RUN["n"]
    assert (sgl.Defaults().return_logprob, sgl.Defaults().logprob_start_len) == (False, None)


def test_a_batch_leaves_its_rows_as_they_were() -> None:
    @sgl.function
    def ask(s: Any, style: str, question: str) -> None:
        s += style + question + sgl.gen("x")

    rows = [{"question": "a"}, {"question": "b"}]
    ask.bind(style="s").run_batch(rows, backend=ScriptedBackend("x"))
    assert rows == [{"question": "a"}, {"question": "b"}]


def test_generations_without_a_name_are_no_variables() -> None:
    @sgl.function
    def ask(s: Any) -> None:
        s += "a" + sgl.gen() + sgl.gen()
        assert None not in s
        assert "" not in s

    assert ask.run(backend=ScriptedBackend("x")).text() == "axx"


def test_an_endpoints_template_can_be_set_as_examples_do() -> None:
    from stub_server import Answer, stub_server

    with stub_server(lambda _: Answer({"model_path": "a/b", "is_generation": True})) as stub:
        backend = sgl.RuntimeEndpoint(stub.url)
        assert (backend.chat_template.name, backend.stop) == ("default", ())
        backend.chat_template = sgl.get_chat_template("llama-3-instruct-llava")
        assert backend.stop == ("<|eot_id|>",)
        assert "llama-3-instruct-llava (set by the program)" in repr(backend)
        assert backend.new_context().begin_role("user").startswith("<|start_header_id|>user")
        with pytest.raises(ArgumentError, match="get_chat_template"):
            backend.chat_template = "chatml"  # type: ignore[assignment]

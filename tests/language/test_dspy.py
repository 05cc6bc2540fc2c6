"""DSPy modules on lmnb's backends: what a call asks for reaches the backend, and what comes back is what it said."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from context_support import fake_runtime
from patience import until
from picture_support import png

import lmnb
from lmnb.backends.script import ScriptedCall
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError, MissingPackageError, NoBackendError

os.environ.setdefault("DSPY_CACHE_LIMIT", "0")
dspy = pytest.importorskip("dspy", "3.4", reason="needs dspy, 3.4 or newer")

pytestmark = pytest.mark.timeout(120)


def model(replies: Any = "Paris", **options: Any) -> Any:
    """An LM on a scripted backend, which is `.backend`."""
    return lmnb.dspy.LM(ScriptedBackend(replies), **options)


def asked(lm: Any) -> list[ScriptedCall]:
    return [call for call in lm.backend.calls if call.kind == "generate"]


@pytest.fixture
def with_lm() -> Callable[..., Any]:
    """`with with_lm(lm):` makes it DSPy's, with the JSON adapter unless another is given."""

    def use(lm: Any, **settings: Any) -> Any:
        return dspy.context(**{"lm": lm, "adapter": dspy.JSONAdapter(), "track_usage": True, **settings})

    return use


def test_a_predict_runs_as_a_program(with_lm):
    lm = model('{"answer": "Paris"}', temperature=0.0, max_tokens=50)
    runs: list[Any] = []
    end = lmnb.on_run(runs.append)
    with with_lm(lm):
        answer = dspy.Predict("question -> answer")(question="The capital of France?")
    end()
    assert answer.answer == "Paris"
    (call,) = asked(lm)
    assert call.params.temperature == 0
    assert call.params.max_new_tokens == 50
    assert call.params.constraint.kind == "json_schema"
    schema = json.loads(call.params.constraint.source)
    assert schema["required"] == ["answer"]
    assert call.prompt.index("<|system|>") < call.prompt.index("The capital of France?")
    assert [run.program for run in runs] == ["dspy"]
    usage = answer.get_lm_usage()["lmnb/scripted"]
    meta = lm.history[-1]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] == meta["total_tokens"]


def test_usage_tells_what_the_cache_had(with_lm):
    lm = model('{"answer": "Paris"}')
    with with_lm(lm):
        program = dspy.Predict("question -> answer")
        program(question="The capital of France?")
        program(question="The capital of Italy?")
    first, second = (entry["usage"] for entry in lm.history)
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert 100 < second["prompt_tokens_details"]["cached_tokens"] < second["prompt_tokens"]


def test_the_settings_reach_the_engine():
    lm = model(top_p=0.9, seed=3, stop=["\n"], min_p=0.05, repetition_penalty=1.2, stop_regex=r"\d", logprobs=True)
    lm("Hello", temperature=0.3, top_k=7, frequency_penalty=0.5, presence_penalty=0.25, top_logprobs=2)
    params = asked(lm)[0].params
    wanted = {
        "temperature": 0.3,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.05,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
        "repetition_penalty": 1.2,
        "seed": 3,
        "stop": ("\n",),
        "stop_regex": (r"\d",),
        "return_logprob": True,
        "top_logprobs_num": 2,
        "max_new_tokens": 1000,
    }
    assert {name: getattr(params, name) for name in wanted} == wanted


def test_samples_are_branches_of_one_run_each_with_its_own_seed():
    lm = model(lambda call: f"seed {call.params.seed}", seed=5)
    runs: list[Any] = []
    end = lmnb.on_run(runs.append)
    assert lm("Hello", n=3) == ["seed 5", "seed 6", "seed 7"]
    end()
    assert len(runs) == 1
    assert len({call.owner.branch for call in asked(lm)}) == 3
    assert len(lm.history) == 1
    assert lm("Hello") == ["seed 5"]  # a call of its own begins anew
    assert asyncio.run(lm.acall("Hello", n=2)) == ["seed 5", "seed 6"]


def test_a_sample_that_fails_stops_the_others():
    def reply(call: ScriptedCall) -> Any:
        return RuntimeError("no more words") if call.params.seed == 5 else "word " * 1000

    lm = model(reply, seed=5, max_tokens=2000)
    lm.backend.token_delay = 0.01
    with pytest.raises(dspy.utils.exceptions.LMProviderError, match="no more words"):
        lm("Hello", n=3)  # the fixture sees whether something is left


def test_response_format_forms(with_lm):
    lm = model('{"table": {"a": 1}}')
    with with_lm(lm):  # what a strict schema cannot say, DSPy asks for as any object
        answer = dspy.Predict("question -> table: dict[str, int]")(question="?")
    assert answer.table == {"a": 1}
    assert json.loads(asked(lm)[-1].params.constraint.source) == {"type": "object"}
    lm("Hello", response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}})
    assert json.loads(asked(lm)[-1].params.constraint.source) == {"type": "integer"}
    pydantic = pytest.importorskip("pydantic")
    lm("Hello", response_format=pydantic.create_model("Wand", wood=(str, ...), length=(int, ...)))
    assert json.loads(asked(lm)[-1].params.constraint.source)["required"] == ["wood", "length"]


def test_a_schema_that_cannot_be_enforced_is_refused_by_its_keyword():
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    with fake_runtime() as runtime:
        lm = lmnb.dspy.LM(runtime, max_tokens=20)
        with pytest.raises(dspy.utils.exceptions.LMInvalidRequestError, match="uniqueItems"):
            lm("Hello", response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "tools": ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, "native tools"),
    "reasoning": ({"reasoning_effort": "high"}, "a reasoning effort"),
    "store": ({"store": True}, "store"),
    "tier": ({"service_tier": "flex"}, "service_tier"),
    "bias": ({"logit_bias": {"5": 1}}, "logit_bias"),
    "unknown": ({"min_p": 0.1}, "min_p"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused_by_name(name: str):
    options, message = REFUSED[name]
    lm = model()
    with pytest.raises(dspy.utils.exceptions.LMUnsupportedFeatureError, match=message):
        lm("Hello", **options)
    assert asked(lm) == []


def test_pictures_go_to_backends_that_take_them(with_lm, tmp_path: Path):
    (tmp_path / "red.png").write_bytes(png("red"))
    lm = model('{"animal": "a cat"}')
    with with_lm(lm):
        answer = dspy.Predict("photo: dspy.Image -> animal")(photo=dspy.Image.from_path(str(tmp_path / "red.png")))
    assert answer.animal == "a cat"
    (call,) = asked(lm)
    assert [picture.data for picture in call.images] == [png("red")]
    assert "<image>" in call.prompt


def test_parts_that_cannot_be_taken_are_refused_by_their_place():
    lm = model()
    far = dspy.lm15.ImagePart(url="https://example.com/x.png")
    with pytest.raises(dspy.utils.exceptions.LMUnsupportedFeatureError, match="from_url") as caught:
        lm(dspy.lm15.Request(model=lm.model, messages=(dspy.lm15.Message.user([far]),)))
    assert caught.value.features == ["messages[0].parts[0]"]
    sound = [dspy.lm15.TextPart("Listen:"), dspy.lm15.AudioPart(data="AAAA")]
    with pytest.raises(dspy.utils.exceptions.LMUnsupportedFeatureError, match="'audio'") as caught:
        lm(dspy.lm15.Request(model=lm.model, messages=(dspy.lm15.Message.user(sound),)))
    assert caught.value.features == ["messages[0].parts[1]"]


def test_wrong_options_of_the_model_itself():
    with pytest.raises(ArgumentError, match="no option 'top_n'"):
        model(top_n=3)
    with pytest.raises(ArgumentError, match="min_p"):
        model(min_p=0.1, cache=True)
    with pytest.raises(NoBackendError, match="lmnb load"):
        lmnb.dspy.LM()


def test_it_takes_the_default_backend():
    lmnb.set_default_backend(ScriptedBackend("yes"))
    assert lmnb.dspy.LM()("Hello") == ["yes"]
    with fake_runtime() as runtime:
        assert repr(lmnb.dspy.LM(runtime)) == f"lmnb.dspy.LM({runtime!r})"


def test_a_backend_that_enforces_no_schemas_is_asked_for_none(with_lm):
    class Plain(ScriptedBackend):
        capabilities = lmnb.backends.capabilities.Capabilities(data_is_text=True, continues_turn=True)

    lm = lmnb.dspy.LM(Plain('{"answer": "Paris"}'))
    assert not lm.supports_response_schema
    with with_lm(lm):
        assert dspy.Predict("question -> answer")(question="?").answer == "Paris"
    assert asked(lm)[0].params.constraint is None


def test_failures_are_dspys_and_not_tried_again():
    lm = model(RuntimeError("no more words"))
    with pytest.raises(dspy.utils.exceptions.LMProviderError, match="no more words"):
        lm("Hello")
    assert len(asked(lm)) == 1


def test_a_prompt_that_is_too_long_is_told_as_such():
    with fake_runtime(kv_cache=256) as runtime:
        lm = lmnb.dspy.LM(runtime, max_tokens=8)
        with pytest.raises(dspy.utils.exceptions.ContextWindowExceededError):
            lm("word " * 400)


def test_coroutines_and_their_cancel():
    lm = model("word " * 2000, max_tokens=2000)
    lm.backend.token_delay = 0.01

    async def main() -> str:
        task = asyncio.ensure_future(lm.acall("Hello"))
        while not asked(lm):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        lm.backend.token_delay = 0.0
        lm.backend._script.replies = "still there"
        (answer,) = await lm.acall("Again")
        return str(answer)

    assert asyncio.run(main()) == "still there"


def test_a_cancelled_run_is_no_answer():
    lm = model("word " * 2000, max_tokens=2000)
    lm.backend.token_delay = 0.01

    def stop() -> None:
        until(lambda: asked(lm))
        lmnb.language.cancel_runs()

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(dspy.utils.exceptions.LMProviderError, match="cancelled"):
        lm("Hello")
    thread.join()


@pytest.mark.parametrize("is_async", [False, True], ids=["in a thread", "coroutine"])
def test_streams(with_lm, is_async: bool):
    lm = model("[[ ## answer ## ]]\nParis is the capital of France.\n\n[[ ## completed ## ]]")
    lm.backend.token_delay = 0.005
    program = dspy.Predict("question -> answer")
    listener = dspy.streaming.StreamListener(signature_field_name="answer")

    async def main() -> list[Any]:
        stream = dspy.streamify(program, stream_listeners=[listener], is_async_program=is_async)
        return [piece async for piece in stream(question="?")]

    with with_lm(lm, adapter=dspy.ChatAdapter()):
        pieces = asyncio.run(main())
    assert "".join(piece.chunk for piece in pieces[:-1]).startswith("Paris is the capital of France.")
    assert len(pieces) > 3
    assert pieces[-1].answer == "Paris is the capital of France."


def test_leaving_a_stream_stops_the_generation():
    lm = model("word " * 2000, max_tokens=2000)
    lm.backend.token_delay = 0.01
    request = dspy.lm15.Request(model=lm.model, messages=(dspy.lm15.Message.user("Hello"),))
    events: Iterator[Any] = lm.engine.stream(request)
    assert [next(events).type for _ in range(3)] == ["start", "delta", "delta"]
    events.close()  # type: ignore[attr-defined]  # a generator; the fixture sees whether something is left


def test_copies_share_the_model_and_nothing_else(with_lm):
    lm = model('{"answer": "Paris"}', temperature=0.0)
    program = dspy.Predict("question -> answer")
    program.set_lm(lm)
    twin = program.deepcopy()
    assert twin.lm is not lm
    assert twin.lm.backend is lm.backend
    with with_lm(None):
        twin(question="?")
    assert (len(twin.lm.history), len(lm.history)) == (1, 0)
    warmer = copy.deepcopy(lm.copy(temperature=0.7))
    assert warmer("Hello") == ['{"answer": "Paris"}']
    assert asked(lm)[-1].params.temperature == 0.7
    with pytest.raises(AttributeError, match="backend"):
        lm.copy(backend=ScriptedBackend("other"))


def test_a_saved_program_finds_its_model_again(tmp_path: Path):
    lm = model("x", temperature=0.0, seed=4, min_p=0.1)
    program = dspy.Predict("question -> answer")
    program.set_lm(lm)
    program.save(tmp_path / "program.json")
    loaded = dspy.Predict("question -> answer")
    with pytest.raises(NoBackendError, match="lmnb/scripted"):
        loaded.load(tmp_path / "program.json", allow_unsafe_lm_state=True)
    lmnb.set_default_backend(ScriptedBackend("found"))
    loaded.load(tmp_path / "program.json", allow_unsafe_lm_state=True)
    assert loaded.lm("Hello") == ["found"]
    params = asked(loaded.lm)[0].params
    assert (params.temperature, params.seed, params.min_p) == (0.0, 4, 0.1)
    assert pickle.loads(pickle.dumps(loaded.lm))("Hello") == ["found"]


def test_optimizers_and_agents_work(with_lm):
    def reply(call: ScriptedCall) -> str:
        if "next_tool_name" not in call.prompt.split("Respond with a JSON object")[-1]:
            return json.dumps({"reasoning": "counted", "answer": "3"})
        over = "observation_0" in call.prompt
        step = {"next_thought": "hm", "next_tool_name": "finish", "next_tool_args": {}}
        return json.dumps(step if over else {**step, "next_tool_name": "add", "next_tool_args": {"a": 1, "b": 2}})

    def add(a: int, b: int) -> int:
        return a + b

    def right(example: Any, prediction: Any, trace: Any = None) -> bool:
        return bool(example.answer == prediction.answer)

    lm = model(reply, temperature=0.0)
    rows = [dspy.Example(question=f"{i}?", answer="3").with_inputs("question") for i in range(4)]
    with with_lm(lm):
        found = dspy.ReAct("question -> answer", tools=[add])(question="What is 1 + 2?")
        optimizer = dspy.BootstrapFewShot(metric=right, max_bootstrapped_demos=2, max_labeled_demos=2)
        taught = optimizer.compile(dspy.ChainOfThought("question -> answer"), trainset=rows)
        score = dspy.Evaluate(devset=rows, metric=right, num_threads=4, display_progress=False)(taught).score
    assert found.trajectory["observation_0"] == 3
    assert len(taught.predict.demos) == 2
    assert score == 100


def test_logprobs_come_back():
    with fake_runtime() as runtime:
        lm = lmnb.dspy.LM(runtime, max_tokens=5, temperature=0.0)
        (answer,) = lm("Hello", logprobs=True, top_logprobs=2)
        tokens = answer["logprobs"]["content"]
        assert len(tokens) >= 1
        assert all(token["logprob"] <= 0 and len(token["top_logprobs"]) == 2 for token in tokens)
        assert "".join(token["token"] for token in tokens).startswith(answer["text"][:1])


def test_many_threads_share_one_engine(with_lm):
    with fake_runtime(kv_cache=30_000) as runtime:
        lm = lmnb.dspy.LM(runtime, max_tokens=8, temperature=0.0)
        rows = [dspy.Example(question=f"What is {number}?").with_inputs("question") for number in range(16)]

        class Ask(dspy.Module):  # type: ignore[misc]
            def forward(self, question: str) -> Any:
                return dspy.Prediction(answer=dspy.settings.lm(question)[0])

        with with_lm(lm), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answers = Ask().batch(rows, num_threads=8, disable_progress_bar=True)
        assert len(answers) == 16
        assert all(answer.answer for answer in answers)
        status = runtime.status()
        assert status.running == status.waiting == 0


@pytest.mark.model
@pytest.mark.timeout(120)
def test_on_the_embedded_model_the_json_adapter_always_gets_its_fields(with_lm, embedded_runtime):
    class Review(dspy.Signature):  # type: ignore[misc]
        """Say what the writer thinks."""

        review: str = dspy.InputField()
        stars: Literal[1, 2, 3, 4, 5] = dspy.OutputField()
        again: bool = dspy.OutputField()

    with with_lm(lmnb.dspy.LM(embedded_runtime, temperature=1.0, seed=1, max_tokens=60)):
        answers = [dspy.Predict(Review)(review=text) for text in ("Lovely food.", "The soup was cold.")]
        second = answers[1].get_lm_usage()[f"lmnb/{embedded_runtime.name}"]
    for answer in answers:
        assert answer.stars in range(1, 6)
        assert type(answer.again) is bool
    assert second["prompt_tokens_details"]["cached_tokens"] > second["prompt_tokens"] / 2


def test_without_dspy_the_error_says_what_to_install():
    code = """
import sys
sys.modules["dspy"] = None
import lmnb
from lmnb import *
try:
    lmnb.dspy
except lmnb.MissingPackageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert "pip install 'lmnb[dspy]'" in done.stdout
    assert issubclass(MissingPackageError, ImportError)

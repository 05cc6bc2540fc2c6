"""SGLang's examples of its frontend, as a user who has them would run them here: quick starts, usage, tutorial."""

from __future__ import annotations

import asyncio
import json
from enum import Enum
from math import exp
from typing import Any

import pytest
from pydantic import BaseModel

import lmnb as sgl

# -- quick start --


@sgl.function
def multi_turn_question(s, question_1, question_2):
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=16))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=16))


@sgl.function
def several_answers(s, question_1, question_2):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=8, n=2))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=8))


# -- usage --


@sgl.function
def tool_use(s, question):
    s += "To answer this question: " + question + ". "
    s += "I need to use a " + sgl.gen("tool", choices=["calculator", "search engine"]) + ". "
    if s["tool"] == "calculator":
        s += "The math expression is" + sgl.gen("expression", max_tokens=8)
    elif s["tool"] == "search engine":
        s += "The key word to search is" + sgl.gen("word", max_tokens=8)


@sgl.function
def tip_suggestion(s):
    s += "Here are two tips for staying healthy: 1. Balanced Diet. 2. Regular Exercise.\n\n"
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"Now, expand tip {i + 1} into a paragraph:\n"
        f += sgl.gen("detailed_tip", max_tokens=12, stop="\n\n")
    s += "Tip 1:" + forks[0]["detailed_tip"] + "\n"
    s += "Tip 2:" + forks[1]["detailed_tip"] + "\n"
    s += "In summary" + sgl.gen("summary", max_tokens=8)


@sgl.function
def text_qa(s, question):
    s += "Q: " + question + "\n"
    s += "A:" + sgl.gen("answer", stop="\n", max_tokens=8)


class Kind(str, Enum):
    wizard = "wizard"
    muggle = "muggle"


class Character(BaseModel):
    name: str
    kind: Kind
    age: int


CHARACTER_REGEX = (
    r'\{\n    "name": "[\w ]{1,16}",\n    "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n'
    r'    "alive": (true|false),\n    "wand": \{"length": [0-9]{1,2}\.[0-9]\}\n\}'
)


@sgl.function
def character_by_regex(s, name):
    s += name + " is a character in Harry Potter. Please fill in the following information about this character.\n"
    s += sgl.gen("json_output", max_tokens=96, regex=CHARACTER_REGEX)


@sgl.function
def character_by_schema(s, name):
    s += name + " as JSON: " + sgl.gen("json_output", max_tokens=64, json_schema=Character)


@sgl.function
def chinese(s):
    s += "写一句关于天气的话：" + sgl.gen("answer", max_tokens=48, regex="今天天气[一-龥]{1,3}。")


@sgl.function
def choices_logprob(s, question):
    s += "To answer this question: " + question + ", I need to use a "
    s += sgl.gen("tool", choices=["calculator", "search engine"])


@sgl.function
def cot_decoding(s, question, get_top_k):
    s += "Question: " + question + "\nAnswer:"
    step_0 = s.fork(1)[0]
    forks = s.fork(get_top_k)
    step_0 += sgl.gen(
        "get_top_k", max_tokens=0, return_logprob=True, top_logprobs_num=get_top_k, return_text_in_logprobs=True
    )
    logprobs = step_0.get_meta_info("get_top_k")["output_top_logprobs"][0]
    answers = []
    for f, (_, _, text) in zip(forks, logprobs, strict=True):
        f += text
        f += sgl.gen(
            "answer", temperature=0, max_tokens=4, return_logprob=True, top_logprobs_num=2, return_text_in_logprobs=True
        )
        tops = f.get_meta_info("answer")["output_top_logprobs"]
        gap = sum(exp(first[0]) - exp(second[0]) for first, second in tops) / len(tops)
        answer_fork = f.fork(1)[0]
        answer_fork += "\nSo the answer is" + sgl.gen("answer_span", temperature=0, max_tokens=4)
        answers.append((gap, text + f["answer"], answer_fork["answer_span"]))
    return answers


@sgl.function
def parallel_sample(s, question, n):
    s += "Question: Compute 1 + 2 + 3\nReasoning: I need to use a calculator.\nTool: calculator\nAnswer: 6\n"
    s += "Question: Compute 3 + 2 + 2\nReasoning: I will try a calculator.\nTool: calculator\nAnswer: 7\n"
    s += "Question: " + question + "\n"
    forks = s.fork(n)
    forks += "Reasoning:" + sgl.gen("reasoning", stop="\n", max_tokens=8) + "\n"
    forks += "Tool:" + sgl.gen("tool", choices=["calculator", "browser"]) + "\n"
    forks += "Answer:" + sgl.gen("answer", stop="\n", max_tokens=4) + "\n"
    forks.join()


@sgl.function
def thinker(s, question):
    s += sgl.user(question)
    s += sgl.assistant(sgl.separate_reasoning(sgl.gen("answer", max_tokens=32), model_type="qwen3"))


# -- scripted --


def test_quick_start(scripted: Any) -> None:
    scripted({"answer_1": "one", "answer_2": "two"})
    state = multi_turn_question.run("q1", "q2")
    assert [message["role"] for message in state.messages()] == ["user", "assistant"] * 2
    assert state["answer_1"] == "one"
    state = multi_turn_question.run("q1", "q2", stream=True)
    assert "".join(state.text_iter()) == state.text()
    scripted(["one", "uno", "two"])
    state = several_answers.run("q1", "q2")
    assert (state["answer_1"], state["answer_2"]) == (["one", "uno"], "two")
    assert state.messages()[2]["content"] == "one"


def test_tool_use_and_tips(scripted: Any) -> None:
    scripted({"expression": " 2+2", "word": " capital"}, score=lambda prompt, choice: [-len(choice) * 1.0])
    state = tool_use.run("2+2")
    assert state.text() == "To answer this question: 2+2. I need to use a calculator. The math expression is 2+2"
    scripted(lambda call: " of " + call.owner.branch if call.owner.var == "detailed_tip" else ": be well.")
    state = tip_suggestion.run()
    assert state.text().endswith("Tip 1: of 0.0\nTip 2: of 0.1\nIn summary: be well.")


def test_choices_have_their_log_probabilities(scripted: Any) -> None:
    scripted(score=lambda prompt, choice: [-0.5] * len(choice.split()))
    meta = choices_logprob.run("q").get_meta_info("tool")
    assert meta["normalized_prompt_logprobs"] == [-0.5, -0.5]
    assert [len(row) for row in meta["input_token_logprobs"]] == [1, 2]
    assert meta["output_token_logprobs"] == [[], []]


def test_a_parameter_called_n(scripted: Any) -> None:
    backend = scripted({"reasoning": " Think.", "answer": " 7"})
    state = parallel_sample.run(question="Compute 5 + 2 + 4.", n=3, temperature=1.0)
    assert len(state["reasoning"]) == len(state["tool"]) == len(state["answer"]) == 3
    assert backend.prompts("commit") == [state.text()]
    states = parallel_sample.run_batch([{"question": "Compute 1 + 1", "n": 2}, {"question": "Compute 2 + 2", "n": 4}])
    assert [len(state["answer"]) for state in states] == [2, 4]


def test_reasoning(scripted: Any) -> None:
    scripted("<think>Two and two.</think>Four.")
    state = thinker.run("2+2?")
    assert (state["answer"], state["answer_reasoning_content"]) == ("Four.", "Two and two.")
    assert state.messages()[-1]["content"] == "Four."


def test_bind_trace_and_cache(scripted: Any) -> None:
    backend = scripted(" x")
    shots = "Q: a long question?\nA: a long answer.\n" * 4

    @sgl.function
    def few_shot(s, examples, question):
        s += examples + "Q: " + question + "\nA:" + sgl.gen("answer", stop="\n")

    bound = few_shot.bind(examples=shots)
    assert repr(shots)[:-1] in str(bound.trace())
    assert bound.cache() == shots + "Q: "
    assert backend.prompts("commit") == [shots + "Q: "]
    compiled = bound.compile()
    states = compiled.run_batch([{"question": "b"}, {"question": "c"}])
    assert [state["answer"] for state in states] == [" x", " x"]


def test_server_info_and_flush(scripted: Any) -> None:
    backend = scripted()
    assert sgl.get_server_info()["model"] == "scripted"
    assert sgl.flush_cache() is True
    assert backend.flushes == 1


# -- on the embedded model --


@pytest.mark.model
def test_model_quick_start(model: Any) -> None:
    state = multi_turn_question.run("Name a fruit.", "Name another one.", temperature=0)
    assert len(state.messages()) == 4
    state = several_answers.run("Name a fruit.", "Name another one.", seed=3)
    assert isinstance(state["answer_1"], list)
    assert state.messages()[2]["content"] == state["answer_1"][0].lstrip()
    states = multi_turn_question.run_batch([("Name a fruit.", "Another.")] * 2, max_new_tokens=4, temperature=0)
    assert [len(state.messages()) for state in states] == [4, 4]


@pytest.mark.model
def test_model_usage(model: Any) -> None:
    state = tool_use.run("What is the capital of France?")
    assert state["tool"] in ("calculator", "search engine")
    state.sync()
    assert ("expression" in state) != ("word" in state)
    state = tip_suggestion.run(temperature=0)
    assert state["summary"]
    assert "\n\n" not in state.text().split("Tip 1:")[1].split("In summary")[0]
    meta = choices_logprob.run("What is 2 + 2").get_meta_info("tool")
    texts = ["".join(triple[2] for triple in row) for row in meta["input_token_logprobs"]]
    assert texts == ["calculator", "search engine"]
    assert "".join(text_qa.run("What is ice?", stream=True).text_iter()).startswith("Q: What is ice?\nA:")


@pytest.mark.model
def test_model_json_and_utf8(model: Any) -> None:
    character = json.loads(character_by_regex.run("Harry", temperature=0)["json_output"])
    assert character["house"] in ("Gryffindor", "Slytherin", "Ravenclaw", "Hufflepuff")
    assert isinstance(character["alive"], bool)
    state = character_by_schema.run("Harry Potter, wizard, aged 11,", temperature=0)
    if state.get_meta_info("json_output")["finish_reason"]["type"] == "stop":
        Character.model_validate_json(state["json_output"])
    else:  # the model has used all its tokens for a name
        assert state["json_output"].startswith("{")
    answer = chinese.run(temperature=0)["answer"]
    assert answer.startswith("今天天气")
    assert answer.endswith("。")
    assert "\ufffd" not in answer


@pytest.mark.model
def test_model_cot_decoding(model: Any) -> None:
    answers = cot_decoding.run("What is 2 + 2?", get_top_k=3).ret_value
    assert len(answers) == 3
    assert len({text for _, text, _ in answers}) == 3
    assert all(0 <= gap <= 1 and span for gap, _, span in answers)


@pytest.mark.model
def test_model_parallel_samples(model: Any) -> None:
    state = parallel_sample.run(question="Compute 5 + 2 + 4", n=4, temperature=1.0, seed=5)
    assert len(state["answer"]) == 4
    assert set(state["tool"]) <= {"calculator", "browser"}
    assert len(set(state["reasoning"])) > 1  # branches draw for themselves


@pytest.mark.model
def test_model_streaming(model: Any) -> None:
    async def both() -> tuple[str, str]:
        state = await multi_turn_question.arun("Name a fruit.", "Another.", stream=True, temperature=0)
        first = "".join([piece async for piece in state.text_async_iter("answer_1")])
        return first, await state.get("answer_1")

    first, value = asyncio.run(both())
    assert first == value


@pytest.mark.model
def test_model_log_probabilities_agree_with_the_usage(model: Any) -> None:
    with sgl.Engine(runtime=model) as engine:
        result = engine.generate(
            "The capital of France is",
            {"temperature": 0, "max_new_tokens": 6},
            return_logprob=True,
            logprob_start_len=0,
        )
    meta = result["meta_info"]
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"]
    assert len(meta["output_token_logprobs"]) == meta["completion_tokens"]
    assert "Paris" in result["text"]

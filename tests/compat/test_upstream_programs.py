"""The programs of SGLang's own list, as users write them: what each says on a scripted backend, and that each runs on
the embedded model. Answers are checked where a model of that size can know them; structure is checked exactly.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

import lmnb as sgl

CAPITALS = """
Q: What is the capital of France?
A: Paris

Q: What is the capital of Germany?
A: Berlin

Q: What is the capital of Italy?
A: Rome
"""


@sgl.function
def few_shot_qa(s, question):
    s += "The following are questions with answers.\n" + CAPITALS
    s += "\nQ: " + question + "\n"
    s += "A:" + sgl.gen("answer", stop="\n", temperature=0, max_tokens=8)


@sgl.function
def mt_bench(s, question_1, question_2):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1"))
    with s.user():
        s += question_2
    with s.assistant():
        s += sgl.gen("answer_2")


@sgl.function
def true_or_false(s, statement):
    s += "Determine whether the statement below is True, False, or Unknown.\n"
    s += "Statement: The capital of France is Pairs.\nAnswer: True\n"
    s += "Statement: " + statement + "\nAnswer:"
    s += sgl.select("answer", ["True", "False", "Unknown"])


@sgl.function
def decode_int(s):
    s += "The number of hours in a day is " + sgl.gen_int("hours") + "\n"
    s += "The number of days in a year is " + sgl.gen_int("days") + "\n"


@sgl.function
def decode_json_regex(s, name):
    s += name + " is described in this JSON:\n"
    with s.var_scope("json_output"):
        s += "{\n"
        s += '  "name": "' + sgl.gen(regex=r"[A-Za-z ]{1,12}") + '",\n'
        s += '  "population": ' + sgl.gen(regex=r"[1-9][0-9]{2,6}") + ",\n"
        s += '  "rating": ' + sgl.gen(regex=r"[0-9]\.[0-9]") + "\n"
        s += "}"


@sgl.function
def decode_json(s):
    s += "Generate a JSON object to describe the basic city information of Paris.\n"
    s += "Here are the JSON object:\n"
    with s.var_scope("json_output"):
        s += "{\n"
        s += '  "name": ' + sgl.gen_string(max_tokens=8) + ",\n"
        s += '  "population": ' + sgl.gen_int(max_tokens=8, stop=["\n", ","]) + ",\n"
        s += '  "latitude": ' + sgl.gen(dtype=float, max_tokens=6) + ",\n"
        s += '  "capital": ' + '"' + sgl.gen(dtype=bool, max_tokens=4) + '"\n'
        s += "}\n"


@sgl.function
def expert_answer(s, question):
    s += "Question: " + question + "\n"
    s += "A good person to answer this question is" + sgl.gen("expert", stop=[".", "\n"], max_tokens=8) + ".\n"
    s += "For example," + sgl.gen("again", stop=[".", "\n"], max_tokens=4) + s["expert"] + " would answer: "
    s += sgl.gen("answer", stop=".", max_tokens=16)


@sgl.function
def tool_use(s, lhs, rhs):
    s += "Please perform computations using a calculator. You can use calculate(expression) to get the results.\n"
    s += "For example,\ncalculate(1+2)=3\ncalculate(3*4)=12\n"
    s += "Question: What is the product of " + lhs + " and " + rhs + "?\n"
    s += "Answer: The answer is calculate(" + sgl.gen("expression", stop=")", regex=r"[0-9]{1,3}\*[0-9]{1,3}") + ") = "
    with s.var_scope("answer"):
        s += str(eval(s["expression"]))


@sgl.function
def react(s, question):
    s += "Question: " + question + "\n"
    for i in range(1, 4):
        s += f"Thought {i}:" + sgl.gen(f"thought_{i}", stop=["Action", "\n"], max_tokens=12) + "\n"
        s += f"Action {i}: " + sgl.select("action", ["Search[", "Finish["])
        if s["action"] == "Finish[":
            s += sgl.gen("answer", stop="]", max_tokens=8) + "]\n"
            return i
        s += sgl.gen(f"query_{i}", stop="]", max_tokens=8) + "]\n"
        s += f"Observation {i}: Nothing was found.\n"
    s += "Finish[" + sgl.gen("answer", stop="]", max_tokens=8) + "]\n"
    return 3


@sgl.function
def parallel_decoding(s, topic):
    s += "Act as a helpful assistant.\nUSER: Give some tips for " + topic + ".\n"
    s += "ASSISTANT: Okay. Here are " + str(5) + " concise tips, each under 8 words:\n"
    forks = s.fork(5)
    for i in range(5):
        forks[i] += f"Now, the {i + 1}th tip: " + sgl.gen("tip", max_tokens=6, stop=[".", "\n"]) + "."
    forks.join()
    s += "Now, the tips again:\n"
    for i in range(5):
        s += f"{i + 1}. " + forks[i]["tip"] + ".\n"
    s += "In summary," + sgl.gen("summary", max_tokens=8)


@sgl.function
def parallel_encoding(s, question, context_0, context_1, context_2):
    s += "USER: I will ask a question based on some statements.\n"
    s += "Please give me the answer based on the statements.\n\n"
    contexts = [context_0, context_1, context_2]
    forks = s.fork(len(contexts))
    forks += lambda i: f"Statement {i}: " + contexts[i] + "\n"
    forks.join(mode="concate_and_append")
    s += "Now, please answer the question. " + "Question: " + question + "\nAnswer:" + sgl.gen("answer", max_tokens=8)


@sgl.function
def qa(s, question):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=12))


@sgl.function
def ip_address(s):
    s += "Q: What is the IP address of the Google DNS servers?\n"
    s += "A: " + sgl.gen(
        "answer", temperature=0, regex=r"((25[0-5]|2[0-4]\d|[01]?\d\d?).){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"
    )


@sgl.function
def dtypes(s):
    s += "The number 3 as text is " + sgl.gen("str_res", dtype="str", max_tokens=8) + "\n"
    s += "The number three is " + sgl.gen("int_res", dtype="int", max_tokens=4) + "\n"
    s += "The number pi is " + sgl.gen("float_res", dtype="float", max_tokens=6) + "\n"
    s += "Python is a language: " + sgl.gen("bool_res", dtype="bool", max_tokens=4)


@sgl.function
def min_tokens(s, least):
    s += "Q: What is the capital of the United States?\nA: " + sgl.gen("answer", min_tokens=least, max_tokens=least)


@sgl.function
def hellaswag(s, shots, question, choices):
    s += shots + question
    s += sgl.select("answer", choices=choices)


@sgl.function(num_api_spec_tokens=64)
def speculated(s, name):
    s += "Construct a character within the following format:\n"
    s += "Name: Ada. Birthday: 1815. Job: programmer.\n\n"
    s += "Name: " + name + ". Birthday:" + sgl.gen("birthday", stop=".", max_tokens=8)
    s += ". Job:" + sgl.gen("job", stop=".", max_tokens=8) + "."


@sgl.function
def streamed_logprobs(s):
    s += "1, 2, 3," + sgl.gen("answer", max_tokens=8, temperature=0, return_logprob=True, top_logprobs_num=2)


# -- scripted --


def test_few_shot_qa(scripted: Any) -> None:
    backend = scripted({"answer": " Washington, D.C.\nQ: more"})
    state = few_shot_qa.run(question="What is the capital of the United States?")
    assert state["answer"] == " Washington, D.C."
    assert state.text().endswith("\nQ: What is the capital of the United States?\nA: Washington, D.C.")
    rows = [{"question": f"What is the capital of {land}?"} for land in ("Japan", "the United Kingdom", "China")]
    states = few_shot_qa.run_batch(rows, temperature=0.1)
    assert [row["question"] in state.text() for row, state in zip(rows, states, strict=True)] == [True] * 3
    assert backend.prompts("commit") == ["The following are questions with answers.\n" + CAPITALS + "\nQ: "]
    assert {call.params.temperature for call in backend.calls if call.params} == {0}


def test_mt_bench(scripted: Any) -> None:
    scripted({"answer_1": "one", "answer_2": "two"})
    for state in (mt_bench.run("q1", "q2"), mt_bench.run_batch([{"question_1": "q1", "question_2": "q2"}])[0]):
        assert state.messages() == [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "q1"},
            {"role": "assistant", "content": "one"},
            {"role": "user", "content": "q2"},
            {"role": "assistant", "content": "two"},
        ]


def test_select(scripted: Any) -> None:
    scripted(score=lambda prompt, choice: [-1.0 if ("London" in prompt) == (choice == "True") else -2.0])
    states = true_or_false.run_batch([("The capital of the UK is London.",), ("2 + 2 = 5",)])
    assert [state["answer"] for state in states] == ["True", "False"]


def test_decode_int_and_dtypes(scripted: Any) -> None:
    backend = scripted(
        {
            "hours": "24 ",
            "days": "365\nrest",
            "str_res": '"3"',
            "int_res": "3 ",
            "float_res": "3.14 ",
            "bool_res": "True",
        }
    )
    state = decode_int.run()
    assert (state["hours"], state["days"]) == ("24", "365")
    params = backend.calls[0].params
    assert (params.constraint.kind, params.stop) == ("regex", (" ", "\n"))
    state = dtypes.run()
    assert (json.loads(state["str_res"]), int(state["int_res"]), float(state["float_res"])) == ("3", 3, 3.14)
    assert state["bool_res"] == "True"


def test_decode_json(scripted: Any) -> None:
    scripted(["Paris", "2102650", "4.5", '"Paris"', "2102650", "48.85", "True"])
    assert json.loads(decode_json_regex.run(name="Paris")["json_output"]) == {
        "name": "Paris", "population": 2102650, "rating": 4.5
    }  # fmt: skip
    output = json.loads(decode_json.run()["json_output"])
    assert output == {"name": "Paris", "population": 2102650, "latitude": 48.85, "capital": "True"}


def test_expert_answer_and_tool_use(scripted: Any) -> None:
    scripted({"expert": " Ada Lovelace. Others", "again": " ", "answer": "Paris. Sure", "expression": "123*456)"})
    state = expert_answer.run(question="What is the capital of France?")
    assert "question is Ada Lovelace.\nFor example,  Ada Lovelace would answer: Paris" in state.text()
    state = tool_use.run(lhs="123", rhs="456")
    assert int(state["answer"]) == 123 * 456


def test_react(scripted: Any) -> None:
    scores = {"Search[": [-1.0], "Finish[": [-2.0]}
    scripted(
        {"thought_1": " think\nx", "query_1": "Nokia]", "thought_2": " now Action", "answer": "Finland]"},
        score=lambda prompt, choice: [-scores[choice][0] * (1 if "Thought 2" in prompt else -1)],
    )
    state = react.run(question="Where is Nokia from?")
    assert (state.ret_value, state["answer"], state["action"]) == (2, "Finland", "Finish[")
    assert "Action 1: Search[Nokia]\nObservation 1: Nothing was found.\nThought 2:" in state.text()


def test_parallel_decoding_and_encoding(scripted: Any) -> None:
    backend = scripted(lambda call: f"{call.owner.branch}. more")
    state = parallel_decoding.run(topic="staying healthy", max_new_tokens=64)
    assert state["tip"] == [f"0.{i}"[:1] for i in range(5)]  # each tip ends at its stop
    assert "1. 0.\n2. 0.\n" in state.text()
    assert len(backend.prompts("commit")) == 1
    state = parallel_encoding.run(
        question="Who is taller?", context_0="Noah is taller than Liam.", context_1="Liam is short.", context_2="End."
    )
    assert state.text().startswith(
        "USER: I will ask a question based on some statements.\nPlease give me the answer based on the statements.\n\n"
        "Statement 0: Noah is taller than Liam.\nStatement 1: Liam is short.\nStatement 2: End.\nNow, please"
    )


def test_streams(scripted: Any) -> None:
    scripted("Washington is the capital.", token_delay=0.001)
    state = qa.run(question="q", stream=True)
    assert "".join(state.text_iter()) == state.text()
    assert "".join(qa.run(question="q", stream=True).text_iter("answer")) == "Washington is the capital."

    async def read() -> str:
        other = qa.run(question="q", stream=True)
        return "".join([piece async for piece in other.text_async_iter("answer")])

    assert asyncio.run(read()) == "Washington is the capital."


def test_min_tokens_and_speculation_are_handed_on(scripted: Any) -> None:
    backend = scripted("x")
    min_tokens.run(least=64).sync()
    assert backend.calls[-1].params.min_new_tokens == 64
    state = speculated.run("Bo")
    assert (state["birthday"], state["job"]) == ("x", "x")
    assert speculated.bind(name="Bo").num_api_spec_tokens == 64


def test_hellaswag_select(scripted: Any, data: Any) -> None:
    rows = data("hellaswag")
    right = {row["endings"][row["label"]] for row in rows}
    scripted(score=lambda prompt, choice: [-1.0 if choice in right else -2.0])
    arguments = [{"question": row["context"], "choices": row["endings"]} for row in rows]
    bound = hellaswag.bind(shots="".join(row["context"] + row["endings"][row["label"]] + "\n\n" for row in rows[:2]))
    in_a_list = [state["answer"] for state in bound.run_batch(arguments, temperature=0)]
    one_by_one = [state["answer"] for state in bound.run_batch(arguments, temperature=0, generator_style=True)]
    assert in_a_list == one_by_one == [row["endings"][row["label"]] for row in rows]


# -- on the embedded model --


@pytest.mark.model
def test_model_few_shot_and_batches(model: Any) -> None:
    model.flush_cache()
    state = few_shot_qa.run(question="What is the capital of the United States?")
    assert state["answer"].strip()
    assert "\n" not in state["answer"]
    rows = [{"question": f"What is the capital of {land}?"} for land in ("Japan", "the United Kingdom", "China")]
    states = few_shot_qa.run_batch(rows)
    assert [
        name in state["answer"].lower() for name, state in zip(("tokyo", "london", "beijing"), states, strict=True)
    ] == [True] * 3
    metas = [state.get_meta_info("answer") for state in states]
    shots = len(
        model.encode_prompt("The following are questions with answers.\n" + CAPITALS + "\nQ: What is the capital of")
    )
    assert all(shots - 2 <= meta["cached_tokens"] < meta["prompt_tokens"] for meta in metas)


@pytest.mark.model
def test_model_chat(model: Any) -> None:
    state = mt_bench.run("Name a colour.", "Another one?", max_new_tokens=8, temperature=0)
    assert len(state.messages()) in (4, 5)
    assert all(message["content"] for message in state.messages())
    first, second = state.get_meta_info("answer_1"), state.get_meta_info("answer_2")
    # The second turn starts from the first one's tokens, the generated ones included.
    assert second["cached_tokens"] >= first["prompt_tokens"] + first["completion_tokens"] - 1


@pytest.mark.model
def test_model_constraints(model: Any) -> None:
    assert true_or_false.run("The capital of Germany is Berlin.")["answer"] in ("True", "False", "Unknown")
    state = decode_int.run(temperature=0, max_new_tokens=4)  # so small a model may go on with zeros
    assert [state[name].startswith(start) for name, start in (("hours", "24"), ("days", "365"))] == [True, True]
    assert int(state["hours"]) * int(state["days"]) > 0
    city = json.loads(decode_json_regex.run(name="Paris", temperature=0)["json_output"])
    assert isinstance(city["name"], str)
    assert isinstance(city["population"], int)
    parsed = json.loads(decode_json.run(temperature=0)["json_output"])
    assert isinstance(parsed["name"], str)
    state = dtypes.run(temperature=0)
    assert isinstance(json.loads(state["str_res"]), str)
    assert int(state["int_res"]) == 3
    assert float(state["float_res"]) == pytest.approx(3.14, abs=0.2)
    assert state["bool_res"] in ("True", "False")
    assert re.fullmatch(r"(\d{1,3}.){3}\d{1,3}", ip_address.run()["answer"])


@pytest.mark.model
def test_model_control_flow(model: Any) -> None:
    state = expert_answer.run(question="What is the capital of France?", temperature=0)
    assert state.text().endswith(f"{state['expert']} would answer: {state['answer']}")
    assert not any("." in state[name] or "\n" in state[name] for name in ("expert", "again"))
    state = tool_use.run(lhs="12", rhs="34", temperature=0)
    assert int(state["answer"]) == eval(state["expression"])
    state = react.run(question="Which country is Nokia from?", temperature=0)
    assert state.ret_value in (1, 2, 3)
    assert state.text().count("Observation") == (state.ret_value - 1 if state["action"] == "Finish[" else 3)


@pytest.mark.model
def test_model_forks(model: Any) -> None:
    state = parallel_decoding.run(topic="sleeping well", temperature=0.5, seed=1)
    assert len(state["tip"]) == 5
    assert all("." not in tip and "\n" not in tip for tip in state["tip"])
    assert state["summary"]
    state = parallel_encoding.run(
        question="Who is the tallest?",
        context_0="Noah is taller than Liam.",
        context_1="Liam is taller than Emma.",
        context_2="Nobody is taller than Noah.",
        temperature=0,
    )
    assert state["answer"].split()[0].strip(".,") in ("Noah", "Liam", "Emma")


@pytest.mark.model
def test_model_streams_with_log_probabilities(model: Any) -> None:
    async def read() -> list[Any]:
        state = streamed_logprobs.run(stream=True)
        return [item async for item in state.text_async_iter("answer", return_meta_data=True)]

    items = asyncio.run(read())
    seen = 0
    for _, meta in items:
        seen += len(meta["output_token_logprobs"])
        assert meta["completion_tokens"] == seen
    assert seen == 8
    assert "".join(text for text, _ in items).startswith(" 4, 5")


@pytest.mark.model
def test_model_min_tokens(model: Any) -> None:
    state = min_tokens.run(least=24, temperature=0)
    assert state.get_meta_info("answer")["completion_tokens"] == 24
    state = speculated.run("Bo", temperature=0)
    assert "." not in state["birthday"] + state["job"]


@pytest.mark.model
def test_model_hellaswag(model: Any, data: Any) -> None:
    rows = data("hellaswag")
    shots = "".join(row["context"] + row["endings"][row["label"]] + "\n\n" for row in rows[:2])
    arguments = [{"question": row["context"], "choices": row["endings"]} for row in rows[2:]]
    states = hellaswag.bind(shots=shots).run_batch(arguments, temperature=0)
    right = [state["answer"] == row["endings"][row["label"]] for state, row in zip(states, rows[2:], strict=True)]
    assert sum(right) > 0.6 * len(right)
    for state in states:
        meta = state.get_meta_info("answer")
        assert len(meta["input_token_logprobs"]) == 4
        assert meta["cached_tokens"] > 0.5 * meta["prompt_tokens"]

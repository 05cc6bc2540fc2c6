"""The programs that SGLang is measured with: their structure on a scripted backend, and on the embedded model, where
branches, stops and reuse are checked exactly. Rows of data are written for these tests.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

import lmnb as sgl

SHOTS = (
    "Question: Tom has 2 apples and buys 3. How many has he?\nAnswer: 2 + 3 = 5\n\n"
    "Question: A box holds 4 pens. How many do 2 boxes hold?\nAnswer: 2 * 4 = 8\n\n"
)


@sgl.function
def gsm8k(s, question):
    s += SHOTS + "Question: " + question + "\nAnswer:"
    s += sgl.gen("answer", max_tokens=16, stop=["Question", "Assistant:", "\n"])


@sgl.function
def mmlu(s, shots, question, choices):
    s += shots + question + "\n" + "\n".join(f"{letter}. {text}" for letter, text in zip("ABCD", choices, strict=True))
    s += "\nAnswer:" + sgl.gen("answer", max_tokens=1)


@sgl.function
def boolq(s, passage, question):
    s += "Passage: " + passage + "\nQuestion: " + question + "?\nAnswer (yes or no): "
    s += sgl.select("answer", ["yes", "no"], choices_method=sgl.unconditional_likelihood_normalized)


@sgl.function
def multi_chain_reasoning(s, question, num_chains):
    s += SHOTS + "Question: " + question + "\n"
    forks = s.fork(num_chains)
    for i in range(num_chains):
        forks[i] += (
            "Answer (chain " + str(i) + "):" + sgl.gen("chain", max_tokens=10, temperature=0.6, stop=["Question", "\n"])
        )
    forks.join()
    s += "Here are the chains:\n" + "\n".join(s["chain"]) + "\nThe best one is chain "
    s += sgl.select("best", [str(i) for i in range(num_chains)])


def propose_plan(s, question, num_branches):
    s += sgl.user("Plan how to solve this step by step:\n" + question)
    forks = s.fork(num_branches)
    forks += sgl.assistant(sgl.gen("plan", max_tokens=8, temperature=0.6))
    return forks


def execute_plan(s, num_branches):
    s += sgl.user("Carry out the plan and give the answer.")
    forks = s.fork(num_branches)
    forks += sgl.assistant(sgl.gen("answer", max_tokens=8, temperature=0.6))
    return forks


def reflect(s):
    s += sgl.user("Rate the answer from 1 to 5.")
    s += sgl.assistant(sgl.gen("score", regex="[1-5]"))


@sgl.function
def tree_of_thought(s, question, num_branches):
    solutions = []
    for plan in propose_plan(s, question, num_branches):
        for solution in execute_plan(plan, num_branches):
            reflect(solution)
            solutions.append(solution)
    return max(solutions, key=lambda solution: int(solution["score"]))["answer"]


@sgl.function
def react_replay(s, question, triplets):
    """A recorded run: the model writes, and what it wrote is replaced by what was recorded."""
    s += "Solve a question answering task with Thought, Action and Observation steps.\nQuestion: " + question + "\n"
    for i, (thought, action, observation) in enumerate(triplets, 1):
        branch = s.fork(1)[0]
        branch += f"Thought {i}:" + sgl.gen("thought_action", stop=[f"Observation {i}"], max_tokens=8)
        branch.sync()
        s += f"Thought {i}: {thought}\nAction {i}: {action}\nObservation {i}: {observation}\n"


@sgl.function
def poignancy(s, persona, event):
    s += "Here is a brief description of " + persona + ".\nOn the scale of 1 to 10, rate how poignant this event is.\n"
    s += "Event: " + event + "\nRate (return a number between 1 to 10): " + sgl.gen("rating", regex="10|[1-9]")


@sgl.function
def event_triple(s, persona, event):
    s += "Turn the input into (subject, predicate, object).\n"
    s += "Input: Ada Lovelace is reading.\nOutput: (Ada, read, book)\n"
    s += "Input: " + persona + " " + event + "\nOutput: (" + sgl.gen("triple", stop=")", max_tokens=10) + ")"


@sgl.function
def next_area(s, persona, areas, event):
    s += persona + " wants to go somewhere for: " + event + ". The areas are: " + ", ".join(areas) + ". Answer: "
    s += sgl.select("area", areas)


@sgl.function
def expand_tip(s, topic, tip):
    s += "Please expand a tip for a topic into a detailed paragraph.\n"
    s += "Topic: " + topic + "\nTip: " + tip + "\nParagraph:" + sgl.gen("text", max_tokens=10, stop=["\n"])


@sgl.function
def suggest_tips(s, topic, number):
    s += "Please act as a helpful assistant. Your job is to provide users with useful tips on a specific topic.\n"
    s += "USER: Give some tips for " + topic + ".\nASSISTANT: Okay. Here are " + str(number) + " concise tips:\n"
    paragraphs = []
    for i in range(1, number + 1):
        s += f"{i}." + sgl.gen(f"tip_{i}", max_tokens=6, stop=[".", "\n"]) + ".\n"
        paragraphs.append(expand_tip(topic=topic, tip=s[f"tip_{i}"]))
    for i, paragraph in enumerate(paragraphs, 1):
        s += f"Tip {i}:" + paragraph["text"] + "\n"


DIMENSIONS = ["Clarity", "Originality", "Evidence"]


@sgl.function
def llm_judge(s, essay):
    s += "Please evaluate the following essay about an image.\nEssay:\n" + essay + "\n"
    forks = s.fork(len(DIMENSIONS))
    for f, dimension in zip(forks, DIMENSIONS, strict=True):
        f += "Evaluate the essay by " + dimension + ". Judgment:" + sgl.gen("judgment", max_tokens=8, stop="END")
    forks.join()
    s += "The judgments are:\n" + "\n".join(f"{d}:{j}" for d, j in zip(DIMENSIONS, s["judgment"], strict=True))
    s += "\nSummary:" + sgl.gen("summary", max_tokens=8) + "\nThe grade is " + sgl.select("grade", ["A", "B", "C", "D"])
    s += "\nIn JSON: " + sgl.gen("output", json_schema=json.dumps(JUDGMENT), max_tokens=48)


JUDGMENT = {
    "type": "object",
    "properties": {"grade": {"enum": ["A", "B", "C", "D"]}, "score": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["grade", "score"],
    "additionalProperties": False,
}
CITY = (
    r'\{"name": "[\w ]{1,12}", "country": "[\w ]{1,12}", '
    r'"latitude": -?[0-9]{1,2}\.[0-9], "population": [1-9][0-9]{0,6}\}'
)


@sgl.function
def json_city(s, document):
    s += "Please extract the information of a city from the following page.\n" + document + "\nHere is the JSON:\n"
    s += sgl.gen("json_output", max_tokens=64, regex=CITY)


@sgl.function
def multi_turn_chat(s, turns):
    for i, (question, length) in enumerate(turns):
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen(f"answer_{i}", max_tokens=length, ignore_eos=True))


@sgl.function
def multi_document_qa(s, documents, question):
    s += "Please answer a question according to given documents.\nDocuments begin.\n"
    forks = s.fork(len(documents), position_ids_offset=[0] * len(documents))
    forks += [f"<{i}> " + document + "\n" for i, document in enumerate(documents)]
    forks.join("concate_and_append")
    s += "Documents end.\nQuestion: " + question + "\nAnswer:" + sgl.gen("answer", max_tokens=8, stop="\n")


@sgl.function
def line_retrieval(s, prefix, lines, body):
    s += prefix + "\n"
    forks = s.fork(2)
    forks[0] += "\n".join(lines[: len(lines) // 2]) + "\n"
    forks[1] += "\n".join(lines[len(lines) // 2 :]) + "\n"
    forks.join("concate_and_append")
    s += body + sgl.gen("answer", max_tokens=6, stop="\n")


# -- scripted --


def test_few_shot_batches_share_their_shots(scripted: Any, data: Any) -> None:
    backend = scripted(" 7\nQuestion: more")
    rows = gsm8k.map(data("questions"), progress_bar=False, temperature=0)
    assert [row["answer"] for row in rows] == [" 7"] * len(rows)
    assert backend.prompts("commit") == [SHOTS + "Question: "]
    states = mmlu.run_batch([(SHOTS, "Which is a fruit?", ["stone", "apple", "car", "lamp"])] * 2, temperature=0)
    assert {call.params.max_new_tokens for call in backend.calls if call.params and "lamp" in call.prompt} == {1}
    assert "\nA. stone\nB. apple\nC. car\nD. lamp\nAnswer:" in states[0].text()


def test_chains_vote(scripted: Any) -> None:
    scripted(lambda call: f" {int(call.owner.branch[-1]) + 1}\n", score=lambda prompt, choice: [-abs(2 - int(choice))])
    state = multi_chain_reasoning.run("1 + 1?", 5)
    assert state["chain"] == [" 1", " 2", " 3", " 4", " 5"]
    assert state["best"] == "2"


def test_trees_of_thought(scripted: Any) -> None:
    def reply(call: Any) -> str:
        path = call.owner.branch
        return {"plan": f"plan {path}", "answer": f"answer {path}", "score": "5" if path == "0.1.2" else "3"}[
            call.owner.var
        ]

    backend = scripted(reply)
    state = tree_of_thought.run("24 from 1 2 3 4?", 3)
    assert state.ret_value == "answer 0.1.2"
    assert Counter(call.owner.var for call in backend.calls if call.kind == "generate") == {
        "plan": 3,
        "answer": 9,
        "score": 9,
    }
    assert len(backend.prompts("commit")) == 1 + 3
    deepest = [prompt for prompt in backend.prompts() if "Rate" in prompt]
    assert all("plan 0." in prompt and "answer 0." in prompt for prompt in deepest)


def test_replays(scripted: Any, data: Any) -> None:
    backend = scripted(" whatever\nObservation 1: no")
    rows = data("react")
    states = react_replay.run_batch(rows, num_threads=2)
    for row, state in zip(rows, states, strict=True):
        assert "whatever" not in state.text()
        assert state.text().count("Observation") == len(row["triplets"]) + 1
    assert len(backend.prompts()) == sum(len(row["triplets"]) for row in rows)


def test_generative_agents(scripted: Any, data: Any) -> None:
    scripted(
        {"rating": "7", "triple": "Ada, feed, cat) and"}, score=lambda prompt, choice: [-1.0 - ("park" not in choice)]
    )
    for row in data("agents"):
        assert int(poignancy.run(row["persona"], row["event"])["rating"]) == 7
        assert event_triple.run(row["persona"], row["event"]).text().endswith("Output: (Ada, feed, cat)")
        assert next_area.run(row["persona"], row["areas"], row["event"])["area"] == "park"


def test_tips_call_another_program(scripted: Any) -> None:
    backend = scripted(lambda call: f" {call.owner.var}.")
    state = suggest_tips.run("sleep", 3)
    assert state.text().endswith("1. tip_1.\n2. tip_2.\n3. tip_3.\nTip 1: text.\nTip 2: text.\nTip 3: text.\n")
    assert len({call.owner.run for call in backend.calls if call.owner}) == 1
    assert [call.prompt.split("Tip: ")[1] for call in backend.calls if call.owner.var == "text"] == [
        f" tip_{i}\nParagraph:" for i in (1, 2, 3)
    ]


def test_judge(scripted: Any, data: Any) -> None:
    backend = scripted({"judgment": " fine END x", "summary": " good", "output": '{"grade": "A", "score": 5}'})
    for essay in data("essays"):
        state = llm_judge.run(essay)
        assert state["judgment"] == [" fine "] * 3
        assert state["grade"] in "ABCD"
        assert json.loads(state["output"]) == {"grade": "A", "score": 5}
    assert len(backend.prompts("commit")) == len(data("essays"))


def test_long_chats_and_documents(scripted: Any, data: Any) -> None:
    backend = scripted(lambda call: "word " * 50)
    state = multi_turn_chat.run([("q1", 4), ("q2", 8)])
    assert [len(state[f"answer_{i}"].split()) for i in (0, 1)] == [4, 8]
    assert all(call.params.ignore_eos for call in backend.calls if call.params)
    row = data("documents")[0]
    state = multi_document_qa.run(row["documents"], row["question"])
    joined = "".join(f"<{i}> {document}\n" for i, document in enumerate(row["documents"]))
    assert f"Documents begin.\n{joined}Documents end.\n" in state.text()
    lines = [f"line {i}: REGISTER_CONTENT is <{i * 37}>" for i in range(8)]
    state = line_retrieval.run("Below is a record of lines.", lines, "What is in line 3? It is ")
    assert "\n".join(lines) in state.text()


# -- on the embedded model --


@pytest.mark.model
def test_model_few_shot(model: Any, data: Any) -> None:
    model.flush_cache()
    rows = gsm8k.map(data("questions"), progress_bar=False, temperature=0)
    assert [row["error"] for row in rows] == [None] * len(rows)
    shots = len(model.encode_prompt(SHOTS + "Question:"))
    assert all(row["cached_tokens"] >= shots - 1 for row in rows)
    assert all("\n" not in row["answer"] and "Question" not in row["answer"] for row in rows)
    again = gsm8k.map(data("questions"), progress_bar=False, temperature=0)
    assert [row["answer"] for row in again] == [row["answer"] for row in rows]
    state = mmlu.run(SHOTS, "Which is a fruit?", ["stone", "apple", "car", "lamp"], temperature=0)
    assert state.get_meta_info("answer")["completion_tokens"] == 1
    assert boolq.run("Ice is frozen water.", "is ice made of water")["answer"] in ("yes", "no")


@pytest.mark.model
def test_model_chains_and_trees(model: Any) -> None:
    state = multi_chain_reasoning.run("Ann has 3 pens and gets 4. How many?", 5, seed=1)
    assert len(state["chain"]) == 5
    assert state["best"] in "01234"
    model.flush_cache()
    before = model.status()
    state = tree_of_thought.run("Make 24 from 4, 6.", 2, seed=1)
    assert isinstance(state.ret_value, str)
    after = model.status()
    prompt, reused = after.prompt_tokens - before.prompt_tokens, after.reused_tokens - before.reused_tokens
    assert reused / prompt > 0.5


@pytest.mark.model
def test_model_replays_and_agents(model: Any, data: Any) -> None:
    rows = data("react")[:2]
    states = react_replay.run_batch(rows, temperature=0)
    assert [state.text().count("Action") for state in states] == [1 + len(row["triplets"]) for row in rows]
    row = data("agents")[0]
    assert 1 <= int(poignancy.run(row["persona"], row["event"], temperature=0)["rating"]) <= 10
    assert ")" not in event_triple.run(row["persona"], row["event"], temperature=0)["triple"]
    assert next_area.run(row["persona"], row["areas"], row["event"])["area"] in row["areas"]


@pytest.mark.model
def test_model_tips_and_judge(model: Any, data: Any) -> None:
    state = suggest_tips.run("sleeping well", 2, temperature=0)
    assert state.text().count("Tip ") == 2
    state = llm_judge.run(data("essays")[0], temperature=0)
    assert len(state["judgment"]) == 3
    judged = json.loads(state["output"])
    assert judged["grade"] in "ABCD"
    assert 1 <= judged["score"] <= 5


@pytest.mark.model
def test_model_json(model: Any) -> None:
    city = json.loads(
        json_city.run("Paris is the capital of France. It has 2 million people.", temperature=0)["json_output"]
    )
    assert set(city) == {"name", "country", "latitude", "population"}


@pytest.mark.model
def test_model_long_prompts(model: Any, data: Any) -> None:
    state = multi_turn_chat.run([("Tell me of the sea.", 4), ("More.", 8), ("And more.", 4)], temperature=0)
    counts = [state.get_meta_info(f"answer_{i}")["completion_tokens"] for i in range(3)]
    assert counts == [4, 8, 4]
    last = state.get_meta_info("answer_2")
    assert last["cached_tokens"] > 0.6 * last["prompt_tokens"]
    row = data("documents")[0]
    state = multi_document_qa.run(row["documents"], row["question"], temperature=0)
    exact = sgl.Runtime.encode_prompt(model, state.text().removesuffix(state["answer"]))
    assert state.get_meta_info("answer")["prompt_tokens"] == len(exact)  # text-equal, and so are the tokens
    lines = [f"line {i}: the secret is <{i * 37 % 90}>" for i in range(6)]
    assert line_retrieval.run("A record:", lines, "line 3: the secret is <", temperature=0)["answer"]

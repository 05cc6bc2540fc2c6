"""More of the programs that SGLang is measured with, and of its tests: deep trees, agents, long JSON, reasoning, raw
HTTP, prefixes shared within a batch, random trees of prompts, and traces under a template that moves its system turn.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from context_support import fake_runtime
from server_support import call, fake_server

import lmnb as sgl
from lmnb.backends.testing import ScriptedBackend

# -- tree of thought, with a final answer for each leaf --


@sgl.function
def deep_tree(s, question, width):
    s += sgl.user("Plan how to solve it, without calculating: " + question)
    answers = []
    for plan in branches(s, width, "plan"):
        plan += sgl.user("Carry the plan out.")
        for solution in branches(plan, width, "solution"):
            solution += sgl.user("Are you sure?")
            for reflection in branches(solution, width, "reflection"):
                reflection += sgl.user("Then the answer, as a number:")
                answers += branches(reflection, 1, "final")
    return [final["final"] for final in answers]


def branches(s, width, name):
    forks = s.fork(width)
    forks += sgl.assistant(sgl.gen(name, max_tokens=16, temperature=0.3))
    return forks


def test_a_deep_tree(scripted: Any) -> None:
    backend = scripted(lambda call: f"{call.owner.var} {call.owner.branch}")
    answers = deep_tree.run("1 + 1?", 2).ret_value
    assert len(answers) == 8
    assert answers[-1] == "final 0.1.1.1.0"
    last = next(prompt for prompt in backend.prompts() if "plan 0.1<" in prompt and "reflection 0.1.1.1<" in prompt)
    assert last.index("plan 0.1<") < last.index("solution 0.1.1<") < last.index("reflection 0.1.1.1<")
    assert len(backend.prompts("commit")) == 1 + 2 + 4  # a fork of one needs no hint


@pytest.mark.model
def test_model_a_deep_tree(model: Any) -> None:
    model.flush_cache()
    before = model.status()
    assert len(deep_tree.run("What is 2 + 3?", 2, seed=1).ret_value) == 8
    after = model.status()
    prompt, reused = after.prompt_tokens - before.prompt_tokens, after.reused_tokens - before.reused_tokens
    assert reused > 0.7 * prompt


# -- generative agents: the functions that test_benchmarks has not --


@sgl.function
def emoji(s, action):
    s += "Convert an action description to an emoji (use two or less emojis).\n"
    s += "Action description: " + action + ".\nEmoji:" + sgl.gen("emoji", stop=["\n"], max_tokens=6)


@sgl.function
def next_object(s, persona, area, objects, action):
    s += "Current activity: " + action + "\nObjects available: {" + ", ".join(objects) + "}\n"
    s += "Pick ONE most relevant object: " + sgl.gen("object", choices=objects)


def test_agents(scripted: Any, data: Any) -> None:
    backend = scripted({"emoji": " 📖✨\nAction"}, score=lambda prompt, choice: [-float(choice != "bed")])
    assert emoji.run("reading a book")["emoji"] == " 📖✨"
    state = next_object.run("Ada", "bedroom", ["desk", "bed", "lamp"], "sleeping")
    assert state.text().endswith("Objects available: {desk, bed, lamp}\nPick ONE most relevant object: bed")
    assert backend.calls[-1].choices == ("desk", "bed", "lamp")


@pytest.mark.model
def test_model_agents(model: Any) -> None:
    assert "\n" not in emoji.run("reading a book", temperature=0)["emoji"]
    assert next_object.run("Ada", "bedroom", ["desk", "bed"], "sleeping")["object"] in ("desk", "bed")


# -- long JSON, and schemas that come with their rows --

ITEMS = r'\{\n    "name": "[\w ]{1,8}",\n    "items": \["[\w ]{1,8}"(, "[\w ]{1,8}"){7}\]\n\}'


@sgl.function
def long_json(s, document):
    s += "Please extract the information of the following page.\n" + document + "\nHere is the JSON:\n"
    s += sgl.gen("json_output", max_tokens=200, regex=ITEMS)


@sgl.function
def by_schema(s, request, schema):
    s += sgl.user(request)
    s += sgl.assistant(sgl.gen("json_output", json_schema=schema, max_tokens=96))


SCHEMAS = [
    {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["age"]},
    {"type": "array", "items": {"enum": ["red", "blue"]}, "minItems": 1, "maxItems": 3},
    {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "tags": {"type": "array", "maxItems": 1}},
        "required": ["ok"],
    },
]


@pytest.mark.model
def test_model_long_json_and_schemas_of_rows(model: Any) -> None:
    import jsonschema

    found = json.loads(long_json.run("A shop sells apples, pears and plums.", temperature=0)["json_output"])
    assert len(found["items"]) == 8
    rows = [{"request": "An example, please.", "schema": json.dumps(schema)} for schema in SCHEMAS * 2]
    for state, schema in zip(by_schema.run_batch(rows, temperature=0), SCHEMAS * 2, strict=True):
        if state.get_meta_info("json_output")["finish_reason"]["type"] == "stop":
            jsonschema.validate(json.loads(state["json_output"]), schema)
        else:  # the model has used all its tokens in a text
            assert state["json_output"]


# -- reasoning: several tries at each row, and a vote --


@sgl.function
def reasoned(s, question):
    s += sgl.user(question + "\nPut the final answer after 'Answer:'.")
    s += sgl.assistant(
        sgl.separate_reasoning(sgl.gen("answer", max_tokens=256, temperature=0.6, top_p=0.95), model_type="deepseek-r1")
    )


def test_reasoning_in_several_tries(scripted: Any) -> None:
    said = iter(range(100))
    scripted(lambda call: f"<think>Try {next(said)}.</think>Answer: {4 if 'two' in call.prompt else 6}")
    questions = ["two and two?", "three and three?"]
    states = reasoned.run_batch([{"question": question} for question in questions for _ in range(4)], num_threads=8)
    assert [state["answer"] for state in states] == ["Answer: 4"] * 4 + ["Answer: 6"] * 4
    assert len({state["answer_reasoning_content"] for state in states}) == 8
    assert all("think" not in state.messages()[-1]["content"] for state in states)


# -- log-probabilities as a server tells them --


def test_log_probabilities_over_http_agree_with_the_usage() -> None:
    with fake_server() as server:
        for start, tops in ((-1, 0), (0, 0), (2, 5)):
            body = {
                "text": "The capital of France is",
                "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True},
                "return_logprob": True,
                "logprob_start_len": start,
                "top_logprobs_num": tops,
                "return_text_in_logprobs": True,
            }
            status, answer = call(server, "/generate", body)
            assert status == 200
            meta = answer["meta_info"]
            scored = 0 if start < 0 else meta["prompt_tokens"] - start
            assert len(meta["input_token_logprobs"]) == scored
            assert len(meta["output_token_logprobs"]) == meta["completion_tokens"] == 8
            if tops:
                assert [len(top) for top in meta["output_top_logprobs"]] == [tops] * 8
                assert len(meta["input_top_logprobs"]) == scored


# -- prompts that share a beginning, at once --


@sgl.function
def told(s, beginning, middle, end):
    s += beginning + middle + end + sgl.gen("x", max_tokens=1)


def test_a_prefix_shared_within_a_batch_is_computed_once() -> None:
    letters = random.Random(3)
    text = lambda size: "".join(letters.choices("abcdefgh", k=size))  # noqa: E731
    groups = [(text(100), text(100)) for _ in range(3)]
    rows = [{"beginning": a, "middle": b, "end": text(10)} for a, b in groups for _ in range(4)]
    random.Random(4).shuffle(rows)
    with fake_runtime() as runtime:
        table = told.map(rows, backend=runtime, progress_bar=False)
        assert [row["error"] for row in table] == [None] * 12
        computed = sum(row["prompt_tokens"] - row["cached_tokens"] for row in table)
        # What each group shares is computed once, and each row's own end; a token more where rows part.
        assert computed <= 3 * 200 + 12 * (10 + 2)


def test_a_random_tree_of_prompts_is_computed_along_its_edges_whatever_its_chunks() -> None:
    """400 nodes, each a prompt that goes on from its parent's; sent at once, in small chunks."""
    letters = random.Random(7)
    prompts = ["".join(letters.choices("abcdefgh", k=20))]
    edges = 20
    while len(prompts) < 400:
        more = "".join(letters.choices("abcdefgh", k=letters.randint(1, 12)))
        prompts.append(letters.choice(prompts) + more)
        edges += len(more)

    @sgl.function
    def say(s, prompt):
        s += prompt + sgl.gen("x", max_tokens=letters.randint(1, 4))

    with fake_runtime(prefill_chunk=16, kv_cache=20_000) as runtime:
        rows = [{"prompt": prompt} for prompt in letters.sample(prompts, len(prompts))]
        table = say.map(rows, backend=runtime, progress_bar=False)
        assert [row["error"] for row in table] == [None] * 400
        computed = sum(row["prompt_tokens"] - row["cached_tokens"] for row in table)
        assert computed <= edges + len(prompts)  # each edge once, and the last token of each prompt


# -- traces --


@sgl.function
def asked(s, question):
    s += sgl.system("You are helpful.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=4))


@sgl.function
def outer(s, question):
    inner = asked(question)
    s += "They say " + inner["answer"] + ", and then" + sgl.gen("more", max_tokens=4)


def test_a_trace_runs_as_the_program_under_a_template_that_moves_its_system_turn() -> None:
    with fake_runtime(chat_template="llama-2-chat") as runtime:
        direct = asked.run("Why?", temperature=0, backend=runtime)
        graph = asked.compile()
        again = graph.run("Why?", temperature=0, backend=runtime)
        assert again.text() == direct.text()
        assert direct.text().startswith("[INST] <<SYS>>\nYou are helpful.\n<</SYS>>\n\nWhy?")
        assert again.messages() == direct.messages()
        states = graph.run_batch([{"question": "Why?"}, {"question": "How?"}], temperature=0, backend=runtime)
        assert [state.text() for state in states] == [
            asked.run(question, temperature=0, backend=runtime).text() for question in ("Why?", "How?")
        ]


def test_programs_within_programs_are_traced_and_batched() -> None:
    backend = ScriptedBackend({"answer": "yes", "more": " no"})
    graph = outer.compile()
    states = graph.run_batch([{"question": "a"}, {"question": "b"}], backend=backend)
    assert [state.text() for state in states] == ["They say yes, and then no"] * 2
    assert sum("You are helpful." in prompt for prompt in backend.prompts()) == 2

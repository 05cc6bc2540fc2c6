"""SGLang's examples for vendors' APIs, a chat and a completion for each, and the programs of its OpenAI tests: on a
server that speaks each protocol. What it says is fixed; what is looked at is how programs and protocols fit together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from picture_support import png
from stub_server import Answer, Asked, Stub, stub_server

import lmnb as sgl
from lmnb.errors import ArgumentError, GenerationError
from lmnb.runtime.testing import ByteTokenizer

pytestmark = pytest.mark.filterwarnings("ignore:.*choices_method has no say")

# What the model goes on with, by how a prompt ends; "" is for the rest.
SAYS = {
    "capital of the United States?\nA:": " Washington, D.C.\n\nQ: What is",
    "capital of Japan?\nA:": " Tokyo\n\nQ: What",
    "hours in a day is ": "24 hours",
    "days in a year is ": "365\n",
    "capital of France is Pairs.\nAnswer:": " True\n",
    '"name": ': '"Paris",\n',
    '"population": ': "2102650,\n",
    "this question is": " a geographer.\nFor",
    "would answer: ": "Paris. It is",
    "calculate(": "123*456) = ",
    "Action 1: ": "Search[Nokia]",
    "Action 2: ": "Finish[Finland]",
    "Thought 1:": " search first\nAction",
    "Thought 2:": " that is it\nAction",
    "Search[": "Nokia]\n",
    "Finish[": "Finland]\n",
    "tip: ": "Sleep well.",
    "In summary,": " sleep.",
    "taller?\nAnswer:": " Noah",
    "Birthday:": " July 31, 1980. Job: wizard. Then",
    "list two facts": "one, two",
    "": "Something else.",
}


def says(prompt: str) -> str:
    return next(text for end, text in SAYS.items() if prompt.endswith(end))


def cut(text: str, body: Any, stops: str = "stop") -> tuple[str, str]:
    """Up to the first stop, and why it ended."""
    found = [at for stop in body.get(stops) or () if (at := text.find(stop)) >= 0]
    return (text[: min(found)], "stop") if found else (text, "stop")


def completion(asked: Asked) -> Answer:
    body = asked.json
    prompt = body["prompt"] if isinstance(body["prompt"], str) else bytes(body["prompt"]).decode()
    text = says(prompt)
    for begun in SAYS:  # a prompt that is in the middle of what is said
        at = prompt.rfind(begun) if begun else -1
        if at >= 0 and SAYS[begun].startswith(rest := prompt[at + len(begun) :]):
            text = SAYS[begun][len(rest) :]
    allowed = {chr(int(token)) for token in body.get("logit_bias", {})}
    if allowed:
        said = ""
        for sign in text[: body["max_tokens"]]:
            said += sign if sign in allowed else min(allowed)
        text = said
    text, reason = cut(text, body)
    base = {"id": "c", "object": "text_completion", "created": 1, "model": "m"}
    usage = {"prompt_tokens": len(prompt) // 4, "completion_tokens": 3, "total_tokens": 0}
    told = {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}
    if not body.get("stream"):
        return Answer({**base, "choices": [told], "usage": usage})
    pieces = [{**told, "text": text[at : at + 4], "finish_reason": None} for at in range(0, len(text), 4)]
    choices = [*pieces, {**told, "text": ""}]
    return Answer(events=(*({**base, "choices": [one]} for one in choices), {**base, "choices": [], "usage": usage}))


def openai_chat(asked: Asked) -> Answer:
    body = asked.json
    last = body["messages"][-1]["content"]
    prompt = last if isinstance(last, str) else last[-1]["text"]
    if "response_format" in body:
        kind = body["response_format"]["json_schema"]["schema"]["properties"]["value"]
        value = {"integer": 24, "string": kind.get("enum", ["x"])[-1]}[kind["type"]]
        text, reason = json.dumps({"value": value}), "stop"
    else:
        text, reason = cut(says(prompt), body)
    base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    pieces = [{"content": text[at : at + 4]} for at in range(0, len(text), 4)]
    choices = [{"index": 0, "delta": piece, "finish_reason": None} for piece in pieces]
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    usage = {"prompt_tokens": len(json.dumps(body["messages"])) // 4, "completion_tokens": 3, "total_tokens": 0}
    return Answer(events=(*({**base, "choices": [one]} for one in choices), {**base, "choices": [], "usage": usage}))


def anthropic(asked: Asked) -> Answer:
    body = asked.json
    text, _ = cut(says(body["messages"][-1]["content"]), body, "stop_sequences")
    usage = {"input_tokens": 5, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "c", "stop_reason": None}
    events = (
        {"type": "message_start", "message": {**message, "stop_sequence": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text[at : at + 4]}}
            for at in range(0, len(text), 4)
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    )
    return Answer(events=events, named=True)


def google(asked: Asked) -> Answer:
    body = asked.json
    text, _ = cut(says(body["contents"][-1]["parts"][-1]["text"]), body["generationConfig"], "stopSequences")
    pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
    chunks = [{"candidates": [{"content": {"role": "model", "parts": [{"text": piece}]}}]} for piece in pieces]
    chunks.append({"candidates": [{"content": {"role": "model", "parts": []}, "finishReason": "STOP"}]})
    return Answer(events=tuple(chunks), broken=True)


def rule(asked: Asked) -> Answer:
    if "completions" in asked.path and "chat" not in asked.path:
        return completion(asked)
    if asked.path.endswith("/messages"):
        return anthropic(asked)
    return google(asked) if "streamGenerateContent" in asked.path else openai_chat(asked)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    keys = "OPENAI_API_KEY AZURE_OPENAI_API_KEY OPENROUTER_API_KEY TOGETHER_API_KEY ANTHROPIC_API_KEY CRUSOE_API_KEY"
    for name in keys.split():
        monkeypatch.setenv(name, f"{name}-secret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with stub_server(rule) as stub:
        yield stub


def make(name: str, server: Stub) -> Any:
    """The backend of an example, at the server instead of the vendor's address."""
    if name == "litellm":
        pytest.importorskip("litellm")
    v1 = server.url + "/v1"
    if name == "vertexai":
        from google.oauth2.credentials import Credentials

        given = {"project": "p", "location": "l", "credentials": Credentials(token="t"), "max_retries": 0}
        return sgl.VertexAI("gemini-pro", base_url=server.url, **given)
    return {
        "openai": lambda: sgl.OpenAI("gpt-4o", base_url=v1, api_key_env="OPENAI_API_KEY"),
        "azure": lambda: sgl.OpenAI("gpt-4", is_azure=True, azure_endpoint=server.url, api_version="2024-06-01"),
        "openrouter": lambda: sgl.OpenAI("google/gemma-7b-it:free", base_url=v1, api_key_env="OPENROUTER_API_KEY"),
        "together": lambda: sgl.OpenAI(
            "mistralai/Mixtral-8x7B-Instruct-v0.1", base_url=v1, api_key_env="TOGETHER_API_KEY"
        ),
        "instruct": lambda: sgl.OpenAI("gpt-3.5-turbo-instruct", base_url=v1, tokenizer=ByteTokenizer()),
        "together_complete": lambda: sgl.OpenAI(
            "mistralai/Mixtral-8x7B-v0.1", is_chat_model=False, base_url=v1, tokenizer=ByteTokenizer()
        ),
        "anthropic": lambda: sgl.Anthropic("claude-x", base_url=server.url),
        "litellm": lambda: sgl.LiteLLM("openai/gpt-4o", base_url=v1),
        "crusoe": lambda: sgl.Crusoe("meta-llama/Llama-3.3-70B-Instruct", base_url=v1),
    }[name]()


CHATS = ("openai", "azure", "openrouter", "together", "anthropic", "vertexai", "crusoe", "litellm")


@sgl.function
def multi_turn_question(s, question_1, question_2):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=256))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=256))


@sgl.function
def few_shot_qa(s, question):
    s += "Please answer questions following the template.\nQ: What is the capital of France?\nA: Paris\n\n"
    s += "Q: " + question + "\nA:" + sgl.gen("answer", stop="\n", temperature=0)


QUESTIONS = ("What is the capital of the United States?\nA:", "list two facts")


@pytest.mark.parametrize("name", CHATS)
def test_the_chat_example(server: Stub, name: str) -> None:
    with make(name, server) as backend:
        sgl.set_default_backend(backend)
        state = multi_turn_question.run(*QUESTIONS)
        assert [message["role"] for message in state.messages()] == ["system", *["user", "assistant"] * 2]
        assert (state["answer_1"], state["answer_2"]) == (says(QUESTIONS[0]), "one, two")
        streamed = multi_turn_question.run(*QUESTIONS, stream=True)
        assert "".join(streamed.text_iter("answer_2")) == "one, two"
        assert "".join(streamed.text_iter()) == state.text()
        states = multi_turn_question.run_batch([QUESTIONS, QUESTIONS[::-1]])
        assert [one["answer_2"] for one in states] == ["one, two", says(QUESTIONS[0])]
        assert all("secret" not in repr(one) for one in (backend, *vars(backend).values()))


@pytest.mark.parametrize("name", ["instruct", "together_complete", "anthropic", "vertexai"])
def test_the_completion_example(server: Stub, name: str) -> None:
    with make(name, server) as backend:
        sgl.set_default_backend(backend)
        question = "What is the capital of the United States?"
        state = few_shot_qa.run(question=question)
        assert state["answer"] == " Washington, D.C."
        assert state.text().endswith("A: Washington, D.C.")
        streamed = few_shot_qa.run(question=question, stream=True)
        assert "".join(streamed.text_iter()) == state.text()
        rows = [{"question": question}, {"question": "What is the capital of Japan?"}]
        assert [one["answer"] for one in few_shot_qa.run_batch(rows)] == [" Washington, D.C.", " Tokyo"]


def test_azure_is_addressed_and_keyed_as_azure_is(server: Stub) -> None:
    with make("azure", server) as backend:
        multi_turn_question.run(*QUESTIONS, backend=backend).sync()
        assert server.asked[0].path == "/openai/deployments/gpt-4/chat/completions?api-version=2024-06-01"
        assert server.asked[0].headers["Api-Key"] == "AZURE_OPENAI_API_KEY-secret"


def test_reasoning_models_get_their_own_name_for_the_limit(server: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url + "/v1")
    with sgl.OpenAI("o1", base_url=None) as backend:
        multi_turn_question.run(*QUESTIONS, backend=backend).sync()
        # OPENAI_BASE_URL is another server, which may know the older name only.
        assert server.asked[0].json["max_tokens"] == 256
    monkeypatch.delenv("OPENAI_BASE_URL")
    with sgl.OpenAI("o1", is_azure=True, azure_endpoint=server.url, api_version="2024-12-01") as backend:
        multi_turn_question.run(*QUESTIONS, backend=backend).sync()
        sent = server.asked[-1].json
        assert sent["max_completion_tokens"] == 256
        assert not {"max_tokens", "temperature", "top_p"} & set(sent)


def test_several_answers(server: Stub) -> None:
    @sgl.function
    def several(s):
        s += sgl.user(QUESTIONS[1])
        s += sgl.assistant(sgl.gen("answer_1", n=2))
        s += sgl.user("And?")
        s += sgl.assistant(sgl.gen("answer_2"))

    with make("openai", server) as backend:
        state = several.run(backend=backend)
        assert (state["answer_1"], state["answer_2"]) == (["one, two"] * 2, "Something else.")
        assert [len(asked.json["messages"]) for asked in server.asked] == [1, 1, 3]


# -- the programs of SGLang's tests of its OpenAI backend, on completion models --


@sgl.function
def true_or_false(s, statement):
    s += "Determine whether the statement below is True, False, or Unknown.\nStatement: " + statement + "\nAnswer:"
    s += sgl.select("answer", [" True", " False", " Unknown"])


@sgl.function
def decode_int(s):
    s += "The number of hours in a day is " + sgl.gen_int("hours") + "\n"
    s += "The number of days in a year is " + sgl.gen_int("days") + "\n"


@sgl.function
def decode_json(s):
    s += "Generate a JSON object to describe the basic city information of Paris.\n"
    with s.var_scope("json_output"):
        s += '{\n  "name": ' + sgl.gen_string() + ",\n"
        s += '  "population": ' + sgl.gen_int() + "\n}"


@sgl.function
def expert_answer(s, question):
    s += "Question: " + question + "\nA good person to answer this question is" + sgl.gen("expert", stop=[".", "\n"])
    s += ".\nFor example," + s["expert"] + " would answer: " + sgl.gen("answer", stop=".")


@sgl.function
def tool_use(s):
    s += "What is the product of 123 and 456?\nThe answer is calculate(" + sgl.gen("expression", stop=")") + ") = "
    with s.var_scope("answer"):
        s += str(eval(s["expression"]))


@sgl.function
def react(s, question):
    s += "Question: " + question + "\n"
    for i in range(1, 5):
        s += f"Thought {i}:" + sgl.gen(stop=["Action", "Observation"])
        s += f"Action {i}: " + sgl.select("action", ["Search[", "Finish["])
        if s["action"] == "Finish[":
            s += sgl.gen("answer", stop="]") + "]\n"
            break
        s += sgl.gen("query", stop="]") + f"]\nObservation {i}: ...\n"


@sgl.function
def parallel_decoding(s):
    forks = s.fork(3)
    for i in range(3):
        forks[i] += f"Now, the {i}th tip: " + sgl.gen("tip", stop=["."]) + "."
    forks.join()
    s += "".join(f"{tip}\n" for tip in s["tip"]) + "In summary," + sgl.gen("summary")


@sgl.function
def parallel_encoding(s):
    contexts = ["Noah is tall.", "Liam is short."]
    forks = s.fork(2)
    forks += lambda i: f"Statement {i}: " + contexts[i] + "\n"
    forks.join(mode="concate_and_append")
    s += "Who is taller?\nAnswer:" + sgl.gen("answer")


def character(s):
    s += "Construct a character within the following format:\nName: Ada. Birthday: 1815. Job: programmer.\n\n"
    s += "Name: Harry. Birthday:" + sgl.gen("birthday", stop=".") + ". Job:" + sgl.gen("job", stop=".") + "."


def test_completion_programs(server: Stub) -> None:
    with make("instruct", server) as backend:
        sgl.set_default_backend(backend)
        assert true_or_false.run("The capital of France is Pairs.")["answer"] == " True"
        state = decode_int.run()
        assert (state["hours"], state["days"]) == ("24", "365")
        assert json.loads(decode_json.run()["json_output"]) == {"name": "Paris", "population": 2102650}
        assert expert_answer.run("What is the capital of France?").text().endswith(" a geographer would answer: Paris")
        assert int(tool_use.run()["answer"]) == 123 * 456
        state = react.run("Which country is Nokia from?")
        assert (state["query"], state["answer"], state["action"]) == ("Nokia", "Finland", "Finish[")
        state = parallel_decoding.run()
        assert (state["tip"], state["summary"]) == (["Sleep well"] * 3, " sleep.")
        state = parallel_encoding.run()
        assert state.text() == "Statement 0: Noah is tall.\nStatement 1: Liam is short.\nWho is taller?\nAnswer: Noah"


def test_completion_speculation(server: Stub) -> None:
    sent = []
    with make("instruct", server) as backend:
        for tokens in (None, 64):
            backend.token_usage.reset()
            state = sgl.function(character, tokens).run(backend=backend)
            assert (state["birthday"], state["job"]) == (" July 31, 1980", " wizard")
            sent.append(backend.token_usage.prompt_tokens)
    assert sent[1] < 0.6 * sent[0]


def test_chat_programs_and_what_chats_refuse(server: Stub) -> None:
    @sgl.function
    def typed(s):
        s += sgl.user("hours in a day is ")
        s += sgl.assistant("There are " + sgl.gen_int("hours"))
        s += sgl.user("Yes or no?")
        s += sgl.assistant(sgl.select("choice", ["yes", "no"]))

    @sgl.function
    def image_qa(s):
        s += sgl.user(sgl.image(png("yellow")) + "What is it?")
        s += sgl.assistant(sgl.gen("answer"))

    with make("openai", server) as backend:
        state = typed.run(backend=backend)
        assert (state["hours"], state["choice"]) == ("24", "no")
        assert "Something" in image_qa.run(backend=backend).messages()[-1]["content"]
        for program in (true_or_false.bind(statement="x"), react.bind(question="x")):  # text behind what was generated
            assert program.run(backend=backend).text()
    with make("instruct", server) as backend, pytest.raises(ArgumentError, match="reads no images"):
        image_qa.run(backend=backend)
    with make("anthropic", server) as backend, pytest.raises(GenerationError, match="no seed"):
        few_shot_qa.run("x", seed=3, backend=backend)["answer"]

"""The two essay judges whose lines the benchmarks count: they ask the same, in the same order, and return the same."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from stub_server import Answer, Asked, stub_server

from lmnb.backends.testing import ScriptedBackend

openai = pytest.importorskip("openai", reason="needs openai")
ROOT = Path(__file__).parents[2]
VERDICT = {"summary": "A plea for gardens.", "grade": "B"}


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))  # they are run from the checkout, and not installed
    from benchmarks import language

    return language


def chat_answer(asked: Asked) -> Answer:
    """A server that finds that the essay does not stray."""
    body = asked.json
    text = json.dumps(VERDICT) if "response_format" in body else f"said {len(body['messages'])}"
    tops = [
        {"token": token, "logprob": value, "bytes": None} for token, value in (("The", -0.1), (" No", -1), ("Yes", -2))
    ]
    content = [{"token": "The", "logprob": -0.1, "bytes": None, "top_logprobs": tops}]
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": text},
        "logprobs": {"content": content} if body.get("logprobs") else None,
    }
    return Answer({"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})


def by_hand(module: Any, url: str, topic: str, essay: str) -> Any:
    async def main() -> Any:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await module.judge(client, "m", topic, essay)

    return asyncio.run(main())


def test_both_ask_the_same_and_return_the_same(benchmarks: Any) -> None:
    task = benchmarks.task
    with stub_server(chat_answer) as stub:
        theirs = by_hand(benchmarks.with_openai, f"{stub.url}/v1", task.TOPIC, task.ESSAY)
    bodies = stub.bodies("/v1/chat/completions")
    assert len(bodies) == 2 + len(task.DIMENSIONS)

    said = {body["messages"][-1]["content"]: f"said {len(body['messages'])}" for body in bodies[1:-1]}

    def reply(call: Any) -> str:
        question = next((question for question in said if question in call.prompt), "")
        return said[question] if question else json.dumps(VERDICT)

    backend = ScriptedBackend(reply, score=lambda prompt, choice: [-1.0 if choice == "No" else -2.0])
    state = benchmarks.with_lmnb.judge.run(task.TOPIC, task.ESSAY, backend=backend)
    assert state.ret_value == theirs == VERDICT
    assert state.messages()[:-1] == bodies[-1]["messages"]
    assert len([call for call in backend.calls if call.kind == "generate"]) == len(bodies) - 1


def test_both_stop_at_an_essay_that_strays(benchmarks: Any) -> None:
    backend = ScriptedBackend("never", score=lambda prompt, choice: [-1.0 if choice == "Yes" else -2.0])
    assert benchmarks.with_lmnb.judge.run("cooking", "A dog barked.", backend=backend).ret_value is None

    def strays(asked: Asked) -> Answer:
        answer = chat_answer(asked)
        answer.value["choices"][0]["logprobs"]["content"][0]["top_logprobs"] = [
            {"token": "Yes", "logprob": -0.5, "bytes": None}
        ]
        return answer

    with stub_server(strays) as stub:
        assert by_hand(benchmarks.with_openai, f"{stub.url}/v1", "cooking", "A dog barked.") is None
    assert len(stub.asked) == 1


def test_the_rule_of_counting(benchmarks: Any) -> None:
    text = '"""Says\nnothing."""\n\n# nothing\nx = (\n    1,  # one\n)\n\n\n'
    function = 'def f():\n    """Nothing."""\n    return """a\nb"""\n'
    assert benchmarks.code_lines(text) == 3
    assert benchmarks.code_lines(text + function) == 3 + 1 + 2


def test_a_wide_program_needs_no_threads(benchmarks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "BRANCHES", 50)
    benchmarks.run_wide(benchmarks.InstantBackend())
    assert benchmarks.run_wide(benchmarks.InstantBackend())["threads_started"] == 0

"""The quickstart runs from top to bottom on the embedded model, and its answers make sense."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(700)]

PROBES = {
    "ask": "s['answer']",
    "stream": "''.join(poem.run('the sea', stream=True).text_iter('poem'))",
    "select-call": "opinion('The waiter forgot us twice.')['opinion']",
    "judge": "[s['note'], s['verdict'], s.get_meta_info('verdict')]",
    "json-value": "[s['person'], json.loads(s['person'])]",
    "chat-1": "chat.get_meta_info('animal')",
    "chat-2": "[chat.messages(), chat.get_meta_info('size')]",
    "batch": "[[state['opinion'], repr(state.error())] for state in states]",
    "status": "__import__('dataclasses').asdict(get_default_backend().status())",
}
SETUP = "from lmnb.language import get_default_backend"
WANTED = ["good", "bad", "good", "bad", "good", "good"]  # what a person says of the six reviews


@pytest.fixture(scope="module")
def ran(run_probed: Any) -> Any:
    return run_probed("quickstart.ipynb", PROBES, SETUP)


def test_the_answer_is_paris(ran: Any) -> None:
    assert "Paris" in ran.found["ask"]


def test_the_poem_is_a_poem_and_was_printed(ran: Any) -> None:
    lines = [line for line in ran.found["stream"].splitlines() if line.strip()]
    assert len(lines) >= 3
    assert lines[0].strip() in ran.printed  # greedy: the cell's own run wrote the same


def test_the_choice_is_one_of_the_choices(ran: Any) -> None:
    assert ran.found["select-call"] == "bad"


def test_the_judge_has_a_note_for_each_aspect_and_a_verdict(ran: Any) -> None:
    notes, verdict, meta = ran.found["judge"]
    assert len(notes) == 3
    for note, aspect in zip(notes, ("clarity", "evidence", "style"), strict=True):
        assert len(note.split()) >= 4
        assert aspect in note
    assert verdict in ("strong", "weak")
    assert len(meta["normalized_prompt_logprobs"]) == 2
    for lane in ("branch 0.0", "branch 0.1", "branch 0.2"):
        assert lane in ran.printed


def test_the_json_fits_the_schema(ran: Any) -> None:
    text, value = ran.found["json-value"]
    assert text.startswith("{")
    assert set(value) == {"name", "age", "city"}
    assert (value["name"], value["city"]) == ("Tom", "Oslo")
    assert type(value["age"]) is int


def test_the_conversation_goes_on_without_reading_its_first_turn_again(ran: Any) -> None:
    messages, second = ran.found["chat-2"]
    first = ran.found["chat-1"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
    assert all(message["content"] for message in messages)
    # All but the answer's last token, whose keys and values were not needed before.
    assert second["cached_tokens"] >= first["prompt_tokens"] + first["completion_tokens"] - 1


def test_the_batch_has_an_opinion_of_each_row(ran: Any) -> None:
    opinions, errors = zip(*ran.found["batch"], strict=True)
    assert set(errors) == {"None"}
    assert set(opinions) <= {"good", "bad"}
    assert sum(a == b for a, b in zip(opinions, WANTED, strict=True)) >= 5
    assert "/6 [" in ran.printed  # the progress bar


def test_tree_and_status_tell_what_was_reused(ran: Any) -> None:
    status = ran.found["status"]
    assert status["running"] == status["waiting"] == 0
    assert status["reused_tokens"] > status["prompt_tokens"] / 2
    assert "Cache tree: " in ran.printed
    assert f"{status['generated_tokens']:,} generated" in ran.printed
    assert "lmnb-tree-svg" in ran.html

"""Every shape that the notebook asks for is the shape that comes, and the values are the notebook's."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(700)]

PROBES = {
    "regex-value": "[s['date'], s['time']]",
    "record": "[state['person'], vars(state.parsed('person'))]",
    "forced": "state.get_meta_info('person')",
    "list-value": "[s['fruit'], s.parsed('fruit')]",
    "tool": "[[state['call'], state.call('call')] for state in map(ask.run, ['Say hello to Bob.', "
    "'How large is a room of 4 by 5 metres?'])]",
    "many": "[vars(state.parsed('person')) for state in person.run_batch([{'text': text} for text in people])]",
}


@pytest.fixture(scope="module")
def ran(run_probed: Any) -> Any:
    return run_probed("structured_output.ipynb", PROBES)


def test_patterns(ran: Any) -> None:
    date, time = ran.found["regex-value"]
    assert date == "July 20, 1969"
    assert re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", time)


def test_a_record_is_of_its_type(ran: Any) -> None:
    text, person = ran.found["record"]
    assert json.loads(text) == person == {"name": "Tom", "age": 19, "city": "Oslo", "job": "student"}
    people = ran.found["many"]
    assert [person["city"] for person in people] == ["Rome", "Lima", "Paris"]
    assert all(type(person["age"]) is int for person in people)


def test_forced_text_took_no_steps(ran: Any) -> None:
    meta = ran.found["forced"]
    assert meta["forced_tokens"] >= 4
    assert meta["steps"] < meta["completion_tokens"]
    assert meta["steps_saved"] > 0


def test_a_list_holds_what_it_may(ran: Any) -> None:
    text, fruit = ran.found["list-value"]
    assert json.loads(text) == fruit == ["apples", "pears", "plums"]


def test_the_right_tool_is_called(ran: Any) -> None:
    (_, hello), (call, size) = ran.found["tool"]
    assert hello == "Hello, Bob!"
    assert json.loads(call) == {"name": "area", "arguments": {"width": 4, "height": 5}}
    assert size == "20 square metres"


def test_constraints_are_tried_without_a_model(ran: Any) -> None:
    assert "accepted  '2024-05'" in ran.printed
    assert "refused: JSON schema keyword 'uniqueItems'" in ran.printed

"""The notebook on APIs: one program on the engine and on that engine behind HTTP, with no key and nothing outside."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(700)]

PROBES = {
    "same": "[answers, server.url]",
    "refused": "year.run(backend=api)['year']",
    "schema": "vars(person.run('Tom, 19, studies physics in Oslo.', backend=plain).parsed('person'))",
    "speculation": "[spent[None], spent[48], [[s['job'], s['home'], s['next']] for s in "
    "(lmnb.function(characters.func, num_api_spec_tokens=n).run('Bob', backend=completions) for n in (None, 48))]]",
    "sdk": "reply.usage.model_dump()",
}


@pytest.fixture(scope="module")
def ran(run_probed: Any) -> Any:
    return run_probed("api_models.ipynb", PROBES)


def test_the_backend_does_not_change_the_answer(ran: Any) -> None:
    answers, url = ran.found["same"]
    assert len(set(answers)) == 1
    assert "Paris" in answers[0]
    assert url.startswith("http://127.0.0.1:")


def test_what_an_api_cannot_do_is_refused(ran: Any) -> None:
    assert len(ran.found["refused"]) == 4
    assert "OpenAI cannot enforce a regex" in ran.printed


def test_a_schema_is_enforced_through_the_api(ran: Any) -> None:
    assert ran.found["schema"] == {"name": "Tom", "age": 19, "city": "Oslo"}


def test_speculation_saves_calls_and_prompt_tokens_and_changes_no_value(ran: Any) -> None:
    (calls, prompt_tokens), (fewer_calls, fewer_tokens), (plain, speculated) = ran.found["speculation"]
    assert (calls, fewer_calls) == (3, 1)
    assert prompt_tokens > 2.5 * fewer_tokens
    assert plain == speculated


def test_another_client_shares_the_cache(ran: Any) -> None:
    usage = ran.found["sdk"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
    assert "money" in ran.printed

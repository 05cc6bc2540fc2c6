"""Sixty-four branches answer with numbers, their prompt is computed once, and unloading leaves nothing behind."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(700)]

PROBES = {
    "vote": "[s['answer'], default_backend().status().prompt_tokens, default_backend().status().reused_tokens]",
    "unload": "default_backend()",
}


@pytest.fixture(scope="module")
def ran(run_probed: Any) -> Any:
    return run_probed("many_branches.ipynb", PROBES, "from lmnb.language import get_default_backend as default_backend")


def test_every_branch_answers_with_a_number_and_they_differ(ran: Any) -> None:
    answers, _, _ = ran.found["vote"]
    assert len(answers) == 64
    assert all(re.fullmatch(r"[1-9]\d{0,2} legs", answer) for answer in answers)
    assert len(set(answers)) > 3
    assert Counter(answers).most_common(1)[0][0] == "8 legs"


def test_the_prompt_is_computed_once(ran: Any) -> None:
    _, asked, reused = ran.found["vote"]
    prompt = asked // 64
    assert asked - reused <= prompt + 64  # and each branch its own last token


def test_nothing_is_loaded_in_the_end(ran: Any) -> None:
    assert ran.found["unload"] is None

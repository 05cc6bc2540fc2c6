"""Static HTML tells forced tokens from sampled ones, and how many steps were saved."""

from __future__ import annotations

import html
import json
import re

import lmnb
from lmnb import gen
from lmnb.backends.local import Runtime
from lmnb.runtime.fake_model import FakeModel
from lmnb.runtime.loading import LoadedModel
from lmnb.runtime.testing import ByteTokenizer
from lmnb.widgets import origin_html


def item(text: str, parts: list[list[object]]) -> dict[str, object]:
    return {"text": text, "parts": parts}


def test_runs_of_one_origin_are_one_element() -> None:
    parts = [
        [2, 2, 0.1, "forced"],
        [1, 1, 0.2, "masked"],
        [0, 1, 0.2, "masked"],
        [2, 1, 0.3, "masked"],
        [2, 0, 0.3, "forced"],
    ]
    drawn = origin_html.spans(item('{"a😀"}', parts))
    assert re.sub("<[^>]*>", "", drawn) == html.escape('{"a😀"}')
    assert re.findall('class="lmnb-(forced|masked)"', drawn) == ["forced", "masked", "forced"]
    assert origin_html.steps_saved(item('{"a😀"}', parts)) == 2


def test_text_is_text() -> None:
    drawn = origin_html.spans(item("<b>&\x1b", [[3, 3, 0.1, "forced"], [2, 2, 0.1, "free"]]))
    assert "<b>" not in drawn
    assert "\x1b" not in drawn
    assert drawn.endswith("&amp;␛")


def test_text_without_parts_stays() -> None:
    """Of what follows the parts, for instance where a stop was taken back, nothing is lost."""
    assert origin_html.spans(item("abcd", [[1, 1, 0.1, "masked"]])).endswith("bcd")
    assert not origin_html.is_constrained(item("abcd", [[4, 4]]))


def test_a_page_of_a_run_shows_them() -> None:
    tokenizer = ByteTokenizer()
    runtime = Runtime(LoadedModel(FakeModel(tokenizer.vocab_size), tokenizer))

    @lmnb.function
    def program(s: lmnb.ProgramState) -> None:
        schema = {"type": "object", "properties": {"wood": {"enum": ["oak", "elm"]}}, "required": ["wood"]}
        s += "Q: " + gen("answer", json_schema=schema, max_tokens=40)

    try:
        state = program.run(backend=runtime)
        text, meta = state["answer"], state.get_meta_info("answer")
        page = state.run.to_html()
    finally:
        runtime.shutdown()
    assert json.loads(text)
    drawn = re.search(r'<ins class="lmnb-gen"[^>]*>(.*?)</ins>', page, re.DOTALL)
    assert drawn is not None
    assert 'class="lmnb-forced"' in drawn[1]
    assert 'class="lmnb-masked"' in drawn[1]
    assert html.unescape(re.sub("<[^>]*>", "", drawn[1])) == text
    assert f"{meta['steps_saved']} steps saved" in page

"""Incremental text equals the text of all tokens, and shows whole characters only."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmnb.runtime.detokenizer import Detokenizer
from lmnb.runtime.testing import ByteTokenizer
from lmnb.runtime.tokenizer import Tokenizer


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [detokenizer.push(token_id) for token_id in ids] + [detokenizer.finish()]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 258), max_size=40))
@example([0xF0, 0x9F, 0x98])
@example([0xE4, 0xBD, 0xE4, 0xBD, 0xA0, 0xFF, 0xC0, 0x80, 0xED, 0xA0, 0x80])
def test_any_bytes(ids: list[int]) -> None:
    assert "".join(pieces(ByteTokenizer(), ids)) == ByteTokenizer().decode(ids)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30))
def test_valid_text_never_shows_a_broken_character(text: str) -> None:
    ids = list(text.encode("utf-8", "ignore"))
    text = bytes(ids).decode()
    parts = pieces(ByteTokenizer(), ids)
    assert "".join(parts) == text
    assert parts[-1] == ""
    assert [part for part in parts if part] == list(text)  # one character at a time, when its last byte came


def test_a_character_appears_with_its_last_token() -> None:
    assert pieces(ByteTokenizer(), list("é😀".encode())) == ["", "é", "", "", "", "😀", ""]


def test_is_whole() -> None:
    detokenizer = Detokenizer(ByteTokenizer())
    states = []
    for token_id in [0x41, 0xF0, 0x9F, 0x98, 0x80, 0xE4, 0x41]:
        detokenizer.push(token_id)
        states.append(detokenizer.is_whole)
    assert states == [True, False, False, False, True, False, True]


def test_special_tokens_are_shown_as_written_and_padding_as_nothing() -> None:
    assert pieces(ByteTokenizer(), [0x61, 257, 999, 0x62]) == ["a", "<|im_start|>", "", "b", ""]


class TestSmolLM2:
    @pytest.fixture(autouse=True)
    def _tokenizer(self, smollm2_tokenizer: Tokenizer) -> None:
        self.tokenizer = smollm2_tokenizer

    def test_random_ids(self) -> None:
        @settings(max_examples=200, deadline=None)
        @given(st.lists(st.integers(0, self.tokenizer.vocab_size - 1), max_size=30))
        def check(ids: list[int]) -> None:
            assert "".join(pieces(self.tokenizer, ids)) == self.tokenizer.decode(ids)

        check()

    @pytest.mark.parametrize("text", ["你好，世界！", "👩‍👩‍👧‍👦 and 🏴󠁧󠁢󠁳󠁣󠁴󠁿", "naïve\n\n  “quotes” ", "مرحبا 안녕 ଅ"])
    def test_real_text(self, text: str) -> None:
        parts = pieces(self.tokenizer, self.tokenizer.encode(text))
        assert "".join(parts) == text
        assert not any("\ufffd" in part for part in parts)

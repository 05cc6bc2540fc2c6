"""What a grammar lets come next, told by the first bytes of it."""

from __future__ import annotations

import numpy as np
import pytest
from small_tokenizers import small_tokenizer

from lmnb.runtime.grammar import Grammars
from lmnb.runtime.next_bytes import NextBytes
from lmnb.runtime.request import Constraint
from lmnb.runtime.testing import ByteTokenizer
from lmnb.runtime.tokenizer import Tokenizer


class Glued(ByteTokenizer):
    """Has no token for the letter c alone: token 99 is `"c`."""

    def token_bytes(self, token_id: int) -> bytes:
        return b'"c' if token_id == ord("c") else super().token_bytes(token_id)


def after(tokenizer: Tokenizer, regex: str, text: str) -> frozenset[int] | None:
    matcher = Grammars(tokenizer, tokenizer.vocab_size).compile(Constraint("regex", regex))
    assert all(matcher.accept(byte) for byte in text.encode())
    found = NextBytes(tokenizer, tokenizer.vocab_size).behind(matcher)
    if found is not None:
        mask = np.zeros_like(found.mask)
        matcher.fill(mask)
        assert (mask == found.mask).all()
    return None if found is None else found.first


@pytest.mark.parametrize(
    ("regex", "text", "first"),
    [
        ('"(ab|cd)"', '"', b"ac"),
        ('"(ab|cd)"', '"cd"', b""),
        ("(ab)+!?", "ab", b"a!"),
        ("[北京]x", "", "北京".encode()[:1] + "京".encode()[:1]),
    ],
)
def test_first_bytes(regex: str, text: str, first: bytes) -> None:
    assert after(ByteTokenizer(), regex, text) == frozenset(first)


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "digits", "spm-first", "blanks"])
def test_first_bytes_are_those_of_all_tokens_that_may_come(kind: str) -> None:
    tokenizer = small_tokenizer(kind)
    silent = tokenizer.added_ids | tokenizer.special_ids | tokenizer.eos_ids
    data = {i: tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size) if i not in silent}
    hidden = {byte for each in data.values() for byte in each[1:]} - {
        each[0] for each in data.values() if len(each) == 1
    }
    for regex in ("[a-z]+", r"\d{2}", "(天气|北京|x)!", "( |\n)?the dog", ".*", r'"[^"]*"'):
        matcher = Grammars(tokenizer, tokenizer.vocab_size).compile(Constraint("regex", regex))
        found = NextBytes(tokenizer, tokenizer.vocab_size).behind(matcher)
        assert found is not None
        words = found.mask.view(np.uint32)
        allowed = [each for i, each in data.items() if each and words[i // 32] >> (i % 32) & 1]
        assert found.first == {each[0] for each in allowed} | hidden


def test_a_byte_that_has_no_token_of_its_own_may_always_follow() -> None:
    assert after(Glued(), '"[ab]', '"') == frozenset(b"abc")


def test_equal_sets_are_one() -> None:
    tokenizer = ByteTokenizer()
    grammars, next_bytes = Grammars(tokenizer, tokenizer.vocab_size), NextBytes(tokenizer, tokenizer.vocab_size)
    found = []
    for regex in ('"[^"]*"', '"[^"]+"[a-z]'):
        matcher = grammars.compile(Constraint("regex", regex))
        assert matcher.follow(b'"x')
        behind = next_bytes.behind(matcher)
        assert behind is not None
        found.append(behind.first)
    assert found[0] is found[1]

"""What a grammar lets follow text that it forces, told byte by byte."""

from __future__ import annotations

import pytest

from lmnb.runtime.grammar import Grammars
from lmnb.runtime.next_bytes import NextBytes
from lmnb.runtime.request import Constraint
from lmnb.runtime.testing import ByteTokenizer
from lmnb.runtime.tokenizer import Tokenizer


class Glued(ByteTokenizer):
    """Has no token for the letter c alone: token 99 is `"c`."""

    def token_bytes(self, token_id: int) -> bytes:
        return b'"c' if token_id == ord("c") else super().token_bytes(token_id)


def after(tokenizer: Tokenizer, regex: str, text: str, *, accepted: str = "") -> frozenset[int] | None:
    matcher = Grammars(tokenizer, tokenizer.vocab_size).compile(Constraint("regex", regex))
    assert all(matcher.accept(byte) for byte in accepted.encode())
    found = NextBytes(tokenizer, tokenizer.vocab_size).after(matcher, text.encode())
    assert all(matcher.accept(byte) for byte in text.encode()), "the matcher has not moved"
    return found


@pytest.mark.parametrize(
    ("regex", "accepted", "text", "first"),
    [
        ('"(ab|cd)"', "", '"', b"ac"),
        ('"(ab|cd)"', '"c', 'd"', b""),
        ("(ab)+!?", "", "ab", b"a!"),
        ("[北京]x", "", "", "北京".encode()[:1] + "京".encode()[:1]),
    ],
)
def test_first_bytes(regex: str, accepted: str, text: str, first: bytes) -> None:
    assert after(ByteTokenizer(), regex, text, accepted=accepted) == frozenset(first)


def test_a_byte_that_has_no_token_of_its_own_may_always_follow() -> None:
    assert after(Glued(), '"[ab]', '"') == frozenset(b"abc")


def test_text_that_cannot_be_walked_through_says_nothing() -> None:
    matcher = Grammars(Glued(), 259).compile(Constraint("regex", '"cd'))
    assert NextBytes(Glued(), 259).after(matcher, b'"c') is None

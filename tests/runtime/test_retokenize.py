"""Text that grows is tokenized in pieces: what is called stable must be what the tokenizer says of any longer text."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import CORPUS, KINDS, small_tokenizer

from lmnb.runtime.retokenize import Retokenizer
from lmnb.runtime.testing import ByteTokenizer
from lmnb.runtime.tokenizer import Tokenizer

_JSON = [
    '{"name":"Ann","age":41,"tags":["a","b"],"ok":true}',
    "it's, we'll don't they're'",
    "a   b\n\n  c \n",
    "2024-05-17",
]
_ALPHABET = "ab'lse \n\"{}:,.019_-é你😀"


def pieces() -> st.SearchStrategy[str]:
    source = "".join(CORPUS + _JSON)
    slices = st.builds(lambda at, n: source[at : at + n], st.integers(0, len(source) - 1), st.integers(1, 12))
    return st.lists(st.one_of(slices, st.text(_ALPHABET, max_size=4)), min_size=1, max_size=4).map("".join)


def check(retokenizer: Retokenizer, text: str, more: str) -> None:
    stable = retokenizer.stable(text)
    whole = retokenizer.encode(text + more)
    if whole is not None:  # a tokenizer that normalizes the text makes no promise for it
        assert whole[: len(stable)] == stable, (text, more)


@pytest.mark.parametrize("kind", KINDS)
def test_stable_tokens_stay_whatever_follows(kind: str) -> None:
    retokenizer = Retokenizer(small_tokenizer(kind))

    @settings(max_examples=300, deadline=None)
    @given(pieces(), pieces())
    def run(text: str, more: str) -> None:
        check(retokenizer, text, more)

    run()


@pytest.mark.parametrize("kind", KINDS)
def test_more_is_stable_where_it_is_known_what_may_follow(kind: str) -> None:
    retokenizer = Retokenizer(small_tokenizer(kind))
    gained = 0

    @settings(max_examples=300, deadline=None)
    @given(pieces(), pieces(), st.frozensets(st.sampled_from(sorted(set("".join(CORPUS).encode()))), max_size=3))
    def run(text: str, more: str, others: frozenset[int]) -> None:
        nonlocal gained
        stable = retokenizer.stable(text, {*more.encode()[:1], *others})
        gained += len(stable) - len(retokenizer.stable(text))
        whole = retokenizer.encode(text + more)
        if whole is not None:
            assert whole[: len(stable)] == stable, (text, more)

    run()
    assert gained > 100


def test_all_is_stable_where_nothing_follows(smollm2_tokenizer: Tokenizer) -> None:
    retokenizer = Retokenizer(smollm2_tokenizer)
    for text in ('{"a":"b"', "12 ", "it'"):
        assert retokenizer.stable(text) != retokenizer.encode(text)
        assert retokenizer.stable(text, frozenset()) == retokenizer.encode(text)


def test_stable_tokens_of_smollm2(smollm2_tokenizer: Tokenizer) -> None:
    retokenizer = Retokenizer(smollm2_tokenizer)

    @settings(max_examples=1000, deadline=None)
    @given(pieces(), pieces())
    def run(text: str, more: str) -> None:
        check(retokenizer, text, more)

    run()


def test_most_of_a_forced_key_is_stable(smollm2_tokenizer: Tokenizer) -> None:
    retokenizer = Retokenizer(smollm2_tokenizer)
    text = '{"name":"Ann","favourite_colour":'
    stable = retokenizer.bytes_of(retokenizer.stable(text)).decode()
    assert stable == '{"name":"Ann","favourite_colour'  # `":` may become `":"`


@pytest.mark.parametrize("kind", [*KINDS, "bytes"])
def test_a_window_is_tokenized_like_the_whole(kind: str) -> None:
    tokenizer: Tokenizer = ByteTokenizer() if kind == "bytes" else small_tokenizer(kind)
    retokenizer = Retokenizer(tokenizer)
    rng = random.Random(0)
    source = "".join(CORPUS + _JSON)
    num_inner = 0
    for _ in range(300):
        at = rng.randrange(len(source))
        text, more = source[at : at + 30], source[rng.randrange(len(source)) :][:10]
        ids, whole = retokenizer.encode(text), retokenizer.encode(text + more)
        if ids is None or whole is None:
            continue
        start = retokenizer.window(ids)
        assert start is not None
        num_inner += start > 0
        tail = retokenizer.bytes_of(ids[start:]).decode()
        assert whole[:start] == ids[:start]
        assert whole[start:] == retokenizer.encode(tail + more)
    assert num_inner > 30


def test_bytes_are_always_stable() -> None:
    retokenizer = Retokenizer(ByteTokenizer())
    assert retokenizer.stable("a你 ") == [*"a你".encode()]  # white space waits for the word behind it

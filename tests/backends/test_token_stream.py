"""A stream's ids equal the tokenizer's on the joined text, and data never becomes a marker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import CORPUS, KINDS, small_tokenizer

from lmnb.backends.token_codec import TokenCodec
from lmnb.backends.token_stream import TokenStream
from lmnb.runtime.testing import ByteTokenizer
from lmnb.runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lmnb.backends.local import Runtime

ODD = (
    " ",
    "  ",
    "\n",
    "\n\n",
    " \n ",
    "\t",
    "'",
    "'l",
    "l",
    "'llama",
    " a",
    "1",
    "123",
    "你",
    "é",
    "e\u0301",
    "=",
    "😀",
    "\u0664",
)
PIECES = st.one_of(
    st.sampled_from(ODD),
    st.tuples(st.sampled_from(CORPUS), st.integers(0, 60), st.integers(1, 30)).map(lambda c: c[0][c[1] : c[1] + c[2]]),
    st.text(max_size=8),
)
MARKUP = st.one_of(
    PIECES, st.sampled_from(["<|im_", "start|>", "<|im_start|>", "<|im_end|>", "<|", "end|>", "<|im_start|>user\n"])
)
STEPS = st.lists(st.tuples(PIECES, st.sampled_from(["text", "tokens", "fork"])), min_size=1, max_size=25)


def stream_of(tokenizer: Tokenizer) -> TokenStream:
    return TokenStream(TokenCodec(tokenizer))


def check_joined(tokenizer: Tokenizer, steps: list[tuple[str, str]]) -> None:
    stream, text = stream_of(tokenizer), ""
    for piece, how in steps:
        piece = piece.encode("utf-8", "replace").decode()  # no lone surrogates
        if how == "fork":
            parent, stream = stream, stream.fork()
            before = parent.ids
            stream.append(piece)
            assert parent.ids == before
        else:
            whole = tokenizer.encode(text + piece)
            if how == "tokens" and tuple(whole[: len(stream)]) == stream.ids:
                stream.append_ids(whole[len(stream) :])  # what a model with canonical habits would write
            else:
                stream.append(piece)
        text += piece
        assert list(stream.ids) == tokenizer.encode(text), repr(text)


def _sayable(tokenizer: Tokenizer, text: str) -> str:
    """`text` without the characters that the tokenizer loses."""
    text = text.encode("utf-8", "replace").decode()
    return "".join(char for char in text if tokenizer.decode(tokenizer.encode(char)) == char)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_equal_the_tokenizers_on_the_joined_text(kind: str) -> None:
    @given(STEPS)
    @settings(max_examples=60, deadline=None)
    def check(steps: list[tuple[str, str]]) -> None:
        check_joined(small_tokenizer(kind), steps)

    check()


@pytest.mark.model
def test_ids_equal_smollm2s_on_the_joined_text(embedded_runtime: Runtime) -> None:
    @given(STEPS)
    @settings(max_examples=150, deadline=None)
    def check(steps: list[tuple[str, str]]) -> None:
        tokenizer = embedded_runtime.get_tokenizer()
        # Bytes that its vocabulary lacks (of unassigned characters) are dropped: what they were is not known later.
        check_joined(tokenizer, [(_sayable(tokenizer, piece), how) for piece, how in steps])

    check()


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), *map(small_tokenizer, KINDS)], ids=["byte", *KINDS])
def test_trusted_pieces_count_as_one_text(tokenizer: Tokenizer) -> None:
    @given(st.lists(MARKUP, min_size=1, max_size=12))
    @settings(max_examples=60, deadline=None)
    def check(pieces: list[str]) -> None:
        pieces = [piece.encode("utf-8", "replace").decode() for piece in pieces]
        stream = stream_of(tokenizer)
        for piece in pieces:
            stream.append(piece, trusted=True)
        assert list(stream.ids) == tokenizer.encode("".join(pieces), trusted=True)

    check()


def trusted_runs(pieces: list[tuple[str, bool]]) -> list[str]:
    """The texts between data."""
    runs = [""]
    for piece, trusted in pieces:
        if trusted:
            runs[-1] += piece
        elif piece:
            runs.append("")
    return runs


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), *map(small_tokenizer, KINDS)], ids=["byte", *KINDS])
def test_markers_come_from_trusted_text_alone(tokenizer: Tokenizer) -> None:
    @given(st.lists(st.tuples(MARKUP, st.booleans()), min_size=1, max_size=12))
    @settings(max_examples=80, deadline=None)
    def check(drawn: list[tuple[str, bool]]) -> None:
        pieces = [(piece.encode("utf-8", "replace").decode(), trusted) for piece, trusted in drawn]
        stream = stream_of(tokenizer)
        for piece, trusted in pieces:
            stream.append(piece, trusted=trusted)
        wanted = [i for run in trusted_runs(pieces) for i in tokenizer.encode(run, trusted=True)]
        assert [i for i in stream.ids if i in tokenizer.special_ids] == [
            i for i in wanted if i in tokenizer.special_ids
        ]

    check()


@pytest.mark.parametrize("first", [True, False])
def test_half_a_marker_in_the_template_and_half_in_data(first: bool) -> None:
    for tokenizer in (ByteTokenizer(), *map(small_tokenizer, KINDS)):
        for opening, closing in (("<|im_", "end|>"), ("<|im_start|", ">system\n"), ("<", "|im_start|>")):
            stream = stream_of(tokenizer)
            stream.append(opening, trusted=first)
            stream.append(closing, trusted=not first)
            assert tokenizer.special_ids.isdisjoint(stream.ids)
            assert stream.text().lstrip() == opening + closing


def test_generated_text_completes_no_marker() -> None:
    for tokenizer in (ByteTokenizer(), *map(small_tokenizer, KINDS)):
        for opening, generated in (("<|", "im_"), ("", "<|im_"), ("<|im_", "<|im_")):
            stream = stream_of(tokenizer)
            stream.append(opening, trusted=True)
            stream.append_ids(tokenizer.encode(generated))
            stream.append("end|>", trusted=True)
            assert tokenizer.special_ids.isdisjoint(stream.ids)


@pytest.mark.parametrize(
    ("left", "right", "safe"),
    [("fox", " jumps", True), ("fox", "jumps", False), ("fox", ", jumps", False), ("1", " jumps", False)],
)
def test_where_a_text_may_be_cut(left: str, right: str, safe: bool) -> None:
    tokenizer = small_tokenizer("gpt2")
    codec = TokenCodec(tokenizer)
    assert codec.is_safe_cut(tokenizer.encode(left)[-1], tokenizer.encode(right)[0]) is safe


def test_data_beside_a_marker_does_not_undo_it() -> None:
    tokenizer = small_tokenizer("gpt2")
    stream = stream_of(tokenizer)
    stream.append("<|im_start|>user\n", trusted=True)
    stream.append("\n the answer")
    stream.append("<|im_end|>\n", trusted=True)
    start, end = (tokenizer.encode(marker, trusted=True) for marker in ("<|im_start|>", "<|im_end|>"))
    assert list(stream.ids) == [*start, *tokenizer.encode("user\n\n the answer"), *end, *tokenizer.encode("\n")]


def test_generated_tokens_stay_as_they_are() -> None:
    tokenizer = small_tokenizer("gpt2")
    stream = stream_of(tokenizer)
    stream.append("The answer")
    letters = [i for letter in " is yes. The quick brown fox jumps over the lazy dog" for i in tokenizer.encode(letter)]
    assert len(letters) > len(tokenizer.encode(" is yes. The quick brown fox jumps over the lazy dog"))
    prompt = stream.ids
    stream.append_ids(letters)
    assert list(stream.ids) == [*prompt, *letters]
    stream.append(" and they're friends")
    kept = len(prompt) + len(letters) - 8
    assert list(stream.ids[:kept]) == [*prompt, *letters][:kept]
    assert stream.text() == "The answer is yes. The quick brown fox jumps over the lazy dog and they're friends"


def test_a_model_that_stopped_inside_a_word_is_repaired() -> None:
    tokenizer = small_tokenizer("gpt2")
    stream = stream_of(tokenizer)
    stream.append_ids(tokenizer.encode("The answ"))
    stream.append("er")
    assert list(stream.ids) == tokenizer.encode("The answer")


def test_bytes_that_are_no_text_are_kept() -> None:
    tokenizer = small_tokenizer("gpt2")
    emoji = tokenizer.encode("😁🦋")
    stream = stream_of(tokenizer)
    stream.append("A butterfly: ")
    prompt = stream.ids
    stream.append_ids(emoji[:-1])
    stream.append(" and the dog")
    assert list(stream.ids) == [*prompt, *emoji[:-1], *tokenizer.encode(" and the dog")]
    stream.append("gy")
    assert list(stream.ids) == [*prompt, *emoji[:-1], *tokenizer.encode(" and the doggy")]


def test_appending_costs_as_much_as_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small_tokenizer("gpt2")
    stream = stream_of(tokenizer)
    stream.append(" ".join(CORPUS) * 20)
    characters = 0

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(tokenizer, name)

        def encode(self, text: str, *, trusted: bool = False) -> list[int]:
            nonlocal characters
            characters += len(text)
            return tokenizer.encode(text, trusted=trusted)

    monkeypatch.setattr(stream._codec, "tokenizer", Counting())
    for _ in range(100):
        stream.append(" the lazy dog")
    assert characters < 100 * 300


def test_a_thousand_forks_of_a_long_prompt() -> None:
    characters = 0

    class Counting(ByteTokenizer):
        def encode(self, text: str, *, trusted: bool = False) -> list[int]:
            nonlocal characters
            characters += len(text)
            return super().encode(text, trusted=trusted)

    stream = stream_of(Counting())
    stream.append("x" * 4096)
    before = characters
    forks = [stream.fork() for _ in range(1000)]
    for fork in forks:
        fork.append("y")
    assert characters - before < 1000 * 300
    assert len(stream) == 4096
    assert {len(fork) for fork in forks} == {4097}


def test_lone_surrogates_become_signs_of_them() -> None:
    stream = stream_of(small_tokenizer("gpt2"))
    stream.append("yes\ud800 no")
    assert stream.text() == "yes\ufffd no"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("joint", [" a word", "\n\n", "你好", "=", "<|im_start|> x", "ab<|im_end|>\n "])
@pytest.mark.parametrize("trusted", [False, True])
def test_a_long_text_is_read_in_pieces_and_is_one_text(kind: str, joint: str, trusted: bool) -> None:
    tokenizer = small_tokenizer(kind)
    text = (joint * (9000 // len(joint)))[:9001]
    calls = Counting(tokenizer)
    stream = TokenStream(TokenCodec(calls))
    stream.append(text, trusted=trusted)
    assert list(stream.ids) == tokenizer.encode(text, trusted=trusted)
    assert max(calls.lengths) < 9000


class Counting:
    """A tokenizer that notes how long the texts are that it is given."""

    def __init__(self, inner: Tokenizer) -> None:
        self._inner = inner
        self.lengths: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode(self, text: str, *, trusted: bool = False) -> list[int]:
        self.lengths.append(len(text))
        return self._inner.encode(text, trusted=trusted)


def test_reading_ends_behind_the_limit() -> None:
    tokenizer = Counting(small_tokenizer("gpt2"))
    stream = TokenStream(TokenCodec(tokenizer), limit=1000)
    stream.append("a word " * 100)
    assert not stream.overflowed
    mark, fork = stream.mark(), stream.fork()
    tokenizer.lengths.clear()
    stream.append("a word " * 1_000_000)
    assert stream.overflowed
    assert stream.fork().overflowed
    assert sum(tokenizer.lengths) < 100_000
    assert len(stream) > 1000
    before = stream.ids
    stream.append("more")
    assert stream.ids == before
    again = stream.at(mark)
    assert not again.overflowed
    assert again.ids == fork.ids


def test_nothing_is_nothing() -> None:
    stream = stream_of(ByteTokenizer())
    stream.append("")
    stream.append("", trusted=True)
    stream.append_ids(())
    assert stream.ids == ()
    assert stream.text() == ""


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), *map(small_tokenizer, KINDS)], ids=["byte", *KINDS])
def test_a_mark_brings_back_the_stream_as_it_was(tokenizer: Tokenizer) -> None:
    @given(st.lists(st.tuples(MARKUP, st.sampled_from(["data", "trusted", "tokens"])), min_size=1, max_size=14), MARKUP)
    @settings(max_examples=80, deadline=None)
    def check(drawn: list[tuple[str, str]], more: str) -> None:
        stream = stream_of(tokenizer)
        marks = []
        for piece, how in drawn:
            marks.append((stream.mark(), stream.fork()))
            if how == "tokens":
                stream.append_ids(tokenizer.encode(piece.encode("utf-8", "replace").decode()))
            else:
                stream.append(piece, trusted=how == "trusted")
        now = (stream.ids, stream.sources)
        for mark, before in marks:
            back = stream.at(mark)
            assert (back.ids, back.sources) == (before.ids, before.sources)
            for twin in (back, before):
                twin.append(more, trusted=True)
            assert (back.ids, back.sources) == (before.ids, before.sources)
        assert (stream.ids, stream.sources) == now

    check()

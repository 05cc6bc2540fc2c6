"""Where output ends and what may be shown, against a reference that reads character by character."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmnb.runtime.output_stream import OutputStream, end_token_ids
from lmnb.runtime.request import Constraint, SamplingParams
from lmnb.runtime.stop_strings import StopStrings
from lmnb.runtime.testing import ByteTokenizer

EOS, OTHER_EOS = 258, 256


class WordTokenizer(ByteTokenizer):
    """Tokens of several characters, beside the bytes."""

    words = ('",', "ab", "bc", "abc", "😀!", " stop", "x\n\nUser:", "")

    def __init__(self) -> None:
        super().__init__()
        self.vocab_size = 300 + len(self.words)

    def token_bytes(self, token_id: int) -> bytes:
        return self.words[token_id - 300].encode() if token_id >= 300 else super().token_bytes(token_id)


TOKENIZER = WordTokenizer()


def run(ids: list[int], **params: object) -> tuple[OutputStream, list[str]]:
    """Push until the stream ends by itself."""
    stream = OutputStream(SamplingParams(**params), TOKENIZER, TOKENIZER.eos_ids)  # type: ignore[arg-type]
    pieces = []
    for token_id in ids:
        if stream.finished:
            break
        pieces.append(stream.push(token_id))
    return stream, pieces


def first_stop(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            longest = max(matches, key=len)
            return end - len(longest), longest
    return None


tokens = st.lists(
    st.one_of(
        st.sampled_from([ord(c) for c in "abc!"]), st.integers(300, 307), st.sampled_from([0xF0, 0x9F, 0x98, 0x80])
    ),
    max_size=12,
)
stop_lists = st.lists(st.text('abc!"😀\ufffd', min_size=1, max_size=4), max_size=3).map(tuple)


@settings(max_examples=400, deadline=None)
@given(tokens, stop_lists)
@example([ord("a"), ord("b")], ("abc", "b"))
@example([0xF0, 0x9F], ("\ufffd",))
def test_against_the_reference(ids: list[int], stops: tuple[str, ...]) -> None:
    stream, pieces = run(ids, stop=stops)
    for count in range(len(pieces) + 1):  # nothing published may belong to a stop string that can still come
        assert first_stop("".join(pieces[:count]), stops) is None
    pieces.append(stream.finish("cancelled"))
    used = len(stream.token_ids)
    full = TOKENIZER.decode(ids[:used])
    found = first_stop(full, stops)
    expected = full if found is None else full[: found[0]]
    assert stream.text == "".join(pieces) == expected
    assert stream.matched == (None if found is None else found[1])
    assert stream.finish_reason == ("cancelled" if found is None else "stop")
    assert stream.token_ids == ids[:used]
    if found is None:
        assert used == len(ids)
    kept = stream.num_kept_tokens
    assert expected.startswith(TOKENIZER.decode(ids[:kept]))
    whole = [
        k for k in range(used + 1) if expected.startswith(t := TOKENIZER.decode(ids[:k])) and not t.endswith("\ufffd")
    ]
    assert kept >= max(whole)


@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3), st.data())
@settings(max_examples=200, deadline=None)
def test_the_cut_into_pieces_does_not_matter(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    finder, consumed = StopStrings(stops), 0
    found = None
    for part in parts:
        found = finder.feed(part)
        if found:
            end = consumed + found[0]
            found = (end - len(found[1]), found[1])
            break
        consumed += len(part)
        held = max((n for n in range(4) if any(s[:n] == text[:consumed][-n:] for s in stops if n < len(s))), default=0)
        assert finder.held == held
    assert found == first_stop(text, tuple(stops))


def test_a_stop_inside_a_token() -> None:
    stream, pieces = run([*b'"Paris', 300, *b"more"], stop=('",',))
    assert (stream.text, stream.matched, stream.num_kept_tokens) == ('"Paris', '",', 6)
    stream, pieces = run([*b"Paris", 300], stop=('"',))
    assert (stream.text, stream.matched, stream.finish_reason, stream.num_kept_tokens) == ("Paris", '"', "stop", 5)
    assert len(stream.token_ids) == 6
    assert pieces == ["P", "a", "r", "i", "s", ""]


def test_text_before_the_stop_within_the_same_token_is_kept() -> None:
    stream, _ = run([ord("y"), 306], stop=("\n\nUser:",))
    assert (stream.text, stream.num_kept_tokens) == ("yx", 1)


def test_a_possible_stop_is_held_back_until_decided() -> None:
    _, pieces = run([*b"one\n", *b"\ntwo\n\nUser:!"], stop=("\n\nUser:",))
    assert pieces[:4] == ["o", "n", "e", ""]
    assert pieces[4:6] == ["", "\n\nt"]
    assert pieces[8:] == [""] * 7


def test_what_is_held_back_comes_out_at_the_end() -> None:
    stream, pieces = run([*b"hi EN"], stop=("END",))
    assert "".join(pieces) == "hi "
    assert stream.finish("cancelled") == "EN"
    assert stream.finish("error") == ""
    assert (stream.text, stream.finish_reason, stream.num_kept_tokens) == ("hi EN", "cancelled", 5)
    stream, pieces = run([*b"hi EN"], stop=("END",), max_new_tokens=5)
    assert ("".join(pieces), stream.finish_reason, stream.matched) == ("hi EN", "length", None)


def test_a_stop_in_the_first_token() -> None:
    stream, pieces = run([305], stop=(" stop",))
    assert (stream.text, pieces, stream.num_kept_tokens, stream.finish_reason) == ("", [""], 0, "stop")


def test_a_stop_string_is_not_held_back_by_min_new_tokens() -> None:
    stream, _ = run([*b"a."], stop=(".",), min_new_tokens=50)
    assert (stream.finish_reason, stream.text) == ("stop", "a")


def test_a_stop_wins_over_the_length() -> None:
    stream, _ = run([*b"a."], stop=(".",), max_new_tokens=2)
    assert (stream.finish_reason, stream.matched) == ("stop", ".")


@pytest.mark.parametrize("token_id", [EOS, OTHER_EOS, ord("c")])
def test_end_tokens_are_cut(token_id: int) -> None:
    stream, pieces = run([*b"ab", token_id], stop_token_ids=(ord("c"),))
    assert (stream.text, stream.finish_reason, stream.matched) == ("ab", "stop", token_id)
    assert (stream.token_ids, stream.num_kept_tokens) == ([97, 98, token_id], 2)
    assert "".join(pieces) == "ab"


def test_an_end_token_within_a_character() -> None:
    stream, pieces = run([0x61, 0xF0, 0x9F, EOS])
    assert (stream.text, pieces[-1], stream.num_kept_tokens) == ("a\ufffd", "\ufffd", 3)


def test_ignore_eos() -> None:
    stream, _ = run([0x61, EOS, 0x63, 0x2E], ignore_eos=True, stop_token_ids=(0x63,), stop=(".",))
    assert (stream.text, stream.matched) == ("a<|im_end|>c", ".")


def test_other_special_tokens_are_text() -> None:
    stream, _ = run([0x61, 257, EOS])
    assert (stream.text, stream.num_kept_tokens) == ("a<|im_start|>", 2)


def test_length() -> None:
    stream, pieces = run([*b"abcdef"], max_new_tokens=3)
    assert (stream.text, stream.finish_reason, len(pieces), stream.num_kept_tokens) == ("abc", "length", 3, 3)
    stream, pieces = run([0x61, 0xF0, 0x9F, 0x98, 0x80], max_new_tokens=3)
    assert (stream.text, pieces) == ("a\ufffd", ["a", "", "\ufffd"])


def test_end_token_ids() -> None:
    eos = frozenset({1, 2})
    assert end_token_ids(SamplingParams(stop_token_ids=(7,)), eos) == {1, 2, 7}
    assert end_token_ids(SamplingParams(stop_token_ids=(7,), ignore_eos=True), eos) == frozenset()
    constrained = SamplingParams(ignore_eos=True, constraint=Constraint("regex", "a"))
    assert end_token_ids(constrained, eos) == eos


def test_a_finished_stream_takes_no_more() -> None:
    stream, _ = run([EOS])
    with pytest.raises(AssertionError):
        stream.push(0x61)


def test_the_model_may_be_padded_beyond_the_tokenizer() -> None:
    stream, pieces = run([0x61, 10_000, 0x62])
    assert (stream.finish("length"), pieces, stream.num_kept_tokens) == ("", ["a", "", "b"], 3)

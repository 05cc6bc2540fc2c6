"""Constraints over SmolLM2's own vocabulary, and the compiler around the two libraries."""

from __future__ import annotations

import builtins
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from lmnb.errors import GrammarError, LmnbError
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.output_stream import OutputStream
from lmnb.runtime.request import Constraint, SamplingParams
from lmnb.runtime.sampler import Sampler
from lmnb.runtime.sampler_row import SamplerRow
from lmnb.runtime.testing import ByteTokenizer
from lmnb.runtime.tokenizer import Tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
}
DATE = Constraint("regex", r"\d{4}-\d\d-\d\d")
JSON = Constraint("json_schema", json.dumps(PERSON))
PADDED = 49152 + 45


@pytest.fixture(scope="module")
def grammars(smollm2_tokenizer: Tokenizer) -> Grammars:
    return Grammars(smollm2_tokenizer, PADDED)


def allowed_tokens(matcher: GrammarMatcher, num_tokens: int = PADDED) -> set[int]:
    mask = np.full(-(-num_tokens // 32), -1, dtype=np.int32)
    going = matcher.fill(mask)
    found = set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())
    assert going == bool(found)
    return found


def accept_text(matcher: GrammarMatcher, tokenizer: Tokenizer, text: str) -> int:
    ids = tokenizer.encode(text)
    assert all(matcher.accept(token_id) for token_id in ids)
    return len(ids)


def generate(
    tokenizer: Tokenizer, matcher: GrammarMatcher, params: SamplingParams, seed: int, closers: str = ""
) -> OutputStream:
    """What the engine does, with a model that predicts noise (and likes `closers`, so that strings end)."""
    logits_source = torch.Generator().manual_seed(seed)
    stream = OutputStream(params, tokenizer, tokenizer.eos_ids)
    row = SamplerRow(params, seed=seed, end_ids=stream.end_ids)
    row.bitmask = np.zeros(-(-PADDED // 32), dtype=np.int32)
    liked = [tokenizer.encode(char)[0] for char in closers] + [*tokenizer.eos_ids]
    while not stream.finished:
        logits = torch.randn(1, PADDED, generator=logits_source)
        logits[0, liked] += 8
        matcher.fill(row.bitmask)
        sampled = Sampler(tokenizer.vocab_size).sample(logits, [row])
        assert not sampled.errors
        token_id = sampled.token_ids[0]
        stream.push(token_id)
        row.push(token_id)
        assert matcher.accept(token_id)
        if matcher.is_done():
            stream.finish("stop")
    return stream


@pytest.mark.parametrize(
    "pattern",
    [
        r"\d{4}-\d{2}-\d{2}",
        r"(\w+\s?){1,6}\.",
        r"[^\n]{1,30}\n",
        r"((25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(25[0-5]|2[0-4]\d|1?\d?\d)",
        r"(?i:yes|no)|maybe[?!]*",
        r"你好，(世界|朋友)！?",
        r"-?\d+(\.\d+)?([eE][+-]?\d+)?",
    ],
)
def test_noise_matches_the_regex(smollm2_tokenizer: Tokenizer, grammars: Grammars, pattern: str) -> None:
    for seed in range(4):
        params = SamplingParams(max_new_tokens=200, temperature=0 if seed == 0 else 1.0)
        matcher = grammars.compile(Constraint("regex", pattern))
        stream = generate(smollm2_tokenizer, matcher, params, seed, ".\n")
        assert stream.finish_reason == "stop"
        assert re.fullmatch(pattern, stream.text)
        assert stream.text == smollm2_tokenizer.decode(stream.token_ids[: stream.num_kept_tokens])


@pytest.mark.parametrize("engine", ["xgrammar", "llguidance"])
def test_noise_matches_the_schema(smollm2_tokenizer: Tokenizer, grammars: Grammars, engine: str) -> None:
    schema: dict[str, Any] = PERSON
    if engine == "llguidance":
        code = {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"}
        schema = {**PERSON, "properties": {"code": code, **PERSON["properties"]}, "required": ["code", "age"]}
    for seed in range(4):
        matcher = grammars.compile(Constraint("json_schema", json.dumps(schema)))
        assert matcher.engine == engine
        stream = generate(smollm2_tokenizer, matcher, SamplingParams(max_new_tokens=400), seed, '"}],')
        assert stream.finish_reason == "stop"
        jsonschema.validate(json.loads(stream.text), schema)


@pytest.mark.parametrize("constraint", [DATE, JSON, Constraint("regex", r"(.|\n)*")], ids=lambda c: c.kind)
def test_the_mask_says_what_is_accepted(
    smollm2_tokenizer: Tokenizer, grammars: Grammars, constraint: Constraint
) -> None:
    matcher = grammars.compile(constraint)
    rng = np.random.default_rng(0)
    for _ in range(6):
        allowed = allowed_tokens(matcher)
        sample = [*rng.choice(PADDED, 150).tolist(), *rng.choice([*allowed], 20).tolist(), *smollm2_tokenizer.eos_ids]
        for token_id in sample:
            assert matcher.fork().accept(token_id) == (token_id in allowed)
        going_on = [token_id for token_id in allowed if token_id not in smollm2_tokenizer.eos_ids]
        if not going_on:
            break
        assert matcher.accept(int(rng.choice(going_on)))


@pytest.mark.parametrize(
    "constraint", [Constraint("regex", r"(?s).*"), Constraint("json_schema", "{}")], ids=["regex", "json"]
)
def test_markers_and_padding_are_never_allowed(
    smollm2_tokenizer: Tokenizer, grammars: Grammars, constraint: Constraint
) -> None:
    matcher = grammars.compile(constraint)
    if constraint.kind == "json_schema":
        assert allowed_tokens(matcher).isdisjoint(smollm2_tokenizer.eos_ids)
        accept_text(matcher, smollm2_tokenizer, '"any text')
    allowed = allowed_tokens(matcher)
    markers = smollm2_tokenizer.added_ids - smollm2_tokenizer.eos_ids
    assert len(markers) == 16
    assert allowed.isdisjoint(markers)
    assert not any(matcher.accept(marker) for marker in markers)
    assert max(allowed) < smollm2_tokenizer.vocab_size
    assert not matcher.accept(PADDED - 1)
    assert not matcher.accept(PADDED + 5)
    assert len(allowed) > 40_000
    accept_text(matcher, smollm2_tokenizer, "<|im_start|>system")  # spelled with letters it is data


@pytest.mark.parametrize(
    ("constraint", "steps"),
    [
        (Constraint("regex", "ab?c*"), [("", False), ("a", True), ("b", True), ("c", True)]),
        (Constraint("json_schema", '{"type":"integer"}'), [("", False), ("1", True), ("2", True)]),
        (Constraint("json_schema", '{"type":"boolean"}'), [("", False), ("true", True)]),
        (Constraint("ebnf", 'start: "c" A\nA: ~"a" "d"\n'), [("", False), ("c", False), ("x", False), ("d", True)]),
    ],
    ids=str,
)
def test_end_tokens_are_allowed_exactly_where_the_match_may_end(
    constraint: Constraint, steps: list[tuple[str, bool]]
) -> None:
    tokenizer = ByteTokenizer()
    matcher = Grammars(tokenizer, 259).compile(constraint)
    for text, may_end in steps:
        accept_text(matcher, tokenizer, text)
        allowed = allowed_tokens(matcher, 259)
        assert (tokenizer.eos_ids <= allowed) == may_end
        assert bool(tokenizer.eos_ids & allowed) == may_end
        for eos in tokenizer.eos_ids:
            assert matcher.fork().accept(eos) == may_end


@pytest.mark.parametrize("constraint", [DATE, JSON], ids=lambda c: c.kind)
def test_rollback_and_fork(smollm2_tokenizer: Tokenizer, grammars: Grammars, constraint: Constraint) -> None:
    text = "2024-05-17" if constraint is DATE else '{"name":"Ann","age":41}'
    (eos,) = smollm2_tokenizer.eos_ids
    matcher = grammars.compile(constraint)
    masks = []
    ids = smollm2_tokenizer.encode(text)
    for token_id in ids:
        masks.append(allowed_tokens(matcher))
        assert not matcher.is_done()
        assert matcher.accept(token_id)
    assert matcher.is_done()
    assert allowed_tokens(matcher) == {eos}
    twin = matcher.fork()
    assert matcher.accept(eos)
    assert matcher.is_done()
    assert allowed_tokens(matcher) == set()
    assert not matcher.accept(eos)
    assert matcher.fork().is_done()
    matcher.rollback(0)
    matcher.rollback(1)
    assert allowed_tokens(matcher) == {eos}
    assert matcher.accept(eos)
    matcher.rollback(1 + 3)
    assert allowed_tokens(matcher) == masks[-3]
    assert allowed_tokens(twin) == {eos}, "a fork is independent"
    matcher.rollback(len(ids) - 3)
    assert allowed_tokens(matcher) == masks[0]


def test_a_refused_token_changes_nothing(smollm2_tokenizer: Tokenizer, grammars: Grammars) -> None:
    for constraint, text in ((DATE, "20"), (JSON, '{"name":"')):
        matcher = grammars.compile(constraint)
        accept_text(matcher, smollm2_tokenizer, text)
        before = allowed_tokens(matcher)
        wrong = next(i for i in range(100, 49152) if i not in before)
        assert not matcher.accept(wrong)
        assert not matcher.accept(-1)
        assert allowed_tokens(matcher) == before


def test_end_tokens_are_never_banned_from_a_finished_match(smollm2_tokenizer: Tokenizer, grammars: Grammars) -> None:
    params = SamplingParams(max_new_tokens=50, min_new_tokens=40, ignore_eos=True, constraint=DATE)
    stream = generate(smollm2_tokenizer, grammars.compile(DATE), params, 3)
    assert re.fullmatch(DATE.source, stream.text)
    assert stream.finish_reason == "stop"


def test_matchers_of_one_constraint_are_independent(grammars: Grammars, smollm2_tokenizer: Tokenizer) -> None:
    first, second = grammars.compile(DATE), grammars.compile(DATE)
    accept_text(first, smollm2_tokenizer, "2024")
    assert allowed_tokens(first) != allowed_tokens(second)


def test_tokens_of_equal_bytes_are_all_allowed() -> None:
    class Doubled(ByteTokenizer):
        def __init__(self) -> None:
            super().__init__()
            self.vocab_size = 300

        def token_bytes(self, token_id: int) -> bytes:
            return b"7" if token_id >= 290 else b"" if token_id >= 259 else super().token_bytes(token_id)

    for constraint in (
        Constraint("regex", r"\d"),
        Constraint("json_schema", '{"type":"integer","minimum":7,"maximum":7}'),
    ):
        matcher = Grammars(Doubled(), 300).compile(constraint)
        allowed = allowed_tokens(matcher, 300)
        assert {ord("7"), *range(290, 300)} <= allowed
        assert allowed.isdisjoint(range(256, 290))
        assert matcher.fork().accept(295)
        assert matcher.accept(ord("7"))


@pytest.mark.parametrize("vocab_size", [259, 287, 288, 289, 320])
def test_any_width_of_the_logits(vocab_size: int) -> None:
    grammars = Grammars(ByteTokenizer(), vocab_size)
    for constraint in (Constraint("regex", "x"), Constraint("json_schema", "true")):
        matcher = grammars.compile(constraint)
        assert max(allowed_tokens(matcher, vocab_size)) < 256
    matcher = grammars.compile(Constraint("regex", "x?"))
    assert allowed_tokens(matcher, vocab_size) == {ord("x"), 256, 258}


def count_compilations(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch, before: Callable[[], None]
) -> list[Constraint]:
    compiled: list[Constraint] = []
    original = Grammars._compile

    def recorded(self: Grammars, constraint: Constraint) -> GrammarMatcher:
        compiled.append(constraint)
        before()
        return original(self, constraint)

    monkeypatch.setattr(Grammars, "_compile", recorded)
    return compiled


def test_the_cache_is_bounded_and_forgets_the_least_recently_used(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = Grammars(ByteTokenizer(), 259, cache_size=2)
    compiled = count_compilations(grammars, monkeypatch, lambda: None)
    a, b, c = (Constraint("regex", pattern) for pattern in "abc")
    for constraint in (a, b, a, c, a, b):
        grammars.compile(constraint)
    assert compiled == [a, b, c, b]
    # A failure is not kept: what was missing may be there next time.
    bad = Constraint("regex", "(")
    for _ in range(2):
        with pytest.raises(GrammarError):
            grammars.compile(bad)
    assert compiled[4:] == [bad, bad]
    grammars.compile(b)
    assert compiled[6:] == []


def test_threads_that_ask_together_compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = Grammars(ByteTokenizer(), 259)
    barrier = threading.Event()
    compiled = count_compilations(grammars, monkeypatch, lambda: barrier.wait(30) and None)
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(grammars.compile, DATE) for _ in range(8)]
        barrier.set()
        matchers = [future.result() for future in futures]
    assert len(compiled) == 1
    assert len({id(matcher) for matcher in matchers}) == 8
    assert all(matcher.accept(ord("2")) for matcher in matchers)


def test_many_threads_compile_and_follow_at_once(smollm2_tokenizer: Tokenizer, grammars: Grammars) -> None:
    def work(i: int) -> str:
        constraint = Constraint("regex", rf"{i % 3}-\d{{3}}")
        return generate(smollm2_tokenizer, grammars.compile(constraint), SamplingParams(), i).text

    with ThreadPoolExecutor(4) as pool:
        texts = [*pool.map(work, range(12))]
    assert all(re.fullmatch(rf"{i % 3}-\d{{3}}", text) for i, text in enumerate(texts))


@pytest.mark.parametrize(("library", "constraint"), [("llguidance", DATE), ("xgrammar", JSON)])
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, library: str, constraint: Constraint) -> None:
    original = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == library:
            raise ImportError(f"No module named {name!r}")
        return original(name, *args, **kwargs)

    grammars = Grammars(ByteTokenizer(), 259)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(LmnbError, match=f"pip install {library}"):
        grammars.compile(constraint)
    monkeypatch.undo()
    assert grammars.compile(constraint).engine == library


def test_hard_patterns_stay_quick(smollm2_tokenizer: Tokenizer, grammars: Grammars) -> None:
    for pattern in (r"(a*)*b", r"(x+x+)+y", r"(.|\n){1,200}", r"(a{1000}){1000}"):
        matcher = grammars.compile(Constraint("regex", pattern))
        for token_id in smollm2_tokenizer.encode("xxxx" if "x" in pattern else "aaaa") * 20:
            assert matcher.accept(token_id)
            assert allowed_tokens(matcher)


def test_an_interrupt_is_only_the_interrupted_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = Grammars(ByteTokenizer(), 259)
    compile_it, begun, waits = grammars._compile, threading.Event(), threading.Event()

    def interrupted(constraint: Constraint) -> Any:
        monkeypatch.setattr(grammars, "_compile", compile_it)
        begun.set()
        assert waits.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr(grammars, "_compile", interrupted)
    result = Future.result
    monkeypatch.setattr(Future, "result", lambda self, timeout=None: (waits.set(), result(self, timeout))[1])
    first: list[BaseException] = []

    def ask_first() -> None:
        try:
            grammars.compile(Constraint("regex", "ab"))
        except BaseException as error:
            first.append(error)

    thread = threading.Thread(target=ask_first)
    thread.start()
    assert begun.wait(30)
    assert grammars.compile(Constraint("regex", "ab")).accept(ord("a"))
    thread.join(30)
    assert [type(error) for error in first] == [KeyboardInterrupt]
    grammars.close()

"""Jump-forward changes nothing but the number of steps: tokens and text with it and without it, over many grammars.

The comparison is exact. Greedy runs may differ only where the run without jumps wrote tokens that the tokenizer
would not have made of its text; then the run with jumps must have repaired just that.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from small_tokenizers import small_tokenizer

from lmnb.errors import GenerationError
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.fake_model import FakeModel
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.jump_forward import JumpForward
from lmnb.runtime.request import Completion, Constraint, FinishEvent, Request, SamplingParams, TokenEvent
from lmnb.runtime.retokenize import Retokenizer
from lmnb.runtime.scheduler import Scheduler
from lmnb.runtime.sequence import Sequence
from lmnb.runtime.testing import ByteTokenizer
from lmnb.runtime.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("step_order")

WORDS = [
    "name",
    "answer",
    "the dog",
    "it's",
    "calculator",
    "北京",
    "上海",
    "天气",
    "😀",
    "x",
    "12345",
    "New York",
    "New Orleans",
]
CITIES = json.dumps({"type": "array", "items": {"enum": ["北京", "北海", "南京"]}, "minItems": 1, "maxItems": 3})


def random_regex(rng: random.Random, depth: int = 2) -> str:
    kind = rng.randrange(6 if depth else 3)
    if kind == 0:
        return re.escape(rng.choice(WORDS))
    if kind == 1:
        return rng.choice(["[a-f]", r"\d", "[0-9]{4}", "[a-z]{1,3}", "(yes|no)", "[北南]京", " ", "\n"])
    if kind == 2:
        return "(" + "|".join(re.escape(word) for word in rng.sample(WORDS, 3)) + ")"
    if kind == 3:
        return f"({random_regex(rng, depth - 1)})?"
    return "".join(random_regex(rng, depth - 1) for _ in range(rng.randrange(2, 4)))


def random_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    kind = rng.randrange(8 if depth else 6)
    if kind >= 5:
        names = rng.sample([*WORDS, "a", "b"], rng.randrange(1, 4))
        return {
            "type": "object",
            "properties": {name: random_schema(rng, max(0, depth - 1)) if depth else {"const": 1} for name in names},
            "required": names if rng.random() < 0.7 else names[:1],
            "additionalProperties": False,
        }
    return [
        {"enum": rng.sample(WORDS, 3)},
        {"type": "integer", "minimum": 0, "maximum": rng.choice([5, 150])},
        {"type": "boolean"},
        {"const": rng.choice([*WORDS, None, 7])},
        {"type": "string", "pattern": rng.choice(["^[a-c]{1,3}$", "^(yes|no) [0-9]+$"])},
    ][kind]


def random_constraint(rng: random.Random) -> Constraint:
    if rng.random() < 0.5:
        return Constraint("regex", random_regex(rng))
    return Constraint("json_schema", json.dumps(random_schema(rng), ensure_ascii=False))


class Fluent(FakeModel):
    """A fake model that likes long tokens, so that what it writes is mostly what the tokenizer would write."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer.vocab_size, sharpness=1.0)
        lengths = [len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)]
        self.bonus = 3.0 * torch.tensor(lengths, dtype=torch.float32)

    def predict(self, ids: list[int]) -> torch.Tensor:
        return super().predict(ids) + self.bonus


@contextmanager
def engine_of(tokenizer: Tokenizer, model: FakeModel | None = None, **config: Any) -> Iterator[Engine]:
    """An engine whose every slot is counted when the test is over."""
    model = model or Fluent(tokenizer)
    grammars = Grammars(tokenizer, model.vocab_size)
    engine = Engine(model, tokenizer, EngineConfig(**{"pool_tokens": 4096, **config}), grammars)
    try:
        yield engine
        engine.check_integrity()
        status = engine.status()
        assert status.running == status.waiting == 0
        assert status.free_tokens + status.cached_tokens == status.pool_tokens
    finally:
        engine.close()


def tokenizer_of(kind: str) -> Tokenizer:
    return ByteTokenizer() if kind == "bytes" else small_tokenizer(kind)


def request_of(tokenizer: Tokenizer, text: str, constraint: Constraint, **sampling: Any) -> Request:
    params = SamplingParams(**{"max_new_tokens": 120, "temperature": 0.0, "constraint": constraint, **sampling})
    return Request(input_ids=tuple(tokenizer.encode(text)), sampling=params)


def is_canonical(retokenizer: Retokenizer, completion: Completion) -> bool:
    """Whether the tokens are the tokenizer's own for their text."""
    ids = list(completion.token_ids)
    if isinstance(completion.matched, int):
        ids.pop()
    whole = retokenizer.encode(retokenizer.bytes_of(ids).decode(errors="ignore"))
    assert whole is not None
    return ids[: len(whole)] == whole and len(ids) - len(whole) < 4  # a limit may cut within a character


def both_ways(
    tokenizer: Tokenizer, constraints: list[Constraint], samplings: list[dict[str, Any]], **config: Any
) -> list[tuple[Completion, Completion]]:
    """Each constraint with plain masks and with jumps; and with forced tokens a step each, which changes nothing."""
    results = []
    for mode in ({"plain_masks": True}, {}, {"jump_forward": False}):
        with engine_of(tokenizer, **mode, **config) as engine:
            pairs = zip(constraints, samplings, strict=True)
            requests = [request_of(tokenizer, f"Q{i}: ", one, **more) for i, (one, more) in enumerate(pairs)]
            handles = [engine.submit(request) for request in requests]
            results.append([handle.result(timeout=120) for handle in handles])
    plain, jumped, stepped = results
    for one, other in zip(jumped, stepped, strict=True):
        assert (one.token_ids, one.text) == (other.token_ids, other.text)
        assert (one.finish_reason, one.matched, one.num_kept_tokens) == (
            other.finish_reason,
            other.matched,
            other.num_kept_tokens,
        )
        assert one.logprobs == other.logprobs
        assert one.num_steps <= other.num_steps
    return list(zip(plain, jumped, strict=True))


def check_pairs(
    tokenizer: Tokenizer, constraints: list[Constraint], pairs: list[tuple[Completion, Completion]]
) -> tuple[int, int]:
    """Everything is the same, or the run without jumps was not canonical; (canonical runs, forced tokens)."""
    retokenizer = Retokenizer(tokenizer)
    num_canonical = num_forced = 0
    for constraint, (off, on) in zip(constraints, pairs, strict=True):
        assert off.num_forced_tokens == 0
        assert off.num_steps == len(off.token_ids)
        num_forced += on.num_forced_tokens
        if is_canonical(retokenizer, off):
            num_canonical += 1
            assert on.token_ids == off.token_ids, constraint
            assert (on.text, on.finish_reason, on.matched) == (off.text, off.finish_reason, off.matched)
            assert on.num_kept_tokens == off.num_kept_tokens
            assert on.num_steps + on.num_forced_tokens == len(on.token_ids)
        if on.finish_reason == "stop" and not isinstance(on.matched, str):
            if constraint.kind == "json_schema":
                jsonschema.validate(json.loads(on.text), json.loads(constraint.source))
            else:
                assert re.fullmatch(constraint.source, on.text)
    return num_canonical, num_forced


VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({}, {}),
    "sampled": ({"temperature": 1.0}, {}),
    "penalties": ({"frequency_penalty": 1.0, "presence_penalty": 0.5, "repetition_penalty": 1.3}, {}),
    "short": ({"max_new_tokens": 9}, {}),
    "stop strings": ({"stop": ("er", "天", '":')}, {}),
    "stop regex": ({"stop_regex": (r"\\d\\d",)}, {}),
    "chunks": ({}, {"prefill_chunk": 3}),
    "preempted": ({}, {"pool_tokens": 140, "max_running": 8}),
    "no cache": ({}, {"prefix_cache": False}),
}


@pytest.mark.parametrize("kind", ["bytes", "gpt2", "llama3", "digits", "spm-first", "blanks"])
def test_greedy_output_is_the_same(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    rng = random.Random(kind)
    constraints = [random_constraint(rng) for _ in range(50)]
    pairs = both_ways(tokenizer, constraints, [{}] * 50)
    num_canonical, num_forced = check_pairs(tokenizer, constraints, pairs)
    assert num_canonical == 50 if kind == "bytes" else num_canonical > 10
    assert num_forced > 150
    assert sum(on.num_steps for _, on in pairs) < 0.75 * sum(off.num_steps for off, _ in pairs)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["bytes", "gpt2"])
def test_whatever_else_is_asked_for(kind: str, variant: str) -> None:
    tokenizer = tokenizer_of(kind)
    sampling, config = VARIANTS[variant]
    rng = random.Random(kind + variant)
    constraints = [random_constraint(rng) for _ in range(24)]
    constraints[:6] = [Constraint("regex", "[a-z]{40}(yes, of course|yet another)[a-f]{20}")] * 6  # long ones
    samplings = [{"seed": seed, **sampling} for seed in range(24)]
    pairs = both_ways(tokenizer, constraints, samplings, **config)
    num_canonical, num_forced = check_pairs(tokenizer, constraints, pairs)
    assert num_canonical == 24 if kind == "bytes" else num_canonical > 5
    assert num_forced > 30
    if variant == "preempted":
        assert any(on.num_preemptions for _, on in pairs)


@pytest.mark.parametrize("kind", ["bytes", "gpt2"])
@pytest.mark.parametrize("config", [{}, {"prefill_chunk": 3}, {"pool_tokens": 140, "max_running": 8}])
def test_log_probabilities_of_forced_tokens(kind: str, config: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(kind)
    rng = random.Random(5)
    constraints = [random_constraint(rng) for _ in range(40)]
    pairs = both_ways(tokenizer, constraints, [{"return_logprob": True, "top_logprobs_num": 2}] * 40, **config)
    check_pairs(tokenizer, constraints, pairs)
    num_same = 0
    for off, on in pairs:
        assert [entry.token_id for entry in on.logprobs] == list(on.token_ids)
        assert all(entry.logprob is not None and len(entry.top) == 2 for entry in on.logprobs)
        for entry in on.logprobs:
            # The end may be chosen where the mask allows it only; what is allowed is never less likely for it.
            assert entry.masked is not None
            assert entry.logprob is not None
            assert entry.logprob - 1e-4 <= entry.masked <= 0
        if on.token_ids == off.token_ids:
            num_same += on.num_forced_tokens
            assert [replace(entry, masked=None) for entry in on.logprobs] == [
                replace(entry, masked=None) for entry in off.logprobs
            ]
    assert num_same > 50


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("kind", ["bytes", "gpt2"])
def test_events_add_up(kind: str, scored: bool) -> None:
    tokenizer = tokenizer_of(kind)
    rng = random.Random(1)
    num_replaced = 0
    with engine_of(tokenizer, FakeModel(tokenizer.vocab_size)) as engine:
        for _ in range(60):
            request = request_of(tokenizer, "Q: ", random_constraint(rng), return_logprob=scored)
            events = [*engine.submit(request)]
            finish = events.pop()
            assert isinstance(finish, FinishEvent)
            ids: list[int] = []
            logprobs: list[Any] = []
            forced: list[bool] = []  # of each byte: whether no token that was sampled had it
            text = ""
            for event in events:
                assert not isinstance(event, FinishEvent)
                num_replaced += event.num_replaced
                kept = len(ids) - event.num_replaced
                assert event.origin in ("masked", "forced")
                del ids[kept:], logprobs[kept:]
                ids += event.token_ids
                logprobs += event.logprobs
                text += event.text
                forced += [event.origin == "forced"] * (num_bytes(tokenizer, ids) - len(forced))
            completion = finish.completion
            assert (text, tuple(ids)) == (completion.text, completion.token_ids)
            assert tuple(logprobs) == completion.logprobs
            places = [num_bytes(tokenizer, ids[:count]) for count in range(len(ids) + 1)]
            wholly = [end > start and all(forced[start:end]) for start, end in pairwise(places)]
            assert wholly.count(True) == completion.num_forced_tokens
            assert completion.text == tokenizer.decode(completion.token_ids[: completion.num_kept_tokens])
    assert (num_replaced > 0) == (kind != "bytes")


def num_bytes(tokenizer: Tokenizer, ids: list[int]) -> int:
    return sum(len(tokenizer.token_bytes(token_id)) for token_id in ids)


@pytest.mark.parametrize("jumps", [True, False])
def test_a_token_that_holds_a_choice_is_not_forced(jumps: bool) -> None:
    """The model chooses between letters; the tokens with what must follow them take their places."""
    tokenizer = small_tokenizer("gpt2")
    retokenizer = Retokenizer(tokenizer)
    num_replaced = 0
    with engine_of(tokenizer, FakeModel(tokenizer.vocab_size)) as engine:
        for seed in range(30):
            request = request_of(
                tokenizer,
                "Q: ",
                Constraint("regex", "(New|North|Yes|The) Yorkers!"),
                return_logprob=True,
                temperature=3.0,
                seed=seed,
                jump_forward=jumps,
            )
            events = [*engine.submit(request)]
            finish = events.pop()
            assert isinstance(finish, FinishEvent)
            completion = finish.completion
            first = completion.logprobs[0]
            assert first.token_id == completion.token_ids[0]
            assert first.masked != 0
            num_replaced += sum(event.num_replaced for event in events if not isinstance(event, FinishEvent))
            assert completion.num_forced_tokens <= (len(completion.token_ids) - 1 if jumps else 0)
            whole = retokenizer.encode(completion.text)
            assert list(completion.token_ids) == whole
    assert num_replaced > 0


def test_a_boundary_that_the_tokenizer_would_not_make_is_repaired() -> None:
    """The model writes `{` alone, where the tokenizer has `{"`."""
    tokenizer = small_tokenizer("gpt2")
    retokenizer = Retokenizer(tokenizer)
    constraint = Constraint("regex", "(x|New) (York|Yorkers)!")
    with engine_of(tokenizer, FakeModel(tokenizer.vocab_size)) as engine:
        for seed in range(30):
            request = request_of(tokenizer, "Q: ", constraint, temperature=2.0, seed=seed)
            completion = engine.submit(request).result(timeout=20)
            assert re.fullmatch(constraint.source, completion.text)
            if completion.num_forced_tokens and completion.text.startswith("New"):
                ids = list(completion.token_ids)
                whole = retokenizer.encode(completion.text)
                assert whole is not None
                first = ids.index(whole[1]) if whole[1] in ids else None
                assert first is None or first >= 1


@pytest.mark.parametrize("jumps", [True, False])
def test_a_model_may_know_fewer_tokens_than_its_tokenizer(jumps: bool) -> None:
    """What is forced is then written in the tokens that it knows."""
    tokenizer = small_tokenizer("gpt2")
    word = "calculator"
    longest = max(tokenizer.encode(word))
    assert len(tokenizer.encode(word)) < len(word)  # some letters are one token, the model's last one
    model = FakeModel(longest)
    with engine_of(tokenizer, model, jump_forward=jumps) as engine:
        done = engine.submit(request_of(tokenizer, "say: ", Constraint("regex", word * 2))).result()
    assert done.text == word * 2
    assert max(done.token_ids) < longest


@pytest.mark.parametrize("kind", ["bytes", "gpt2", "llama3", "digits", "spm-first", "blanks"])
def test_a_plan_that_takes_steps_is_the_one_that_would_be_made_anew(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of(kind)
    jump, num_kept = JumpForward.jump, []

    def checked(jumps: JumpForward, sequence: Sequence, scheduler: Scheduler) -> TokenEvent | None:
        goes_on = bool(sequence.planned)
        event = jump(jumps, sequence, scheduler)
        if goes_on:
            assert event is None
            written, (plan, *_) = sequence.output.token_ids, jumps._plan(sequence)
            anew = written if plan is None else [*written[: len(written) - plan.num_replaced], *plan.token_ids]
            goes_on_to = [*written, *sequence.planned]
            # Within a character a library may not say what is forced.
            assert anew == goes_on_to or (plan is None and sequence.planned)
            num_kept.append(len(sequence.planned))
        return event

    monkeypatch.setattr(JumpForward, "jump", checked)
    rng = random.Random(kind + "kept")
    requests = [request_of(tokenizer, f"Q{i}: ", random_constraint(rng)) for i in range(50)]
    with engine_of(tokenizer, jump_forward=False) as engine:
        for handle in [engine.submit(request) for request in requests]:
            handle.result(timeout=120)
    assert len(num_kept) > 100


@pytest.mark.parametrize("jumps", [False, True])
def test_planning_makes_the_mask_of_the_next_choice(
    jumps: bool, smollm2_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    jump, num_checked = JumpForward.jump, [0]

    def checked(each: JumpForward, sequence: Sequence, scheduler: Scheduler) -> TokenEvent | None:
        event = jump(each, sequence, scheduler)
        if sequence.mask_behind is not None and not sequence.output.finished:
            assert sequence.matcher is not None
            matcher, mask = sequence.matcher.fork(), np.zeros_like(sequence.mask_behind)
            assert matcher.follow(sequence.planned)
            matcher.fill(mask)
            assert (mask == sequence.mask_behind).all()
            num_checked[0] += 1
        return event

    monkeypatch.setattr(JumpForward, "jump", checked)
    rng = random.Random("behind")
    constraints = [Constraint("json_schema", json.dumps(random_schema(rng), ensure_ascii=False)) for _ in range(20)]
    requests = [request_of(smollm2_tokenizer, f"Q{i}: ", each) for i, each in enumerate(constraints)]
    with engine_of(smollm2_tokenizer, jump_forward=jumps) as engine:
        for handle in [engine.submit(request) for request in requests]:
            handle.result(timeout=120)
    assert num_checked[0] > 20


@pytest.mark.parametrize("most", [3, 7, 14, 20])
@pytest.mark.parametrize("header", ["x[max_tokens={}]:", "!x [lazy, max_tokens = {}] :"])
def test_nothing_is_forced_where_tokens_count(header: str, most: int) -> None:
    """Too many of them end even text that is said to be forced, and what may follow it depends on their number."""
    tokenizer = small_tokenizer("gpt2")
    source = f'start: "so " x y\n{header.format(most)} "the weather is" /[ a-z]*/\ny: "!!"\n'
    constraint = Constraint("ebnf", source)
    done = {}
    for mode in ("plain_masks", "jump_forward", "prefix_cache"):
        with engine_of(tokenizer, **{mode: mode == "plain_masks"}) as engine:
            done[mode] = engine.submit(request_of(tokenizer, "Q: ", constraint)).result(timeout=20)
    assert len({completion.token_ids for completion in done.values()}) == 1
    assert {completion.num_forced_tokens for completion in done.values()} == {0}
    assert done["jump_forward"].text.endswith("!!")


@pytest.mark.parametrize("kind", ["gpt2", "spm-first", "blanks"])
@pytest.mark.parametrize(
    ("regex", "stop", "is_cut"),
    [
        ("calculator?", "r", False),
        ("calculator", "r", True),
        ("x( calcula(tor!)?)", "tor", False),
        ("天(气)?", "气", False),
    ],
)
def test_a_stop_within_a_token_leaves_a_match_whole(kind: str, regex: str, stop: str, is_cut: bool) -> None:
    tokenizer = small_tokenizer(kind)
    with engine_of(tokenizer) as engine:
        asked = request_of(tokenizer, "Q: ", Constraint("regex", regex), stop=(stop,), min_new_tokens=99)
        done = engine.submit(asked).result(timeout=20)
    assert (done.matched, done.is_cut) == (stop, is_cut)
    assert (re.fullmatch(regex, done.text) is None) == is_cut


@pytest.mark.parametrize("kind", ["bytes", "gpt2", "spm-first", "digits"])
@pytest.mark.parametrize("regex", ["(New|Old) Yorkers!", "only this", "[0-9]{3} (a|b)12345, xyz"])
def test_a_stop_token_ends_forced_text_too(kind: str, regex: str) -> None:
    tokenizer = tokenizer_of(kind)
    constraint = Constraint("regex", regex)
    with engine_of(tokenizer) as engine:
        whole = engine.submit(request_of(tokenizer, "Q: ", constraint)).result(timeout=20)
    tokens = [token for token in dict.fromkeys(whole.token_ids) if token not in tokenizer.eos_ids]
    samplings: list[dict[str, Any]] = [{"stop_token_ids": (token,)} for token in tokens]
    samplings += [{"stop_token_ids": (token,), "return_logprob": True} for token in tokens]
    ended = 0
    for sampling, (_, done) in zip(
        samplings, both_ways(tokenizer, [constraint] * len(samplings), samplings), strict=True
    ):
        (stop,) = sampling["stop_token_ids"]
        assert (done.matched == stop) == (stop in done.token_ids)
        assert stop not in done.token_ids[:-1]
        ended += done.is_cut
    assert ended > len(tokens) / 2  # other prompts lead to other texts, which may lack the token


@pytest.mark.parametrize(
    ("regex", "limit"), [("only this", 99), ("(a|b)only this", 99), ("only this", 1), ("only this", 3)]
)
@pytest.mark.parametrize("scored", [False, True])
def test_a_prompts_log_probabilities_are_there_whatever_is_forced(regex: str, limit: int, scored: bool) -> None:
    tokenizer = small_tokenizer("gpt2")
    found = []
    for jumps in (True, False):
        with engine_of(tokenizer) as engine:
            sampling = {"jump_forward": jumps, "max_new_tokens": limit, "return_logprob": scored}
            request = request_of(tokenizer, "Q: hello there", Constraint("regex", regex), **sampling)
            done = engine.submit(replace(request, logprob_start=1)).result(timeout=20)
            assert [entry.token_id for entry in done.input_logprobs] == [*request.input_ids[1:]]
            found.append((done.token_ids, done.text, done.finish_reason, done.input_logprobs, len(done.logprobs)))
    assert found[0] == found[1]


def test_a_request_can_switch_it() -> None:
    tokenizer = ByteTokenizer()
    constraint = Constraint("regex", "(yes|no), of course")
    for default in (False, True):
        with engine_of(tokenizer, jump_forward=default) as engine:
            for asked in (None, False, True):
                request = request_of(tokenizer, "Q: ", constraint, jump_forward=asked)
                jumped = engine.submit(request).result(timeout=20).num_forced_tokens > 0
                assert jumped == (default if asked is None else asked)


def test_a_chinese_list_is_whole_characters_only() -> None:
    for kind in ("bytes", "gpt2", "spm-first"):
        tokenizer = tokenizer_of(kind)
        constraints = [Constraint("json_schema", CITIES)] * 6
        samplings = [{"temperature": 1.0, "seed": seed, "max_new_tokens": 200} for seed in range(6)]
        pairs = both_ways(tokenizer, constraints, samplings)
        check_pairs(tokenizer, constraints, pairs)
        for _, on in pairs:
            assert set(json.loads(on.text)) <= {"北京", "北海", "南京"}
            assert "\ufffd" not in on.text
            assert on.num_forced_tokens


@pytest.mark.parametrize("kind", ["bytes", "gpt2", "llama3", "spm-first"])
@pytest.mark.parametrize(
    ("sampling", "config"),
    [
        ({}, {}),
        ({}, {"prefill_chunk": 3}),
        ({}, {"pool_tokens": 140, "max_running": 8}),
        ({"stop": ("er", "天", '":')}, {}),
        ({"stop_regex": (r"\\d\\d",), "max_new_tokens": 9}, {}),
    ],
)
def test_asking_for_log_probabilities_changes_no_token(
    kind: str, sampling: dict[str, Any], config: dict[str, Any]
) -> None:
    """Boundaries are repaired, and text is forced, with them as without; each token has the log-probability that it
    has in a run of its own, where it is part of the prompt."""
    tokenizer = tokenizer_of(kind)
    rng = random.Random(kind)
    requests = [
        request_of(tokenizer, f"Q{i}: ", random_constraint(rng), temperature=1.0, seed=i, **sampling) for i in range(30)
    ]
    model = FakeModel(tokenizer.vocab_size)  # writes in its own way, so that much is repaired
    with engine_of(tokenizer, model, **config) as engine:
        handles = [engine.submit(request) for request in requests]
        asking = [replace(r, sampling=replace(r.sampling, return_logprob=True)) for r in requests]
        scored_handles = [engine.submit(request) for request in asking]
        for request, handle, scored_handle in zip(requests, handles, scored_handles, strict=True):
            plain, scored = handle.result(timeout=60), scored_handle.result(timeout=60)
            assert (scored.token_ids, scored.text, scored.matched) == (plain.token_ids, plain.text, plain.matched)
            assert (scored.num_forced_tokens, scored.num_steps) == (plain.num_forced_tokens, plain.num_steps)
            assert [entry.token_id for entry in scored.logprobs] == list(scored.token_ids)
            whole = replace(
                request,
                input_ids=(*request.input_ids, *scored.token_ids),
                logprob_start=len(request.input_ids),
                sampling=SamplingParams(max_new_tokens=0),
            )
            expected = engine.submit(whole).result(timeout=60).input_logprobs
            assert [entry.logprob for entry in scored.logprobs] == [entry.logprob for entry in expected]


def test_only_choices_take_a_step(smollm2_tokenizer: Tokenizer) -> None:
    """A token that may merge with other text, but not with what the grammar lets follow, is not left to the model."""
    tokenizer = smollm2_tokenizer
    schema = {
        "type": "object",
        "properties": {
            "house": {"enum": ["Gryffindor", "Slytherin"]},
            "year": {"type": "integer", "minimum": 1, "maximum": 7},
        },
        "required": ["house", "year"],
    }
    regex = "(oak|elm), of course; (yes|no)!"
    with engine_of(tokenizer) as engine:
        for constraint in (Constraint("json_schema", json.dumps(schema)), Constraint("regex", regex)):
            for seed in range(4):
                request = request_of(tokenizer, "Q: ", constraint, temperature=1.0, seed=seed)
                completion = engine.submit(request).result(timeout=20)
                assert completion.num_steps == 2, completion.text


class Broken(FakeModel):
    """Fails at every step."""

    def predict(self, ids: list[int]) -> torch.Tensor:
        raise RuntimeError("no memory")


def test_a_forced_answer_waits_for_its_log_probabilities_only() -> None:
    """Its output is finished before anything is computed."""
    tokenizer = ByteTokenizer()
    request = request_of(tokenizer, "Q: ", Constraint("regex", "only this"), return_logprob=True)
    with engine_of(tokenizer) as engine:
        completion = engine.submit(request).result(timeout=20)
        assert (completion.text, completion.num_steps, len(completion.logprobs)) == ("only this", 0, 9)
        assert all(entry.logprob is not None for entry in completion.logprobs)
    with (
        engine_of(tokenizer, Broken(tokenizer.vocab_size)) as engine,
        pytest.raises(GenerationError, match="no memory"),
    ):
        engine.submit(request).result(timeout=20)


def test_a_whole_answer_may_be_forced() -> None:
    tokenizer = ByteTokenizer()
    model = Fluent(tokenizer)
    with engine_of(tokenizer, model) as engine:
        completion = engine.submit(request_of(tokenizer, "Q: ", Constraint("regex", "only this"))).result(timeout=20)
        assert (completion.text, completion.finish_reason) == ("only this", "stop")
        assert (completion.num_forced_tokens, completion.num_steps, model.num_forwards) == (9, 0, 0)
        cut = engine.submit(request_of(tokenizer, "Q: ", Constraint("regex", "only this"), max_new_tokens=4))
        assert (cut.result(timeout=20).text, cut.result().finish_reason) == ("only", "length")

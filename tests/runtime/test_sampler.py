"""The sampler against a slow float64 reference, and what a batch must not change."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lmnb.errors import GenerationError, GrammarError
from lmnb.runtime.logprobs import pack_scores, unpack_scores
from lmnb.runtime.request import SamplingParams
from lmnb.runtime.sampler import Sampler, kept_mass
from lmnb.runtime.sampler_row import SamplerRow
from lmnb.runtime.uniform_stream import UniformStream, fresh_seed

GREEDY = SamplingParams(temperature=0)


def row(
    params: SamplingParams, *, seed: int = 1, end_ids: tuple[int, ...] = (), pushed: tuple[int, ...] = ()
) -> SamplerRow:
    made = SamplerRow(params, seed=seed, end_ids=frozenset(end_ids))
    for token_id in pushed:
        made.push(token_id)
    return made


def bits(allowed: list[int], num_tokens: int) -> np.ndarray:
    words = np.zeros(-(-num_tokens // 32), dtype=np.uint32)
    for token_id in allowed:
        words[token_id // 32] |= np.uint32(1 << token_id % 32)
    return words.view(np.int32)


def reference_mass(logits: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """One row, token by token, straight from the definition; and which tokens are not within rounding of a limit."""
    z = logits.astype(np.float64) / params.temperature
    p = np.exp(z - z.max())
    p /= p.sum()
    kept, is_clear = np.zeros_like(p), np.ones(len(p), dtype=bool)
    for i, mine in enumerate(p):
        above = p[p > mine]
        least = params.min_p * p.max()
        in_k = params.top_k == -1 or len(above) < params.top_k
        in_p = params.top_p == 1 or above.sum() < params.top_p
        if in_k and in_p and mine >= least:
            kept[i] = mine
        is_clear[i] = abs(above.sum() - params.top_p) > 1e-6 and (
            abs(mine / least - 1) > 1e-6 if 0 < least != mine else True
        )
    return kept, is_clear


filters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.2, 0.7, 1.0, 1.9]),
    top_k=st.one_of(st.just(-1), st.integers(2, 12)),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 0.99)),
    min_p=st.one_of(st.just(0.0), st.floats(0.01, 0.9)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(-40, 40), min_size=1, max_size=20), st.lists(filters, min_size=1, max_size=3))
def test_filters_keep_exactly_what_they_should(quarters: list[int], params: list[SamplingParams]) -> None:
    logits = np.array(quarters, dtype=np.float32) / 4  # many ties
    mass = kept_mass(torch.from_numpy(logits).expand(len(params), -1), params).numpy()
    for got, each in zip(mass, params, strict=True):
        expected, is_clear = reference_mass(logits, each)
        assume(is_clear.all())
        assert ((got > 0) == (expected > 0)).all()
        np.testing.assert_allclose(got, expected, rtol=2e-5)  # logits are float32


@pytest.mark.parametrize("top_p", [0.5, 0.999])
def test_top_p_looks_past_its_first_candidates(top_p: float) -> None:
    # Nearly flat: a thousand candidates do not reach the limit, so that the whole row is sorted.
    logits = torch.linspace(0, 0.1, 5000)
    params = SamplingParams(top_p=top_p)
    got = kept_mass(torch.stack([logits, logits * 100]), [params, params])
    probabilities = torch.stack([logits, logits * 100]).double().softmax(-1)
    for i in range(2):
        ordered = probabilities[i].sort(descending=True).values
        count = int((ordered.cumsum(0) < top_p).sum()) + 1
        assert int((got[i] > 0).sum()) == count
    assert int((got[0] > 0).sum()) > 1024


def test_filters_together_in_a_wide_vocabulary() -> None:
    logits = torch.from_numpy(np.random.default_rng(0).normal(0, 1, 5000).astype(np.float32))
    for top_k, top_p, min_p in [
        (50, 0.9, 0.0),
        (2000, 0.9, 0.0),
        (-1, 0.9, 0.5),
        (3000, 0.3, 0.01),
        (1500, 0.99, 0.001),
    ]:
        params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
        got = kept_mass(torch.stack([logits] * 2), [params, SamplingParams()]).numpy()
        expected, is_clear = reference_mass(logits.numpy(), params)
        assert ((got[0] > 0) == (expected > 0))[is_clear].all()
        assert is_clear.mean() > 0.99
        assert (got[1] > 0).all()


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 3.0, 0.5])
    params = SamplingParams(temperature=0.8, top_k=4)
    num = 6000
    sampled = Sampler().sample(logits.expand(num, -1), [row(params, seed=seed) for seed in range(num)])
    assert not sampled.errors
    expected = kept_mass(logits[None], [params])[0]
    expected = expected / expected.sum()
    counts = np.bincount(sampled.token_ids, minlength=6)
    for count, p in zip(counts, expected.tolist(), strict=True):
        assert abs(count - num * p) <= 4.5 * math.sqrt(num * p * (1 - p))
    assert counts[2] == 0
    assert counts[3] == 0


def test_steps_of_one_seed_follow_the_distribution_too() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)]])
    draw = row(SamplingParams(), seed=7)
    ones = 0
    for _ in range(2000):
        token_id = Sampler().sample(logits, [draw]).token_ids[0]
        draw.push(token_id)
        ones += token_id
    assert abs(ones - 1500) < 4.5 * math.sqrt(2000 * 0.25 * 0.75)


def test_uniforms_depend_on_seed_and_step_only() -> None:
    stream = UniformStream(5)
    forwards = [stream[step] for step in range(200)]
    assert [UniformStream(5)[step] for step in reversed(range(200))] == forwards[::-1]
    assert forwards == np.random.Generator(np.random.Philox(key=5)).random(200).tolist()
    assert UniformStream(6)[0] != stream[0]
    assert all(0 <= u < 1 for u in forwards)
    assert UniformStream(-1)[3] == UniformStream(-1)[3]
    assert fresh_seed() != fresh_seed()


mixed = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.3]),
    top_k=st.sampled_from([-1, 1, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.1]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    presence_penalty=st.sampled_from([0.0, -0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.6]),
    suppress_token_ids=st.sampled_from([(), (3, 5)]),
    min_new_tokens=st.sampled_from([0, 9]),
    return_logprob=st.booleans(),
    top_logprobs_num=st.sampled_from([0, 2]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(mixed, min_size=1, max_size=5), st.integers(0, 2**32 - 1), st.booleans())
def test_a_row_is_independent_of_its_batch(params: list[SamplingParams], seed: int, masked: bool) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(0, 3, (len(params), 50)).astype(np.float32))
    before = logits.clone()
    rows = []
    for i, each in enumerate(params):
        rows.append(row(each, seed=seed + i, end_ids=(0,), pushed=tuple(rng.integers(0, 50, 4).tolist())))
        if masked and i % 2 == 0:
            rows[-1].bitmask = bits(rng.choice(50, 9, replace=False).tolist(), 50)
    together = Sampler().sample(logits, rows)
    alone = [Sampler().sample(logits[i : i + 1], [each]) for i, each in enumerate(rows)]
    assert together.token_ids == [one.token_ids[0] for one in alone]
    order = rng.permutation(len(rows)).tolist()
    shuffled = Sampler().sample(logits[order], [rows[i] for i in order])
    assert [together.token_ids[i] for i in order] == shuffled.token_ids
    for i, one in enumerate(alone):
        mine, other = together.logprobs[i], one.logprobs[0]
        assert (mine is None) == (other is None) == (rows[i].num_logprobs < 0)
        if mine is not None and other is not None:
            assert mine.logprob == pytest.approx(other.logprob, abs=1e-5)
    assert torch.equal(logits, before), "logits must not be changed"


def test_greedy_takes_the_first_of_equals() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 0.0], [7.0, 7.0, 7.0, 7.0]])
    assert Sampler().sample(logits, [row(GREEDY), row(GREEDY)]).token_ids == [1, 0]
    # One likeliest token is greedy too, whatever the temperature.
    assert Sampler().sample(logits, [row(SamplingParams(top_k=1)), row(GREEDY)]).token_ids == [1, 0]


def test_penalties_are_the_textbook_ones() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 2, 12).astype(np.float32)
    pushed = (1, 1, 1, 4, 7, 7)
    params = SamplingParams(temperature=0, frequency_penalty=0.3, presence_penalty=0.9, repetition_penalty=1.7)
    expected = logits.astype(np.float64)
    for token in set(pushed):
        expected[token] = expected[token] / 1.7 if expected[token] > 0 else expected[token] * 1.7
        expected[token] -= 0.3 * pushed.count(token) + 0.9
    # Read the penalised order by masking the winners away one by one.
    draw, order, allowed = row(params, pushed=pushed), [], list(range(12))
    while allowed:
        draw.bitmask = bits(allowed, 12)
        order.append(Sampler().sample(torch.from_numpy(logits)[None], [draw]).token_ids[0])
        allowed.remove(order[-1])
    assert order == np.argsort(-expected, kind="stable").tolist()


def test_suppressed_tokens_except_end_tokens() -> None:
    logits = torch.tensor([[9.0, 8.0, 7.0, 1.0]])
    params = SamplingParams(temperature=0, suppress_token_ids=(0, 1, 99, -1))
    assert Sampler().sample(logits, [row(params)]).token_ids == [2]
    assert Sampler().sample(logits, [row(params, end_ids=(0,))]).token_ids == [0]


def test_end_tokens_wait_for_min_new_tokens() -> None:
    logits = torch.tensor([[9.0, 8.0, 1.0]])
    draw = row(SamplingParams(temperature=0, min_new_tokens=2), end_ids=(0, 1))
    chosen = []
    for _ in range(3):
        chosen += Sampler().sample(logits, [draw]).token_ids
        draw.push(chosen[-1])
    assert chosen == [2, 2, 0]


def test_a_finished_match_may_end_before_min_new_tokens() -> None:
    draw = row(SamplingParams(temperature=0, min_new_tokens=5), end_ids=(0,))
    draw.bitmask = bits([0], 3)
    sampled = Sampler().sample(torch.tensor([[1.0, 8.0, 9.0]]), [draw])
    assert sampled.token_ids == [0]
    assert not sampled.errors


def test_only_allowed_tokens_are_drawn() -> None:
    rows = [row(SamplingParams(temperature=5.0), seed=seed) for seed in range(500)]
    for each in rows:
        each.bitmask = bits([3, 31, 32, 64], 70)
    sampled = Sampler().sample(torch.zeros(500, 70), rows)
    assert set(sampled.token_ids) == {3, 31, 32, 64}


def test_padding_is_never_chosen() -> None:
    logits = torch.tensor([[0.0, 1.0, 50.0, 60.0]])
    assert Sampler(2).sample(logits, [row(GREEDY)]).token_ids == [1]
    rows = [row(SamplingParams(), seed=seed) for seed in range(50)]
    assert max(Sampler(2).sample(logits.expand(50, -1), rows).token_ids) == 1
    rows[0].bitmask = bits([1, 3], 4)
    assert Sampler(2).sample(logits, rows[:1]).token_ids == [1]


def test_a_row_that_cannot_go_on_fails_alone() -> None:
    logits = torch.zeros(5, 4)
    logits[1] = math.nan
    logits[3, 2] = math.inf
    rows = [row(SamplingParams(return_logprob=True), seed=seed) for seed in range(5)]
    rows[2].bitmask = bits([], 4)
    rows[4] = row(SamplingParams(suppress_token_ids=(0, 1, 2, 3)))
    sampled = Sampler().sample(logits, rows)
    assert sorted(sampled.errors) == [1, 2, 3, 4]
    assert isinstance(sampled.errors[2], GrammarError)
    assert all(isinstance(sampled.errors[i], GenerationError) for i in (1, 3, 4))
    assert sampled.token_ids[0] >= 0
    assert sampled.token_ids[1:] == [-1] * 4
    assert sampled.token_ids[0] == Sampler().sample(logits[:1], rows[:1]).token_ids[0]
    assert sampled.logprobs[0] is not None
    assert sampled.logprobs[1:] == [None] * 4


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    warm = SamplingParams(temperature=0, return_logprob=True, top_logprobs_num=2, repetition_penalty=9.0)
    sampled = Sampler().sample(logits, [row(warm, pushed=(0,)), row(GREEDY)])
    raw = logits[0].double().log_softmax(0).tolist()
    entry = sampled.logprobs[0]
    assert entry is not None
    assert entry.token_id == sampled.token_ids[0] == 2  # the penalty made another token win
    assert entry.logprob == pytest.approx(raw[2], abs=1e-6)
    assert [token for token, _ in entry.top] == [0, 2]
    assert [value for _, value in entry.top] == pytest.approx([raw[0], raw[2]], abs=1e-6)
    assert sampled.logprobs[1] is None


def test_scores_survive_packing() -> None:
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    chosen = torch.tensor([5, 0, 2])
    allowed = torch.tensor([[math.nan] * 2, [float(logits[1, 0]), 0.0], [8.0, 1.0]])
    sources = torch.arange(3)
    entries = unpack_scores(pack_scores(logits, sources, chosen, 50, allowed), chosen.tolist())
    expected = logits.log_softmax(-1)
    assert [e.token_id for e in entries] == chosen.tolist()
    assert [e.logprob for e in entries] == pytest.approx([float(expected[i, t]) for i, t in enumerate(chosen)])
    assert [e.masked for e in entries] == [None, 0.0, pytest.approx(float(logits[2, 2]) - 9)]
    for entry, row in zip(entries, expected, strict=True):
        assert [token for token, _ in entry.top] == row.argsort(descending=True).tolist()
        assert [value for _, value in entry.top] == pytest.approx(row.sort(descending=True).values.tolist())
    assert [e.top for e in unpack_scores(pack_scores(logits, sources, chosen, 0), chosen.tolist())] == [()] * 3


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-300])
def test_a_tiny_temperature_is_no_overflow(temperature: float) -> None:
    logits = torch.tensor([[1e4, 9.9e3, -1e4]])
    sampled = Sampler().sample(logits, [row(SamplingParams(temperature=temperature))])
    assert sampled.token_ids == [0]
    assert not sampled.errors


def test_an_empty_batch_is_fine() -> None:
    assert Sampler().sample(torch.empty(0, 5), []).token_ids == []


def test_log_probabilities_after_a_mask() -> None:
    """Among the allowed tokens, beside the raw ones."""
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]])
    rows = [SamplerRow(SamplingParams(temperature=0.0, return_logprob=True), seed=0) for _ in range(3)]
    rows[0].bitmask = np.array([0b0011], dtype=np.int32)
    rows[1].bitmask = np.array([0b0100], dtype=np.int32)
    first, alone, free = Sampler().sample(logits, rows).logprobs
    assert first is not None
    assert alone is not None
    assert free is not None
    raw = logits[0].log_softmax(dim=-1)
    assert first.token_id == 1
    assert first.logprob == pytest.approx(float(raw[1]))
    assert first.masked == pytest.approx(float(torch.tensor([0.0, 1.0]).log_softmax(dim=-1)[1]))
    assert (alone.token_id, alone.masked) == (2, 0.0)
    assert (free.token_id, free.masked) == (3, None)

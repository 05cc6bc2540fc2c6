"""`DeviceSampler` beside `Sampler`, its reference: run by `test_device_engine.py`, interpreted or on a GPU.

Logits have the shapes that matter to a search: peaked, flat, rounded (many ties), of a few values, with outliers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from device_support import DEVICE, LARGE, ON_GPU
from torch import Tensor

from lmnb.errors import GenerationError, GrammarError
from lmnb.kernels import kept_floor_triton
from lmnb.runtime.device_batch import Staging
from lmnb.runtime.device_sampler import DeviceSampler
from lmnb.runtime.pending_tokens import PendingTokens
from lmnb.runtime.request import SamplingParams
from lmnb.runtime.sampler import Sampler, kept_mass
from lmnb.runtime.sampler_row import SamplerRow

GREEDY = SamplingParams(temperature=0)
# Tokens, logits, dtype. (The interpreter's bfloat16 is wrong.)
CASES = [
    (4500, 4512, torch.float32),
    *([(4500, 4512, torch.bfloat16), (4500, 4512, torch.float16)] if ON_GPU and not LARGE else []),
    *(
        [
            (128_000, 128_256, torch.bfloat16),
            (128_000, 128_256, torch.float32),
            (262_144, 262_144, torch.bfloat16),
            (151_669, 151_936, torch.float16),
        ]
        if LARGE
        else []
    ),
]
NUM_ROWS = 64 if LARGE else 14


@pytest.fixture(autouse=True)
def fewer_pivots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is slow, and the result is the same."""
    if not ON_GPU:
        monkeypatch.setattr("lmnb.kernels.choose_triton.PIVOTS", 4)


class Bench:
    """A sampler for `num_tokens`, and what it keeps."""

    def __init__(self, num_tokens: int) -> None:
        device = torch.device(DEVICE)
        self.last_tokens = torch.full((2 * NUM_ROWS + 5,), -7, dtype=torch.int32, device=device)
        self.sampler = DeviceSampler(num_tokens, self.last_tokens, Staging(device))

    def launch(self, logits: Tensor, rows: list[SamplerRow]) -> PendingTokens:
        """The rows' logits lie in reverse order, and their places are the odd ones."""
        sources = [*range(len(rows))][::-1]
        return self.sampler.launch(logits.flip(0).to(DEVICE), sources, [2 * i + 1 for i in range(len(rows))], rows)

    @property
    def floors(self) -> Tensor:
        return self.sampler._space.states[:, kept_floor_triton.FLOOR.value].cpu()


def some_logits(rng: np.random.Generator, num_rows: int, width: int, dtype: torch.dtype) -> Tensor:
    rows = []
    for i in range(num_rows):
        row = rng.normal(0, (3, 0.2, 1, 8)[i % 4], width)
        match i % 7:
            case 1:
                row = np.round(row * 8) / 8
            case 2:
                row = np.round(row)
            case 3:
                row[rng.integers(width)] = -1e4
            case 4:
                row[rng.integers(width)] = 30
            case 5:
                row = rng.integers(-1, 2, width) * 1.5
            case 6 if i % 2:
                row[:] = 0.25
        rows.append(torch.from_numpy(row).float())
    return torch.stack(rows).to(dtype)


def some_params(rng: np.random.Generator, **more: Any) -> SamplingParams:
    def one(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    chosen = {
        "temperature": one(0.3, 0.7, 1.0, 1.0, 5.0, 1e-30),
        "top_k": one(-1, -1, 2, 3, 50, 2000, 10**6),
        "top_p": one(1.0, 0.05, 0.5, 0.9, 0.9, 0.999),
        "min_p": one(0.0, 0.0, 0.01, 0.5, 1.0),
    }
    return SamplingParams(**{**chosen, **more})


def some_bits(rng: np.random.Generator, width: int, share: float) -> np.ndarray:
    allowed = rng.random(-(-width // 32) * 32) < share
    return np.packbits(allowed, bitorder="little").view(np.int32)


def some_rows(rng: np.random.Generator, num_rows: int, num_tokens: int, width: int) -> list[SamplerRow]:
    rows = []
    banned = tuple(rng.integers(0, num_tokens, 40).tolist())
    for i in range(num_rows):
        more: dict[str, Any] = {"suppress_token_ids": banned} if i % 3 else {}
        if i % 5 == 0:
            more |= {"frequency_penalty": 0.3, "presence_penalty": -0.7, "repetition_penalty": 1.3}
        if i % 6 == 0:
            more["temperature"] = 0.0
        if i % 4 == 0:
            more |= {"min_new_tokens": 100, "max_new_tokens": 100}
        if i % 7 == 0:
            more |= {"return_logprob": True, "top_logprobs_num": int(rng.integers(0, 4))}
        row = SamplerRow(some_params(rng, **more), seed=i, end_ids=frozenset({3, 5, num_tokens - 1}))
        for token in rng.integers(0, num_tokens, 70 if i % 2 else 400).tolist() * 2:
            row.push(token)
        if i % 3 == 1:
            row.bitmask = some_bits(rng, width, (0.5, 0.01)[i % 2])
        rows.append(row)
    return rows


def is_near_a_boundary(logits: Tensor, row: SamplerRow, mine: int, theirs: int) -> bool:
    """Whether all that lies between two draws is within rounding of the row's number."""
    mass = kept_mass(logits[None].double(), [row.params])[0]
    cdf = mass.cumsum(0) / mass.sum()
    low, high = sorted((mine, theirs))
    return bool((cdf[low:high] - row.uniforms[row.step]).abs().max() < 1e-5)


@pytest.mark.parametrize(("num_tokens", "width", "dtype"), CASES)
def test_tokens_are_those_of_the_reference(num_tokens: int, width: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    bench = Bench(num_tokens)
    differing = 0
    for _ in range(2 if ON_GPU else 1):  # the second time on what the first left behind
        logits = some_logits(rng, NUM_ROWS, width, dtype)
        rows = some_rows(rng, NUM_ROWS, num_tokens, width)
        expected = Sampler(num_tokens).sample(logits, rows)
        got = bench.launch(logits, rows).read()
        assert got.errors.keys() == expected.errors.keys()
        for i, (mine, theirs) in enumerate(zip(got.token_ids, expected.token_ids, strict=True)):
            if mine != theirs:
                differing += 1
                plain = not rows[i].has_penalties and rows[i].bitmask is None and not rows[i].bans_end
                scores = logits[i, :num_tokens].float()
                scores[list(rows[i].suppressed)] = -torch.inf
                assert plain, (i, rows[i].params, mine, theirs)
                assert is_near_a_boundary(scores, rows[i], mine, theirs), (i, rows[i].params, mine, theirs)
        assert (bench.last_tokens[0::2] == -7).all()
        kept = bench.last_tokens[1 : 2 * NUM_ROWS : 2].tolist()
        assert [token for i, token in enumerate(kept) if i not in got.errors] == [
            token for token in got.token_ids if token >= 0
        ]
        for mine, theirs in zip(got.logprobs, expected.logprobs, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None and mine.token_id == theirs.token_id:
                assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
                assert mine.masked == (None if theirs.masked is None else pytest.approx(theirs.masked, abs=1e-4))
                assert [value for _, value in mine.top] == pytest.approx([value for _, value in theirs.top], abs=1e-4)
    assert differing <= NUM_ROWS // 40


@pytest.mark.parametrize(("num_tokens", "width", "dtype"), CASES)
@pytest.mark.parametrize("most", [None, 8])
def test_kept_tokens_are_those_of_the_reference(
    num_tokens: int, width: int, dtype: torch.dtype, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ties share their fate. With room for a few candidates only, the whole row is gone through instead."""
    if most is not None:
        monkeypatch.setattr("lmnb.kernels.choose_triton.MOST_CANDIDATES", most)
    rng = np.random.default_rng(1)
    num_rows = NUM_ROWS if most is None else 10
    logits = some_logits(rng, num_rows, width, dtype)
    params = [some_params(rng) for _ in range(num_rows)]
    rows = [SamplerRow(each, seed=i) for i, each in enumerate(params)]
    bench = Bench(num_tokens)
    assert not bench.launch(logits, rows).read().errors
    scores = logits[:, :num_tokens].float()
    for i, (each, floor) in enumerate(zip(params, bench.floors, strict=False)):
        tempered = (scores[i] - scores[i].max()) / torch.tensor(max(each.temperature, 1e-30))
        matters = tempered > -30  # what weighs nothing is not chosen either way
        expected = (kept_mass(scores[i : i + 1], [each])[0] > 0) & matters
        got = (tempered >= floor) & matters
        if not torch.equal(got, expected):
            # A sum may come within rounding of top-p: then one group of equal tokens may fall on either side.
            assert each.top_p < 1
            odd = tempered[got != expected]
            mass = tempered.double().softmax(0)
            assert odd.min() == odd.max(), (i, each)
            assert abs(float(mass[tempered > odd[0]].sum()) - each.top_p) < 1e-6, (i, each)


def test_draws_follow_the_distribution() -> None:
    num = 20_000 if LARGE else 100
    logits = torch.full((70,), -30.0)
    logits[[3, 31, 32, 40, 64, 69]] = torch.tensor([2.0, 1.0, 0.0, -1.0, 3.0, 0.5])
    params = SamplingParams(temperature=0.8, top_k=5 if LARGE else -1)
    rows = [SamplerRow(params, seed=seed) for seed in range(num)]
    sampler = DeviceSampler(70, torch.zeros(1, dtype=torch.int32, device=DEVICE), Staging(torch.device(DEVICE)))
    got = sampler.launch(logits[None].to(DEVICE), [0] * num, [0] * num, rows).read()
    expected = kept_mass(logits[None], [params])[0]
    expected = (expected / expected.sum()).numpy() * num
    counts = np.bincount(got.token_ids, minlength=70)
    used = expected > 1e-6
    assert (counts[~used] == 0).all()
    chi_square = float(((counts - expected)[used] ** 2 / expected[used]).sum())
    freedom = int(used.sum()) - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom)


def test_a_row_that_cannot_go_on_fails_alone() -> None:
    logits = torch.zeros(7, 70)
    logits[1] = math.nan
    logits[3, 2] = math.inf
    rows = [SamplerRow(SamplingParams(return_logprob=True), seed=seed) for seed in range(7)]
    rows[2].bitmask = np.zeros(3, dtype=np.int32)
    rows[4] = SamplerRow(SamplingParams(suppress_token_ids=tuple(range(70))), seed=4)
    rows[5] = SamplerRow(SamplingParams(top_p=0.5), seed=5)
    rows[5].bitmask = np.array([0b1000, 0, 0], dtype=np.int32)
    rows[6] = SamplerRow(SamplingParams(), seed=6)
    logits[6, 9] = math.nan  # where no token may be chosen, it is nobody's concern
    rows[6].bitmask = np.array([0b1], dtype=np.int32)
    sampled = Bench(70).launch(logits, rows).read()
    assert sorted(sampled.errors) == [1, 2, 3, 4]
    assert isinstance(sampled.errors[2], GrammarError)
    assert all(isinstance(sampled.errors[i], GenerationError) for i in (1, 3, 4))
    assert sampled.token_ids[1:5] == [-1] * 4
    assert sampled.token_ids[5:] == [3, 0]
    assert sampled.token_ids[0] == Sampler(70).sample(logits[:1], rows[:1]).token_ids[0]
    assert sampled.logprobs[0] is not None
    assert sampled.logprobs[1:5] == [None] * 4


def test_end_tokens_wait_unless_nothing_else_is_left() -> None:
    params = SamplingParams(temperature=0, min_new_tokens=5)
    rows = [SamplerRow(params, seed=0, end_ids=frozenset({0, 1})) for _ in range(3)]
    rows[1].bitmask = np.array([0b10], dtype=np.int32)
    rows.append(SamplerRow(SamplingParams(min_new_tokens=5, top_k=2), seed=0, end_ids=frozenset({0, 1})))
    rows[3].bitmask = np.array([0b11], dtype=np.int32)
    logits = torch.tensor([[9.0, 8.0, 1.0, 0.0], [9.0, 8.0, 1.0, 0.0], [9.0, 8.0, 1.0, 4.0], [1.0, 80.0, 1.0, 0.0]])
    sampled = Bench(4).launch(logits, rows).read()
    assert not sampled.errors
    assert sampled.token_ids == [2, 1, 3, 1]


def test_rows_do_not_depend_on_each_other() -> None:
    rng = np.random.default_rng(2)
    num_tokens, width, _ = CASES[0]
    logits = some_logits(rng, 7, width, torch.float32)
    rows = some_rows(rng, 7, num_tokens, width)
    bench = Bench(num_tokens)
    together = bench.launch(logits, rows).read().token_ids
    alone = [bench.launch(logits[i : i + 1], rows[i : i + 1]).read().token_ids[0] for i in range(7)]
    assert together == alone
    assert bench.launch(logits, rows).read().token_ids == together


def test_what_was_chosen_already_is_reported_with_log_probabilities() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    asks = SamplingParams(temperature=0, return_logprob=True, top_logprobs_num=2)
    rows = [SamplerRow(GREEDY, seed=0), SamplerRow(asks, seed=0)]
    packed = torch.stack((torch.tensor([0, 3], dtype=torch.int32), torch.tensor([3.0, 3.0]).view(torch.int32)))
    sampled = Bench(4).sampler.report(packed.to(DEVICE), logits.to(DEVICE), [0, 1], rows).read()
    expected = Sampler(4).sample(logits, rows)
    assert sampled.token_ids == expected.token_ids == [0, 3]
    assert sampled.logprobs[0] is None
    mine, theirs = sampled.logprobs[1], expected.logprobs[1]
    assert mine is not None
    assert theirs is not None
    assert (mine.token_id, mine.masked) == (theirs.token_id, theirs.masked) == (3, None)
    assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-5)
    assert [token for token, _ in mine.top] == [token for token, _ in theirs.top] == [3, 2]
    assert [value for _, value in mine.top] == pytest.approx([value for _, value in theirs.top], abs=1e-5)

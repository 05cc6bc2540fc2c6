"""Paged attention against attention written out in float64, on ragged batches over a pool of NaN."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from lmnb.kernels import native
from lmnb.kernels.attention_plan import KEY_BLOCK, plan_attention, plan_native
from lmnb.kernels.paged_attention import attend, attend_reference, attends_natively, paged_attention

pytestmark = pytest.mark.usefixtures("kernels")

NUM_SLOTS = 12000
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@dataclass
class Case:
    """A ragged batch: rows' new tokens and all their slots."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    starts: list[int]
    rows: list[list[int]]
    num_decode: int
    shared_len: int


def make_case(
    lengths: list[tuple[int, int]],  # (new tokens, tokens before them) of each row
    *,
    heads: tuple[int, int],
    head_dim: int = 64,
    num_decode: int = 0,
    shared_len: int = 0,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    free = torch.randperm(NUM_SLOTS, generator=generator).tolist()
    shared = [free.pop() for _ in range(shared_len)]
    keys = torch.full((NUM_SLOTS, heads[1], head_dim), float("nan"), dtype=dtype)
    values = keys.clone()
    rows, starts = [], [0]
    for index, (new, before) in enumerate(lengths):
        slots = list(shared) if index < num_decode else []
        slots += [free.pop() for _ in range(new + before - len(slots))]
        rows.append(slots)
        starts.append(starts[-1] + new)
        keys[slots] = torch.randn(len(slots), *keys.shape[1:], generator=generator).to(dtype)
        values[slots] = torch.randn(len(slots), *keys.shape[1:], generator=generator).to(dtype)
    queries = torch.randn(starts[-1], heads[0], head_dim, generator=generator).to(dtype)
    return Case(queries, keys, values, starts, rows, num_decode, shared_len)


def run(case: Case, window: int | None = None) -> Tensor:
    lengths = [len(slots) for slots in case.rows]
    table = torch.full((len(lengths), max(lengths) + 2), -(10**9))  # what lies past a row's end is never used
    for index, slots in enumerate(case.rows):
        table[index, : len(slots)] = torch.tensor(slots)
    heads_per_kv, scale = case.queries.shape[1] // case.keys.shape[1], case.queries.shape[2] ** -0.5
    if attends_natively(case.queries, case.queries.shape[2]):
        pieces = plan_native(
            table,
            case.starts,
            lengths,
            num_decode=case.num_decode,
            shared_len=case.shared_len,
            heads_per_kv=heads_per_kv,
            window=window,
        )
        return paged_attention(case.queries, case.keys, case.values, pieces, scale, window)
    plan = plan_attention(
        table,
        case.starts,
        lengths,
        num_decode=case.num_decode,
        shared_len=case.shared_len,
        heads_per_kv=heads_per_kv,
        dtype=case.queries.dtype,
        window=window,
    )
    return paged_attention(case.queries, case.keys, case.values, plan, scale)


def naive(case: Case, window: int | None = None) -> Tensor:
    heads_per_kv = case.queries.shape[1] // case.keys.shape[1]
    outputs = []
    for index, slots in enumerate(case.rows):
        queries = case.queries[case.starts[index] : case.starts[index + 1]].double()
        keys = case.keys[slots].double().repeat_interleave(heads_per_kv, 1)
        values = case.values[slots].double().repeat_interleave(heads_per_kv, 1)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * queries.shape[2] ** -0.5
        at = torch.arange(len(slots) - len(queries), len(slots))[:, None]
        key_at = torch.arange(len(slots))
        hidden = key_at > at if window is None else (key_at > at) | (key_at <= at - window)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values).flatten(1))
    return torch.cat(outputs)


def assert_agrees(case: Case, window: int | None = None) -> None:
    got, want = run(case, window), naive(case, window)
    assert got.dtype == case.queries.dtype
    assert got.shape == want.shape
    torch.testing.assert_close(got.double(), want, rtol=0, atol=TOLERANCE[case.queries.dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("heads", [(1, 1), (4, 2), (9, 3), (16, 1)], ids=str)
def test_mixed_batch(heads: tuple[int, int], dtype: torch.dtype) -> None:
    lengths = [(1, 0), (1, 63), (1, 7), (5, 0), (33, 40), (2, 300)]
    assert_agrees(make_case(lengths, heads=heads, num_decode=3, dtype=dtype))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("heads", [(9, 3), (16, 1)], ids=str)
def test_shared_prefix_of_decode_rows(heads: tuple[int, int], dtype: torch.dtype) -> None:
    # The third row owns nothing but its new token; the last row does not share.
    lengths = [(1, 160), (1, 150), (1, 130), (1, 170), (1, 131), (1, 200), (17, 3)]
    assert_agrees(make_case(lengths, heads=heads, num_decode=6, shared_len=130, dtype=dtype))


def test_shared_prefix_is_read_once() -> None:
    case = make_case([(1, 600)] * 8, heads=(4, 2), num_decode=8, shared_len=590)
    table = torch.tensor(case.rows)
    plan = plan_attention(
        table, case.starts, [601] * 8, num_decode=8, shared_len=590, heads_per_kv=2, dtype=torch.float32
    )
    assert plan.shared_slots is not None
    read = len(plan.shared_slots) + sum(len(group.slots) for group in plan.groups)
    assert read == 590 + 8 * KEY_BLOCK  # 11 keys each of their own


def test_shared_length_up_to_the_new_token_itself() -> None:
    # A caller may say that all tokens are shared: each row still keeps one key of its own.
    case = make_case([(1, 400)] * 4, heads=(4, 2), num_decode=4, shared_len=401)
    case.rows = [case.rows[0]] * 4
    assert_agrees(case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [16, 32, 80, 96, 128, 256])
def test_head_sizes(head_dim: int, dtype: torch.dtype) -> None:
    assert_agrees(make_case([(1, 30), (1, 31), (40, 9)], heads=(6, 2), head_dim=head_dim, num_decode=2, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [(255, 0), (256, 0), (257, 0), (600, 0), (300, 500)], ids=str)
def test_prompts_longer_than_a_query_block(length: tuple[int, int], dtype: torch.dtype) -> None:
    assert_agrees(make_case([length], heads=(3, 1), head_dim=32, dtype=dtype))


def test_one_long_row_does_not_pad_the_others() -> None:
    case = make_case([(1, 10)] * 7 + [(1, 4000)] + [(1, 12)] * 8, heads=(2, 1), head_dim=16, num_decode=16)
    lengths = [len(slots) for slots in case.rows]
    table = torch.zeros(16, 4001, dtype=torch.int64)
    plan = plan_attention(table, case.starts, lengths, num_decode=16, shared_len=0, heads_per_kv=2, dtype=torch.float32)
    assert sum(len(group.slots) for group in plan.groups) < 2 * sum(lengths)
    assert len(plan.groups) <= 3
    assert_agrees(case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [1, 5, 64, 300])
def test_sliding_window(window: int, dtype: torch.dtype) -> None:
    lengths = [(1, 2), (1, 400), (1, 330), (1, 64), (7, 3), (70, 200), (300, 20)]
    assert_agrees(make_case(lengths, heads=(4, 2), num_decode=4, dtype=dtype), window)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sliding_window_with_a_shared_prefix(dtype: torch.dtype) -> None:
    lengths = [(1, 310), (1, 320), (1, 700)]
    assert_agrees(make_case(lengths, heads=(4, 2), num_decode=3, shared_len=300, dtype=dtype), window=50)


@pytest.mark.parametrize("seed", range(40))
def test_random_batches(seed: int) -> None:
    draw = random.Random(seed)
    shared_len = draw.choice([0, 0, 90, 260])
    num_decode = draw.choice([0, 1, 3, 9])
    lengths = [(1, shared_len + draw.choice([0, 3, 50, 200])) for _ in range(num_decode)]
    lengths += [(draw.choice([1, 2, 20, 21, 270]), draw.choice([0, 1, 60, 400])) for _ in range(draw.choice([0, 1, 4]))]
    if not lengths:
        lengths = [(3, 3)]
    case = make_case(
        lengths,
        heads=draw.choice([(1, 1), (6, 2), (9, 3), (8, 1)]),
        head_dim=draw.choice([16, 64]),
        num_decode=num_decode,
        shared_len=shared_len if num_decode else 0,
        seed=seed,
        dtype=draw.choice([torch.float32, torch.bfloat16]),
    )
    assert_agrees(case, draw.choice([None, None, 13]))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_dense_attention_equals_its_reference(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 3, length, 32, generator=generator).to(dtype) for length in (5, 77, 77))
    mask = torch.zeros(2, 1, 5, 77, dtype=dtype)
    mask[0, :, :, 50:] = float("-inf")
    out, lse = attend(q, k, v, mask, 0.2)
    want, want_lse = attend_reference(q.float(), k.float(), v.float(), mask.float(), 0.2)
    torch.testing.assert_close(out.float(), want, rtol=0, atol=TOLERANCE[dtype])
    torch.testing.assert_close(lse.float(), want_lse, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("heads", [(9, 3), (4, 4)], ids=str)
@pytest.mark.parametrize("before", [200, 460])
def test_natively_a_token_is_the_same_in_any_company(before: int, heads: tuple[int, int]) -> None:
    """Alone, in a chunk of its prompt, beside others, and with its keys read together with theirs."""
    if native.prepare() is None:
        pytest.skip(native.why_not())
    case = make_case([(70, before)], heads=heads, dtype=torch.bfloat16)
    assert attends_natively(case.queries, 64)
    slots = case.rows[0]
    whole = run(case)
    for at in (0, 1, 57, 69):
        kept = slots[: before + at + 1]
        alone = replace(case, queries=case.queries[at : at + 1], starts=[0, 1], rows=[kept], num_decode=1)
        assert torch.equal(run(alone)[0], whole[at])
        chunk = replace(case, queries=case.queries[: at + 1], starts=[0, at + 1], rows=[kept])
        assert torch.equal(run(chunk), whole[: at + 1])
        for shared_len in (0, 5, 64, 170, before):
            queries = torch.cat((case.queries[:2], case.queries[at : at + 1])).repeat(4, 1, 1)
            rows = [slots[: before + 1], slots[: before + 2], kept] * 4
            beside = replace(
                case, queries=queries, starts=list(range(13)), rows=rows, num_decode=12, shared_len=shared_len
            )
            assert torch.equal(run(beside)[2::3], whole[at].expand(4, -1))


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets how many threads compute."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


# New tokens and those before them, how many rows decode, and how much these share.
LONG: dict[str, tuple[list[tuple[int, int]], int, int]] = {
    "just short": ([(1, 255)], 1, 0),
    "one key more": ([(1, 256)], 1, 0),
    "one": ([(1, 1300)], 1, 0),
    "some": ([(1, 1300), (1, 90), (1, 767)], 3, 0),
    "branches": ([(1, 900), (1, 830), (1, 1250), (1, 800)], 4, 800),
    "a few new ones": ([(1, 300), (7, 1000)], 1, 0),
}


@pytest.mark.parametrize("window", [None, 5, 300])
@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("heads", [(9, 3), (5, 1)], ids=str)
def test_threads_share_long_contexts_and_give_the_bits_of_one(
    heads: tuple[int, int], name: str, window: int | None, threads: Callable[[int], None]
) -> None:
    lengths, num_decode, shared_len = LONG[name]
    case = make_case(lengths, heads=heads, num_decode=num_decode, shared_len=shared_len, dtype=torch.bfloat16)
    threads(1)
    alone = run(case, window)
    torch.testing.assert_close(alone.double(), naive(case, window), rtol=0, atol=TOLERANCE[torch.bfloat16])
    if not attends_natively(case.queries, 64):
        return
    for count in (2, 3, 8, 3):
        threads(count)
        assert torch.equal(run(case, window), alone)


@pytest.mark.parametrize("length", [80, 900])
@pytest.mark.parametrize("broken", [[17], [70], range(81), range(256, 512)], ids=str)
def test_natively_nan_is_not_hidden(length: int, broken: Sequence[int], threads: Callable[[int], None]) -> None:
    case = make_case([(1, length)], heads=(2, 1), num_decode=1, dtype=torch.bfloat16)
    slots = case.rows[0][broken[0] : broken[-1] + 1]
    if slots:
        case.keys[slots] = float("nan")
        for count in (1, 3):
            threads(count)
            assert run(case).isnan().all()


@pytest.mark.parametrize("window", [None, 5, 70])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("at", [20, 21, 64, 99])
def test_natively_a_token_is_not_reached_by_what_it_does_not_see(at: int, bad: float, window: int | None) -> None:
    """Keys and values that are no numbers reach those tokens that see them, and none before or behind those."""
    new, before = 90, 30
    case = make_case([(new, before)], heads=(3, 1), dtype=torch.bfloat16)
    if not attends_natively(case.queries, 64):
        return
    want = run(case, window)
    case.values[case.rows[0][at]] = bad
    case.keys[case.rows[0][at]] = float("nan")
    got = run(case, window)
    seeing = [before + token >= at and (window is None or before + token < at + window) for token in range(new)]
    assert got[seeing].isnan().all()
    unseeing = torch.tensor([not sees for sees in seeing])
    assert torch.equal(got[unseeing], want[unseeing])

"""How one step's ragged attention is cut into dense pieces: made once per forward pass, used by every layer.

A *piece* is a run of one request's new tokens with the keys they may see. Pieces of like size are padded
into one *group*, so that a batch of decoding requests is a handful of dense calls and not a loop over
requests. Padding reads a slot the request owns anyway: free slots of the pool may hold anything, NaN included.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# A prompt chunk is cut into blocks of so many queries: a block skips the keys after its end, and its mask stays small.
QUERY_BLOCK = 256
# One more dense call costs about as much time as this many wasted key slots times (8 + queries) (measured on 2 cores).
_CALL_COST = 4096
# Padded key slots a group may gather at once: bounds the temporary memory.
_MAX_GROUP_SLOTS = 32768
# Keys are padded to a multiple of this, alone or in a group: sums over keys are then taken in the same order
# whatever a request is batched with, and its logits are the same to the last bit (checked in bfloat16).
KEY_BLOCK = 64
# Reading shared keys apart pays once it saves this many slot reads.
_MIN_SHARED_SAVING = 512


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """R padded pieces of up to Q queries and L keys each."""

    tokens: Tensor | slice  # the R * Q query rows among the step's T tokens
    kept: Tensor | None  # which of the R * Q are real; None: all
    targets: Tensor | None  # the token each kept query belongs to; None: `tokens` itself
    slots: Tensor  # int64 [R * L]
    mask: Tensor | None  # additive [R, 1, Q * heads per KV head, or 1, L]
    num_rows: int
    num_queries: int


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The groups of one step. Decode rows (the first `num_decode` tokens) also see `shared_slots`, if any."""

    groups: tuple[AttentionGroup, ...]
    num_tokens: int
    num_decode: int
    shared_slots: Tensor | None


@dataclass(frozen=True, slots=True)
class NativePlan:
    """The work of the compiled kernel: pieces whose rows use a tile of keys together."""

    slot_table: Tensor  # int64 [B, W]
    places: Tensor  # int64 [T]: where each token sits among those that it sees
    # int64 [P, 5]: first row of the table, number of rows, first token, tokens a row, leading slots in common
    pieces: Tensor


# A piece has so many (token, query head) pairs at most, and so many requests: enough to share a tile of keys among,
# few enough that there is work for every thread.
_NATIVE_PIECE_QUERIES = 48
_NATIVE_PIECE_REQUESTS = 8


def plan_native(
    slot_table: Tensor,
    query_starts: list[int],
    kv_lens: list[int],
    *,
    num_decode: int,
    shared_len: int,
    heads_per_kv: int,
    window: int | None,
) -> NativePlan:
    """Cut a step into pieces for the compiled kernel; the arguments are those of `plan_attention`."""
    shares = num_decode > 1 and shared_len > 0 and window is None
    step = _NATIVE_PIECE_REQUESTS if shares else 1
    common = shared_len if shares else 0
    pieces = [(row, min(step, num_decode - row), query_starts[row], 1, common) for row in range(0, num_decode, step)]
    length = max(1, _NATIVE_PIECE_QUERIES // heads_per_kv)
    for row in range(num_decode, len(query_starts) - 1):
        first, last = query_starts[row], query_starts[row + 1]
        # The last ones have the most keys: they come first.
        tokens = reversed(range(first, last, length))
        pieces.extend((row, 1, token, min(length, last - token), 0) for token in tokens)
    starts = np.array(query_starts)
    places = np.arange(query_starts[-1]) + np.repeat(np.array(kv_lens) - starts[1:], np.diff(starts))
    return NativePlan(slot_table.contiguous(), torch.from_numpy(places), torch.tensor(pieces))


@dataclass(frozen=True, slots=True)
class _Piece:
    row: int
    token: int  # first of the piece's tokens
    num_queries: int
    first_position: int  # of the first query
    key_start: int
    key_stop: int

    @property
    def num_keys(self) -> int:
        return self.key_stop - self.key_start


def plan_attention(
    slot_table: Tensor,
    query_starts: list[int],
    kv_lens: list[int],
    *,
    num_decode: int,
    shared_len: int,
    heads_per_kv: int,
    dtype: torch.dtype,
    window: int | None = None,
) -> AttentionPlan:
    """Cut a step into groups.

    The arguments are those of `ForwardBatch`; `heads_per_kv` query heads read one KV head, `dtype` is the
    queries'. With a `window`, a token sees itself and the `window - 1` tokens before it.
    """
    shared_len = _usable_shared_len(shared_len, kv_lens[:num_decode], window)
    pieces = _pieces(query_starts, kv_lens, num_decode, shared_len, window)
    # Decode pieces are grouped apart: only they are merged with the shared part.
    batches = _batches(pieces[:num_decode]) + _batches(pieces[num_decode:])
    groups = tuple(_group(batch, slot_table, heads_per_kv, dtype, window) for batch in batches)
    shared_slots = slot_table[0, :shared_len] if shared_len else None
    return AttentionPlan(groups, query_starts[-1], num_decode, shared_slots)


def _usable_shared_len(shared_len: int, kv_lens: list[int], window: int | None) -> int:
    if not kv_lens:
        return 0
    shared_len = min(shared_len, min(kv_lens) - 1)  # each row keeps a key of its own: no group is ever empty
    saved = (len(kv_lens) - 1) * shared_len
    return shared_len if saved >= _MIN_SHARED_SAVING and window is None else 0


def _pieces(
    query_starts: list[int], kv_lens: list[int], num_decode: int, shared_len: int, window: int | None
) -> list[_Piece]:
    pieces = []
    for row, kv_len in enumerate(kv_lens):
        start, stop = query_starts[row], query_starts[row + 1]
        prefix = kv_len - (stop - start)
        for token in range(start, stop, QUERY_BLOCK):
            num_queries = min(QUERY_BLOCK, stop - token)
            position = prefix + token - start
            key_start = shared_len if row < num_decode else 0
            if window is not None:
                key_start = max(key_start, position - window + 1)
            pieces.append(_Piece(row, token, num_queries, position, key_start, position + num_queries))
    return pieces


def _batches(pieces: list[_Piece]) -> list[list[_Piece]]:
    """Pieces of like size, together as long as their padding costs less than another dense call."""
    batches: list[list[_Piece]] = []
    waste = queries = keys = 0
    for piece in sorted(pieces, key=lambda p: (p.num_queries, p.num_keys), reverse=True):
        if batches:
            padded = max(keys, piece.num_keys) * (8 + queries)
            added = padded - piece.num_keys * (8 + piece.num_queries)
            # A piece with more keys than the batch so far would also stretch every earlier row.
            added += max(0, piece.num_keys - keys) * (8 + queries) * len(batches[-1])
            slots = (len(batches[-1]) + 1) * max(keys, piece.num_keys)
            if waste + added <= _CALL_COST and slots <= _MAX_GROUP_SLOTS:
                batches[-1].append(piece)
                waste, keys = waste + added, max(keys, piece.num_keys)
                continue
        batches.append([piece])
        waste, queries, keys = 0, piece.num_queries, piece.num_keys
    for batch in batches:  # in token order, a batch of all decode rows is a plain slice of the queries
        batch.sort(key=lambda p: p.token)
    return batches


def _group(
    batch: list[_Piece], slot_table: Tensor, heads_per_kv: int, dtype: torch.dtype, window: int | None
) -> AttentionGroup:
    num_queries = max(piece.num_queries for piece in batch)
    num_keys = -(-max(piece.num_keys for piece in batch) // KEY_BLOCK) * KEY_BLOCK
    device = slot_table.device
    columns = torch.tensor([(p.row, p.token, p.num_queries, p.first_position, p.key_start, p.key_stop) for p in batch])
    rows, first_tokens, lengths, first_positions, key_starts, key_stops = columns.to(device).t()[:, :, None]

    key_positions = key_starts + torch.arange(num_keys, device=device)
    slots = slot_table[rows, key_positions.clamp(max=key_stops - 1)].view(-1)
    even_keys = all(piece.num_keys == num_keys for piece in batch)
    mask = None
    if num_queries > 1 or not even_keys:
        query_positions = (first_positions + torch.arange(num_queries, device=device)).clamp(max=key_stops - 1)
        seen = key_positions[:, None] <= query_positions[:, :, None]
        if window is not None:
            seen &= key_positions[:, None] > query_positions[:, :, None] - window
        mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, float("-inf"))
        if num_queries > 1:
            mask = mask.repeat_interleave(heads_per_kv, dim=1)
        mask = mask[:, None]
    tokens, kept, targets = _query_rows(batch, first_tokens, lengths, num_queries)
    return AttentionGroup(tokens, kept, targets, slots, mask, len(batch), num_queries)


def _query_rows(
    batch: list[_Piece], first_tokens: Tensor, lengths: Tensor, num_queries: int
) -> tuple[Tensor | slice, Tensor | None, Tensor | None]:
    even = all(piece.num_queries == num_queries for piece in batch)
    start = batch[0].token
    if even and all(piece.token == start + i * num_queries for i, piece in enumerate(batch)):
        return slice(start, start + len(batch) * num_queries), None, None
    offsets = torch.arange(num_queries, device=first_tokens.device)
    tokens = (first_tokens + offsets.clamp(max=lengths - 1)).view(-1)
    if even:
        return tokens, None, None
    kept = (offsets < lengths).view(-1).nonzero().view(-1)
    return tokens, kept, tokens[kept]

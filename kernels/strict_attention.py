"""An attention plan in which a token's result depends on nothing but its own place and what it sees.

Tokens are computed in tiles that begin at multiples of a fixed number of places, each tile over as many keys as its
last place could see: the shape of a dense call, and the token's row in it, follow from its place. So neither the batch,
nor chunks of a prompt, nor what was cached can change the order of any sum. Rows of a tile that belong to no new token
are computed and thrown away; no keys are read for several requests at once.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from lmnb.kernels.attention_plan import KEY_BLOCK, AttentionGroup, AttentionPlan

# Query rows of a call: from 64 on, torch's CPU kernel chooses between two ways of multiplying by the batch's size.
_MOST_ROWS = 63
_MOST_TOKENS = 8  # more make prompts quicker, and each decoded token dearer
_MAX_GROUP_SLOTS = 32768  # padded key slots that a group may gather at once: bounds the temporary memory


def plan_strict_attention(
    slot_table: Tensor,
    query_starts: list[int],
    kv_lens: list[int],
    *,
    heads_per_kv: int,
    dtype: torch.dtype,
    window: int | None = None,
) -> AttentionPlan:
    """Cut a step into groups; the arguments are those of `plan_attention`."""
    size = max(1, min(_MOST_TOKENS, _MOST_ROWS // heads_per_kv))
    by_shape: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)  # (row, tile, first token, its place)
    for row, kv_len in enumerate(kv_lens):
        token, stop = query_starts[row], query_starts[row + 1]
        place = kv_len - (stop - token)
        while token < stop:
            tile = place // size
            by_shape[_num_keys(tile, size, window)].append((row, tile, token, place))
            token, place = token + (tile + 1) * size - place, (tile + 1) * size
    groups: list[AttentionGroup] = []
    for num_keys, tiles in sorted(by_shape.items()):
        count = max(1, _MAX_GROUP_SLOTS // num_keys)
        batches = [tiles[i : i + count] for i in range(0, len(tiles), count)]
        groups += [
            _group(batch, size, num_keys, slot_table, query_starts, kv_lens, heads_per_kv, dtype, window)
            for batch in batches
        ]
    return AttentionPlan(tuple(groups), query_starts[-1], 0, None)


def _first_key(tile: Tensor | int, size: int, window: int | None) -> Tensor | int:
    if window is None:
        return tile * 0
    first = tile * size - window + 1
    return first.clamp(min=0) if isinstance(first, Tensor) else max(first, 0)


def _num_keys(tile: int, size: int, window: int | None) -> int:
    return -(-((tile + 1) * size - int(_first_key(tile, size, window))) // KEY_BLOCK) * KEY_BLOCK


def _group(
    tiles: list[tuple[int, int, int, int]],
    size: int,
    num_keys: int,
    slot_table: Tensor,
    query_starts: list[int],
    kv_lens: list[int],
    heads_per_kv: int,
    dtype: torch.dtype,
    window: int | None,
) -> AttentionGroup:
    device = slot_table.device
    columns = [(row, tile, token, place, query_starts[row + 1], kv_lens[row]) for row, tile, token, place in tiles]
    rows, tile, first_token, place, stop, kv_len = torch.tensor(columns).to(device).t()[:, :, None]
    places = tile * size + torch.arange(size, device=device)  # [R, size]
    tokens = first_token + places - place
    is_new = (places >= place) & (tokens < stop)
    tokens = tokens.clamp(first_token, stop - 1)

    key_places = _first_key(tile, size, window) + torch.arange(num_keys, device=device)
    slots = slot_table[rows, key_places.clamp(max=kv_len - 1)].view(-1)
    # Rows that are thrown away see one key, so that they are numbers.
    seen = key_places[:, None] <= torch.where(is_new, places, key_places[:, :1])[:, :, None]
    if window is not None:
        seen &= key_places[:, None] > torch.where(is_new, places, key_places[:, :1])[:, :, None] - window
    mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, float("-inf"))
    mask = mask.repeat_interleave(heads_per_kv, dim=1)[:, None]
    kept = is_new.view(-1).nonzero().view(-1)
    return AttentionGroup(tokens.reshape(-1), kept, tokens.reshape(-1)[kept], slots, mask, len(tiles), size)

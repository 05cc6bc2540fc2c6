"""A model without weights whose next token depends on every KV slot it reads.

It stores each token's id and position as that token's K and V. What it predicts is a hash of what it reads
back, so one wrong slot, position or stale entry changes the text; it is as deterministic as it is quick.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from lmnb.runtime.batch import ForwardBatch, KVLayout

_MODULUS = 2_147_483_647


class FakeModel:
    """Implements `Model`. `step_seconds`: how long one forward pass takes. `sharpness`: how peaked it predicts.
    `plain`: all prompts are, so that each token must stand where it sits."""

    name = "fake"
    takes_device_plan = False
    can_be_strict = True
    takes_fp8_keys = False  # its keys are token ids

    def __init__(
        self,
        vocab_size: int,
        *,
        context_tokens: int = 4096,
        step_seconds: float = 0.0,
        sharpness: float = 4.0,
        plain: bool = True,
        device: str = "cpu",
    ) -> None:
        self.plain = plain
        self.vocab_size = vocab_size
        self.context_tokens = context_tokens
        self.step_seconds = step_seconds
        self.sharpness = sharpness
        self.weight_bytes = 0
        self.weight_note = ""
        self.num_heads = 1
        self.num_forwards = 0
        self.num_tokens = 0
        self.fail_next: Exception | None = None
        self.kv_layout = KVLayout(
            num_layers=1, num_kv_heads=1, head_dim=2, dtype=torch.float32, device=torch.device(device)
        )

    def forward(self, batch: ForwardBatch, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """See `Model.forward`. AssertionError if a slot holds another token or position than it should."""
        if self.step_seconds:
            time.sleep(self.step_seconds)
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        self.num_forwards += 1
        self.num_tokens += len(batch.input_ids)
        stored = torch.stack([batch.input_ids, batch.positions], dim=1).float()
        keys[0][batch.out_slots, 0] = stored
        values[0][batch.out_slots, 0] = stored
        rows = batch.logits_rows
        wanted = set(range(len(batch.input_ids)) if rows is None else rows.tolist())
        logits: list[Tensor] = []
        for i, length in enumerate(batch.kv_lens):
            begin, end = batch.query_starts[i], batch.query_starts[i + 1]
            slots = batch.slot_table[i, :length]
            if i < batch.num_decode:
                assert torch.equal(slots[: batch.shared_len], batch.slot_table[0, : batch.shared_len])
            ids, positions = keys[0][slots, 0].long().cpu().unbind(dim=1)
            assert not self.plain or positions.tolist() == list(range(length)), "a slot holds another token's KV"
            first = length - (end - begin)
            assert positions[first:].tolist() == batch.positions[begin:end].tolist()
            seen = (first + 1 + flat - begin for flat in range(begin, end) if flat in wanted)
            for count in seen:
                places = () if self.plain else (positions[:count].tolist(),)
                logits.append(self.predict(ids[:count].tolist(), *places))
        return (torch.stack(logits) if logits else torch.empty(0, self.vocab_size)).to(self.kv_layout.device)

    def predict(self, ids: list[int], positions: list[int] | None = None) -> Tensor:
        """Logits after `ids`, which stand at `positions` (by default where they sit): [vocab_size] float32. What a
        test may compare an engine's choice with."""
        state = 1
        for place, token in enumerate(ids):
            moved = 0 if positions is None else positions[place] - place
            state = (state * 31 + token + 7 + 1009 * moved) % _MODULUS
        phases = (torch.arange(1, self.vocab_size + 1, dtype=torch.float64) * (state % 100_003 + 1)) % 6.283185307
        return (self.sharpness * torch.cos(phases)).float()

"""The prompts that are being computed: what they still need, and which other prompts they are about to serve."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from lmnb.runtime.sequence import Sequence


class Prefills:
    """Made anew for each step from the running sequences; `add` those admitted since."""

    def __init__(self, running: list[Sequence]) -> None:
        self._sequences = [sequence for sequence in running if not sequence.is_decoding]
        self.owed_slots = sum(sequence.prefill_end - sequence.num_slots for sequence in self._sequences)
        # By position, by the token there: prompts are compared only with those that go on as they do.
        self._index: dict[int, dict[int, list[Sequence]]] = {}

    def add(self, sequence: Sequence) -> None:
        """A sequence that was just admitted, with the row it has in this step."""
        self._sequences.append(sequence)
        self.owed_slots += sequence.prefill_end - sequence.num_slots
        for position, by_token in self._index.items():
            if sequence.num_tokens > position:
                by_token[_key_at(sequence, position)].append(sequence)

    def will_compute(self, sequence: Sequence, matched: int, wanted: int) -> bool:
        """Whether one of them is about to compute the first `wanted` tokens of a sequence whose first `matched`
        tokens are cached. `wanted` is more than `matched`, and the sequence has so many tokens."""
        by_token = self._index.get(matched)
        if by_token is None:
            by_token = self._index[matched] = defaultdict(list)
            for other in self._sequences:
                if other.num_tokens > matched:
                    by_token[_key_at(other, matched)].append(other)
        candidates = by_token.get(_key_at(sequence, matched), ())
        keys = sequence.keys(wanted)
        return any(
            other.num_tokens >= wanted and bool(np.array_equal(other.keys(wanted), keys)) for other in candidates
        )


def _key_at(sequence: Sequence, position: int) -> int:
    return int(sequence.keys(position + 1)[position])

"""Numbers for draws that depend on a seed and a step alone."""

from __future__ import annotations

import secrets

import numpy as np

_BLOCK = 64  # uniforms made at once; any multiple of 4, the generator's own block


def fresh_seed() -> int:
    """A random seed for a request that named none: 63 bits, from the operating system."""
    return secrets.randbits(63)


class UniformStream:
    """Numbers in [0, 1) that depend on (seed, step) alone: Philox 4x64, keyed by the seed, with the step as counter.

    J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """

    def __init__(self, seed: int) -> None:
        self._key = seed % 2**128
        self._start = -1
        self._block: list[float] = []

    def __getitem__(self, step: int) -> float:
        start = step - step % _BLOCK
        if start != self._start:
            # The generator yields four numbers a count, so a block starts at count start / 4.
            bits = np.random.Philox(key=self._key, counter=start // 4)
            self._block = np.random.Generator(bits).random(_BLOCK).tolist()
            self._start = start
        return self._block[step - start]

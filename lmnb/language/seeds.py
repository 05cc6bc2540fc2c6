"""A program's seed, spread over its generations: each draws differently, and all are the same again the next time.

A seed that a `gen` names itself is used as it is. The path of a generation counts within its own call of the
program, so a row of a batch draws what the same call draws alone.
"""

from __future__ import annotations

from hashlib import blake2b


class SeedPath:
    """Where a state stands below its call: which fork, which branch, which generation comes next."""

    def __init__(self, path: tuple[int, ...] = ()) -> None:
        self._path = path
        self._num_generations = 0
        self._num_forks = 0

    def next_seed(self, seed: int | None) -> int | None:
        """The seed of the next generation: `seed` itself for a call's first one."""
        path = (*self._path, self._num_generations)
        self._num_generations += 1
        if seed is None or not any(path):
            return seed
        digest = blake2b(repr((seed, path)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1  # 63 bits, as in other generators

    def fork(self, size: int) -> list[SeedPath]:
        """The paths of a new fork's branches."""
        self._num_forks += 1
        return [SeedPath((*self._path, self._num_forks, index)) for index in range(size)]

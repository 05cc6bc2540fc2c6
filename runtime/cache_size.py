"""What a KV pool stores and how large it is, as users say it: a number of tokens, or memory such as "60GiB"."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from lmnb.errors import ArgumentError
from lmnb.kernels.fp8 import FP8
from lmnb.runtime.argument_checks import MOST_COUNTED, shown, whole_number
from lmnb.runtime.batch import KVLayout

_MEMORY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b\s*", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_MOST_DIGITS = 19  # of a number of tokens

# As vLLM and SGLang name them; "fp8" is vLLM's short name.
_IN_8_BITS = ("fp8_e4m3", "fp8")


def stored_layout(layout: KVLayout, kv_cache_dtype: str) -> KVLayout:
    """A model's layout as a pool stores it: in the model's own dtype ("auto"), or in 8 bits. ArgumentError for anything
    else."""
    return replace(layout, dtype=FP8) if in_8_bits(kv_cache_dtype) else layout


def in_8_bits(kv_cache_dtype: str) -> bool:
    """Whether a pool stores 8 bits rather than the model's own dtype ("auto"). ArgumentError for anything else."""
    if isinstance(kv_cache_dtype, str) and kv_cache_dtype in ("auto", *_IN_8_BITS):
        return kv_cache_dtype in _IN_8_BITS
    if kv_cache_dtype == "fp8_e5m2":
        raise ArgumentError(
            "kv_cache_dtype='fp8_e5m2' is not there: use 'fp8_e4m3', which takes the same memory and rounds half as far"
        )
    raise ArgumentError(f"kv_cache_dtype must be 'auto' or 'fp8_e4m3', not {shown(kv_cache_dtype)}")


@dataclass(frozen=True, slots=True)
class PoolSize:
    """A pool's size as it was asked for, of which a model's layout makes slots."""

    asked: int | str
    num_tokens: int | None = None
    num_bytes: float = 0.0

    def tokens(self, layout: KVLayout) -> int:
        """Slots of this layout. ArgumentError for memory that holds not one token."""
        if self.num_tokens is not None:
            return self.num_tokens
        count = int(self.num_bytes // layout.bytes_per_token)
        if count < 1:
            each = layout.bytes_per_token
            raise ArgumentError(
                f"kv_cache={shown(self.asked)} holds not one token: this model needs {each:,} bytes for each"
            )
        return count


def pool_size(kv_cache: int | str) -> PoolSize:
    """What `kv_cache` asks for: a number of tokens, or as many as fit into "60GiB", "512 MiB", "1.5GB". ArgumentError
    for anything else."""
    if not isinstance(kv_cache, str) or (kv_cache.isascii() and kv_cache.strip().isdecimal()):
        if isinstance(kv_cache, str) and len(kv_cache.strip()) > _MOST_DIGITS:
            raise _too_large(kv_cache)
        tokens = whole_number("kv_cache", int(kv_cache) if isinstance(kv_cache, str) else kv_cache)
        if tokens < 1:
            raise ArgumentError(f"kv_cache must be at least 1 token, not {shown(tokens)}")
        if tokens > MOST_COUNTED:
            raise _too_large(kv_cache)
        return PoolSize(kv_cache, tokens)
    found = _MEMORY.fullmatch(kv_cache)
    if found is None:
        raise ArgumentError(
            f"kv_cache is a number of tokens, or memory such as '512MiB' or '60GiB', not {shown(kv_cache)}"
        )
    number, unit, binary = found.groups()
    num_bytes = float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()]
    if num_bytes > MOST_COUNTED:  # infinity, too
        raise _too_large(kv_cache)
    return PoolSize(kv_cache, num_bytes=num_bytes)


def _too_large(kv_cache: int | str) -> ArgumentError:
    return ArgumentError(f"kv_cache={shown(kv_cache)} is more than any machine has; give a smaller kv_cache")

"""How large a KV pool is, as users say it: a number of tokens, or memory such as "60GiB"."""

from __future__ import annotations

import re

from lmnb.errors import ArgumentError
from lmnb.runtime.argument_checks import shown, whole_number
from lmnb.runtime.batch import KVLayout

_MEMORY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def pool_tokens(kv_cache: int | str, layout: KVLayout) -> int:
    """Slots for `kv_cache`: a number of tokens, or as many as fit into "60GiB", "512 MiB", "1.5GB". ArgumentError for
    anything else, and for memory that holds not one token."""
    if not isinstance(kv_cache, str) or kv_cache.strip().isdecimal():
        tokens = whole_number("kv_cache", int(kv_cache) if isinstance(kv_cache, str) else kv_cache)
        if tokens < 1:
            raise ArgumentError(f"kv_cache must be at least 1 token, not {tokens}")
        return tokens
    found = _MEMORY.fullmatch(kv_cache)
    if found is None:
        raise ArgumentError(
            f"kv_cache is a number of tokens, or memory such as '512MiB' or '60GiB', not {shown(kv_cache)}"
        )
    number, unit, binary = found.groups()
    num_bytes = float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()]
    count = int(num_bytes // layout.bytes_per_token)
    if count < 1:
        each = layout.bytes_per_token
        raise ArgumentError(f"kv_cache={kv_cache!r} holds not one token: this model needs {each:,} bytes for each")
    return count

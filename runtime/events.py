"""What happened in the radix cache, as small plain messages: cheap enough to be always on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CacheEventKind = Literal["insert", "extend", "hit", "split", "evict", "reset", "pin", "unpin"]
EvictReason = Literal["room", "asked", "flush"]


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """One change of the tree (or a hit on it).

    insert: `node` appeared under `parent` with `token_ids`.
    extend: `node`, a leaf under `parent`, grew by `token_ids` (the request that made it went on).
    hit:    a request matched `num_tokens` tokens, ending at `node` (after any split).
    split:  `node` is the new upper part, under `parent`; it took the first `num_tokens` tokens of `child`,
            which keeps its id, its remaining tokens and its children.
    evict:  `node`, a leaf with `num_tokens` tokens, is gone. `reason`: "room" (least recently used when slots ran
            out; `beneficiary` owns the request that needed them, None if several did), "asked" (by hand), or "flush".
    pin:    `node` and all above it are kept until an unpin.
    reset:  the tree is empty again (only its root, id 0, is left).
    """

    seq: int  # counts from 0, without gaps
    time: float  # seconds, time.time()
    kind: CacheEventKind
    node: int
    parent: int = 0
    child: int = 0
    num_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    owner: object = None
    reason: EvictReason | None = None
    beneficiary: object = None


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One tree node at one moment."""

    node: int
    parent: int
    token_ids: tuple[int, ...]
    locks: int  # running requests that hold this node
    last_access: float  # seconds, time.time()
    hits: int
    owner: object = None  # who computed it
    pinned: bool = False  # itself; a pin keeps the nodes above as well


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """The whole tree after event `seq` (parents come before their children; the root is not listed)."""

    seq: int
    nodes: tuple[NodeSnapshot, ...]
    pool_tokens: int
    free_tokens: int
    locked_tokens: int


@dataclass(frozen=True, slots=True)
class CachePin:
    """A cached prefix that is kept until it is unpinned."""

    node: int  # where it ends
    token_ids: tuple[int, ...]  # all of it, from the root on


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """Counters of one engine. Token counts are since its start."""

    model: str
    device: str
    dtype: str
    context_tokens: int
    pool_tokens: int
    free_tokens: int
    cached_tokens: int
    pinned_tokens: int = 0  # of the cached ones, kept by pins
    running: int
    waiting: int
    num_steps: int
    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    pool_bytes: int
    weight_bytes: int
    step_seconds: float  # wall time spent in steps
    bookkeeping_seconds: float  # of which: radix tree and slot bookkeeping
    num_masks: int = 0  # of constrained tokens
    mask_seconds: float = 0.0  # processor time of the masks, most of it beside the forward pass
    mask_wait_seconds: float = 0.0  # of which: nothing else was computed meanwhile
    weight_note: str = ""  # how the weights are held, where it is not in `dtype`
    kv_note: str = ""  # what keys and values are held in, where it is not `dtype`
    deterministic: bool = False


def owner_label(owner: object) -> str:
    """Short text for who caused an event: its `label`, if it has one."""
    if owner is None:
        return ""
    label = getattr(owner, "label", None)
    return label if isinstance(label, str) else str(owner)

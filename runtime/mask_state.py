"""How far the mask of a sequence's next choice is."""

from __future__ import annotations

from enum import Enum, auto


class MaskState(Enum):
    """Set by the engine's thread, and by a `MaskWorker`'s when it has made the mask."""

    NONE = auto()  # nobody has asked for it
    BEGUN = auto()  # a thread makes it, or will
    LATE = auto()  # so too, but the step that it was for has gone on without it
    MADE = auto()  # it is in `SamplerRow.bitmask`

"""Memory, or threads, that run out: said in one line, and given back.

The exception that a library raises then holds, by its traceback, whatever the failed work had made so far.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lmnb.errors import OutOfMemoryError
from lmnb.runtime import threads

_HOST = torch.device("cpu")


@contextmanager
def memory_for(what: str, device: torch.device, advice: str) -> Iterator[None]:
    """OutOfMemoryError, which names `what` and gives `advice`, where the body runs out of memory."""
    try:
        yield
    except Exception as error:
        if not _ran_out(error):
            raise
        _give_back(error, device)
        if threads.is_refused(error):
            raise OutOfMemoryError(f"{what} needs a thread: {threads.ADVICE}") from None
        raise OutOfMemoryError(f"{what} does not fit into {_memory(device)}: {advice}") from None


def in_plain_words(error: Exception, device: torch.device = _HOST) -> Exception:
    """What to tell the requests of a step that failed by `error`."""
    if not _ran_out(error):
        return error
    _give_back(error, device)
    if threads.is_refused(error):
        return OutOfMemoryError(f"a step needs a thread: {threads.ADVICE}")
    return OutOfMemoryError(
        f"a step did not fit into {_memory(device)}: load the model with a smaller kv_cache or prefill_chunk, or let "
        "other programs on this device go"
    )


def _ran_out(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if threads.is_refused(error):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # torch's allocator on a CPU


def _give_back(error: BaseException, device: torch.device) -> None:
    """Let go of what the failed work made."""
    seen: BaseException | None = error
    while isinstance(seen, Exception) and _ran_out(seen):  # and not what a caller may be handling
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__context__
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _memory(device: torch.device) -> str:
    if device.type != "cuda":
        return "this machine's memory"
    free, total = torch.cuda.mem_get_info(device)
    return f"the memory of {device} ({free / 2**30:,.1f} of {total / 2**30:,.1f} GiB free)"

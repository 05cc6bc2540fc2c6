"""Runs a step's rows on a device: what the engine loop needs of it, and the plain form that suits any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from lmnb.kernels.dispatch import INTERPRETED, triton_works
from lmnb.runtime.batch import Model
from lmnb.runtime.batch_builder import BuiltBatch, build_batch, describe
from lmnb.runtime.config import EngineLimits
from lmnb.runtime.kv_pool import KVPool
from lmnb.runtime.pending_tokens import PendingTokens
from lmnb.runtime.rows import Row
from lmnb.runtime.sampler import Sampler
from lmnb.runtime.scheduler import Scheduler


class Executor(Protocol):
    """One engine's device side."""

    def run(self, rows: list[Row]) -> tuple[BuiltBatch, Tensor]:
        """Launch the forward pass of `rows`: what was built, and the logits it wants. A row whose token is still on
        its way takes it from where `choose` left it."""
        ...

    @property
    def is_computing(self) -> bool:
        """Whether the device is still busy with the forward pass that `run` has launched."""
        ...

    def choose(self, built: BuiltBatch, logits: Tensor) -> PendingTokens | None:
        """Launch the choice of the next tokens of `built.sampled`; None if there are none. Rows whose masks were late
        come with logits that were kept."""
        ...

    def rehearsal(self) -> Callable[[], None]:
        """What takes from the first requests some of what they would wait for. It may run in any thread, beside steps
        and behind `close`."""
        ...

    def close(self) -> None:
        """Give up the device's memory; nothing may be run any more."""
        ...


def make_executor(model: Model, pool: KVPool, scheduler: Scheduler, sampler: Sampler, limits: EngineLimits) -> Executor:
    """The executor for the model's device."""
    on_device = INTERPRETED or (model.kv_layout.device.type == "cuda" and triton_works())
    if on_device and model.takes_device_plan:
        from lmnb.runtime.cuda_executor import CudaExecutor

        return CudaExecutor(model, pool, scheduler, sampler, limits)
    return TorchExecutor(model, pool, scheduler, sampler, limits)


class TorchExecutor:
    """Builds each step anew and runs it operation by operation."""

    def __init__(
        self, model: Model, pool: KVPool, scheduler: Scheduler, sampler: Sampler, limits: EngineLimits
    ) -> None:
        self._model, self._pool, self._scheduler, self._sampler = model, pool, scheduler, sampler
        self._device, self._strict = model.kv_layout.device, limits.deterministic
        self._last_tokens = torch.zeros(limits.max_running, dtype=torch.int64, device=self._device)

    def run(self, rows: list[Row]) -> tuple[BuiltBatch, Tensor]:
        built = describe(rows)
        batch = build_batch(built, self._scheduler, self._device, strict=self._strict)
        if any(row.sequence.num_pending for row in rows):
            ids = batch.input_ids[: batch.num_decode]
            places = [row.sequence.row for row in rows[: batch.num_decode]]
            ids.copy_(torch.where(ids < 0, self._last_tokens[places], ids))
        return built, self._model.forward(batch, self._pool.keys, self._pool.values)

    @property
    def is_computing(self) -> bool:
        return False  # as far as can be told: on a CPU, `run` returns when it is over

    def choose(self, built: BuiltBatch, logits: Tensor) -> PendingTokens | None:
        if not built.sampled:
            return None
        whole = len(built.sampled_rows) == len(logits)
        draws = [row.sequence.draw for row in built.sampled]
        tokens = self._sampler.launch(logits if whole else logits[built.sampled_rows], draws)
        places = [row.sequence.row for row in built.sampled]
        self._last_tokens[places] = tokens.chosen.long()
        return tokens

    def rehearsal(self) -> Callable[[], None]:
        return lambda: None

    def close(self) -> None:
        del self._model

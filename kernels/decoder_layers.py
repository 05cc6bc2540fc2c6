"""All layers of a decoder, and the norm behind them, in one call of the compiled kernels.

One team of threads goes through a whole step, and the interpreter is free meanwhile. The numbers are those of the
operations one by one, which is how a decoder is computed wherever this cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmnb.kernels.attention_plan import NativePlan
from lmnb.kernels.linear import Projection
from lmnb.kernels.native import native_kernels
from lmnb.kernels.paged_attention import NO_WINDOW, attends_natively
from lmnb.kernels.quantized_linear import NativeProduct


@dataclass(slots=True)
class DecoderLayer:
    """Weights of one layer."""

    input_norm: Tensor  # [hidden]
    qkv: Projection
    head_norm: Tensor | None  # [Hq + Hkv, head_dim]: norm of each query and key head
    out: Projection
    post_norm: Tensor  # [hidden]
    gate_up: Projection
    down: Projection
    window: int | None

    @property
    def products(self) -> tuple[Projection, ...]:
        return self.qkv, self.out, self.gate_up, self.down


class NativeLayers:
    """The call, for layers that `can_run_natively`. It reads their weights where they lie."""

    def __init__(
        self, layers: Sequence[DecoderLayer], last_norm: Tensor, *, num_heads: int, num_kv_heads: int, eps: float
    ) -> None:
        native = native_kernels(last_norm)
        assert native is not None
        self._native = native
        self._layers, self._last_norm, self._eps = layers, last_norm, eps  # kept: what `_table` has the addresses of
        self._windows = list({layer.window: None for layer in layers})
        self._table = torch.tensor([[*_addresses(layer), self._windows.index(layer.window)] for layer in layers])
        self._pool: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None  # that `_places` has the addresses of
        self._places = torch.empty(0)
        query_width, inner = (_product(projection).num_inputs for projection in (layers[0].out, layers[0].down))
        self._head_dim = query_width // num_heads
        self._shape = (len(layers), last_norm.numel(), num_heads, num_kv_heads, self._head_dim, inner)

    def __call__(
        self,
        embedded: Tensor,
        cos: Tensor,
        sin: Tensor,
        slots: Tensor,
        plans: Mapping[int | None, NativePlan],
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        wanted: Tensor | None,
    ) -> Tensor:
        """From the tokens' embeddings [T, hidden] to the normed results [L, hidden] of the `wanted` tokens [L] (None:
        all). `cos`, `sin` [T, 1, D] are as in `rotary_store`, `plans` belong to the layers' windows; the tokens' keys
        and values go to `slots` [T] of each layer's `keys` and `values`."""
        rows = len(embedded)
        asked = torch.arange(rows) if wanted is None else wanted
        pieces = torch.tensor(
            [(plan.pieces.data_ptr(), len(plan.pieces)) for plan in (plans[each] for each in self._windows)]
        )
        plan = plans[self._windows[0]]  # slots and places are the same in all
        out = torch.empty(1 if rows == 1 else len(asked), embedded.shape[1], dtype=embedded.dtype)
        self._native.call_freely(
            "decoder_layers", self._table.data_ptr(), self._places_of(keys, values), pieces.data_ptr(),
            embedded.data_ptr(), cos.data_ptr(), sin.data_ptr(), slots.data_ptr(), plan.slot_table.data_ptr(),
            plan.places.data_ptr(), asked.data_ptr(), self._last_norm.data_ptr(), out.data_ptr(), rows, len(asked),
            plan.slot_table.shape[1], *self._shape, self._eps, self._head_dim**-0.5,
        )  # fmt: skip
        return out if len(out) == len(asked) else out[asked]

    def _places_of(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> int:
        """Where the layers' parts of the pool are: an address, found again as long as the pool is the same."""
        if self._pool is None or self._pool[0] is not keys or self._pool[1] is not values:
            pairs = zip(keys, values, strict=True)
            self._places = torch.tensor([(key.data_ptr(), value.data_ptr()) for key, value in pairs])
            self._pool = keys, values
        return self._places.data_ptr()


def can_run_natively(layers: Sequence[DecoderLayer], head_dim: int) -> bool:
    """Whether the compiled kernels take all of the layers' weights."""
    products = all(isinstance(each.weight, NativeProduct) for layer in layers for each in layer.products)
    return products and attends_natively(layers[0].input_norm, head_dim)


def _addresses(layer: DecoderLayer) -> list[int]:
    """As in `decoder_layers.cpp`'s `Layer`."""

    def weight(projection: Projection) -> tuple[int, int, int]:
        product = _product(projection)
        return product.address, projection.bias_address or 0, product.bits

    return [
        layer.input_norm.data_ptr(), *weight(layer.qkv), 0 if layer.head_norm is None else layer.head_norm.data_ptr(),
        *weight(layer.out), layer.post_norm.data_ptr(), *weight(layer.gate_up), *weight(layer.down),
        NO_WINDOW if layer.window is None else layer.window,
    ]  # fmt: skip


def _product(projection: Projection) -> NativeProduct:
    assert isinstance(projection.weight, NativeProduct)
    return projection.weight

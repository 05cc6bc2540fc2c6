"""A whole step in one call gives the bits of its operations one by one, whatever is computed together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lmnb.kernels import native
from lmnb.kernels.quantized_linear import QuantizedWeight, random_quantized
from lmnb.runtime.batch import ForwardBatch
from lmnb.runtime.decoder_config import DecoderConfig, RopeScaling
from lmnb.runtime.dummy_weights import DummyCheckpoint
from lmnb.runtime.llama import LlamaModel

SLOTS = 600
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"qkv_bias": True, "out_bias": True, "mlp_bias": True},
    "norms-of-heads": {"qk_norm": True, "head_dim": 128},
    "windows": {"windows": (None, 70, 5)},
    "one-kv-head": {"num_heads": 5, "num_kv_heads": 1},
}


class RandomCheckpoint(DummyCheckpoint):
    """Norms are random too."""

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = super().get(name, shape)
        return tensor + super().get(name.replace("norm", "weight"), shape) * 5 if "norm" in name else tensor


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest) -> LlamaModel:
    if native.prepare() is None:
        pytest.skip(native.why_not())
    sizes: dict[str, Any] = {
        "model_type": "llama", "vocab_size": 300, "hidden_size": 160, "intermediate_size": 224, "num_layers": 3,
        "num_heads": 6, "num_kv_heads": 3, "head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "rope_scaling": RopeScaling(), "context_tokens": 1024, "tie_word_embeddings": False, "qkv_bias": False,
        "out_bias": False, "mlp_bias": False, "qk_norm": False, "windows": (None, None, None),
    }  # fmt: skip
    config = DecoderConfig(**{**sizes, **KINDS[request.param]})
    model = LlamaModel(
        "random", config, RandomCheckpoint(torch.bfloat16, torch.device("cpu")), torch.bfloat16, torch.device("cpu"),
        integers(config),
    )  # fmt: skip
    assert model._native is not None
    return model


def integers(config: DecoderConfig) -> dict[str, QuantizedWeight]:
    """4 bits in most products, 8 in one of each layer's."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = {
        "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    return {
        f"model.layers.{layer}.{name}.weight": random_quantized(*shape, 8 if "down" in name else 4, seed=layer)
        for layer in range(config.num_layers)
        for name, shape in shapes.items()
    }


def step(kv_lens: list[int], new: list[int], wanted: list[int] | None, *, shared: int = 0, strict: bool = False) -> Any:
    """A batch whose rows have `new` tokens behind others; one-token rows come first."""
    generator = torch.Generator().manual_seed(sum(kv_lens))
    starts = [0, *torch.tensor(new).cumsum(0).tolist()]
    table = torch.randint(0, SLOTS - 100, (len(kv_lens), max(kv_lens)), generator=generator)
    table[:, :shared] = table[0, :shared]
    out_slots = torch.arange(SLOTS - starts[-1], SLOTS)
    places = []
    for row, (length, count) in enumerate(zip(kv_lens, new, strict=True)):
        table[row, length - count : length] = out_slots[starts[row] : starts[row + 1]]
        places.append(torch.arange(length - count, length))
    return ForwardBatch(
        input_ids=torch.randint(0, 300, (starts[-1],), generator=generator),
        positions=torch.cat(places),
        out_slots=out_slots,
        slot_table=table,
        query_starts=starts,
        kv_lens=kv_lens,
        logits_rows=None if wanted is None else torch.tensor(wanted, dtype=torch.int64),
        num_decode=new.count(1),
        shared_len=0 if strict else shared,
        strict=strict,
    )


STEPS: dict[str, dict[str, Any]] = {
    "one": {"kv_lens": [90], "new": [1], "wanted": [0]},
    "one of a prompt": {"kv_lens": [4], "new": [1], "wanted": []},
    "one, twice": {"kv_lens": [4], "new": [1], "wanted": [0, 0]},
    "decode": {"kv_lens": [9, 70, 130, 64, 1], "new": [1] * 5, "wanted": [0, 1, 2, 3, 4]},
    "branches": {"kv_lens": [150] * 11, "new": [1] * 11, "wanted": [*range(11)], "shared": 140},
    "all logits": {"kv_lens": [33], "new": [20], "wanted": None},
    "mixed": {"kv_lens": [80, 40, 77, 65], "new": [1, 1, 50, 30], "wanted": [0, 1, 51, 60, 81]},
    "no logits": {"kv_lens": [80], "new": [41], "wanted": []},
    "long": {"kv_lens": [1000], "new": [1], "wanted": [0]},
    "long and short": {"kv_lens": [1000, 30, 700], "new": [1, 1, 5], "wanted": [0, 1, 6]},
    "strict": {"kv_lens": [80, 40, 77], "new": [1, 1, 50], "wanted": [0, 1, 51], "strict": True},
}


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def pool(model: LlamaModel) -> list[Tensor]:
    layout = model.kv_layout
    shape = (layout.num_layers, SLOTS, layout.num_kv_heads, layout.head_dim)
    return list(torch.randn(shape, generator=torch.Generator().manual_seed(5)).bfloat16())


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", STEPS)
def test_bits_are_those_of_the_operations(model: LlamaModel, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = step(**STEPS[name])
    pools = [(pool(model), pool(model)) for _ in range(2)]
    got = model.forward(batch, *pools[0])
    monkeypatch.setattr(model, "_native", None)
    want = model.forward(batch, *pools[1])
    assert torch.equal(got, want)
    assert got.isfinite().all()
    assert len(got) == 0 or got.std() > 0.1
    for ours, theirs in zip(pools[0], pools[1], strict=True):
        assert torch.equal(torch.stack(ours), torch.stack(theirs))


def test_a_row_is_the_same_alone(model: LlamaModel) -> None:
    """The first row of a batch beside itself alone: strict mode needs no block of rows for it."""
    together = step(kv_lens=[80, 40, 77, 20], new=[1] * 4, wanted=[0, 1, 2, 3])
    keys, values = pool(model), pool(model)
    want = model.forward(together, keys, values)
    for row in range(4):
        alone = ForwardBatch(
            input_ids=together.input_ids[row : row + 1],
            positions=together.positions[row : row + 1],
            out_slots=together.out_slots[row : row + 1],
            slot_table=together.slot_table[row : row + 1],
            query_starts=[0, 1],
            kv_lens=together.kv_lens[row : row + 1],
            logits_rows=torch.zeros(1, dtype=torch.int64),
            num_decode=1,
            strict=True,
        )
        assert torch.equal(model.forward(alone, keys, values), want[row : row + 1])

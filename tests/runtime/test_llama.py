"""The decoder's logits equal transformers' on tiny random models, however the tokens are cut into steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_support import KINDS, PagedRunner, reference_logits, tiny_model
from torch import Tensor

from lmnb.errors import UnsupportedModelError
from lmnb.runtime.batch import Model
from lmnb.runtime.decoder_config import parse_config
from lmnb.runtime.loading import load_model

PROMPTS = {
    "a": [5, 17, 100, 3, 250, 9, 9, 41, 77, 12, 200, 6, 31, 8, 90, 1, 33],
    "b": [299],
    "c": [7, 7, 7, 120, 64, 13, 255, 18, 2, 0, 44, 81, 19, 270, 55, 101, 102, 103, 104, 7, 21, 22, 23],
}


@pytest.fixture(scope="module", params=list(KINDS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    return tiny_model(request.param, folder), folder


@pytest.fixture(scope="module")
def loaded(pair: tuple[Any, Path]) -> Model:
    return load_model(pair[1], dtype="float32").model


def assert_same(got: Tensor, want: Tensor) -> None:
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_ragged_prefill_chunks_and_decode(pair: tuple[Any, Path], loaded: Model) -> None:
    reference = {name: reference_logits(pair[0], ids) for name, ids in PROMPTS.items()}
    assert reference["a"].std() > 0.3, "logits so flat would agree by themselves"
    runner = PagedRunner(loaded)
    first = runner.step({"a": PROMPTS["a"][:6], "b": PROMPTS["b"], "c": PROMPTS["c"][:10]})
    assert_same(first, torch.cat((reference["a"][:6], reference["b"], reference["c"][:10])))
    # One row decodes while another's prompt goes on: a chunk over a cached prefix.
    second = runner.step({"a": PROMPTS["a"][6:7], "c": PROMPTS["c"][10:19]}, num_decode=1, rows=[0, 9])
    assert_same(second, torch.stack((reference["a"][6], reference["c"][18])))
    for at in range(7, 11):
        step = runner.step({"c": [PROMPTS["c"][12 + at]], "a": [PROMPTS["a"][at]]}, num_decode=2)
        assert_same(step, torch.stack((reference["c"][12 + at], reference["a"][at])))


def test_branches_of_one_prefix(pair: tuple[Any, Path], loaded: Model) -> None:
    prefix = [(37 * i + 11) % 300 for i in range(140)]
    runner = PagedRunner(loaded, seed=3)
    runner.step({"root": prefix}, rows=[139])
    tails = {f"branch{i}": [i * 40 + 1, 5 + i] for i in range(6)}
    for name in tails:
        runner.fork("root", name)
    for at in range(2):
        got = runner.step({name: [tail[at]] for name, tail in tails.items()}, num_decode=6, shared_len=140)
        want = [reference_logits(pair[0], prefix + tail[: at + 1])[-1] for tail in tails.values()]
        assert_same(got, torch.stack(want))


def test_bfloat16_is_near(pair: tuple[Any, Path]) -> None:
    model = load_model(pair[1], dtype="bfloat16").model
    assert model.kv_layout.dtype == torch.bfloat16
    want = reference_logits(pair[0], PROMPTS["c"])
    got = PagedRunner(model).step({"c": PROMPTS["c"]})
    assert (got - want).square().mean().sqrt() < 0.06 * want.square().mean().sqrt()


def test_what_it_says_of_itself(pair: tuple[Any, Path], loaded: Model) -> None:
    config = json.loads((pair[1] / "config.json").read_text("utf-8"))
    layout = loaded.kv_layout
    assert loaded.name == pair[1].name
    assert loaded.vocab_size == config["vocab_size"]
    assert loaded.context_tokens == config["max_position_embeddings"]
    assert (layout.num_layers, layout.num_kv_heads) == (config["num_hidden_layers"], config["num_key_value_heads"])
    assert loaded.weight_bytes >= 4 * sum(p.numel() for p in pair[0].parameters())


def test_sharded_weights(tmp_path: Path) -> None:
    reference = tiny_model("llama", tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    model = load_model(tmp_path, dtype="float32").model
    assert_same(PagedRunner(model).step({"a": PROMPTS["a"]}), reference_logits(reference, PROMPTS["a"]))


OLD_CONFIG = {
    "model_type": "llama",
    "vocab_size": 10,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


def test_config_of_transformers_4() -> None:
    scaling = {"type": "linear", "factor": 2.0}
    config = parse_config({**OLD_CONFIG, "rope_theta": 500.0, "rope_scaling": scaling}, "old")
    plain = parse_config({**OLD_CONFIG, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, "new")
    torch.testing.assert_close(config.inv_freq() * 2, plain.inv_freq())
    assert (config.num_kv_heads, config.head_dim) == (4, 16)


def test_windows_of_transformers_4() -> None:
    sliding = {**OLD_CONFIG, "sliding_window": 7}
    assert parse_config({**sliding, "model_type": "mistral"}, "m").windows == (7,) * 4
    assert parse_config({**sliding, "model_type": "qwen2"}, "m").windows == (None,) * 4
    some = {**sliding, "model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 3}
    assert parse_config(some, "m").windows == (None, None, None, 7)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gemma3"}, "gemma3"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "dynamic"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "different layers"),
        ({"partial_rotary_factor": 0.5}, "0.5"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"num_key_value_heads": 3}, "3 KV heads"),
        ({"hidden_size": None}, "hidden_size"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "layer_types": ["ssm"] * 4}, "ssm"),
    ],
)
def test_what_it_cannot_run_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        parse_config({**OLD_CONFIG, **change}, "some-model")


def test_weights_that_do_not_fit_the_config(tmp_path: Path) -> None:
    tiny_model("llama", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text("utf-8"))

    path.write_text(json.dumps({**config, "num_hidden_layers": 4}), "utf-8")
    with pytest.raises(UnsupportedModelError, match=r"no tensor 'model\.layers\.3\."):
        load_model(tmp_path, dtype="float32")
    path.write_text(json.dumps({**config, "num_hidden_layers": 2}), "utf-8")
    with pytest.raises(UnsupportedModelError, match=r"does not have: model\.layers\.2\..* and 6 more"):
        load_model(tmp_path, dtype="float32")
    path.write_text(json.dumps({**config, "intermediate_size": 95}), "utf-8")
    with pytest.raises(UnsupportedModelError, match="shape"):
        load_model(tmp_path, dtype="float32")

"""Models that run through transformers' own code: logits equal the library's, and what does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_support import OTHER_KINDS, PagedRunner, random_model, reference_logits, save_model, tiny_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from lmnb.errors import UnsupportedModelError
from lmnb.kernels.paged_attention import attend, attend_reference
from lmnb.runtime.batch import Model
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.loading import load_model
from lmnb.runtime.request import Request, SamplingParams
from lmnb.runtime.transformers_model import TransformersModel

IDS = {
    "a": [5, 17, 100, 3, 250, 9, 9, 41, 77, 12, 200, 6, 31, 8, 90, 1, 33, 4, 9, 20],
    "b": [299, 12, 12, 40],
}


@pytest.fixture(scope="module", params=list(OTHER_KINDS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    return tiny_model(request.param, folder), folder


@pytest.fixture(scope="module")
def loaded(pair: tuple[Any, Path]) -> Model:
    model = load_model(pair[1], dtype="float32").model
    assert isinstance(model, TransformersModel)
    return model


def assert_same(got: Tensor, want: Tensor) -> None:
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_logits_of_ragged_chunks_and_decode(pair: tuple[Any, Path], loaded: Model) -> None:
    want = {name: reference_logits(pair[0], ids) for name, ids in IDS.items()}
    assert want["a"].std() > 0.3, "logits so flat would agree by themselves"
    runner = PagedRunner(loaded)
    first = runner.step({"a": IDS["a"][:11], "b": IDS["b"][:3]})
    assert_same(first, torch.cat((want["a"][:11], want["b"][:3])))
    second = runner.step({"b": IDS["b"][3:], "a": IDS["a"][11:19]}, num_decode=1, rows=[0, 4, 8])
    assert_same(second, torch.stack((want["b"][3], want["a"][14], want["a"][18])))
    assert_same(runner.step({"a": IDS["a"][19:]}, num_decode=1), want["a"][19:])


def test_greedy_text_of_the_engine(pair: tuple[Any, Path]) -> None:
    loaded = load_model(pair[1], dtype="float32")
    tokenizer = loaded.tokenizer
    prompts = [[(37 * i + 11 * k) % 300 for i in range(20 + 9 * k)] for k in range(3)]
    unsampled = list(range(tokenizer.vocab_size, 300))  # rows of the logits that are no token
    greedy = {"do_sample": False, "max_new_tokens": 24, "eos_token_id": None, "pad_token_id": 0}
    want = []
    for ids in prompts:
        prompt = torch.tensor([ids])
        out = pair[0].generate(prompt, attention_mask=prompt * 0 + 1, suppress_tokens=unsampled, **greedy)
        want.append(out[0, len(ids) :].tolist())
    sampling = SamplingParams(temperature=0, max_new_tokens=24, ignore_eos=True)
    engine = Engine(loaded.model, tokenizer, EngineConfig(pool_tokens=400, prefill_chunk=16))
    try:
        for _ in ("cold", "warm"):
            handles = [engine.submit(Request(input_ids=tuple(ids), sampling=sampling)) for ids in prompts]
            assert [list(handle.result().token_ids) for handle in handles] == want
    finally:
        engine.close()


def test_what_it_says_of_itself(pair: tuple[Any, Path], loaded: Model) -> None:
    assert loaded.name == pair[1].name
    assert (loaded.vocab_size, loaded.context_tokens, loaded.kv_layout.num_layers) == (300, 512, 3)
    assert loaded.weight_bytes == sum(p.numel() * 4 for p in pair[0].parameters())


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("bloom", {}, "attention cannot be exchanged"),  # a bias of the scores by distance
        ("mamba", {}, "attention cannot be exchanged"),
        ("gpt_oss", {"num_local_experts": 4, "head_dim": 16, "rope_parameters": None}, "attention sinks"),
        ("llama4_text", {"num_local_experts": 2}, "chunked_attention"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
    ],
)
def test_what_does_not_fit_is_refused(kind: str, changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    save_model(random_model(kind, **changes), tmp_path)
    with pytest.raises(UnsupportedModelError, match=named):
        load_model(tmp_path, dtype="float32")


def test_attention_that_is_not_ours_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.phi import modeling_phi

    tiny_model("phi", tmp_path)
    rotate = modeling_phi.apply_rotary_pos_emb

    def from_the_first(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any) -> Any:
        return rotate(q, k, cos[:, : q.shape[2]] * 0 + 1, sin * 0 + 0.3 * q.shape[2], *rest)  # depends on the chunk

    monkeypatch.setattr(modeling_phi, "apply_rotary_pos_emb", from_the_first)
    with pytest.raises(UnsupportedModelError, match="another result in pieces"):
        load_model(tmp_path, dtype="float32")


def test_weights_that_lack_tensors_are_refused(tmp_path: Path) -> None:
    tiny_model("phi", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.self_attn.q_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedModelError, match=r"lacks tensors.*model\.layers\.1\.self_attn\.q_proj\.weight"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "no-such-model"}, "no-such-model"),
        ({"vision_config": {"depth": 3}}, "reads images"),
        ({"is_encoder_decoder": True}, "encoder"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
    ],
)
def test_configurations_that_cannot_run_are_named(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    tiny_model("phi", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}), "utf-8")
    with pytest.raises(UnsupportedModelError, match=named):
        load_model(tmp_path)


def test_soft_caps_bound_the_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 8, generator=generator, dtype=torch.float64) for n in (3, 5, 5))
    out, lse = attend(q.float(), k.float(), v.float(), None, 4.0, 2.0)
    scores = 2.0 * torch.tanh(q @ k.transpose(-1, -2) * 4.0 / 2.0)
    torch.testing.assert_close(out.double(), scores.softmax(-1) @ v, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(out, attend_reference(q, k, v, None, 4.0)[0].float())

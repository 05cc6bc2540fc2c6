"""Memory that runs out is one line, and what was taken is given back."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest
import torch
from engine_support import TOKENIZER, fake_engine, fake_of, prompt
from model_support import tiny_model
from torch import Tensor

from lmnb.backends.local import Runtime
from lmnb.errors import OutOfMemoryError
from lmnb.kernels.decoder_layers import DecoderLayer
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.kv_pool import KVPool
from lmnb.runtime.loading import load_model
from lmnb.runtime.memory import memory_for
from lmnb.runtime.request import Constraint
from lmnb.runtime.weight_reader import WeightReader

CPU = torch.device("cpu")


def test_a_model_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_model("llama", tmp_path)
    taken: list[weakref.ref[Tensor]] = []
    layer = WeightReader.layer

    def read(reader: WeightReader, index: int) -> DecoderLayer:
        if index:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has ...")
        made = layer(reader, index)
        taken.append(weakref.ref(made.input_norm))
        return made

    monkeypatch.setattr(WeightReader, "layer", read)
    with pytest.raises(OutOfMemoryError, match=r"does not fit into .*: unload what else is there") as caught:
        load_model(tmp_path, dtype="float32", device="cpu")
    assert "\n" not in str(caught.value)
    gc.collect()
    assert taken[0]() is None  # although the error is still held


def test_a_pool_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(KVPool, "__init__", refuse)
    with pytest.raises(OutOfMemoryError, match="a KV pool of 2,048 tokens does not fit"), fake_engine():
        pass


def test_a_step_that_does_not_fit_fails_its_own_requests() -> None:
    with fake_engine() as engine:
        fake_of(engine).fail_next = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        failing = engine.submit(prompt("a", 4))
        with pytest.raises(Exception, match="a step did not fit into") as caught:
            failing.result(timeout=30)
        assert "Tried to allocate" not in str(caught.value)
        assert engine.submit(prompt("a", 4)).result(timeout=30).finish_reason == "length"


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shape"), memory_for("a model", CPU, "take another"):
        raise RuntimeError("shape '[2]' is invalid for input of size 3")


def no_more_threads(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name.startswith(prefix):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)


@pytest.mark.parametrize("name", ["lmnb-load", "lmnb-kernels", "lmnb-engine"])
def test_a_load_without_threads_says_what_to_raise(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_model("llama", tmp_path)
    no_more_threads(monkeypatch, name)
    with pytest.raises(OutOfMemoryError, match=rf"{name}.*raise its limits \(ulimit -v, ulimit -u"):
        Runtime(tmp_path, dtype="float32", device="cpu", kv_cache=64)


def test_a_load_goes_on_without_what_only_makes_it_quicker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_model("llama", tmp_path)
    no_more_threads(monkeypatch, "lmnb-warm-up")
    with Runtime(tmp_path, dtype="float32", device="cpu", kv_cache=64) as runtime:
        assert not runtime.closed


@pytest.mark.parametrize("name", ["lmnb-grammar", "lmnb-grammar-library"])
def test_a_constraint_without_threads_says_what_to_raise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_engine(grammars=Grammars(TOKENIZER, TOKENIZER.vocab_size)) as engine:
        with monkeypatch.context() as patch:
            no_more_threads(patch, name)
            asked = prompt("x", 6, constraint=Constraint("regex", "[a-z]{6}"))
            with pytest.raises(OutOfMemoryError, match="a step needs a thread: this process may have no more"):
                engine.submit(asked).result(timeout=30)
        assert engine.submit(asked).result(timeout=30).finish_reason == "stop"

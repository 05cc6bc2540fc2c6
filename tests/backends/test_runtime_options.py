"""A runtime's options: spelled once and shown everywhere; each wrong one is one line that names it, and is found before
any weights are read."""

from __future__ import annotations

import argparse
import inspect
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from context_support import fake_runtime, generate
from model_support import tiny_model
from patience import until

from lmnb.backends.local import Runtime
from lmnb.backends.runtime_options import RuntimeOptions, add_arguments, described, usage
from lmnb.errors import ArgumentError, LmnbError, ModelNotFoundError, UnsupportedModelError
from lmnb.runtime.weights import Checkpoint

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_running": "4"}, "max_running must be a whole number, not '4'"),
    ({"max_running": 1.5}, "max_running must be a whole number, not 1.5"),
    ({"max_running": True}, "max_running must be a whole number, not True"),
    ({"max_running": 0}, "max_running must be at least 1, not 0"),
    ({"max_running": 10**9}, "max_running=1,000,000,000 sequences need .* give a smaller max_running"),
    ({"prefill_chunk": "4"}, "prefill_chunk must be a whole number, not '4'"),
    ({"prefill_chunk": 1.5}, "prefill_chunk must be a whole number, not 1.5"),
    ({"prefill_chunk": -1}, "prefill_chunk must be at least 1, not -1"),
    ({"jump_forward": "no"}, "jump_forward must be True or False, not 'no'"),
    ({"jump_forward": None}, "jump_forward must be True or False, not None"),
    ({"deterministic": "no"}, "deterministic must be True or False, not 'no'"),
    ({"on_progress": 5}, "on_progress must be a function, not 5"),
    (
        {"on_progress": len},
        r"on_progress must be a function of 2 arguments \(bytes read so far, bytes in",
    ),
    ({"max_running": 10**300}, r"max_running must be below 2\*\*63"),
    ({"prefill_chunk": -(10**300)}, "prefill_chunk must be at least 1"),
    ({"kv_cache": "9" * 400 + "GiB"}, "is more than any machine has; give a smaller kv_cache"),
    ({"chat_template": 5}, "a chat template has a name, .* 5 has not"),
    ({"chat_template": "chatml2"}, "did you mean 'chatml'"),
    ({"chat_template": "{{ x"}, "not valid Jinja"),
    ({"kv_cache": "banana"}, "kv_cache is a number of tokens, or memory such as .* not 'banana'"),
    ({"kv_cache": 0}, "kv_cache must be at least 1 token"),
    ({"kv_cache": "1B"}, "holds not one token"),
    ({"kv_cache": "900TB"}, "give a smaller kv_cache"),
    ({"kv_cache": "٣MiB"}, "kv_cache is a number of tokens"),
    ({"kv_cache_dtype": "fp9"}, "kv_cache_dtype must be 'auto' or 'fp8_e4m3', not 'fp9'"),
    ({"kv_cache_dtype": None}, "kv_cache_dtype must be 'auto' or 'fp8_e4m3', not None"),
    ({"dtype": ["float32"]}, r"dtype must be 'auto' or one of .* not \['float32'\]"),
    ({"device": "tpu"}, "device must be 'auto', 'cpu' or 'cuda'"),
    ({"quantization": 8}, "quantization must be 'auto', .* not 8"),
    ({"load_format": "pt"}, "load_format must be 'auto' or 'dummy', not 'pt'"),
]
OF_THE_ENGINE = [one for one in WRONG if not one[0].keys() & {"dtype", "device", "quantization", "load_format"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model("llama", folder)
    return folder


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that may not be opened."""

    def opened(self: Checkpoint) -> Checkpoint:
        raise AssertionError("weights were read")

    monkeypatch.setattr(Checkpoint, "__enter__", opened)


@pytest.mark.parametrize(("options", "says"), WRONG, ids=[str(one[0]) for one in WRONG])
def test_a_wrong_option_is_found_before_weights_are_read(
    folder: Path, unread: None, options: dict[str, Any], says: str
) -> None:
    for make in (Runtime, Runtime.prepare):
        with pytest.raises(LmnbError, match=says) as raised:
            make(folder, **options)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("options", "says"), OF_THE_ENGINE, ids=[str(one[0]) for one in OF_THE_ENGINE])
def test_so_it_is_with_a_model_that_is_loaded_already(options: dict[str, Any], says: str) -> None:
    with pytest.raises(LmnbError, match=says):
        fake_runtime(**options)


def test_what_a_folder_lacks_is_found_before_weights_are_read(tmp_path: Path, unread: None) -> None:
    tiny_model("llama", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=re.escape("no model.safetensors")):
        Runtime.prepare(tmp_path)
    with pytest.raises(ModelNotFoundError):
        Runtime.prepare("/nowhere/at/all")


def test_values_of_numpy_are_taken_as_what_they_are() -> None:
    with fake_runtime(max_running=np.int64(2), prefill_chunk=16.0, jump_forward=np.bool_(False)) as runtime:
        limits = runtime._use().engine.limits
        assert (limits.max_running, limits.prefill_chunk, limits.jump_forward) == (2, 16, False)
        assert [type(one) for one in (limits.max_running, limits.prefill_chunk, limits.jump_forward)] == [
            int,
            int,
            bool,
        ]
        context = runtime.new_context()
        context.append("a prompt of several steps")
        assert generate(context, max_new_tokens=3).finish_reason == "length"


def test_what_was_prepared_opens_a_runtime(folder: Path) -> None:
    open_runtime = Runtime.prepare(folder, kv_cache=64, chat_template="chatml", dtype="float32")
    with open_runtime() as runtime:
        assert runtime.status().pool_tokens == 64
        assert runtime.chat_template.name == "chatml"


def test_strictness_that_a_model_cannot_have_is_found_before_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_model("gemma", tmp_path)
    monkeypatch.setattr("lmnb.runtime.loading._read", lambda plan: pytest.fail("weights were read"))
    with pytest.raises(UnsupportedModelError, match="leave out deterministic=True"):
        Runtime(tmp_path, deterministic=True)
    with pytest.raises(ArgumentError, match="kv_cache"):
        Runtime(tmp_path, kv_cache="banana")


@pytest.mark.timeout(60)
def test_an_interrupted_load_reads_no_further(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    get = Checkpoint.get
    at_work = threading.Event()
    go_on = threading.Event()

    def watched(self: Checkpoint, name: str, shape: tuple[int, ...]) -> Any:
        if len(read) == 1:
            at_work.set()
            assert go_on.wait(30)
        read.append(name)
        return get(self, name, shape)

    def interrupt(done: int, total: int) -> None:
        if at_work.is_set():
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "get", watched)
    with pytest.raises(KeyboardInterrupt):
        Runtime(folder, on_progress=interrupt)
    go_on.set()
    until(lambda: all(thread.name != "lmnb-load" for thread in threading.enumerate()))
    assert len(read) == 2


def test_an_error_of_on_progress_is_a_warning_and_not_the_loads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    get, called = Checkpoint.get, threading.Event()
    calls: list[int] = []

    def slow(self: Checkpoint, name: str, shape: tuple[int, ...]) -> Any:
        called.wait(30)
        return get(self, name, shape)

    def broken(done: int, total: int) -> None:
        calls.append(done)
        called.set()
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(Checkpoint, "get", slow)
    with pytest.warns(
        RuntimeWarning, match=r"on_progress raised ZeroDivisionError \(division by zero\) .* all the same"
    ):
        runtime = Runtime(folder, on_progress=broken)
    with runtime:
        assert not runtime.closed
    assert len(calls) == 1


@pytest.mark.parametrize("make", [Runtime, Runtime.prepare])
def test_tooltips_show_every_option_with_its_type_and_default(make: Any) -> None:
    shown = inspect.signature(make).parameters
    model, *others = shown.values()
    assert (model.name, model.kind, model.default) == ("model", model.POSITIONAL_OR_KEYWORD, None)
    assert {one.kind for one in others} == {model.KEYWORD_ONLY}
    assert shown["kv_cache"].annotation == "int | str | None"
    assert {name: one.default for name, one in shown.items()} == RuntimeOptions().as_arguments()
    assert make.__name__ in ("Runtime", "prepare")
    assert make.__doc__


def test_the_documentation_tells_of_every_option() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "engine.md").read_text("utf-8")
    for name in RuntimeOptions().as_arguments():
        assert f"    {name}" in (Runtime.__doc__ or "")
        assert name in ("model", "model_path") or f"| `{name}` |" in page


def test_a_command_line_takes_what_can_be_written() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    line = "--dtype float32 --kv-cache 1GiB --max-running 3 --deterministic --no-jump-forward --chat-template chatml"
    told = RuntimeOptions(**vars(parser.parse_args(line.split())))
    assert told == RuntimeOptions(
        dtype="float32", kv_cache="1GiB", max_running=3, deterministic=True, jump_forward=False, chat_template="chatml"
    )
    assert vars(parser.parse_args([])) == {}
    heads = re.findall(r"^  (--[\w-]+)", usage(2, 30, 100), re.MULTILINE)
    assert heads == [action.option_strings[0] for action in parser._actions[1:]]
    assert all(len(line) <= 100 for line in usage(2, 30, 100).splitlines())
    assert all(len(line) <= 120 for line in described().splitlines())


def test_a_second_model_is_one_line() -> None:
    with pytest.raises(ArgumentError, match="Runtime takes one model, and all else by name: model_path, dtype"):
        Runtime("smollm2", "float32")  # type: ignore[misc]

"""`%lmnb`: its commands, and what it says."""

from __future__ import annotations

import pytest
from context_support import fake_runtime

from lmnb.backends.runtime_options import RuntimeOptions
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ModelNotFoundError
from lmnb.language import get_default_backend, set_default_backend
from lmnb.magics.control import HELP
from lmnb.magics.models import LoadedModel
from lmnb.runtime.events import EngineStatus


class Engine(ScriptedBackend):
    """A scripted backend with an engine's counters."""

    strict = False

    def status(self) -> EngineStatus:
        return EngineStatus(
            model=self.name,
            device="cpu",
            dtype="float32",
            context_tokens=8192,
            pool_tokens=16384,
            free_tokens=15000,
            cached_tokens=1384,
            running=1,
            waiting=2,
            num_steps=9,
            prompt_tokens=2000,
            reused_tokens=500,
            generated_tokens=321,
            pool_bytes=94_371_840,
            weight_bytes=538_000_000,
            step_seconds=1.0,
            bookkeeping_seconds=0.01,
            deterministic=self.strict,
        )


@pytest.fixture
def opened(monkeypatch):
    calls = []

    class Runtime:
        """Tells what was asked for, where it differs from what a model is loaded with by default."""

        @staticmethod
        def prepare(*, model, on_progress, **options):
            given = {name: value for name, value in options.items() if value != getattr(RuntimeOptions, name)}

            def open_engine():
                calls.append((model, given))
                if model == "/missing":
                    raise ModelNotFoundError("no model at /missing: give a folder, a GGUF file or a hub id")
                engine = Engine(name="SmolLM2-135M-Instruct")
                engine.strict = options["deterministic"]
                return engine

            return open_engine

    monkeypatch.setattr("lmnb.backends.local.Runtime", Runtime)
    return calls


def test_loading_says_what_was_loaded(notebook, opened):
    notebook.run("%lmnb load")
    assert opened == [("smollm2", {})]
    assert notebook.out.splitlines()[0].startswith("Loaded smollm2 in ")
    assert "smollm2 (default): SmolLM2-135M-Instruct, float32 on cpu, context 8,192 tokens" in notebook.out
    notebook.run("%lmnb load")
    assert len(opened) == 1
    assert "Loaded" not in notebook.out


def test_a_deterministic_model_says_so(notebook, opened):
    notebook.run("%lmnb load --deterministic")
    assert opened == [("smollm2", {"deterministic": True})]
    assert "context 8,192 tokens, deterministic\n" in notebook.out


def test_loading_takes_quotes_and_options(notebook, opened):
    notebook.run("folder = '/my models'")
    notebook.run(
        '%lmnb load "$folder/a b.gguf" --dtype bfloat16 --device cpu --kv-cache 512MiB --kv-cache-dtype fp8 --name ab'
    )
    assert opened == [
        ("/my models/a b.gguf", {"dtype": "bfloat16", "device": "cpu", "kv_cache": "512MiB", "kv_cache_dtype": "fp8"})
    ]
    assert notebook.out.startswith("Loaded ab in ")


def test_a_model_that_is_not_there_is_one_line(notebook, opened):
    shown = notebook.fail("%lmnb load /missing")
    assert shown == "ModelNotFoundError: no model at /missing: give a folder, a GGUF file or a hub id\n"


def test_status_shows_memory_and_work(notebook, opened, backend):
    notebook.run("%lmnb status")
    assert notebook.out == "scripted (default; set by your own code)\n"
    notebook.run("%lmnb load")
    notebook.run("%lmnb load /m/b")
    notebook.run("%lmnb status")
    assert "smollm2: SmolLM2" in notebook.out
    assert "b (default): SmolLM2" in notebook.out
    assert "weights 538 MB, KV pool 94 MB for 16,384 tokens (1,384 cached, 15,000 free)" in notebook.out
    assert "1 running, 2 waiting; 2,000 prompt tokens, 25 % of them reused; 321 generated" in notebook.out


def test_status_without_a_model(notebook):
    notebook.run("%lmnb status")
    assert "`%lmnb load`" in notebook.out


def test_flush_and_unload_by_name_or_all(notebook, opened):
    notebook.run("%lmnb load")
    notebook.run("%lmnb load /m/b")
    b = get_default_backend()
    notebook.run("%lmnb flush b")
    assert b.flushes == 1
    assert notebook.out == "b: cached prompts forgotten.\n"
    b.flush_cache = lambda: False
    notebook.run("%lmnb flush b")
    assert "busy" in notebook.out
    notebook.run("%lmnb unload b")
    assert b.closed
    assert notebook.out == "b: unloaded, its memory is free again. The default is now smollm2.\n"
    notebook.run("%lmnb unload")
    assert notebook.out == "smollm2: unloaded, its memory is free again.\n"
    notebook.run("%lmnb unload")
    assert notebook.out == "No model is loaded.\n"


def test_a_states_prompt_is_pinned_until_it_is_let_go(notebook):
    with fake_runtime() as runtime:
        set_default_backend(runtime)
        notebook.run("%%lmprog\ns += 'A prompt to keep.'\ns.sync()")
        notebook.run("%lmnb unpin")
        assert notebook.out == "Nothing was pinned.\n"
        notebook.run("%lmnb pin s")
        assert notebook.out == "s: 17 tokens stay cached until `%lmnb unpin s`.\n"
        assert [pin.text for pin in runtime.cache.pins()] == ["A prompt to keep."]
        assert "'t' is not a variable that holds a state" in notebook.fail("%lmnb pin t")
        notebook.run("%lmnb unpin s")
        assert notebook.out == "1 pin taken back.\n"
        assert runtime.cache.pins() == []
        shown = notebook.fail("%lmnb unpin s")
        assert shown.count("\n") == 1
        assert "not pinned" in shown


def test_a_flush_says_what_stays(notebook):
    with fake_runtime() as runtime:
        model = LoadedModel("kept", runtime, RuntimeOptions())
        notebook.shell.magics_manager.registry["Lmnb"].session.models._models["kept"] = model
        runtime.cache.pin("A prompt to keep.")
        notebook.run("%lmnb flush kept")
        assert notebook.out == "kept: cached prompts forgotten; 17 pinned tokens stay (`%lmnb unpin`).\n"
        notebook.run("%lmnb status")
        assert "(17 cached, 17 of them pinned, " in notebook.out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("stats", "Did you mean status?"),
        ("load a b", "unexpected word 'b'"),
        ("load --kv 3", "unknown option '--kv'"),
        ("load 'open", "No closing quotation"),
        ("unload x", "no model named 'x' is loaded (loaded: none)"),
        ("status now", "unexpected word 'now'"),
        ("tree", "no cache"),
        ("pin", "required: state"),
        ("pin s", "has no cache of ours"),
        ("unpin", "has no cache of ours"),
    ],
)
def test_mistakes_are_one_line_usage_errors(notebook, backend, line, words):
    shown = notebook.fail(f"%lmnb {line}")
    assert shown.startswith("UsageError: ")
    assert words in shown
    assert shown.count("\n") == 1


def test_help_names_every_command(notebook):
    notebook.run("%lmnb")
    assert notebook.out == HELP + "\n"
    for command in notebook.shell.magics_manager.registry["Lmnb"].commands:
        assert f"%lmnb {command}" in HELP


def test_config_sets_the_view(notebook, backend, monkeypatch):
    modes = []

    class View:
        def __init__(self, run, mode, **_):
            modes.append(mode)

        def display(self, *, background=False): ...

        def finish(self): ...

    monkeypatch.setattr("lmnb.magics.lmprog.RunView", View)
    notebook.run("%%lmprog\ns += 'x'")
    notebook.run("%config Lmnb.view = 'html'")
    notebook.run("%%lmprog\ns += 'x'")
    notebook.run("%%lmprog --view text\ns += 'x'")
    assert modes == [None, "html", "text"]


def test_equal_settings_are_the_same_model_however_they_are_given(notebook, opened):
    notebook.run("%%lmprog\ns += 'a'")
    notebook.run("%lmnb load")
    notebook.run("%lmnb load smollm2")
    notebook.run("%lmnb load --dtype auto --device auto --quantization auto --kv-cache-dtype auto")
    assert len(opened) == 1
    assert "Loaded" not in notebook.out


def test_a_load_that_fails_after_unloading_says_what_is_gone(notebook, opened):
    notebook.run("%lmnb load --name it")
    shown = notebook.fail("%lmnb load /missing --name it")
    assert "it was unloaded to make room, before this failed. `%lmnb load` loads it again." in shown
    assert "No model is loaded" in notebook.show("%lmnb status")
    assert "unloaded" not in notebook.fail("%lmnb load /missing --name it")


@pytest.mark.model
def test_a_wrong_word_leaves_the_loaded_model_and_its_cache(notebook):
    notebook.run("%lmnb load --kv-cache 500")
    notebook.run("%%lmprog\ns += 'One two three four' + gen('x', max_tokens=2)")
    model = get_default_backend()
    cached = model.status().cached_tokens
    for wrong in ("--kv-cache banana", "--kv-cache 0", "--kv-cache 900TB", "--kv-cache-dtype fp9", "--dtype int3"):
        shown = notebook.fail(f"%lmnb load {wrong}")
        assert wrong.split()[0][2:].replace("-", "_") in shown
        assert len(shown.strip().splitlines()) == 1, shown
        assert get_default_backend() is model
    assert not model.closed
    assert model.status().cached_tokens == cached > 0


def test_an_interrupted_load_shows_none_of_our_frames(notebook, opened, monkeypatch):
    def prepare(**options):
        raise KeyboardInterrupt

    monkeypatch.setattr("lmnb.backends.local.Runtime.prepare", staticmethod(prepare))
    for cell in ("%lmnb load", "%%lmprog\ns += gen('x')"):
        shown = notebook.fail(cell)
        assert "KeyboardInterrupt" in shown
        assert "lmnb/magics" not in shown, shown

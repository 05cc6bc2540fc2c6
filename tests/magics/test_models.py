"""The shelf of loaded models, without any engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from IPython.core.error import UsageError

from lmnb.backends.runtime_options import RuntimeOptions
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError, ModelNotFoundError
from lmnb.magics.models import EMBEDDED, ModelShelf, model_name


class Shelf(ModelShelf):
    def __init__(self) -> None:
        self.default_backend: ScriptedBackend | None = None
        self.opened: list[RuntimeOptions] = []
        super().__init__(self.prepare, lambda: self.default_backend, self.set)

    def prepare(self, settings: RuntimeOptions) -> Callable[[], ScriptedBackend]:
        if settings.kv_cache == "banana":
            raise ArgumentError("kv_cache")

        def open_backend() -> ScriptedBackend:
            if settings.model == "/m/broken":
                raise ModelNotFoundError("broken")
            self.opened.append(settings)
            return ScriptedBackend(name=model_name(settings.model))

        return open_backend

    def set(self, backend) -> None:
        self.default_backend = backend


def test_loading_sets_the_default_and_asking_again_is_free():
    shelf = Shelf()
    first, fresh = shelf.load(RuntimeOptions(EMBEDDED))
    again, fresh_again = shelf.load(RuntimeOptions(EMBEDDED))
    assert (fresh, fresh_again) == (True, False)
    assert again is first
    assert shelf.default() is first.backend
    assert first.name == "smollm2"
    assert len(shelf.opened) == 1


def test_other_settings_replace_the_model_of_that_name():
    shelf = Shelf()
    old, _ = shelf.load(RuntimeOptions("/m/qwen"))
    new, fresh = shelf.load(RuntimeOptions("/m/qwen", kv_cache="64"))
    assert fresh
    assert old.backend.closed
    assert not new.backend.closed
    assert len(shelf) == 1


def test_settings_that_are_refused_leave_the_model_that_is_loaded():
    shelf = Shelf()
    kept, _ = shelf.load(RuntimeOptions(EMBEDDED))
    with pytest.raises(ArgumentError):
        shelf.load(RuntimeOptions(EMBEDDED, kv_cache="banana"))
    assert not kept.backend.closed
    assert shelf.default() is kept.backend
    assert shelf.load(RuntimeOptions(EMBEDDED)) == (kept, False)


def test_two_names_live_side_by_side_and_unloading_moves_the_default():
    shelf = Shelf()
    a, _ = shelf.load(RuntimeOptions("/m/x.gguf"), "a")
    b, _ = shelf.load(RuntimeOptions("/m/x.gguf"), "b")
    shelf.load(RuntimeOptions("/m/y"), make_default=False)
    assert shelf.default() is b.backend
    shelf.unload("y")
    shelf.unload("b")
    assert shelf.default() is a.backend
    assert b.backend.closed
    shelf.unload("a")
    assert shelf.default() is None


def test_a_default_set_elsewhere_is_left_alone():
    shelf = Shelf()
    shelf.load(RuntimeOptions(EMBEDDED))
    shelf.set(own := ScriptedBackend())
    shelf.close()
    assert shelf.default() is own
    assert not own.closed
    assert len(shelf) == 0


def test_a_failed_load_leaves_no_trace():
    shelf = Shelf()
    with pytest.raises(ModelNotFoundError):
        shelf.load(RuntimeOptions("/m/broken"))
    assert len(shelf) == 0
    assert shelf.default() is None


def test_unknown_names_get_the_nearest_one():
    shelf = Shelf()
    shelf.load(RuntimeOptions(EMBEDDED))
    with pytest.raises(UsageError, match="Did you mean smollm2"):
        shelf.unload("smolm2")


@pytest.mark.parametrize(
    ("model", "name"),
    [(EMBEDDED, "smollm2"), ("/m/Qwen2-0.5B", "Qwen2-0.5B"), ("/m/a.gguf", "a"), ("org/model", "model")],
)
def test_names_of_models(model, name):
    assert model_name(model) == name


def test_loading_again_replaces_a_model_whose_engine_has_ended():
    shelf = Shelf()
    dead, _ = shelf.load(RuntimeOptions(EMBEDDED))
    dead.backend.closed = True  # as after an engine's death
    alive, fresh = shelf.load(RuntimeOptions(EMBEDDED))
    assert fresh
    assert alive is not dead
    assert shelf.default() is alive.backend
    assert shelf.load(RuntimeOptions(EMBEDDED)) == (alive, False)

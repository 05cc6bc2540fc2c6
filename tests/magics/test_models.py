"""The shelf of loaded models, without any engine."""

from __future__ import annotations

import pytest
from IPython.core.error import UsageError

from lmnb.backends.testing import ScriptedBackend
from lmnb.magics.models import ModelShelf, Settings, model_name


class Shelf(ModelShelf):
    def __init__(self) -> None:
        self.default_backend: ScriptedBackend | None = None
        self.opened: list[Settings] = []
        super().__init__(self.open, lambda: self.default_backend, self.set)

    def open(self, settings: Settings) -> ScriptedBackend:
        self.opened.append(settings)
        return ScriptedBackend(name=model_name(settings.model))

    def set(self, backend) -> None:
        self.default_backend = backend


def test_loading_sets_the_default_and_asking_again_is_free():
    shelf = Shelf()
    first, fresh = shelf.load(Settings())
    again, fresh_again = shelf.load(Settings())
    assert (fresh, fresh_again) == (True, False)
    assert again is first
    assert shelf.default() is first.backend
    assert first.name == "smollm2"
    assert len(shelf.opened) == 1


def test_other_settings_replace_the_model_of_that_name():
    shelf = Shelf()
    old, _ = shelf.load(Settings("/m/qwen"))
    new, fresh = shelf.load(Settings("/m/qwen", kv_cache="64"))
    assert fresh
    assert old.backend.closed
    assert not new.backend.closed
    assert len(shelf) == 1


def test_two_names_live_side_by_side_and_unloading_moves_the_default():
    shelf = Shelf()
    a, _ = shelf.load(Settings("/m/x.gguf"), "a")
    b, _ = shelf.load(Settings("/m/x.gguf"), "b")
    shelf.load(Settings("/m/y"), make_default=False)
    assert shelf.default() is b.backend
    shelf.unload("y")
    shelf.unload("b")
    assert shelf.default() is a.backend
    assert b.backend.closed
    shelf.unload("a")
    assert shelf.default() is None


def test_a_default_set_elsewhere_is_left_alone():
    shelf = Shelf()
    shelf.load(Settings())
    shelf.set(own := ScriptedBackend())
    shelf.close()
    assert shelf.default() is own
    assert not own.closed
    assert len(shelf) == 0


def test_a_failed_load_leaves_no_trace():
    shelf = Shelf()
    shelf._open_model = lambda settings: 1 / 0
    with pytest.raises(ZeroDivisionError):
        shelf.load(Settings("/m/x"))
    assert len(shelf) == 0
    assert shelf.default() is None


def test_unknown_names_get_the_nearest_one():
    shelf = Shelf()
    shelf.load(Settings())
    with pytest.raises(UsageError, match="Did you mean smollm2"):
        shelf.unload("smolm2")


@pytest.mark.parametrize(
    ("model", "name"), [(None, "smollm2"), ("/m/Qwen2-0.5B", "Qwen2-0.5B"), ("/m/a.gguf", "a"), ("org/model", "model")]
)
def test_names_of_models(model, name):
    assert model_name(model) == name


def test_loading_again_replaces_a_model_whose_engine_has_ended():
    shelf = Shelf()
    dead, _ = shelf.load(Settings())
    dead.backend.closed = True  # as after an engine's death
    alive, fresh = shelf.load(Settings())
    assert fresh
    assert alive is not dead
    assert shelf.default() is alive.backend
    assert shelf.load(Settings()) == (alive, False)

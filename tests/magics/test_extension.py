"""`%load_ext`, `%unload_ext`, `%reload_ext`: what they leave in the shell, and what they take back."""

from __future__ import annotations

import lmnb
from lmnb.backends.testing import ScriptedBackend
from lmnb.language import get_default_backend
from lmnb.magics.namespace import LANGUAGE_NAMES


def test_the_languages_names_are_there_and_hidden(notebook):
    assert {name: notebook.ns[name] for name in LANGUAGE_NAMES} == {n: getattr(lmnb, n) for n in LANGUAGE_NAMES}
    assert "gen" not in notebook.shell.run_line_magic("who_ls", "")


def test_unloading_takes_back_what_is_still_ours(notebook):
    notebook.run("user = 'me'")
    notebook.run("%unload_ext lmnb")
    assert notebook.ns["user"] == "me"
    assert "gen" not in notebook.ns
    assert "lmprog" not in notebook.shell.magics_manager.magics["cell"]
    assert "lmnb" not in notebook.shell.magics_manager.magics["line"]
    assert not [c for c in notebook.shell.configurables if type(c).__module__.startswith("lmnb.")]
    callbacks = notebook.shell.events.callbacks["pre_run_cell"]
    assert not [c for c in callbacks if type(getattr(c, "__self__", None)).__module__.startswith("lmnb.")]


def test_loading_keeps_names_that_the_user_has(notebook):
    notebook.run("%unload_ext lmnb")
    notebook.run("select = 'mine'")
    notebook.run("%load_ext lmnb")
    assert notebook.ns["select"] == "mine"
    assert notebook.ns["gen"] is lmnb.gen


def test_loading_twice_and_reloading_are_fine(notebook, backend):
    notebook.run("%load_ext lmnb")
    assert "already loaded" in notebook.out
    notebook.run("%reload_ext lmnb")
    assert notebook.run("%%lmprog\ns += 'In ' + gen('city')\ns['city']") == "Kyoto"


def test_unloading_closes_the_engines_that_the_magics_opened_and_no_others(notebook, monkeypatch):
    monkeypatch.setattr(
        "lmnb.backends.local.Runtime.prepare", lambda model, **options: lambda: ScriptedBackend(name=str(model))
    )
    notebook.run("%lmnb load /models/a")
    opened = get_default_backend()
    notebook.run("%unload_ext lmnb")
    assert opened.closed
    assert get_default_backend() is None


def test_unloading_leaves_the_users_own_backend(notebook, backend):
    notebook.run("%unload_ext lmnb")
    assert get_default_backend() is backend
    assert not backend.closed

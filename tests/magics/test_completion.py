"""Completion and tooltips, through IPython's own completer, as a front end asks for them."""

from __future__ import annotations

import pytest
from IPython.core.completer import provisionalcompleter

from lmnb.errors import ModelNotFoundError
from lmnb.magics.completion import commands
from lmnb.magics.control import HELP, Lmnb
from lmnb.magics.lmprog import option_parser

HERE = "▌"


@pytest.fixture
def completed(notebook):
    """`completed(cell)`: what is offered where ▌ stands, as (typed text, offers)."""

    def ask(cell: str) -> tuple[str, list[str]]:
        place = cell.index(HERE)
        code = cell.replace(HERE, "")
        with provisionalcompleter():
            found = list(notebook.shell.Completer.completions(code, place))
        typed = {code[one.start : place] for one in found}
        return (typed.pop() if len(typed) == 1 else "", [one.text for one in found])

    return ask


def test_the_commands_of_the_line_magic(completed):
    typed, texts = completed("%lmnb l▌")
    assert (typed, texts) == ("l", ["load", "ledger"])
    assert completed("x = 1\n%lmnb ledger --c▌") == ("--c", ["--clear"])
    assert "html" in completed("%lmnb tree --view h▌")[1]
    assert completed("%lmnb load --kv▌")[1] == ["--kv-cache", "--kv-cache-dtype"]


def test_help_names_every_command_and_only_options_there_are(notebook, monkeypatch):
    def prepare(**options):
        raise ModelNotFoundError("not loaded here")

    monkeypatch.setattr("lmnb.backends.local.Runtime.prepare", staticmethod(prepare))
    control = next(c for c in notebook.shell.configurables if isinstance(c, Lmnb))
    listed = commands(HELP)
    assert set(listed) == set(control.commands)
    for command, options in listed.items():
        for option in options:
            if option == "--view":
                continue
            shown = notebook.show(f"%lmnb {command} {option}")
            assert "unknown option" not in shown, (command, option)


def test_the_options_of_a_cell(completed, notebook, backend):
    assert completed("%%lmprog --te▌\ns += 'x'") == ("--te", ["--temperature"])
    assert set(completed("%%lmprog --▌\n")[1]) >= {name for name in option_parser().option_names() if name[:2] == "--"}
    notebook.run("from lmnb.backends.testing import ScriptedBackend\nmine = ScriptedBackend()")
    assert completed("%%lmprog -m mi▌\n") == ("mi", ["mine"])
    notebook.run("%%lmprog -o chat_1\ns += 'x'")
    assert completed("%%lmprog --from ▌\n") == ("", ["chat_1"])
    assert completed("%%lmprog --view wi▌\n")[1] == ["widget"]


def test_variables_so_far(completed, notebook, backend):
    cell = "%%lmprog\ns += gen('city') + select('mood', ['a'])\ns['n'] = 1\nwith s.var_scope('all'):\n    x = s[\"▌"
    assert completed(cell) == ("", ["city", "mood", "n", "all"])
    assert completed("%%lmprog\ns += gen('city') + gen('count')\nprint(s['c▌")[1] == ["city", "count"]
    notebook.run("%%lmprog -o chat\ns += gen('earlier')")
    assert completed("%%lmprog --from chat\ns += gen('city')\nprint(s['▌")[1] == ["city", "earlier"]
    assert completed("%%lmprog\nprint(chat['▌")[1] == ["earlier"]


def test_members_of_the_state(completed):
    typed, texts = completed("%%lmprog\nforks = s.fo▌")
    assert (typed, texts) == ("fo", ["fork"])
    everything = completed("%%lmprog\ns.▌")[1]
    assert {"user", "assistant", "system", "fork", "text", "var_scope", "run"} <= set(everything)
    assert not any(name.startswith("_") for name in everything)
    assert "append_at" not in everything


def test_arguments_of_primitives(completed):
    texts = completed("%%lmprog\ns += user('(') + gen('x', temperature=0, ma▌")[1]
    assert "max_tokens=" in texts
    texts = completed("%%lmprog\ns += gen('x', temperature=0, ▌")[1]
    assert "regex=" in texts
    assert "temperature=" not in texts
    assert "choices=" in completed("%%lmprog\ns += select('x', \n  cho▌")[1]
    assert "max_tokens=" not in completed("%%lmprog\ns += gen('x', stop=str(ma▌")[1]
    assert "max_tokens=" not in completed("%%lmprog\nprint(ma▌")[1]


def test_a_programs_parameters(completed):
    assert "essay" in completed("%%lmprog judge(essay, n=3)\ns += user(es▌")[1]


def test_nothing_of_ours_in_texts_and_in_other_cells(completed):
    assert "max_tokens=" not in completed("%%lmprog\ns += gen('x', stop='ma▌")[1]
    assert "fork" not in completed("s.fo▌")[1]
    assert "--temperature" not in completed("--te▌")[1]


def test_tooltips_explain_the_state_before_any_cell_has_run(notebook, backend):
    assert "s" not in notebook.ns
    shown = notebook.shell.object_inspect_mime("s.fork")["text/plain"]
    assert "branches that start with all" in shown
    assert "max_tokens" in notebook.shell.object_inspect_mime("gen")["text/plain"]
    notebook.run("s = 3")
    assert "int" in notebook.shell.object_inspect_mime("s")["text/plain"]
    with pytest.raises(KeyError):
        notebook.shell.object_inspect_mime("s.fork")


def test_everything_is_taken_back(notebook, completed):
    matchers = list(notebook.shell.Completer.custom_matchers)
    notebook.run("%unload_ext lmnb")
    assert len(notebook.shell.Completer.custom_matchers) == len(matchers) - 1
    assert "object_inspect_mime" not in vars(notebook.shell)
    assert "_lmnb_state" not in notebook.ns
    assert "load" not in completed("%lmnb l▌")[1]
    notebook.run("%load_ext lmnb")
    assert len(notebook.shell.Completer.custom_matchers) == len(matchers)

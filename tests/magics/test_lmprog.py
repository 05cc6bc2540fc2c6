"""`%%lmprog` in a real shell: what runs, what it leaves behind, and what its errors look like."""

from __future__ import annotations

import pytest
from picture_support import png

from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import CancelledError
from lmnb.language import Program, set_default_backend


def test_a_cell_runs_now_and_leaves_its_state(notebook, backend):
    assert notebook.run("%%lmprog\ns += user('A city?')\ns += assistant(gen('city'))\ns['city']") == "Kyoto"
    assert notebook.ns["s"]["city"] == "Kyoto"
    assert notebook.ns["s"].run.status == "done"
    assert notebook.ns["s"].run.cell == "1"


def test_variables_are_shared_both_ways(notebook, backend):
    notebook.run("topics = ['tea', 'ink']")
    notebook.run(
        "%%lmprog\n"
        "forks = s.fork(len(topics))\n"
        "forks += lambda i: f'About {topics[i]}: ' + gen('city')\n"
        "found = [f['city'] for f in forks]\n"
        "size: int = len(found)"
    )
    assert notebook.ns["found"] == ["Kyoto", "Kyoto"]
    assert notebook.ns["size"] == 2
    assert sorted(backend.prompts()) == ["About ink: ", "About tea: "]


def test_the_body_is_never_formatted(notebook, backend):
    notebook.run("x = 'gone'")
    notebook.run("%%lmprog\ns += '{x} $x {{}} %d !ls'\ns += f'{x}'")
    assert notebook.ns["s"].text() == "{x} $x {{}} %d !lsgone"


def test_options_set_the_defaults_and_are_expanded(notebook, backend):
    notebook.run("temp = 0.25")
    notebook.run("%%lmprog -t $temp --max-tokens {2 + 3} --seed 7 -o answer\ns += gen('city')")
    params = backend.calls[-1].params
    assert (params.temperature, params.max_new_tokens, params.seed) == (0.25, 5, 7)
    assert notebook.ns["answer"]["city"] == "Kyoto"
    assert "s" not in notebook.ns


def test_a_named_cell_defines_a_program(notebook, backend):
    notebook.run("unit = 'km'")
    notebook.run(
        "%%lmprog ask(place, opts={'n': 2}, *, loud=False) -t 0\n"
        "'''Asks.'''\n"
        "s += f'{place} {unit} {opts} {loud} ' + gen('city')\n"
        "return s['city']"
    )
    ask = notebook.ns["ask"]
    assert isinstance(ask, Program)
    assert ask.__doc__ == "Asks."
    assert "s" not in notebook.ns
    assert notebook.run("ask('Rome', loud=True).ret_value") == "Kyoto"
    assert backend.prompts() == ["Rome km {'n': 2} True "]
    assert backend.calls[-1].params.temperature == 0


def test_what_rows_of_a_named_cell_begin_with_is_computed_once(notebook, backend):
    shots = "The capital of Japan is Tokyo, and the capital of Italy is Rome. "
    notebook.run(f"shots = {shots!r}")
    notebook.run("%%lmprog ask(place)\ns += shots\ns += f'{place}: ' + gen('city')")
    notebook.run("ask.map([{'place': 'Peru'}, {'place': 'Chad'}], progress_bar=False)")
    assert [call.prompt for call in backend.calls if call.kind == "commit"] == [shots]


def test_a_named_cell_compiles_with_its_f_strings(notebook, backend):
    notebook.run("%%lmprog ask(place)\n\ns += f'{place:}: ' + gen('city')\nif s['city'] == 'x':\n    s += 'y'")
    assert "line 4: the program compares" in notebook.fail("ask.compile()")
    notebook.run("%%lmprog ask(place)\ns += f'{place}: ' + gen('city')")
    assert notebook.run("ask.compile().run(place='Peru')['city']") == "Kyoto"
    assert backend.prompts() == ["Peru: "]


def test_a_program_called_in_a_cell_is_a_branch_of_its_run(notebook, backend):
    notebook.run("%%lmprog ask(q)\ns += q + gen('city')")
    notebook.run("%%lmprog\nanswer = ask('q1')['city']")
    assert notebook.ns["answer"] == "Kyoto"
    opened = [e for e in notebook.ns["s"].run.events if e.type == "branch"]
    assert [e.program for e in opened] == ["ask"]


def test_a_conversation_goes_on_over_cells(notebook, backend):
    notebook.run("%%lmprog -o chat -t 0.5\ns += user('One?') + assistant(gen('a'))")
    notebook.run("%%lmprog --from chat -o chat2\ns += user('Two?') + assistant(gen('b'))")
    first, second = notebook.ns["chat"], notebook.ns["chat2"]
    assert second.text().startswith(first.text())
    assert second["a"] == first["a"]
    assert [m["role"] for m in second.messages()] == ["user", "assistant"] * 2
    assert len(first.messages()) == 2
    assert backend.calls[-1].params.temperature == 0.5
    notebook.run("states = [chat]")
    notebook.run("%%lmprog --from states[0] -o chat --seed 1\ns += user('Three?')")
    assert notebook.ns["chat"].messages()[-1]["content"] == "Three?"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--from chatt", "Did you mean chat?"),
        ("--from topic", "of type str"),
        ("-m nowhere", "no model named 'nowhere'"),
        ("--temprature 1", "Did you mean --temperature?"),
        ("ask --bg", "--bg is for cells that run"),
        ("ask --from chat", "--from is for cells that run"),
    ],
)
def test_wrong_options_are_one_line_and_stop_the_notebook(notebook, backend, options, words):
    notebook.run("%%lmprog -o chat\ns += 'x'")
    notebook.run("topic = 'tea'")
    shown = notebook.fail(f"%%lmprog {options}\ns += 'y'")
    assert words in shown
    assert shown.startswith("UsageError: ")
    assert shown.count("\n") == 1


@pytest.mark.parametrize("cell", ["%%lmprog\n", "%%lmprog\n\n  \n", "%%lmprog ask(x)\n   "])
def test_a_cell_without_a_body_says_so(notebook, backend, cell):
    assert "UsageError" in notebook.fail(cell)


def test_a_model_can_be_a_variable_or_a_loaded_name(notebook, backend, monkeypatch):
    monkeypatch.setattr(
        "lmnb.backends.local.Runtime.prepare", lambda model, **options: lambda: ScriptedBackend(f"from {model}")
    )
    notebook.ns["mine"] = ScriptedBackend("from mine")
    notebook.run("%lmnb load /m/a --name small")
    for name, answer in (("mine", "from mine"), ("small", "from /m/a")):
        assert notebook.run(f"%%lmprog -m {name}\ns += gen('x')\ns['x']") == answer


def test_without_a_model_the_embedded_one_is_loaded_and_said_so(notebook, monkeypatch):
    asked = []

    def prepare(model, **options):
        asked.append(model)
        return lambda: ScriptedBackend("small")

    monkeypatch.setattr("lmnb.backends.local.Runtime.prepare", prepare)
    assert notebook.run("%%lmprog\ns += gen('x')\ns['x']") == "small"
    assert asked == ["smollm2"]
    assert "No model is loaded yet" in notebook.out
    assert notebook.run("%%lmprog\ns += gen('x')\ns['x']") == "small"
    assert asked == ["smollm2"]
    assert "No model" not in notebook.out


def test_the_users_exceptions_keep_their_traceback_with_the_cells_lines(notebook, backend):
    shown = notebook.fail("%%lmprog\nx = 1\n\ny = x / 0\n")
    assert "ZeroDivisionError" in shown
    assert "----> 4 y = x / 0" in shown
    assert "magics/runner.py" not in shown
    assert "magics/lmprog.py" not in shown
    assert notebook.ns["s"].run.status == "failed"
    assert notebook.ns["x"] == 1


def test_stacked_magics_keep_the_lines(notebook, backend):
    shown = notebook.show("%%time\n%%lmprog\nx = 1\ny = x / 0\n")  # IPython 8's %%time lets no error through
    assert "----> 4 y = x / 0" in shown
    notebook.run("%%capture captured\n%%lmprog\ns += gen('city')\nprint(s['city'])")
    assert notebook.run("captured.stdout") == "Kyoto\n"
    notebook.run("%%time\n%%lmprog\ns += gen('city')")
    assert "Wall time" in notebook.out


def test_a_programs_error_shows_the_line_of_the_cell_that_defined_it(notebook, backend):
    notebook.run("%%lmprog bad(x)\n\ns += x\nreturn 1 / 0")
    assert "----> 4 return 1 / 0" in notebook.fail("bad('x')")


def test_our_errors_are_short_and_say_where(notebook):
    set_default_backend(ScriptedBackend(ValueError("broken pipe")))
    shown = notebook.fail("%%lmprog\ns += 'Say '\ns += gen('x')\nvalue = s['x']")
    lines = shown.strip().splitlines()
    assert lines[0].startswith("GenerationError: ")
    assert lines[0].endswith("ValueError: broken pipe")  # the cause, once
    assert lines[1].strip().startswith("at Cell In[1], line 4: value = s['x']")
    assert len(lines) == 2


def test_a_failed_generation_that_nobody_reads_fails_the_cell(notebook):
    set_default_backend(ScriptedBackend(ValueError("broken pipe")))
    assert "broken pipe" in notebook.fail("%%lmprog\ns += gen('x')")


def test_syntax_errors_point_at_the_cells_line(notebook, backend):
    shown = notebook.fail("%%lmprog\nx = 1\ns += gen('x'\n")
    assert shown.splitlines()[:2] == ["  Cell In[1], line 3", "    s += gen('x'"]
    assert shown.splitlines()[-1] == "SyntaxError: '(' was never closed"
    assert "a body is synchronous" in notebook.fail("%%lmprog\nawait x")
    assert "give the cell a name" in notebook.fail("%%lmprog\nreturn 1")


def test_a_turn_as_last_line_shows_no_value(notebook, backend):
    assert notebook.run("%%lmprog\ns.user('hi')") is None
    assert notebook.run("%%lmprog\n3;") is None


def test_a_cancelled_run_ends_the_cell_with_one_line_and_keeps_its_text(notebook):
    set_default_backend(ScriptedBackend("one two three four", token_delay=0.02))
    shown = notebook.fail(
        "%%lmprog\n"
        "s.run.subscribe(lambda e: s.run.cancel() if e.type == 'tokens' and 'two' in e.text else None)\n"
        "s += 'Count: ' + gen('x')\n"
    )
    assert shown.startswith("CancelledError: ")
    assert shown.count("\n") == 1
    state = notebook.ns["s"]
    assert state.run.status == "cancelled"
    assert state.text() == "Count: one two"
    assert state["x"] == "one two"
    assert state.get_meta_info("x")["finish_reason"]["type"] == "cancelled"
    with pytest.raises(CancelledError):
        state.sync()


def test_a_cancelled_conversation_can_go_on(notebook):
    set_default_backend(ScriptedBackend("one two three four", token_delay=0.02))
    notebook.fail(
        "%%lmprog\n"
        "s.run.subscribe(lambda e: s.run.cancel() if e.type == 'tokens' and 'two' in e.text else None)\n"
        "s += user('Count.') + assistant(gen('x'))\n"
    )
    notebook.run("%%lmprog --from s\ns += user('Go on.') + assistant(gen('y', max_tokens=1))")
    contents = [m["content"] for m in notebook.ns["s"].messages()]
    assert contents == ["Count.", "one two", "Go on.", "one"]


def test_ordinary_cells_run_programs_without_a_view(notebook, backend):
    notebook.run("@function\ndef ask(s, q):\n    s += q + gen('city')")
    assert notebook.run("ask.run('A city? ')['city']") == "Kyoto"
    assert notebook.outputs == []


def test_the_help_is_the_docstring(notebook):
    info = notebook.shell.object_inspect("%%lmprog")
    assert info["found"]
    assert "BODY is Python" in info["docstring"]


def test_a_program_runs_on_the_model_that_has_its_name_when_it_is_called(notebook, backend):
    notebook.ns["m"] = ScriptedBackend("first")
    notebook.run("%%lmprog ask(q) -m m\ns += q + gen('x')")
    notebook.run("bound = ask.bind(q='?')")
    assert notebook.run("ask('?')['x']") == "first"
    notebook.ns["m"].shutdown()
    notebook.ns["m"] = ScriptedBackend("second")  # as after unloading and loading it again
    assert notebook.run("ask('?')['x']") == "second"
    assert notebook.run("bound.run_batch([()])[0]['x']") == "second"
    del notebook.ns["m"]
    assert "no model named 'm' is loaded" in notebook.fail("ask('?')")


@pytest.mark.parametrize("view", ["widget", "html", "text", "off"])
def test_half_characters_are_shown_as_replaced_in_every_view(notebook, backend, view, caplog):
    notebook.run(f"%%lmprog --view {view}\ns += '\\ud800 lone' + gen('x')\ns['v'] = '\\udfff'\nprint(s.text())")
    assert notebook.run("s.text()") == "\ufffd loneok"
    shown = notebook.out + notebook.err + "".join(str(output.data) for output in notebook.outputs)
    shown.encode()
    for event in notebook.ns["s"].run.events:
        str(event).encode()
    assert caplog.records == []


def test_images_are_words_of_a_cell_and_a_missing_one_is_one_line(notebook, backend, tmp_path):
    (tmp_path / "cat.png").write_bytes(png())
    notebook.run(f"cat = {str(tmp_path / 'cat.png')!r}")
    notebook.run("%%lmprog --view text\ns += user(image(cat) + 'Where?')\ns += assistant(gen('city'))")
    assert "user: [image 4×3 png]Where?\nassistant: «Kyoto»" in notebook.out
    assert backend.calls[-1].images[0].data == png()
    said = notebook.fail("%%lmprog\ns += user(image(cat.replace('cat', 'dog')) + 'Where?')")
    assert "there is no image" in said
    assert "line 2: s += user(image(" in said
    assert "Traceback" not in said

"""`%lmnb ledger`: what cells cost, with sums, savings and money."""

from __future__ import annotations

import pytest

from lmnb.backends.testing import ScriptedBackend
from lmnb.language import events as ev
from lmnb.language import open_state
from lmnb.language.ledger import Account, Ledger
from lmnb.magics.ledger_table import ledger_text

CELL = "%%lmprog\ns += user('Name a city in Japan, please.') + assistant(gen('city'))"


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_each_cell_and_program_has_its_line(notebook, backend):
    assert "Nothing has run" in notebook.show("%lmnb ledger")
    notebook.run(CELL)
    notebook.run(CELL)
    notebook.run("%%lmprog twice(n)\ns += user('x' * n) + assistant(gen('city'))")
    notebook.run("for n in (1, 2): twice(n).run.wait(30)")
    ends = [event for event in notebook.ns["s"].run.events if isinstance(event, ev.GenFinished)]
    table = rows(notebook.show("%lmnb ledger"))
    header, _, first, second, third, total, *saved = table
    assert header == ["cell", "program", "model", "runs", "reused", "computed", "generated", "seconds"]
    assert first[1:4] == second[1:4] == ["cell", "scripted", "1"]
    assert first[0] != second[0]
    assert first[4] == "0"
    assert int(second[4]) > 0, "the second cell's prompt was reused"
    assert int(first[6]) == int(second[6]) == sum(end.generated for end in ends)
    assert third[1:4] == ["twice", "scripted", "2"]
    assert int(third[0]) == int(second[0]) + 2, "the cell that called it"
    assert total[:2] == ["all", "4"]
    assert int(total[2]) == sum(int(row[4]) for row in (first, second, third))
    assert "prompt tokens reused" in " ".join(saved[0])


def test_prices_give_money(notebook, backend):
    notebook.run(CELL)
    notebook.run('%config Lmnb.prices = {"scripted": [1000000, 2000000]}')
    table = rows(notebook.show("%lmnb ledger"))
    computed, generated = int(table[2][5]), int(table[2][6])
    assert table[0][-1] == "money"
    assert float(table[2][-1]) == computed + 2 * generated


@pytest.mark.parametrize("wrong", ['{"m": [1]}', '{"m": [1, -2]}', '{"m": "free"}', "3"])
def test_wrong_prices_are_refused_and_change_nothing(notebook, caplog, wrong):
    notebook.run('%config Lmnb.prices = {"m": [1, 2]}')
    assert caplog.text == ""
    notebook.show(f"%config Lmnb.prices = {wrong}")
    assert "prices" in caplog.text
    assert notebook.shell.run_line_magic("config", "Lmnb.prices") == {"m": [1, 2]}


def test_clear_forgets(notebook, backend):
    notebook.run(CELL)
    assert "cell" in notebook.show("%lmnb ledger --clear")
    assert "Nothing has run" in notebook.show("%lmnb ledger")


def test_a_ledger_that_was_closed_follows_nothing_new():
    ledger = Ledger()
    ledger.open()
    ledger.close()
    state = open_state(ScriptedBackend())
    state.run.finish()
    assert ledger.entries() == []


def test_saved_seconds_come_from_the_measured_speed_of_prefill():
    account = Account("1", "p", "m")
    for computed in (100, 300, 200):  # 0.05 s for the call and 5 ms a token, then ten steps of 0.1 s
        first = 0.05 + 0.005 * computed + 0.1
        account.take(ev.GenFinished(0, "stop", None, 1000, computed, 11, first, first + 1.0))
    assert account.saved_seconds() == pytest.approx(3000 * 0.005)
    total = Account(None, "", "m", runs=0)
    total.add(account)
    assert total.saved_seconds() == account.saved_seconds()


@pytest.mark.parametrize("sizes", [(10, 200), (50, 60, 70)], ids=["too few", "too alike"])
def test_where_little_was_measured_nothing_is_said_of_seconds(sizes):
    account = Account("1", "p", "m")
    for computed in sizes:
        account.take(ev.GenFinished(0, "stop", None, 300, computed, 1, 0.1 * computed, 0.1 * computed))
    assert account.saved_seconds() is None


def test_calls_that_waited_do_not_tell_of_the_speed():
    account = Account("1", "p", "m")
    for computed, seconds in ((40, 0.2), (80, 0.4), (120, 9.0)):  # the last one waited for others
        account.take(ev.GenFinished(0, "stop", None, 1000, computed, 1, seconds, seconds))
    assert account.saved_seconds() == pytest.approx(3000 * 0.2 / 40)


def test_a_generation_that_waits_for_its_grammar_is_not_timed():
    account = Account("1", "p", "m")
    for computed in (40, 80, 120):
        account.take(ev.GenStarted(0, "x", "gen", "json_schema"))
        account.take(ev.GenFinished(0, "stop", None, 300, computed, 1, 9.0, 9.0))
    assert account.saved_seconds() is None
    for computed in (40, 80, 120):
        account.take(ev.GenStarted(0, "x", "gen"))
        account.take(ev.GenFinished(0, "stop", None, 300, computed, 1, 0.01 * computed, 0.01 * computed))
    assert account.saved_seconds() == pytest.approx(1800 * 0.01)


def test_forced_tokens_are_counted_and_told():
    ledger = Ledger()
    ledger.open()
    state = open_state(ScriptedBackend())
    state.run.finish()
    ledger.close()
    assert "forced" not in ledger_text(ledger, {})
    account = ledger._accounts[0]
    account.take(ev.GenFinished(0, "stop", None, 0, 9, 5, None, 0.1, forced=4))
    assert account.forced == 4
    assert "scripted: 4 of 5 generated tokens forced by a grammar" in ledger_text(ledger, {})


def test_cached_prompt_tokens_have_their_own_price():
    account = Account("1", "p", "m", reused=1_000_000, computed=2_000_000, generated=3_000_000)
    assert account.cost([1, 10]) == 33
    assert account.cost([1, 10, 0.5]) == 32.5


def test_no_ledger_follows_after_the_extension_is_unloaded(notebook, backend):
    control = next(c for c in notebook.shell.configurables if type(c).__name__ == "Lmnb")
    notebook.run("%unload_ext lmnb")
    state = open_state(backend)
    state.run.finish()
    assert control.session.ledger.entries() == []
    notebook.run("%load_ext lmnb")

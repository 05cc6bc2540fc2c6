"""What the first constraint needs is there before it comes; a library that is missing is told of when it is needed."""

from __future__ import annotations

import sys

import pytest
from device_support import DEVICE
from engine_support import TOKENIZER, end_of_warm_ups
from patience import until

from lmnb.backends.local import Runtime
from lmnb.errors import LmnbError
from lmnb.runtime import short_turns
from lmnb.runtime.fake_model import FakeModel
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.loading import LoadedModel
from lmnb.runtime.request import Constraint
from lmnb.runtime.warm_up import warm_up


def test_steps_are_taken_in_order_and_a_failure_is_no_end() -> None:
    taken: list[int] = []

    def fail() -> None:
        taken.append(1)
        raise ValueError("of a kind that nobody expects")

    warm_up(lambda: taken.append(0), fail, lambda: taken.append(2)).join(30)
    assert taken == [0, 1, 2]


@pytest.mark.parametrize("comes", [True, False])
def test_steps_wait_for_their_moment_in_turns_of_usual_length(comes: bool) -> None:
    end_of_warm_ups()
    until(lambda: not short_turns._wanting)
    taken: list[str] = []
    usual, turns = sys.getswitchinterval(), []

    def moment() -> bool:
        turns.append(sys.getswitchinterval())
        return comes

    warm_up(lambda: taken.append("step"), when=moment).join(30)
    assert taken == ["step"] * comes
    assert turns == [usual]


def test_a_missing_library_is_told_of_by_the_constraint_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    grammars = Grammars(TOKENIZER, 259)
    warm_up(grammars.prepare_llguidance).join(30)
    with pytest.raises(LmnbError, match="pip install llguidance"):
        grammars.compile(Constraint("regex", "a"))
    monkeypatch.undo()
    assert grammars.compile(Constraint("regex", "a")).engine == "llguidance"


def prepared_grammars(runtime: Runtime) -> Grammars:
    """Once all that is prepared in the background is there."""
    end_of_warm_ups()
    grammars = runtime._engine()._grammars
    assert isinstance(grammars, Grammars)
    return grammars


@pytest.mark.model
def test_a_loaded_model_has_made_the_tables_of_constraints(embedded_runtime: Runtime) -> None:
    grammars = prepared_grammars(embedded_runtime)
    assert grammars._llguidance is not None
    assert grammars._xgrammar is not None


def test_constraints_of_a_model_that_is_there_are_prepared_too() -> None:
    with Runtime(LoadedModel(FakeModel(TOKENIZER.vocab_size, device=DEVICE), TOKENIZER), kv_cache=4096) as runtime:
        grammars = prepared_grammars(runtime)
        assert grammars._llguidance is not None

"""What lives in one process is not pickled, and says what can be."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from context_support import fake_runtime

import lmnb
from lmnb.backends.remote.secrets import Secret
from lmnb.errors import LmnbError, PicklingError
from lmnb.language import ProgramState


def state(backend: Any) -> ProgramState:
    @lmnb.function
    def program(s: ProgramState) -> None:
        s += "Say." + lmnb.gen("x", max_tokens=2)
        s.fork(2)

    done = program.run(backend=backend)
    done.sync()
    return done


def test_each_says_what_can_be_taken_instead() -> None:
    with fake_runtime() as runtime, runtime.serve() as server:
        said = state(runtime)
        advice = {
            "RuntimeEndpoint": [runtime, runtime.cache, server, lmnb.Engine(runtime=runtime)],
            r"s\.run\.save": [said, [said], said.fork(2)],
            r"run\.saved\(\)": [said.run],
        }
        for words, things in advice.items():
            for thing in things:
                for act in (pickle.dumps, copy.deepcopy):
                    with pytest.raises(PicklingError, match=rf"cannot be pickled or copied: .*{words}") as raised:
                        act(thing)
                    assert isinstance(raised.value, LmnbError)
                    assert isinstance(raised.value, pickle.PicklingError)
        saved = said.run.saved()
        assert pickle.loads(pickle.dumps(saved)).events == saved.events


def test_a_backend_with_a_key_says_how_to_make_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    backend = lmnb.OpenAI("gpt-5-mini")
    with pytest.raises(PicklingError, match="make the backend again where it is needed"):
        pickle.dumps(backend)
    with pytest.raises(PicklingError, match="with its key in the environment"):
        pickle.dumps(Secret("sk-secret"))

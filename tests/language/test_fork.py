from __future__ import annotations

import threading
from typing import Any

import pytest

import lmnb as sgl
from lmnb.backends.script import ScriptedCall
from lmnb.backends.testing import ScriptedBackend
from lmnb.errors import ArgumentError, GenerationError, ProgramError
from lmnb.language import open_state
from lmnb.language.events import BranchesJoined, BranchFinished, BranchOpened, VariableSet

State = sgl.ProgramState


def echo(call: ScriptedCall) -> str:
    """The last word of the prompt, marked."""
    return f"<{call.prompt.split()[-1]}>"


@pytest.fixture
def s() -> State:
    return open_state(ScriptedBackend(echo))


def test_branches_start_with_all_that_was_said(s: State) -> None:
    s += sgl.user("q") + "start " + sgl.gen("x") + " "
    group = s.fork(3)
    group += lambda i: f"b{i} " + sgl.gen("y")
    assert len(group) == 3
    assert [branch["y"] for branch in group] == ["<b0>", "<b1>", "<b2>"]
    assert group[1].text() == "<|user|>\nq<|end|>\nstart <start> b1 <b1>"
    assert group[-1]["x"] == "<start>"
    assert [branch["y"] for branch in group[:2]] == ["<b0>", "<b1>"]
    assert group[0].messages() == [{"role": "user", "content": "q"}]
    assert s.text() == "<|user|>\nq<|end|>\nstart <start> "


def test_fork_does_not_wait_for_the_parent() -> None:
    gate = threading.Event()
    s = open_state(ScriptedBackend(lambda call: "slow words" if gate.wait(30) else "too late"))
    s += sgl.gen("x")
    group = s.fork(2)
    group += sgl.gen("y")
    gate.set()
    assert group[1].text() == "slow wordsslow words"
    assert group[0]["x"] == "slow words"


def test_a_branch_with_nothing_of_its_own_waits_for_the_fork() -> None:
    s = open_state(ScriptedBackend("slow words", token_delay=0.02))
    s += sgl.gen("x")
    first, second = s.fork(2)
    assert first.text() == "slow words"
    assert "".join(second.text_iter()) == "slow words"
    failing = open_state(ScriptedBackend(RuntimeError("boom"), token_delay=0.02))
    failing += sgl.gen("x")
    with pytest.raises(GenerationError):
        failing.fork(1)[0].sync()


def test_what_the_parent_says_after_the_fork_stays_its_own(s: State) -> None:
    s += "a "
    group = s.fork(2)
    s += "parent"
    group += "child"
    assert [branch.text() for branch in group] == ["a child", "a child"]
    assert s.text() == "a parent"


def test_join_gathers_aligned_lists(s: State) -> None:
    s["own"] = "parent's"
    group = s.fork(3)
    group += lambda i: f"b{i} " + sgl.gen("y")
    group[1]["only"] = 1
    group[0]["own"] = "branch's"
    group.join()
    assert s["y"] == ["<b0>", "<b1>", "<b2>"]
    assert s["only"] == [None, 1, None]
    assert s["own"] == "parent's"
    assert group[2]["y"] == "<b2>"
    assert s.text() == ""
    group.join()  # again: nothing changes
    assert s["y"] == ["<b0>", "<b1>", "<b2>"]


def test_a_second_fork_may_reuse_a_name(s: State) -> None:
    for round_number in range(2):
        group = s.fork(2)
        group += [f"r{round_number}b{i} " + sgl.gen("y") for i in range(2)]
        group.join()
        assert s["y"] == [f"<r{round_number}b0>", f"<r{round_number}b1>"]


def test_nested_forks_give_nested_lists(s: State) -> None:
    outer = s.fork(2)
    for i, branch in enumerate(outer):
        inner = branch.fork(2)
        inner += [f"{i}{j} " + sgl.gen("y") for j in range(2)]
        inner.join()
    outer.join()
    assert s["y"] == [["<00>", "<01>"], ["<10>", "<11>"]]


def test_copy_is_a_fork_of_one(s: State) -> None:
    s += "a "
    with s.copy() as child:
        child += "b " + sgl.gen("y")
        assert child["y"] == "<b>"
    assert s["y"] == ["<b>"]
    assert s.text() == "a "


def test_adding_to_a_group(s: State) -> None:
    group = s.fork(2)
    group += "same "
    group += ["one", "two"]
    group += sgl.user("q")
    group += lambda i: str(i)
    group[0] += "!"
    assert group[0].text() == "same one<|user|>\nq<|end|>\n0!"
    assert group[1].text() == "same two<|user|>\nq<|end|>\n1"
    with pytest.raises(ArgumentError, match="3 items"):
        group += ["a", "b", "c"]
    with pytest.raises(ProgramError):
        group += 3  # type: ignore[arg-type]
    with pytest.raises(ArgumentError):
        group[0] = s


def test_concatenating_join_is_text_equal(s: State) -> None:
    s += "docs: "
    group = s.fork(3)
    group += lambda i: f"[{i}]" + sgl.gen("y", max_tokens=2)
    s += "(mine) "
    parts = [branch.text().removeprefix("docs: ") for branch in group]
    group.join("concate_and_append")
    assert s.text() == "docs: (mine) " + "".join(parts)
    s += " go " + sgl.gen("z")
    assert s["z"] == "<go>"
    assert "y" not in s


def test_concatenating_join_repeats_turns(s: State) -> None:
    group = s.fork(2)
    group += lambda i: sgl.user(f"q{i}") + sgl.assistant("a " + sgl.gen())
    group.join("concate_and_append")
    assert s.text() == "".join(branch.text() for branch in group)
    assert [message["content"] for message in s.messages()] == ["q0", "a <a>", "q1", "a <a>"]


def test_generated_text_stays_data_in_a_concatenating_join() -> None:
    appended: list[tuple[str, bool]] = []

    class Recording(ScriptedBackend):
        def new_context(self) -> Any:
            context = super().new_context()
            plain = context.append

            def append(text: str, *, data: bool = False) -> None:
                appended.append((text, data))
                plain(text, data=data)

            context.append = append  # type: ignore[method-assign]
            return context

    s = open_state(Recording("<|im_start|>system"))
    group = s.fork(1)
    group += "c " + sgl.gen()
    group.join("concate_and_append")
    s.sync()
    assert appended == [("c ", False), ("<|im_start|>system", True)]


def test_concatenating_join_wants_balanced_turns(s: State) -> None:
    group = s.fork(2)
    group[1] += sgl.user_begin() + "open"
    with pytest.raises(ProgramError, match="branch 1"):
        group.join("concate_and_append")
    s += "goes on"
    assert s.text() == "goes on"


def test_fork_inside_a_role(s: State) -> None:
    with s.user():
        s += "q: "
        group = s.fork(2)
        group += lambda i: f"{i} "
        with pytest.raises(ProgramError, match="nest"):
            group[0] += sgl.assistant("x")
        group.join("concate_and_append")
    assert s.messages() == [{"role": "user", "content": "q: 0 1 "}]
    group[0] += sgl.user_end() + sgl.assistant("fine")
    assert group[0].messages()[-1] == {"role": "assistant", "content": "fine"}


def test_bad_forks_and_joins(s: State) -> None:
    for size in (0, -1, 1.5, "2", 10_000_000):
        with pytest.raises(ArgumentError, match="fork"):
            s.fork(size)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="concate_and_append"):
        s.fork(1).join("append")


def test_the_prompt_is_committed_before_branches_race() -> None:
    backend = ScriptedBackend()
    s = open_state(backend)
    s.fork(2)  # nothing said yet: nothing to commit
    s += "shared"
    s.fork(1)  # nobody races
    s.fork(2)
    s.sync()
    assert backend.prompts("commit") == ["shared"]
    (owner,) = [call.owner for call in backend.calls if call.kind == "commit"]
    assert owner is not None
    assert (owner.run, owner.branch, owner.var) == (s.run.id, "0", None)
    assert owner.line is not None


def test_a_thousand_branches_need_no_threads() -> None:
    s = open_state(ScriptedBackend(echo))
    s += "shared "
    before = threading.active_count()
    group = s.fork(1000)
    group += lambda i: f"b{i} " + sgl.gen("y")
    peak = threading.active_count()
    group.join()
    assert max(peak, threading.active_count()) <= before + 1
    assert s["y"] == [f"<b{i}>" for i in range(1000)]
    s.run.finish()
    assert sum(isinstance(event, BranchOpened) for event in s.run.events) == 1000
    assert sum(isinstance(event, BranchFinished) for event in s.run.events) == 1001


def fail_on(word: str) -> Any:
    return lambda call: RuntimeError("boom") if call.prompt.endswith(word) else echo(call)


def test_a_failing_branch_leaves_parent_and_siblings_alone() -> None:
    s = open_state(ScriptedBackend(fail_on("b1 ")))
    s += "a "
    group = s.fork(3)
    group += lambda i: f"b{i} " + sgl.gen("y")
    with pytest.raises(GenerationError) as caught:
        group[1]["y"]
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert (group[0]["y"], group[2]["y"]) == ("<b0>", "<b2>")
    s += "goes on " + sgl.gen("z")
    assert s["z"] == "<on>"
    s.run.finish()
    assert s.run.status == "done"
    ends = {event.branch: event.status for event in s.run.events if isinstance(event, BranchFinished)}
    assert ends == {0: "done", 1: "done", 2: "failed", 3: "done"}


@pytest.mark.parametrize("mode", ["gather_variable", "concate_and_append"])
def test_join_raises_the_first_branch_error(mode: str) -> None:
    errors = [ValueError("first"), RuntimeError("second")]
    backend = ScriptedBackend(
        lambda call: errors[0] if "b1" in call.prompt else errors[1] if "b2" in call.prompt else "ok"
    )
    s = open_state(backend)
    group = s.fork(3)
    group += lambda i: f"b{i} " + sgl.gen("y")
    with pytest.raises(GenerationError) as caught:
        group.join(mode)
    assert caught.value.__cause__ is errors[0]
    assert group[0]["y"] == "ok"
    assert "y" not in s
    s += "goes on"
    assert s.text() == "goes on"


def test_a_fork_of_a_failed_state_fails_with_the_same_cause() -> None:
    s = open_state(ScriptedBackend(RuntimeError("boom")))
    s += sgl.gen("x")
    group = s.fork(2)
    group += sgl.gen("y")
    for read in (lambda: group[0]["y"], group[1].text, group.join):
        with pytest.raises(GenerationError) as caught:
            read()
        assert str(caught.value.__cause__) == "boom"


def test_events_of_fork_and_join(s: State) -> None:
    s += "a"
    group = s.fork(2)
    group += sgl.gen("y")
    group.join()
    s.run.finish()
    events = s.run.events
    opened = [event for event in events if isinstance(event, BranchOpened)]
    assert [(e.branch, e.parent, e.index, e.fork, e.label) for e in opened] == [
        (1, 0, 0, 0, "0.0"),
        (2, 0, 1, 0, "0.1"),
    ]
    (joined,) = [event for event in events if isinstance(event, BranchesJoined)]
    assert (joined.parent, joined.branches, joined.mode) == (0, [1, 2], "gather_variable")
    ends = [events.index(event) for event in events if isinstance(event, BranchFinished) and event.branch]
    assert max(ends) < events.index(joined)
    assert [event.value for event in events if isinstance(event, VariableSet) and event.branch == 0] == [
        "['<a>', '<a>']"
    ]

"""Whole programs on a real engine: whatever ends them, every slot is accounted for and the engine goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest
from engine_support import TOKENIZER
from patience import until

import lmnb as sgl
from lmnb.backends.local import Runtime
from lmnb.errors import GenerationError
from lmnb.language.events import TokensGenerated
from lmnb.runtime.fake_model import FakeModel
from lmnb.runtime.loading import LoadedModel

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def model() -> FakeModel:
    return FakeModel(TOKENIZER.vocab_size, step_seconds=0.002)


@pytest.fixture
def runtime(model: FakeModel) -> Iterator[Runtime]:
    with Runtime(LoadedModel(model, TOKENIZER), kv_cache=4096) as runtime:
        yield runtime
        answer = ask.run("still there?", 3, backend=runtime)
        assert answer.get_meta_info("x")["completion_tokens"] == 3  # type: ignore[index]
        runtime._engine().check_integrity()
        status = runtime.status()
        assert (status.running, status.waiting) == (0, 0)
        assert status.free_tokens + status.cached_tokens == status.pool_tokens
        assert runtime.flush_cache()
        assert runtime.status().free_tokens == status.pool_tokens


@sgl.function
def ask(s, text: str, tokens: int):  # type: ignore[no-untyped-def]
    s += sgl.user(text)
    s += sgl.assistant(sgl.gen("x", max_tokens=tokens, temperature=0, ignore_eos=True))


@sgl.function
def forks(s, size: int, tokens: int):  # type: ignore[no-untyped-def]
    s += sgl.user("One beginning for all of them.")
    branches = s.fork(size)
    for i, branch in enumerate(branches):
        branch += sgl.user(f"branch {i}")
        branch += sgl.assistant(sgl.gen("x", max_tokens=tokens, temperature=0, ignore_eos=True))
    s.branches = branches


def test_runs(runtime: Runtime) -> None:
    state = forks.run(8, 5, backend=runtime)
    assert len({branch["x"] for branch in state.branches}) == 8
    before = runtime.status().prompt_tokens
    meta = [branch.get_meta_info("x") for branch in state.branches]
    assert all(m["cached_tokens"] >= len("<|im_start|>user\nOne beginning for all of them.") - 20 for m in meta)
    assert before > 0


def test_a_cancel(runtime: Runtime) -> None:
    state = forks.run(8, 4000, backend=runtime)
    stream = state.branches[0].text_iter("x")
    shown = "".join(next(stream) for _ in range(3))
    state.run.cancel()
    assert state.run.wait(timeout=30)
    kept = state.branches[0]["x"]
    assert kept.startswith(shown)
    assert state.branches[0].get_meta_info("x")["finish_reason"]["type"] == "cancelled"


def test_an_interrupt_with_a_real_signal(runtime: Runtime) -> None:
    state = forks.run(4, 4000, backend=runtime)

    def interrupt() -> None:
        branch = state.branches[1].stream.branch.id
        until(lambda: any(isinstance(e, TokensGenerated) and e.branch == branch and e.text for e in state.run.events))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # the signal must not come before
        threading.Thread(target=interrupt).start()
        state.branches[1]["x"]
    assert state.run.wait(timeout=30)
    assert state.run.status == "cancelled"
    assert state.branches[1]["x"]  # the partial text


def test_the_next_turn_holds_exactly_the_text_that_was_kept(runtime: Runtime) -> None:
    state = ask.run("count", 4000, backend=runtime)
    stream = state.text_iter("x")
    for _ in range(5):
        next(stream)
    state.run.cancel()
    assert state["x"]
    assert state.text().endswith(state["x"])
    assert runtime.decode(state.stream.context.token_ids) == state.text()


def test_an_error_in_one_fork_stays_in_it(runtime: Runtime, model: FakeModel) -> None:
    state = ask.run("first", 3, backend=runtime)
    assert state["x"] is not None
    good, bad = state.fork(2)
    good += sgl.user("fine") + sgl.assistant(sgl.gen("y", max_tokens=3, ignore_eos=True))
    assert good["y"] is not None
    model.fail_next = RuntimeError("a broken kernel")
    bad += sgl.user("not") + sgl.assistant(sgl.gen("y", max_tokens=3, ignore_eos=True))
    with pytest.raises(GenerationError) as caught:
        bad["y"]
    causes = []
    error: BaseException | None = caught.value
    while error is not None:
        causes.append(type(error))
        error = error.__cause__
    assert RuntimeError in causes
    good += sgl.user("and on") + sgl.assistant(sgl.gen("z", max_tokens=3, ignore_eos=True))
    state += sgl.user("parent too") + sgl.assistant(sgl.gen("z", max_tokens=3, ignore_eos=True))
    assert good["z"] is not None
    assert state["z"] is not None


def test_a_small_pool_under_many_branches(model: FakeModel) -> None:
    with Runtime(LoadedModel(model, TOKENIZER), kv_cache=400, prefill_chunk=32) as runtime:
        state = forks.run(24, 60, backend=runtime)
        texts = [branch["x"] for branch in state.branches]
        runtime._engine().check_integrity()
    with Runtime(LoadedModel(model, TOKENIZER), kv_cache=8192) as runtime:
        roomy = forks.run(24, 60, backend=runtime)
        assert texts == [branch["x"] for branch in roomy.branches]


@pytest.fixture
def moving() -> Iterator[Runtime]:
    """A runtime on the fake model that tells positions apart."""
    model = FakeModel(TOKENIZER.vocab_size, plain=False)
    with Runtime(LoadedModel(model, TOKENIZER), kv_cache=4096) as runtime:
        yield runtime
        runtime._engine().check_integrity()
        status = runtime.status()
        assert status.free_tokens + status.cached_tokens == status.pool_tokens


@sgl.function
def documents(s, texts: list[str], offsets: list[int] | None, approximate: bool):  # type: ignore[no-untyped-def]
    s += "Documents begin.\n"
    branches = s.fork(len(texts), position_ids_offset=offsets)
    branches += [text + "\n" for text in texts]
    branches += sgl.gen("note", max_tokens=4, temperature=0, ignore_eos=True)
    branches.join("concate_and_append", approximate=approximate)
    s += "Documents end." + sgl.gen("x", max_tokens=8, temperature=0, ignore_eos=True)
    s += " And on" + sgl.select("y", ["one way", "another"])
    s.branches = branches


TEXTS = ["the first one", "the second", "a third document"]


def test_a_join_of_caches_says_the_same_and_computes_nothing_again(moving: Runtime) -> None:
    exact = documents.run(TEXTS, None, False, backend=moving)
    exact.sync()
    approximate = documents.run(TEXTS, None, True, backend=moving)
    notes = [branch["note"] for branch in approximate.branches]
    assert notes == [branch["note"] for branch in exact.branches]
    said = "Documents begin.\n" + "".join(f"{text}\n{note}" for text, note in zip(TEXTS, notes, strict=True))
    for state in (exact, approximate):
        assert state.text() == f"{said}Documents end.{state['x']} And on{state['y']}"
        assert moving.decode(state.stream.context.token_ids) == state.text()
    assert approximate["x"] != exact["x"]
    meta = approximate.get_meta_info("x")
    assert meta is not None
    assert meta["prompt_tokens"] - meta["cached_tokens"] == len("Documents end.")
    again = documents.run(TEXTS, None, False, backend=moving)
    assert (again["x"], again["y"]) == (exact["x"], exact["y"])


def test_positions_are_moved_with_and_without_a_join(moving: Runtime) -> None:
    offsets = [0, 200, 400]
    plain = documents.run(TEXTS, None, False, backend=moving)
    moved = documents.run(TEXTS, offsets, False, backend=moving)
    notes = [[branch["note"] for branch in state.branches] for state in (plain, moved)]
    assert notes[0][0] == notes[1][0]
    assert notes[0][1] != notes[1][1]
    assert notes[0][2] != notes[1][2]
    near, far = (documents.run(TEXTS, each, True, backend=moving) for each in ([0, 40, 80], offsets))
    assert near["x"] != far["x"]
    again = documents.run(TEXTS, offsets, True, backend=moving)
    assert (again["x"], again["y"]) == (far["x"], far["y"])
    meta = again.get_meta_info("x")
    assert meta is not None
    assert meta["prompt_tokens"] - meta["cached_tokens"] == 1


def test_a_join_of_caches_in_a_small_pool() -> None:
    model = FakeModel(TOKENIZER.vocab_size, plain=False)
    texts = []
    for size in (260, 8192):
        with Runtime(LoadedModel(model, TOKENIZER), kv_cache=size, prefill_chunk=32) as runtime:
            states = [documents.run([*TEXTS, str(i)], None, True, backend=runtime) for i in range(6)]
            texts.append([state.text() for state in states])
            runtime._engine().check_integrity()
    assert texts[0] == texts[1]


def test_a_join_of_caches_inside_a_turn_and_after_a_cancel(moving: Runtime) -> None:
    @sgl.function
    def turn(s, tokens: int):  # type: ignore[no-untyped-def]
        with s.user():
            s += "Compare: "
            branches = s.fork(2)
            branches += [" apples\n", " pears\n"]
            branches.join("concate_and_append", approximate=True)
        s += sgl.assistant(sgl.gen("x", max_tokens=tokens, temperature=0, ignore_eos=True))

    state = turn.run(4000, backend=moving)
    stream = state.text_iter("x")
    next(stream)
    state.run.cancel()
    assert state.run.wait(timeout=30)
    assert state.messages()[0] == {"role": "user", "content": "Compare:  apples\n pears\n"}
    assert state["x"].startswith(turn.run(4, backend=moving)["x"].rstrip("\ufffd"))

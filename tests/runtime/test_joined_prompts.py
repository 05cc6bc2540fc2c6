"""Prompts joined by their caches: the keys and values are those of an explicit mask and explicit positions, whatever
the cache, the memory and the batch do; and nothing that is asked exactly ever meets them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_support import DEVICE
from engine_support import TOKENIZER
from model_support import masked_logits, random_model
from small_tokenizers import small_tokenizer

from lmnb.errors import ArgumentError, GenerationError, OutOfMemoryError, RequestTooLongError
from lmnb.kernels import native
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.engine import Engine
from lmnb.runtime.fake_model import FakeModel
from lmnb.runtime.loading import LoadedModel, load_model
from lmnb.runtime.prompt_layout import PLAIN, PromptLayout, Section, merged
from lmnb.runtime.request import Completion, Request, SamplingParams

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", params=["llama", "qwen3", "mistral-window"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, LoadedModel]:
    """transformers' model, and ours of the same files."""
    folder = tmp_path_factory.mktemp("model")
    theirs = random_model(request.param)
    theirs.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(small_tokenizer("gpt2")._trusted.to_str(), "utf-8")
    return theirs, load_model(folder, dtype="float32", device=DEVICE)


@pytest.fixture
def engine(models: tuple[Any, LoadedModel]) -> Iterator[Engine]:
    with_checks = make_engine(models[1])
    yield with_checks
    end(with_checks)


def make_engine(loaded: LoadedModel, **config: Any) -> Engine:
    return Engine(loaded.model, loaded.tokenizer, EngineConfig(**{"pool_tokens": 2048, **config}))


def end(engine: Engine) -> None:
    engine.check_integrity()
    status = engine.status()
    assert (status.running, status.waiting) == (0, 0)
    assert status.free_tokens + status.cached_tokens == status.pool_tokens
    assert engine.flush_cache()
    assert engine.status().free_tokens == status.pool_tokens
    engine.close()


def ids(count: int, seed: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(3, 250) for _ in range(count))


STEM = ids(23, 0)
BRANCHES = [ids(9, 1), ids(14, 2), ids(5, 3)]
TAIL = ids(7, 4)


def joined(offsets: tuple[int, ...] = (0, 0, 0), tail: tuple[int, ...] = TAIL) -> tuple[tuple[int, ...], PromptLayout]:
    """STEM, the branches, and what comes behind them."""
    sections, prompt, start = [], STEM, len(STEM)
    for branch, offset in zip(BRANCHES, offsets, strict=True):
        sections.append(Section(len(prompt), start + offset, ((0, start),)))
        prompt += branch
    end = max(start + offset + len(branch) for branch, offset in zip(BRANCHES, offsets, strict=True))
    sections.append(Section(len(prompt), end, ((0, len(prompt)),)))
    return prompt + tail, PromptLayout.of(sections)


def branch_request(number: int, offset: int = 0, new: int = 0) -> Request:
    start = len(STEM)
    layout = PromptLayout.of([Section(start, start + offset, ((0, start),))])
    return request(STEM + BRANCHES[number], layout, new)


def request(prompt: tuple[int, ...], layout: PromptLayout = PLAIN, new: int = 8, **more: Any) -> Request:
    sampling = SamplingParams(temperature=0, max_new_tokens=new, ignore_eos=True, return_logprob=new > 0)
    return Request(input_ids=prompt, layout=layout, sampling=sampling, **more)


def check(model: Any, completion: Completion, prompt: tuple[int, ...], layout: PromptLayout) -> None:
    """Each generated token is the likeliest one, and as likely as the reference says."""
    tokens = completion.token_ids
    rows = masked_logits(model, prompt + tokens[:-1], layout)[len(prompt) - 1 :].log_softmax(-1)
    assert rows.argmax(-1).tolist() == list(tokens)
    got = [entry.logprob for entry in completion.logprobs]
    assert got == pytest.approx([float(rows[i, token]) for i, token in enumerate(tokens)], abs=2e-5)


OFFSETS = [(0, 0, 0), (0, 9, 23), (4, 100, 40)]


@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize("tail", [TAIL, (), TAIL[:1]], ids=["tail", "no tail", "one token"])
@pytest.mark.parametrize("prepared", [(), (0, 1, 2), (1,)], ids=["cold", "all branches cached", "one cached"])
def test_logits_are_those_of_the_mask_and_the_positions(
    models: tuple[Any, LoadedModel], engine: Engine, offsets: Any, tail: Any, prepared: Any
) -> None:
    theirs, _ = models
    prompt, layout = joined(offsets, tail)
    for number in prepared:
        engine.submit(branch_request(number, offsets[number])).result()
    first = engine.submit(request(prompt, layout)).result()
    check(theirs, first, prompt, layout)
    reused = sum(len(BRANCHES[i]) for i in prepared) + (len(STEM) if prepared else 0)
    assert first.cached_tokens == reused - (not tail and 2 in prepared)  # one token must be computed
    again = engine.submit(request(prompt, layout)).result()
    assert again.cached_tokens == len(prompt) - 1
    check(theirs, again, prompt, layout)


@pytest.mark.parametrize(
    "config",
    [
        {"prefill_chunk": 4},
        {"prefill_chunk": 1},
        {"overlap": True, "prefill_chunk": 6},
        {"prefix_cache": False},
        {"pool_tokens": 150, "prefill_chunk": 16},
    ],
    ids=str,
)
def test_chunks_memory_and_company_change_nothing(models: tuple[Any, LoadedModel], config: dict[str, Any]) -> None:
    theirs, loaded = models
    engine = make_engine(loaded, **config)
    prompt, layout = joined((0, 9, 23))
    asked = [branch_request(number, (0, 9, 23)[number], 6) for number in range(3)]
    new = 50 if "pool_tokens" in config else 8
    asked += [request(prompt + ids(i, 9 + i), layout, new) for i in range(3)] + [request(STEM + ids(30, 8))]
    for _ in range(2):
        done = [handle.result() for handle in [engine.submit(each) for each in asked]]
        for each, completion in zip(asked, done, strict=True):
            check(theirs, completion, each.input_ids, each.layout)
    if config.get("pool_tokens"):
        assert sum(completion.num_preemptions for completion in done) > 0
    end(engine)


def test_what_is_asked_exactly_never_meets_a_joined_cache(models: tuple[Any, LoadedModel]) -> None:
    theirs, loaded = models

    def scores(engine: Engine, prompt: tuple[int, ...]) -> list[float]:
        done = engine.submit(request(prompt, new=0, logprob_start=1)).result()
        return [entry.logprob for entry in done.input_logprobs if entry.logprob is not None]

    prompt, layout = joined()
    fresh = make_engine(loaded)
    exact = scores(fresh, prompt)
    cold = fresh.submit(request(prompt)).result()
    end(fresh)
    engine = make_engine(loaded)
    for number in range(3):
        engine.submit(branch_request(number, new=5)).result()
    approximate = engine.submit(request(prompt, layout)).result()
    check(theirs, approximate, prompt, layout)
    beside = engine.submit(request(prompt)).result()
    plain = len(STEM) + len(BRANCHES[0])  # the first branch is what plain text would be
    assert beside.cached_tokens == plain
    for completion in (beside, engine.submit(request(prompt)).result()):  # not cached, and cached
        check(theirs, completion, prompt, PLAIN)
        assert completion.token_ids == cold.token_ids
    assert scores(engine, prompt) == pytest.approx(exact, abs=2e-5)
    assert engine.submit(request(prompt, layout)).result().token_ids == approximate.token_ids
    end(engine)


def test_a_joined_prompt_goes_on_in_turns_and_forks(models: tuple[Any, LoadedModel], engine: Engine) -> None:
    theirs, _ = models
    prompt, layout = joined((0, 9, 23))
    first = engine.submit(request(prompt, layout)).result()
    turn = prompt + first.token_ids + ids(4, 11)
    second = engine.submit(request(turn, layout)).result()
    assert second.cached_tokens == len(prompt) + 7
    check(theirs, second, turn, layout)
    # branches of the joined prompt are joined in their turn
    start = len(turn)
    more = [ids(6, 12), ids(8, 13)]
    nested = turn + more[0] + more[1]
    position = layout.end_position(start)
    deeper = PromptLayout.of(
        [
            *layout.sections,
            Section(start, position, ((0, start),)),
            Section(start + 6, position, ((0, start),)),
            Section(len(nested), position + 8, ((0, len(nested)),)),
        ]
    )
    engine.submit(request(turn + more[1], layout, 0)).result()
    third = engine.submit(request(nested + TAIL, deeper)).result()
    assert third.cached_tokens == start + 8
    check(theirs, third, nested + TAIL, deeper)
    together = [engine.submit(request(nested + TAIL + ids(i + 1, 20 + i), deeper)) for i in range(4)]
    for i, handle in enumerate(together):
        check(theirs, handle.result(), nested + TAIL + ids(i + 1, 20 + i), deeper)


def test_a_section_whose_branch_was_joined_itself_is_copied(models: tuple[Any, LoadedModel], engine: Engine) -> None:
    theirs, _ = models
    s, a, b, c, d = len(STEM), ids(6, 30), ids(5, 31), ids(4, 32), ids(7, 33)
    inner = STEM + a + b + c  # c has seen a and b, b has not seen a
    branch = PromptLayout.of([Section(s + 6, s, ((0, s),)), Section(s + 11, s + 6, ((0, s + 11),))])
    before = engine.submit(request(inner, branch, 0)).result()
    assert before.cached_tokens == 0
    outer = STEM + d + a + b + c
    o = s + 7
    layout = PromptLayout.of(
        [
            Section(o, s, ((0, s),)),
            Section(o + 6, s, ((0, s),)),
            Section(o + 11, s + 6, ((0, s), (o, o + 11))),
            Section(len(outer), s + 10, ((0, len(outer)),)),
        ]
    )
    done = engine.submit(request(outer + TAIL, layout)).result()
    assert done.cached_tokens == len(inner)
    check(theirs, done, outer + TAIL, layout)


def test_scores_of_a_prompt_skip_what_nothing_predicts(models: tuple[Any, LoadedModel], engine: Engine) -> None:
    theirs, _ = models
    prompt, layout = joined()
    done = engine.submit(request(prompt, layout, 0, logprob_start=1)).result()
    rows = masked_logits(theirs, prompt, layout).log_softmax(-1)
    starts = {len(STEM) + 9, len(STEM) + 23}
    for index, entry in enumerate(done.input_logprobs, 1):
        assert entry.token_id == prompt[index]
        if index in starts:
            assert entry.logprob is None
        else:
            assert entry.logprob == pytest.approx(float(rows[index - 1, prompt[index]]), abs=2e-5)


def test_the_tree_shows_real_tokens(engine: Engine) -> None:
    prompt, layout = joined()
    engine.submit(request(prompt, layout, 0)).result()
    shown = [token for node in engine.snapshot().nodes for token in node.token_ids]
    assert sorted(shown) == sorted(prompt)
    told = [token for event in engine.cache_events() for token in event.token_ids]
    assert min(told) >= 0


def test_layouts_that_make_no_sense_are_refused(engine: Engine) -> None:
    prompt, _ = joined()
    for sections in (
        (Section(5, 5, ((0, 3),)),),  # the last section must see everything
        (Section(5, -1, ((0, 5),)),),
        (Section(99, 99, ((0, 99),)),),
        (Section(5, 9, ((0, 6),)),),
        (Section(5, 9, ((3, 5), (0, 3))),),
        (Section(5, 9, ((0, 5),)), Section(5, 12, ((0, 5),))),
    ):
        with pytest.raises(ArgumentError, match=r"section|cannot have|must see"):
            engine.submit(request(prompt, PromptLayout(sections)))
    with pytest.raises(RequestTooLongError, match="position_ids_offset"):
        engine.submit(branch_request(0, 600))
    # what is generated ends where the positions do
    near = engine.submit(branch_request(0, 512 - len(STEM) - len(BRANCHES[0]) - 3, 50)).result()
    assert len(near.token_ids) == 4


def test_layouts_list_only_what_is_not_plain() -> None:
    _, layout = joined()
    assert [section.start for section in layout.sections] == [32, 46, 51]  # the first branch continues the stem
    assert PromptLayout.of([Section(5, 5, ((0, 5),)), Section(9, 9, ((0, 9),))]) == PLAIN
    assert merged([(0, 3), (3, 3), (3, 5), (7, 8)]) == ((0, 5), (7, 8))


@pytest.mark.parametrize("seed", range(4))
def test_random_joins_leave_every_slot_accounted_for(seed: int) -> None:
    """On the fake model, whose tokens depend on every id and position that is seen."""
    rng = random.Random(seed)
    model = FakeModel(TOKENIZER.vocab_size, plain=False)
    engine = Engine(model, TOKENIZER, EngineConfig(pool_tokens=150, prefill_chunk=rng.choice([7, 24]), max_running=5))
    asked = []
    for _ in range(60):
        stem = ids(rng.randint(1, 20), rng.randint(0, 2))
        sections, prompt, end_position = [], stem, len(stem)
        for _ in range(rng.randint(0, 3)):
            part, offset = ids(rng.randint(1, 12), rng.randint(5, 9)), rng.choice([0, 0, 5])
            if rng.random() < 0.5:
                alone = PromptLayout.of([Section(len(stem), len(stem) + offset, ((0, len(stem)),))])
                engine.submit(request(stem + part, alone, rng.randint(0, 4)))
            sections.append(Section(len(prompt), len(stem) + offset, ((0, len(stem)),)))
            prompt += part
            end_position = max(end_position, len(stem) + offset + len(part))
        sections.append(Section(len(prompt), end_position, ((0, len(prompt)),)))
        layout = PromptLayout.of(sections)
        prompt += ids(rng.randint(0, 4), rng.randint(10, 12))
        asked.append((prompt, layout, engine.submit(request(prompt, layout, rng.randint(0, 12)))))
        if rng.random() < 0.2:
            rng.choice(asked)[2].cancel()
        if rng.random() < 0.05:
            model.fail_next = RuntimeError("a broken kernel")
        if rng.random() < 0.2:
            engine.check_integrity()
    finished = 0
    for prompt, layout, handle in asked:
        try:
            completion = handle.result(timeout=60)
        except GenerationError:
            continue
        text = list(prompt)
        for number, token in enumerate(completion.token_ids):
            section = layout.section_at(len(text) - 1)
            indices = [i for a, b in section.until(len(text)) for i in range(a, b)]
            expected = model.predict([text[i] for i in indices], [layout.position(i) for i in indices])
            assert token == int(expected.argmax()), number
            text.append(token)
        finished += completion.finish_reason == "length"
    assert finished > 30
    end(engine)


def test_the_compiled_kernels_go_by_what_is_seen(tmp_path: Path) -> None:
    """Positions tell them nothing of which keys a token may read."""
    if native.prepare() is None:
        pytest.skip(native.why_not())
    theirs = random_model("llama", head_dim=64, hidden_size=128)
    theirs.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(small_tokenizer("gpt2")._trusted.to_str(), "utf-8")
    prompt, layout = joined((0, 9, 100))
    rows = masked_logits(theirs, prompt + TAIL, layout)[len(prompt) - 1 : -1].log_softmax(-1)
    expected = [float(rows[i, token]) for i, token in enumerate(TAIL)]
    engine = make_engine(load_model(tmp_path, dtype="bfloat16", device=DEVICE), prefill_chunk=16)
    engine.submit(branch_request(1, 9)).result()
    done = engine.submit(request(prompt + TAIL, layout, 0, logprob_start=len(prompt))).result()
    assert [entry.logprob for entry in done.input_logprobs] == pytest.approx(expected, abs=0.4)
    end(engine)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_copy_that_fails_leaves_every_slot_accounted_for(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel(TOKENIZER.vocab_size, plain=False)
    engine = Engine(model, TOKENIZER, EngineConfig(pool_tokens=256, overlap=overlap))
    prompt, layout = joined()
    for branch in BRANCHES:
        engine.submit(Request(input_ids=STEM + branch, sampling=SamplingParams(max_new_tokens=0))).result(timeout=20)
    asked = Request(input_ids=prompt, layout=layout, sampling=SamplingParams(max_new_tokens=4, ignore_eos=True))

    def fail(source: object, target: object) -> None:
        raise MemoryError

    monkeypatch.setattr(engine._loop.scheduler.pool, "copy", fail)
    with pytest.raises(OutOfMemoryError):
        engine.submit(asked).result(timeout=20)
    engine.check_integrity()
    monkeypatch.undo()
    assert engine.submit(asked).result(timeout=20).cached_tokens > len(STEM)
    end(engine)


def test_the_keys_of_seams_do_not_pile_up() -> None:
    """A kernel lives long: what has left the tree, or was never in it, is forgotten."""
    model = FakeModel(TOKENIZER.vocab_size, plain=False)
    engine = Engine(model, TOKENIZER, EngineConfig(pool_tokens=256))
    seams = engine._loop.scheduler.cache.seams
    for count in range(100):
        prompt, layout = joined(tail=ids(7, 100 + count))
        asked = Request(input_ids=prompt, layout=layout, sampling=SamplingParams(max_new_tokens=1))
        engine.submit(asked).result(timeout=20)
    assert 0 < len(seams._keys) == len(seams._uses) < 40
    for start in range(5000):  # looked up, and never computed
        seams.keys(np.array(STEM + STEM, dtype=np.int32), PromptLayout((Section(23, start, ((0, 2),)),)))
    assert len(seams._keys) < 2500
    end(engine)
    assert not seams._keys

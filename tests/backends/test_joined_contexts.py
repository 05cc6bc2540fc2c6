"""Contexts that are joined by their caches: which tokens the parent goes on with, where they stand, what they see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from context_support import OWNER, generate, score
from engine_support import TOKENIZER
from small_tokenizers import small_tokenizer

from lmnb.backends.base import CancelToken
from lmnb.backends.local import Runtime
from lmnb.backends.local_context import LocalContext
from lmnb.errors import ArgumentError, RequestTooLongError
from lmnb.runtime.embedded import embedded_gguf
from lmnb.runtime.fake_model import FakeModel
from lmnb.runtime.gguf_file import GGUFFile
from lmnb.runtime.gguf_tokenizer import tokenizer_files
from lmnb.runtime.hf_tokenizer import HFTokenizer
from lmnb.runtime.loading import LoadedModel
from lmnb.runtime.prompt_layout import Section
from lmnb.runtime.request import SamplingParams
from lmnb.runtime.tokenizer import Tokenizer

pytestmark = pytest.mark.timeout(60)


def runtime_of(tokenizer: Tokenizer) -> Runtime:
    return Runtime(LoadedModel(FakeModel(tokenizer.vocab_size, plain=False), tokenizer), kv_cache=4096)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with runtime_of(TOKENIZER) as runtime:
        yield runtime
        runtime._engine().check_integrity()


def join(parent: LocalContext, *branches: LocalContext) -> None:
    asyncio.run(parent.concatenate(branches, owner=OWNER, cancel=CancelToken()))


def expected(runtime: Runtime, context: LocalContext, count: int) -> str:
    """What the fake model says behind the context, as its layout has it."""
    model = runtime._engine()._loop.model
    assert isinstance(model, FakeModel)
    ids, layout = list(context.prompt_ids), context._layout
    for _ in range(count):
        section = layout.section_at(len(ids) - 1)
        seen = [i for a, b in section.until(len(ids)) for i in range(a, b)]
        ids.append(int(model.predict([ids[i] for i in seen], [layout.position(i) for i in seen]).argmax()))
    return runtime.decode(ids[len(ids) - count :])


def test_what_branches_said_stands_side_by_side(runtime: Runtime) -> None:
    parent = runtime.new_context()
    parent.append("stem ")
    first, second = parent.fork(), parent.fork_moved(100)
    first.append("one two ")
    second.append("three ")
    join(parent, first, second)
    parent.append("tail")
    assert runtime.decode(parent.token_ids) == "stem one two three tail"
    assert parent._layout.sections == (Section(13, 105, ((0, 5),)), Section(19, 111, ((0, 19),)))
    text = expected(runtime, parent, 8)
    asked = generate(parent, max_new_tokens=8, ignore_eos=True)
    assert asked.text == text
    assert asked.cached_tokens == 19  # both branches were computed for the join, and nothing since
    assert generate(first, max_new_tokens=3).cached_tokens > 0  # branches can go on


def test_generated_text_stays_as_its_tokens_and_is_reused() -> None:
    with runtime_of(small_tokenizer("gpt2")) as runtime:
        parent = runtime.new_context()
        parent.append("The quick brown fox.\n")
        branches = [parent.fork() for _ in range(3)]
        for number, branch in enumerate(branches):
            branch.append(f"{number}: ")
            generate(branch, max_new_tokens=6, temperature=1.0, seed=number, ignore_eos=True)
        said = [branch.token_ids[len(parent.token_ids) :] for branch in branches]
        before = parent.token_ids
        join(parent, *branches)
        assert parent.token_ids == before + said[0] + said[1] + said[2]
        length = len(parent.token_ids)
        parent.append("it is")
        assert parent.token_ids[:length] == before + said[0] + said[1] + said[2]
        asked = generate(parent, max_new_tokens=1)
        assert asked.cached_tokens == length
        runtime._engine().check_integrity()


def test_words_that_merge_with_what_stands_before_the_fork_are_told_apart() -> None:
    tokenizer = small_tokenizer("gpt2")
    with runtime_of(tokenizer) as runtime:
        parent = runtime.new_context()
        parent.append("the quick bro")
        stem = parent.token_ids
        branches = [parent.fork() for _ in range(2)]
        branches[0].append("wn fox jumps")
        branches[1].append("ther")
        assert branches[0].token_ids[: len(stem)] != stem  # "brown" is one token
        join(parent, *branches)
        assert runtime.decode(parent.token_ids) == "the quick brown fox jumpsther"
        assert parent.token_ids[: len(stem)] == stem
        text = expected(runtime, parent, 4)
        assert generate(parent, max_new_tokens=4, ignore_eos=True).text == text


@pytest.mark.model
def test_the_parents_last_tokens_become_what_its_branches_have_made_of_them() -> None:
    definition, settings = tokenizer_files(GGUFFile(embedded_gguf()))
    tokenizer = HFTokenizer(json.dumps(definition), settings, {2}, "smollm2")
    with runtime_of(tokenizer) as runtime:
        parent = runtime.new_context()
        parent.append("def main(argv):\n    return 42\n\n")
        stem = parent.token_ids
        branches = [parent.fork() for _ in range(3)]
        for branch, text in zip(branches, ("class Foo", "print", ""), strict=True):
            branch.append(text)
        whole = branches[0].token_ids
        assert whole[: len(stem)] != stem  # two line breaks are one token only at the end
        before = parent.checkpoint()
        join(parent, *branches)
        assert parent.token_ids[: len(whole)] == whole
        assert runtime.decode(parent.token_ids) == "def main(argv):\n    return 42\n\nclass Fooprint"
        parent.append(" it")
        text = expected(runtime, parent, 4)
        asked = generate(parent, max_new_tokens=4, ignore_eos=True)
        assert asked.text == text
        assert asked.prompt_tokens - asked.cached_tokens == len(tokenizer.encode(" it"))  # branches were all reused
        assert before().token_ids == stem


def test_what_the_parent_said_meanwhile_comes_first_and_is_not_seen(runtime: Runtime) -> None:
    parent = runtime.new_context()
    parent.append("stem ")
    branches = [parent.fork(), parent.fork()]
    branches[0].append("one ")
    branches[1].append("two ")
    parent.append("(mine) ")
    join(parent, *branches)
    parent.append("tail")
    assert runtime.decode(parent.token_ids) == "stem (mine) one two tail"
    assert [(s.start, s.position, s.sees) for s in parent._layout.sections] == [
        (12, 5, ((0, 5),)),
        (16, 5, ((0, 5),)),
        (20, 12, ((0, 20),)),
    ]
    text = expected(runtime, parent, 8)
    assert generate(parent, max_new_tokens=8, ignore_eos=True).text == text


def test_joins_of_joins(runtime: Runtime) -> None:
    parent = runtime.new_context()
    parent.append("stem ")
    branches = [parent.fork(), parent.fork_moved(40)]
    for number, branch in enumerate(branches):
        branch.append(f"branch {number}: ")
        twigs = [branch.fork(), branch.fork()]
        for twig in twigs:
            twig.append("twig ")
            generate(twig, max_new_tokens=3, ignore_eos=True)
        join(branch, *twigs)
        branch.append("end ")
        generate(branch, max_new_tokens=2, ignore_eos=True)
    join(parent, *branches)
    parent.append("tail ")
    text = expected(runtime, parent, 8)
    asked = generate(parent, max_new_tokens=8, ignore_eos=True)
    assert asked.text == text
    # the last token of each part that ends in a text of its own was computed for the join; the tail is new
    assert asked.cached_tokens == len(parent.prompt_ids) - 8 - len("tail ")
    again = parent.fork()
    again.append("more")
    text = expected(runtime, again, 4)
    assert generate(again, max_new_tokens=4, ignore_eos=True).text == text


def test_choices_are_scored_behind_joined_text(runtime: Runtime) -> None:
    parent = runtime.new_context()
    parent.append("stem ")
    branches = [parent.fork(), parent.fork()]
    branches[0].append("one ")
    branches[1].append("two ")
    join(parent, *branches)
    model = runtime._engine()._loop.model
    assert isinstance(model, FakeModel)
    parent.append("is it ")
    ids, layout = list(parent.prompt_ids), parent._layout
    for each in score(parent, ["yes", "no"]):
        text = [*ids, *TOKENIZER.encode(each.text)]
        for number, entry in enumerate(each.logprobs):
            end = len(ids) + number
            logits = model.predict(text[:end], [layout.position(i) for i in range(end)])
            assert entry.logprob == pytest.approx(float(logits.log_softmax(-1)[text[end]]), abs=1e-4)


def test_a_beginning_token_is_seen_by_all() -> None:
    with runtime_of(small_tokenizer("gpt2", bos=True)) as runtime:
        parent = runtime.new_context()
        branches = [parent.fork(), parent.fork_moved(7)]
        branches[0].append("The quick")
        branches[1].append("brown fox")
        join(parent, *branches)
        parent.append("jumps")
        request = parent._request(parent.prompt_ids, SamplingParams(), OWNER)
        count = len(branches[0].token_ids)
        assert request.layout.sections[0] == Section(count, 8, ((0, 1),))
        assert generate(parent, max_new_tokens=2).completion_tokens == 2


def test_silent_branches_add_nothing(runtime: Runtime) -> None:
    parent = runtime.new_context()
    parent.append("stem")
    join(parent, parent.fork(), parent.fork())
    assert parent._layout.sections == ()
    assert runtime.decode(parent.token_ids) == "stem"


def test_positions_have_their_limits(runtime: Runtime) -> None:
    context = runtime.new_context()
    context.append("stem")
    with pytest.raises(ArgumentError, match="before the prompt's beginning"):
        context.fork_moved(-5)
    far = context.fork_moved(5000)
    far.append("x")
    with pytest.raises(RequestTooLongError, match="smaller position_ids_offset"):
        generate(far)


def test_a_cancelled_join_is_still_as_long(runtime: Runtime) -> None:
    parent = runtime.new_context()
    parent.append("stem ")
    branch = parent.fork()
    branch.append("one ")
    cancel = CancelToken()
    cancel.cancel()
    asyncio.run(parent.concatenate([branch, branch], owner=OWNER, cancel=cancel))
    assert runtime.decode(parent.token_ids) == "stem one one "


def test_a_place_before_a_join_or_after_it_can_be_gone_back_to(runtime: Runtime) -> None:
    parent = runtime.new_context()
    parent.append("stem ")
    before = parent.checkpoint()
    branches = [parent.fork(), parent.fork()]
    branches[0].append("one ")
    branches[1].append("two ")
    join(parent, *branches)
    parent.append("tail")
    after = parent.checkpoint()
    layout = parent._layout
    generate(parent, max_new_tokens=3, ignore_eos=True)
    parent.append("more")
    assert (before()._layout.sections, runtime.decode(before().token_ids)) == ((), "stem ")
    there = after()
    assert (there._layout, runtime.decode(there.token_ids)) == (layout, "stem one two tail")
    text = expected(runtime, there, 4)
    assert generate(there, max_new_tokens=4, ignore_eos=True).text == text


def test_a_joined_prompt_is_not_taken_for_the_plain_one(runtime: Runtime) -> None:
    parent = runtime.new_context()
    parent.append("stem ")
    branches = [parent.fork(), parent.fork()]
    branches[0].append("one ")
    branches[1].append("two ")
    runtime.cache.pin(branches[0])
    assert runtime.cache.unpin() == 1
    join(parent, *branches)
    assert [token.plain for token in parent.tokens()] == [True] * 9 + [False] * 4
    with pytest.raises(ArgumentError, match="joined or moved"):
        runtime.cache.pin(parent)
    generate(parent, max_new_tokens=1)
    node = max(runtime.snapshot().nodes, key=lambda node: node.node)
    pin = runtime.cache.pin(node.node)
    assert pin.num_tokens == len("stem one two ")
    assert runtime.cache.unpin(pin) == 1

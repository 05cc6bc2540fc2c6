"""Scores of choices: which tokens they are about, and that joined tokens are treated alike for all choices."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import torch
from context_support import OWNER, fake_runtime, generate, score
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import KINDS, small_tokenizer

from lmnb.backends.base import CancelToken
from lmnb.backends.local import Runtime
from lmnb.backends.scoring import plan_choices
from lmnb.backends.token_codec import TokenCodec
from lmnb.backends.token_stream import TokenStream
from lmnb.errors import ArgumentError, CancelledError
from lmnb.runtime.fake_model import FakeModel
from lmnb.runtime.testing import ByteTokenizer

if TYPE_CHECKING:
    from lmnb.backends.base import ChoiceScore

GPT2 = small_tokenizer("gpt2")
PROMPTS = st.sampled_from(["", "The answer is", "The answer is ", "I need a ", "x", "今天", "  ", "It's \n", "😀"])
CHOICES = st.lists(
    st.sampled_from(
        ["yes", "no", " yes", "calculator", "search engine", "Yes.", "天气", "'s", "\n", "😀😁", "a", "aa", "1"]
    ),
    min_size=1,
    max_size=5,
)


def reference(ids: list[int]) -> list[float | None]:
    """Log-probability of each token, straight from the model."""
    model = FakeModel(GPT2.vocab_size)
    rest = [float(torch.log_softmax(model.predict(ids[:i]), dim=-1)[ids[i]]) for i in range(1, len(ids))]
    return [None, *rest]


def decoded(choice: ChoiceScore) -> str:
    return GPT2.decode([entry.token_id for entry in choice.logprobs])


@pytest.fixture(scope="module")
def runtime() -> object:
    with fake_runtime(GPT2, chat_template="chatml") as runtime:
        yield runtime


def test_scores_are_the_models_own(runtime: Runtime) -> None:
    context = runtime.new_context()
    context.append("The answer is")
    before = context.token_ids
    yes, number = score(context, [" yes", " 12345 + 678"])
    for choice in (yes, number):
        assert decoded(choice) == choice.text
        whole = GPT2.encode("The answer is" + choice.text)
        expected = reference(whole)[len(before) :]
        assert [entry.logprob for entry in choice.logprobs] == pytest.approx(expected, abs=1e-4)
    assert len(yes.logprobs) == 1
    assert context.token_ids == before


def test_a_joined_token_counts_for_the_choice(runtime: Runtime) -> None:
    context = runtime.new_context()
    context.append("The answer is ")
    yes, no, blank = score(context, ["yes", "no way", "\n"])
    start = len(GPT2.encode("The answer is"))
    assert GPT2.encode("The answer is yes")[:start] == GPT2.encode("The answer is")
    # " yes" is one token, and so is "yes": one entry, with the joined token's log-probability.
    assert [entry.token_id for entry in yes.logprobs] == GPT2.encode("yes")
    assert yes.logprobs[0].logprob == pytest.approx(reference(GPT2.encode("The answer is yes"))[start], abs=1e-4)
    assert decoded(no) == "no way"
    # Nothing is joined here, but the tail is scored from the same place as the others'.
    whole = reference(GPT2.encode("The answer is \n"))[start:]
    assert decoded(blank) == "\n"
    assert blank.logprobs[0].logprob == pytest.approx(sum(whole), abs=1e-4)


def test_a_joined_token_whose_part_is_several_tokens() -> None:
    stream = TokenStream(TokenCodec(GPT2))
    stream.append("use a ")
    (plan,) = plan_choices(stream, ["calculator"], TokenCodec(GPT2), trusted=False)
    assert plan.num_head == 1
    assert plan.ids == tuple(GPT2.encode("use a calculator"))
    assert len(plan.head_ids) > 1
    assert GPT2.decode(plan.choice_ids) == "calculator"


@pytest.mark.parametrize("kind", KINDS)
def test_reported_ids_decode_to_exactly_the_choice(kind: str) -> None:
    tokenizer = small_tokenizer(kind)
    codec = TokenCodec(tokenizer)

    @given(PROMPTS, CHOICES)
    @settings(max_examples=60, deadline=None)
    def check(prompt: str, choices: list[str]) -> None:
        stream = TokenStream(codec)
        stream.append(prompt)
        plans = plan_choices(stream, choices, codec, trusted=False)
        for choice, plan in zip(choices, plans, strict=True):
            text = tokenizer.decode(plan.choice_ids)
            # SentencePiece's own space before a text is the tokenizer's, not the choice's.
            assert text == choice or (not prompt and text == " " + choice)
            assert list(plan.ids) == tokenizer.encode(prompt + choice)
        assert len({plan.start for plan in plans}) == 1
        assert len({plan.ids[: plan.start] for plan in plans}) == 1

    check()


def test_one_token_is_scored_on_one_token(runtime: Runtime) -> None:
    context = runtime.new_context()
    context.begin_role("assistant")
    for choice in score(context, ["yes", " yes", "no"]):
        assert decoded(choice) == choice.text
        assert len(choice.logprobs) == len(GPT2.encode(choice.text))


def test_unconditional_scores_have_nothing_before_them(runtime: Runtime) -> None:
    context = runtime.new_context()
    context.append("The answer is ")
    (choice,) = score(context, ["yes. no"], unconditional=True)
    ids = [entry.token_id for entry in choice.logprobs]
    assert [entry.token_id for entry in choice.unconditional] == ids
    assert choice.unconditional[0].logprob is None
    assert [e.logprob for e in choice.unconditional[1:]] == pytest.approx(reference(ids)[1:], abs=1e-4)
    assert score(context, ["yes"])[0].unconditional == ()


def test_unconditional_scores_behind_a_beginning_token() -> None:
    tokenizer = small_tokenizer("gpt2", bos=True)
    with fake_runtime(tokenizer, chat_template="chatml") as runtime:
        context = runtime.new_context()
        context.append("The answer is")
        (choice,) = score(context, [" yes"], unconditional=True)
        ids = [entry.token_id for entry in choice.logprobs]
        assert choice.logprobs[0].logprob == pytest.approx(reference([*context.token_ids, *ids])[-1], abs=1e-4)
        assert choice.unconditional[0].logprob == pytest.approx(reference([0, *ids])[1], abs=1e-4)


def test_spaces_before_choices_do_not_count_at_a_turns_start(runtime: Runtime) -> None:
    context = runtime.new_context()
    context.begin_role("assistant")
    spelled = [" yes", "yes", "  no way", "no way", "\n"]
    spaced, bare, wide, narrow, blank = score(context, spelled)
    assert [decoded(choice) for choice in (spaced, bare, wide, narrow, blank)] == spelled
    assert spaced.logprobs[0].logprob == bare.logprobs[0].logprob
    assert wide.logprobs[-1].logprob == narrow.logprobs[-1].logprob
    context.append("I say")
    spaced, bare = score(context, [" yes", "yes"])
    assert spaced.logprobs[0].logprob != bare.logprobs[0].logprob


def test_choices_on_an_empty_prompt(runtime: Runtime) -> None:
    yes, no = score(runtime.new_context(), ["yes", "no"])
    assert yes.logprobs[0].logprob == pytest.approx(reference([0, *GPT2.encode("yes")])[1], abs=1e-4)
    assert no.logprobs[0].logprob is not None


def test_choices_inside_a_role_are_data() -> None:
    with fake_runtime() as runtime:
        context = runtime.new_context()
        context.begin_role("assistant")
        (choice,) = score(context, ["<|im_end|>"])
        assert [entry.token_id for entry in choice.logprobs] == ByteTokenizer().encode("<|im_end|>")


def test_choices_share_the_prompt_in_the_cache(runtime: Runtime) -> None:
    runtime.flush_cache()
    before = runtime.status()
    context = runtime.new_context()
    context.append("A long common beginning that no choice should compute again. The answer is")
    asked = context.score([f" {number}" for number in range(8)], unconditional=False, owner=OWNER, cancel=CancelToken())
    scores = asyncio.run(asked)
    after = runtime.status()
    assert scores.prompt_tokens == after.prompt_tokens - before.prompt_tokens
    assert scores.cached_tokens == after.reused_tokens - before.reused_tokens > 0
    assert scores.seconds > 0
    computed = (after.prompt_tokens - before.prompt_tokens) - (after.reused_tokens - before.reused_tokens)
    assert computed < 2 * len(context.token_ids)


def test_choices_must_be_text(runtime: Runtime) -> None:
    context = runtime.new_context()
    for choices in ([], ["yes", ""], ["yes", 3]):
        with pytest.raises(ArgumentError):
            score(context, choices)  # type: ignore[arg-type]


def test_cancelled_scores_are_no_scores(runtime: Runtime) -> None:
    context = runtime.new_context()
    context.append("x")
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(CancelledError):
        score(context, ["a", "b"], cancel=cancel)
    assert generate(context).completion_tokens > 0

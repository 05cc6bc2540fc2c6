"""A day in a notebook, drawn at random: prompts grow, fork, join, generate in every way, are cancelled, and outlive the
runtimes that serve them. What each step gives is what it gives alone, on a cold cache."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from context_support import OWNER
from device_support import DEVICE
from engine_support import TOKENIZER
from model_support import random_model
from small_tokenizers import small_tokenizer

from lmnb.backends.base import CancelToken, Delta, Generation
from lmnb.backends.local import Runtime
from lmnb.backends.local_context import LocalContext
from lmnb.errors import CacheError, CancelledError, GenerationError, ProgramError, RequestTooLongError
from lmnb.runtime.fake_model import FakeModel
from lmnb.runtime.loading import LoadedModel, load_model
from lmnb.runtime.request import Constraint, SamplingParams

pytestmark = pytest.mark.timeout(300)

WORDS = ("The quick", " brown fox", "\n", "\n\n", " jumps over", " the lazy dog", "it is ", "yes", " 42", "é😀", "  ")
CONSTRAINTS = (
    Constraint("regex", "(yes|no|maybe)( [a-z]{1,4}){0,3}"),
    Constraint("regex", "[0-9]{2,12}"),
    Constraint("json_schema", '{"type":"object","properties":{"name":{"enum":["a","b"]}},"required":["name"]}'),
    Constraint("json_schema", '{"type":"array","items":{"type":"integer"},"maxItems":3}', loose=True),
    Constraint("ebnf", 'start: "begin" (" " /[ab]+/)? "end"'),
)


def fake(_: Path) -> LoadedModel:
    return LoadedModel(FakeModel(TOKENIZER.vocab_size, plain=False), TOKENIZER)


def llama(folder: Path) -> LoadedModel:
    random_model("llama", vocab_size=small_tokenizer("gpt2").vocab_size).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(small_tokenizer("gpt2")._trusted.to_str(), "utf-8")
    return load_model(folder, dtype="float32", device=DEVICE)


class Day:
    """`alone` serves nothing but the steps again, one by one, each on a cold cache."""

    def __init__(self, loaded: LoadedModel, alone: Runtime, seed: int) -> None:
        self.loaded, self.alone, self.rng = loaded, alone, random.Random(seed)
        self.rewritten: set[int] = set()  # generations in which forced text took chosen tokens' place
        self.contexts: list[LocalContext] = []
        self.done: Counter[str] = Counter()

    def hour(self) -> None:
        """One runtime's life."""
        rng = self.rng
        self.rewritten.clear()
        limits: dict[str, Any] = {
            "kv_cache": rng.choice([180, 260, 600]),
            "prefill_chunk": rng.choice([5, 24, 256]),
            "max_running": rng.choice([2, 5, 16]),
            "jump_forward": rng.random() < 0.8,
        }
        with Runtime(self.loaded, deterministic=True, **limits) as runtime:
            for context in self.contexts:
                context._served = runtime._use()
            asyncio.run(self._hour(runtime))
            engine = runtime._engine()
            engine.check_integrity()
            status = runtime.status()
            assert (status.running, status.waiting) == (0, 0)
            assert status.free_tokens + status.cached_tokens == status.pool_tokens
            live = engine._loop.requests
            assert (len(live), live.num_compiling, live._ended) == (0, 0, [])
            engine.unpin_all()
            assert runtime.flush_cache()
            assert runtime.status().free_tokens == status.pool_tokens

    async def _hour(self, runtime: Runtime) -> None:
        rng = self.rng
        for _ in range(6):
            while len(self.contexts) < 3:
                self.contexts.append(runtime.new_context())
                self.contexts[-1].append(rng.choice(WORDS))
            chosen = rng.sample(self.contexts, min(len(self.contexts), rng.randint(1, 4)))
            steps = [self._step(context, runtime) for context in chosen]
            await asyncio.gather(*steps, asyncio.to_thread(self._tend, runtime, random.Random(rng.random())))
            runtime._engine().check_integrity()
            rng.shuffle(self.contexts)
            del self.contexts[8:]
            self.contexts = [each for each in self.contexts if len(each.token_ids) < 120]

    def _tend(self, runtime: Runtime, rng: random.Random) -> None:
        """What a user does with the cache while programs run."""
        for _ in range(rng.randint(0, 4)):
            nodes = [node.node for node in runtime.snapshot().nodes]
            act = rng.choice([runtime.cache.pin, runtime.cache.evict, runtime._engine().unpin, None])
            try:
                if act is None:
                    rng.choice([runtime.flush_cache, runtime.cache.unpin])()
                elif nodes:
                    act(rng.choice(nodes))
                self.done["tended"] += 1
                if isinstance(self.loaded.model, FakeModel) and rng.random() < 0.1:
                    self.loaded.model.fail_next = RuntimeError("a broken kernel")
            except CacheError:
                self.done["refused"] += 1

    async def _step(self, context: LocalContext, runtime: Runtime) -> None:
        step = self.rng.choice(
            [self._say, self._generate, self._generate, self._go_on, self._fork, self._join, self._join, self._select]
        )
        try:
            await step(context)
        except (RequestTooLongError, GenerationError) as error:
            if not isinstance(error, RequestTooLongError) and "broken kernel" not in repr(error.__cause__):
                raise
            self.done[type(error).__name__] += 1
            self.contexts = [each for each in self.contexts if each is not context]

    async def _say(self, context: LocalContext) -> None:
        context.append("".join(self.rng.choices(WORDS, k=3)), data=self.rng.random() < 0.3)
        if self.rng.random() < 0.5:
            await context.commit(owner=OWNER, cancel=CancelToken())

    async def _fork(self, context: LocalContext) -> None:
        twin = context.fork() if self.rng.random() < 0.7 else context.fork_moved(self.rng.randint(0, 9))
        self.contexts.append(twin)
        await self._generate(twin)

    async def _join(self, context: LocalContext) -> None:
        """Branches that say and generate something side by side, some with branches of their own."""
        nested = self.rng.random() < 0.3
        branches = [
            context.fork() if self.rng.random() < 0.6 else context.fork_moved(self.rng.randint(0, 5)) for _ in range(3)
        ]
        for branch in branches:
            if self.rng.random() < 0.8:
                branch.append(self.rng.choice(WORDS))
        asked = [self._generate(branch) for branch in branches if self.rng.random() < 0.7]
        failed = [each for each in await asyncio.gather(*asked, return_exceptions=True) if each is not None]
        if failed:
            raise failed[0]
        if nested:
            twigs = [branches[0].fork(), branches[0].fork()]
            for twig in twigs:
                twig.append(self.rng.choice(WORDS))
            await self._concatenate(branches[0], twigs)
        await self._concatenate(context, branches)
        context.append(self.rng.choice(WORDS))
        await self._generate(context)

    async def _concatenate(self, context: LocalContext, branches: list[LocalContext]) -> None:
        cancel = CancelToken()
        if self.rng.random() < 0.2:
            cancel.cancel()
        try:
            await context.concatenate(branches, owner=OWNER, cancel=cancel)
        except ProgramError:  # words that became one token with the parent's
            self.done["not joined"] += 1
            return
        assert not cancel._callbacks
        self.done["joined"] += 1

    async def _select(self, context: LocalContext) -> None:
        twin = self._alone(context)
        choices = self.rng.sample(["yes", "no", " maybe", "yes indeed", "the dog"], 3)

        def ask(where: LocalContext) -> Coroutine[Any, Any, Any]:
            return where.score(choices, unconditional=True, owner=OWNER, cancel=CancelToken())

        got = (await ask(context)).choices
        assert got == (await self._cold(lambda: ask(twin))).choices
        context.append(choices[0])
        self.done["selected"] += 1

    def _params(self) -> SamplingParams:
        rng, limit = self.rng, self.rng.choice([0, 1, 6, 24])
        return SamplingParams(
            max_new_tokens=limit,
            min_new_tokens=rng.choice([0, 0, limit // 2]),
            temperature=rng.choice([0.0, 0.7, 1.3]),
            top_p=rng.choice([1.0, 0.9]),
            top_k=rng.choice([-1, 20]),
            min_p=rng.choice([0.0, 0.05]),
            frequency_penalty=rng.choice([0.0, 0.6]),
            presence_penalty=rng.choice([0.0, -0.5]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            seed=rng.randrange(1 << 30),
            stop=rng.choice([(), ("e", "ox")]),
            stop_regex=rng.choice([(), (), ("[a-c][^a-c]",)]),
            ignore_eos=rng.random() < 0.3,
            constraint=rng.choice([None, None, *CONSTRAINTS]),
            jump_forward=rng.choice([None, None, False]),
            return_logprob=rng.random() < 0.5,
            top_logprobs_num=rng.choice([0, 2]),
        )

    async def _generate(self, context: LocalContext) -> None:
        await self._ask(context, self._params())

    async def _go_on(self, context: LocalContext) -> None:
        """Generate, go back, and go on behind the first of the tokens; what follows them was to be expected."""
        params, back = self._params(), context.checkpoint()

        first = await self._ask(context, params)
        if first is None or not first.completion_tokens:
            return
        ids = context.token_ids[len(back().token_ids) :]
        if isinstance(first.matched, str) or len(ids) != first.completion_tokens:  # cut, perhaps within a token
            return
        if first.meta["id"] in self.rewritten:
            return  # forced text took chosen tokens' place: the choice was made behind others
        again = back()
        begun = ids[: self.rng.randint(1, len(ids))]
        got = await again.generate(params, owner=OWNER, cancel=CancelToken(), on_delta=lambda _: None, begun=begun)
        assert (got.text, got.finish_reason, got.matched) == (first.text, first.finish_reason, first.matched)
        assert again.token_ids == context.token_ids
        self.done["gone on"] += 1

    async def _ask(self, context: LocalContext, params: SamplingParams) -> Generation | None:
        """Generate; None if it was stopped on the way."""
        if len(context.prompt_ids) + params.max_new_tokens > context._served.engine.capacity:
            return None  # it would end where the pool does, which is larger for one alone
        twin, before = self._alone(context), context.token_ids
        cancel, seen, replaced = CancelToken(), 0, 0
        stop_at = self.rng.choice([None, None, None, 0, 1, 5])
        by_task = self.rng.random() < 0.3

        def count(delta: Delta) -> None:
            nonlocal seen, replaced
            seen += 1
            replaced += delta.num_replaced
            if stop_at == seen and not by_task:
                cancel.cancel()
            elif stop_at == seen:
                task.cancel()

        task = asyncio.ensure_future(context.generate(params, owner=OWNER, cancel=cancel, on_delta=count))
        if stop_at == 0:
            await asyncio.sleep(self.rng.random() * 0.01)
            task.cancel() if by_task else cancel.cancel()
        try:
            got = await task
        except (asyncio.CancelledError, CancelledError):
            bytes_of = context._served.codec.bytes_of  # tokens at the seam may be others, if something came
            assert bytes_of(context.token_ids).startswith(bytes_of(before))
            self.done["interrupted"] += 1
            return None
        finally:
            assert not cancel._callbacks
        wanted = await self._cold(
            lambda: twin.generate(params, owner=OWNER, cancel=CancelToken(), on_delta=lambda delta: None)
        )
        if cancel.cancelled:  # perhaps too late; what was held back for a stop that might come is told
            assert wanted.text.startswith(got.text.rstrip("\ufffd")) or got.text.startswith(wanted.text)
            assert len(got.logprobs) <= len(wanted.logprobs)
            scored = [pair for pair in zip(got.logprobs, wanted.logprobs) if pair[0].logprob is not None]  # noqa: B905
            assert all(one == other for one, other in scored)
            self.done[got.finish_reason] += 1
            return None
        told = [
            (each.text, each.finish_reason, each.matched, each.completion_tokens, each.logprobs)
            for each in (got, wanted)
        ]
        assert told[0] == told[1], params
        assert context.token_ids == twin.token_ids
        if replaced:
            self.rewritten.add(got.meta["id"])
        elif params.constraint:
            assert got.meta["steps"] + got.meta["forced_tokens"] == got.completion_tokens
        self.done["constrained" if params.constraint else "generated"] += 1
        self.done["preempted"] += got.meta["num_preemptions"]
        return got

    def _alone(self, context: LocalContext) -> LocalContext:
        twin = context.fork()
        twin._served = self.alone._use()
        return twin

    async def _cold(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        if self._turn is None:
            self._turn = asyncio.Lock()
        async with self._turn:
            assert self.alone.flush_cache()
            return await ask()

    _turn: asyncio.Lock | None = None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", [fake, llama])
def test_every_step_of_a_day_gives_what_it_gives_alone(make: Any, seed: int, tmp_path: Path) -> None:
    threads = threading.active_count()
    with Runtime(make(tmp_path), kv_cache=4096, deterministic=True) as alone:
        day = Day(make(tmp_path), alone, seed)
        for _ in range(3):
            day._turn = None
            day.hour()
    assert day.done["generated"] + day.done["constrained"] > 10, day.done
    del day
    gc.collect()
    assert threading.active_count() <= threads + 2  # an event loop's own

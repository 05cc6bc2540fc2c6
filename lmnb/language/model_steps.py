"""The steps that ask the model: generating text, and choosing between texts.

They run on the background loop, tell views what happens, and keep what there is when a run is cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lmnb.backends.base import Backend, Delta, Generation, Scores
from lmnb.backends.speculation import SpeculativeContext
from lmnb.backends.turns import gathered
from lmnb.errors import ArgumentError
from lmnb.language.choices import ChoicesDecision, ChoicesSamplingMethod, chosen_by_api, chosen_by_model, mean_logprob
from lmnb.language.defaults import Defaults
from lmnb.language.events import GenFinished, GenStarted
from lmnb.language.explain import explained
from lmnb.language.expressions import Gen, Select
from lmnb.language.generated import Begun, Generated
from lmnb.language.loop import background
from lmnb.language.meta import generation_meta, score_meta, triples
from lmnb.language.output import Output, ReasoningOutput
from lmnb.language.steps import Step, TextStep, set_variable
from lmnb.language.stream import Stream
from lmnb.language.token_parts import is_greedy
from lmnb.language.variables import Variable
from lmnb.runtime.request import SamplingParams


class GenStep(Step):
    """Generates text."""

    announces = True

    def __init__(
        self,
        where: str,
        variables: Sequence[Variable],
        node: Gen,
        params: SamplingParams,
        merged: Defaults,
        line: int | None,
    ) -> None:
        super().__init__(where, *variables)
        self.node = node
        self.params = params
        self.merged = merged
        self.line = line
        self.following: tuple[str | SamplingParams, ...] = ()  # see `note_following`
        self.begun: Begun | None = None  # what it says already when it starts

    def again(self, renewed: Mapping[Variable, Variable]) -> GenStep:
        """The same, into variables of its own."""
        return self.resumed(self.params, None)

    def resumed(self, params: SamplingParams, begun: Begun | None) -> GenStep:
        """The same that begins with `begun`. It gives one text, of which the first sample is gone on with."""
        merged = self.merged if begun is None else replace(self.merged, n=1)
        step = GenStep(self.where, _fresh(self.variables), self.node, params, merged, self.line)
        step.begun = begun
        return step

    async def run(self, stream: Stream) -> None:
        """Generate; on a cancel, keep what there is and stop the stream."""
        constraint = self.params.constraint.kind if self.params.constraint else None
        stream.publish(GenStarted(stream.branch.id, self.node.name, "gen", constraint, self.line))
        started = time.monotonic()
        output = self._output(stream)
        output.greedy = is_greedy(self.params)
        branch = stream.branch
        output.record = branch.run.note_generation(Generated(self, stream, branch.num_generated))
        branch.num_generated += 1
        stream.generated.append(output.record)
        for variable in self.variables[:1]:
            variable.generated = output.record
            variable.signal.notify()
        try:
            results = await self._generate(stream, output)
            output.finish(results[0])
        except BaseException:
            _publish_end(stream, "cancelled" if stream.branch.cancel.cancelled else "error", None, started, [])
            raise
        first = results[0]
        seconds = time.monotonic() - started
        _publish_end(stream, first.finish_reason, first.matched, started, results)
        reason = stream.stop_reason()
        if any(result.finish_reason == "cancelled" for result in results) and not reason.cancelled:
            stream.fail(reason)
            await self.skip(stream, reason)
            return
        output.set(results, generation_meta(first, self.params, self.merged, stream, seconds))
        if first.finish_reason == "cancelled":
            stream.fail(reason)

    def _output(self, stream: Stream) -> Output:
        if self.node.reasoning is not None:
            answer, reasoning = self.variables
            return ReasoningOutput(stream, answer, reasoning, self.node.reasoning, self.merged.n)
        return Output(stream, self.variables[0] if self.variables else None)

    async def _generate(self, stream: Stream, output: Output) -> list[Generation]:
        """All `n` samples; the first one goes on in the output's context."""
        if self.params.max_new_tokens == 0 and self.params.return_logprob:
            return [await self._look_ahead(stream, output)] * self.merged.n
        if self.begun is not None and not self.begun.ids and self.begun.text:
            return [await self._generate_behind(stream, output, self.begun)]
        count, cancel = self.merged.n, stream.branch.cancel
        prompt = output.context.fork() if count > 1 else output.context  # stays as it is while the first one goes on

        async def sample(index: int) -> Generation:
            context = prompt.fork() if index else output.context
            if isinstance(context, SpeculativeContext):
                context.foresee(self.following)
            options: dict[str, Any] = {"begun": self.begun.ids} if self.begun is not None and self.begun.ids else {}
            start = self.merged.logprob_start_len
            if self.params.return_logprob and start is not None and start >= 0:
                options["logprob_start"] = start
            return await context.generate(
                _sample_params(self.params, index),
                owner=stream.branch.owner(self.node.name, self.line),
                cancel=cancel,
                on_delta=_ignore if index else _pushing(output),
                **options,
            )

        samples = await gathered(count, sample, lambda: not cancel.cancelled)
        return [Generation(text="", finish_reason="cancelled") if result is None else result for result in samples]

    async def _generate_behind(self, stream: Stream, output: Output, begun: Begun) -> Generation:
        """On a backend that knows texts only: behind what is kept and what stands in place of the rest."""
        given = begun.text[len(begun.kept_text) :]
        for text, num_tokens in ((begun.kept_text, begun.num_kept), (given, 1)):
            if text:
                output.context.append(text, data=True)
                output.push(Delta(text, num_tokens, origin="given"))
        result = await output.context.generate(
            self.params,
            owner=stream.branch.owner(self.node.name, self.line),
            cancel=stream.branch.cancel,
            on_delta=_pushing(output),
        )
        return replace(result, text=begun.text + result.text)

    async def _look_ahead(self, stream: Stream, output: Output) -> Generation:
        """No text, and yet the log-probabilities of what could come next: `max_tokens=0` with `return_logprob`."""
        result = await output.context.fork().generate(
            replace(self.params, max_new_tokens=1, stop=(), stop_regex=(), ignore_eos=True),
            owner=stream.branch.owner(self.node.name, self.line),
            cancel=stream.branch.cancel,
            on_delta=_ignore,
        )
        if result.finish_reason == "cancelled":
            return result
        return replace(result, text="", finish_reason="length", matched=None)


class SelectStep(Step):
    """Chooses one of the choices and adds its text."""

    announces = True

    def __init__(
        self,
        where: str,
        variables: Sequence[Variable],
        node: Select,
        line: int | None,
        *,
        all_methods: bool = False,
    ) -> None:
        super().__init__(where, *variables)
        self.node = node
        self.line = line
        self.all_methods = all_methods  # measure what every method needs, so that views can compare them

    def again(self, renewed: Mapping[Variable, Variable]) -> SelectStep:
        """The same choices, scored anew."""
        variables = _fresh(self.variables)
        return SelectStep(self.where, variables, self.node, self.line, all_methods=self.all_methods)

    async def run(self, stream: Stream) -> None:
        """Score the choices, decide, go on with the decision."""
        assert stream.context is not None
        branch = stream.branch
        stream.publish(GenStarted(branch.id, self.node.name, "select", "choices", self.line))
        started = time.monotonic()
        try:
            scores = await self._score(stream)
            method, decision = self._decide(scores, stream.backend)
        except BaseException:
            _publish_end(stream, "cancelled" if branch.cancel.cancelled else "error", None, started, [])
            raise
        choices = list(self.node.choices)
        stream.publish(explained(branch.id, choices, method, decision, scores, stream.backend, stream.text))
        stream.append(decision.decision, tell=False)
        _publish_end(stream, "stop", None, started, [], scores)
        if self.variables:
            meta = {**score_meta(scores, time.monotonic() - started), **decision.meta_info}
            set_variable(stream, self.variables[0], decision.decision, meta)
        for reasoning in self.variables[1:]:  # a choice is an answer; there is nothing to separate
            set_variable(stream, reasoning, "")

    async def _score(self, stream: Stream) -> Scores:
        assert stream.context is not None
        return await stream.context.score(
            self.node.choices,
            unconditional=self.all_methods or self.node.method.requires_unconditional_logprobs,
            owner=stream.branch.owner(self.node.name, self.line),
            cancel=stream.branch.cancel,
        )

    def _decide(self, scores: Scores, backend: Backend) -> tuple[ChoicesSamplingMethod, ChoicesDecision]:
        """The decision, and the method that made it: the program's, unless the backend cannot score."""
        method = self.node.method
        if scores.picked is not None:
            return chosen_by_api, chosen_by_api.decide(list(self.node.choices), scores.picked)
        counts = [score.num_chosen for score in scores.choices if score.num_chosen is not None]
        if len(counts) == len(scores.choices):
            return chosen_by_model, chosen_by_model.decide(list(self.node.choices), counts)
        conditional = [triples(score.logprobs, backend) for score in scores.choices]
        decision = method(
            choices=list(self.node.choices),
            normalized_prompt_logprobs=[mean_logprob(row) for row in conditional],
            input_token_logprobs=conditional,
            output_token_logprobs=[[] for _ in scores.choices],
            unconditional_token_logprobs=[triples(score.unconditional, backend) for score in scores.choices]
            if method.requires_unconditional_logprobs
            else None,
        )
        if not isinstance(decision, ChoicesDecision) or decision.decision not in self.node.choices:
            raise ArgumentError(
                f"{method.name} must return a ChoicesDecision with one of the choices, not {decision!r}"
            )
        return method, decision


def note_following(steps: Sequence[Step]) -> None:
    """Tell each generation what the same append adds to its turn after it: texts, and generations' parameters."""
    following: tuple[str | SamplingParams, ...] = ()
    for step in reversed(steps):
        if isinstance(step, GenStep):
            step.following = following
            following = (step.params, *following)
        else:
            following = (step.text, *following) if isinstance(step, TextStep) else ()


def _sample_params(params: SamplingParams, index: int) -> SamplingParams:
    """The parameters of the sample of that index: a seed of its own, so that samples differ."""
    if index == 0 or params.seed is None:
        return params
    return replace(params, seed=params.seed + index)


def _fresh(variables: Sequence[Variable]) -> list[Variable]:
    """Variables of the same names that have no values yet."""
    fresh = [Variable(variable.name) for variable in variables]
    for new, old in zip(fresh, variables, strict=True):
        new.read = old.read
    return fresh


def _pushing(output: Output) -> Callable[[Delta], None]:
    """What takes a generation's pieces, in whichever thread they come."""

    def on_delta(delta: Delta) -> None:
        if background.is_current():
            output.push(delta)
        else:  # the generation's own end comes by the same way, so after this
            background.post(lambda: output.push(delta))

    return on_delta


def _ignore(delta: Delta) -> None:
    """Samples after the first are not streamed."""


def _publish_end(
    stream: Stream,
    reason: str,
    matched: str | int | None,
    started: float,
    results: Sequence[Generation],
    scores: Scores | None = None,
) -> None:
    asked: Sequence[Generation | Scores] = (
        [each for each in results if each.read_prompt] if scores is None else [scores]
    )
    stream.publish(
        GenFinished(
            branch=stream.branch.id,
            finish_reason=reason,
            matched=matched,
            reused=sum(result.cached_tokens for result in asked),
            computed=sum(result.prompt_tokens - result.cached_tokens for result in asked),
            generated=sum(result.completion_tokens for result in results),
            first_token_seconds=results[0].first_token_seconds if results else None,
            seconds=time.monotonic() - started,
            grammar=results[0].meta.get("grammar_backend") if results else None,
            cut=bool(results and results[0].meta.get("cut")),
            forced=sum(result.meta.get("forced_tokens", 0) for result in results),
        )
    )

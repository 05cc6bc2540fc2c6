"""What a stream does, one step at a time. Steps are made where a program appends, and run on the background loop.

A step either runs, or is skipped because of an earlier failure; either way its variables end, so nobody waits forever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lmnb.backends.base import CancelToken, Delta, Generation
from lmnb.errors import ArgumentError, ProgramError
from lmnb.language.branch import Branch
from lmnb.language.choices import ChoicesDecision, mean_logprob
from lmnb.language.defaults import Defaults
from lmnb.language.events import BranchesJoined, ChoiceMade, GenFinished, GenStarted, VariableSet
from lmnb.language.expressions import Gen, Select
from lmnb.language.loop import background
from lmnb.language.meta import generation_meta, triples
from lmnb.language.stream import Piece, Stream
from lmnb.language.variables import Chunk, Failure, Variable
from lmnb.runtime.request import SamplingParams


class Step:
    """A step that does nothing; others derive from it. `where` names it in errors."""

    announces = False  # whether a run that so far was too small to show is shown from this step on

    def __init__(self, where: str = "a step", *variables: Variable) -> None:
        self.where = where
        self.variables = variables

    def bind(self, stream: Stream) -> None:
        """Take from the stream what must be fixed at submit time."""

    async def run(self, stream: Stream) -> None:
        """Do it."""

    def skip(self, stream: Stream, failure: Failure) -> None:
        """Do not; tell the readers why."""
        for variable in self.variables:
            variable.fail(failure)


class TextStep(Step):
    """Adds constant text."""

    def __init__(self, where: str, text: str) -> None:
        super().__init__(where)
        self.text = text

    async def run(self, stream: Stream) -> None:
        """Add it."""
        stream.append(self.text)


class RoleStep(Step):
    """Opens a role, or closes it (`role=None`)."""

    def __init__(self, where: str, role: str | None) -> None:
        super().__init__(where)
        self.role = role

    async def run(self, stream: Stream) -> None:
        """Open or close."""
        if self.role is not None:
            stream.begin_role(self.role)
        else:
            stream.end_role()


class ScopeStep(Step):
    """Starts to collect text into a variable, or ends it."""

    def __init__(self, where: str, variable: Variable, *, begin: bool) -> None:
        super().__init__(where, variable)
        self.begin = begin

    async def run(self, stream: Stream) -> None:
        """Start, or give the variable its text."""
        (variable,) = self.variables
        if self.begin:
            stream.scopes.append(variable)
            return
        stream.scopes.remove(variable)
        set_variable(stream, variable, "".join(chunk.text for chunk in variable.chunks))


class SetStep(Step):
    """Tells views of variables that have their values already."""

    def skip(self, stream: Stream, failure: Failure) -> None:
        """The values are there in spite of the failure."""

    async def run(self, stream: Stream) -> None:
        """Tell."""
        for variable in self.variables:
            stream.publish(VariableSet(stream.branch.id, variable.name, str(variable.value)))


class GenStep(Step):
    """Generates text."""

    announces = True

    def __init__(
        self,
        where: str,
        variable: Variable | None,
        node: Gen,
        params: SamplingParams,
        merged: Defaults,
        line: int | None,
    ) -> None:
        super().__init__(where, *([variable] if variable else []))
        self.variable = variable
        self.node = node
        self.params = params
        self.merged = merged
        self.line = line

    async def run(self, stream: Stream) -> None:
        """Generate; on a cancel, keep what there is and stop the stream."""
        constraint = self.params.constraint.kind if self.params.constraint else None
        stream.publish(GenStarted(stream.branch.id, self.node.name, "gen", constraint, self.line))
        started = time.monotonic()
        try:
            results = await self._generate(stream)
        except BaseException:
            _publish_end(stream, "cancelled" if stream.branch.cancel.cancelled else "error", None, started, [])
            raise
        first = results[0]
        seconds = time.monotonic() - started
        _publish_end(stream, first.finish_reason, first.matched, started, results)
        if self.variable is not None:
            meta = generation_meta(first, self.params, self.merged, stream, seconds)
            value: Any = first.text if len(results) == 1 else [result.text for result in results]
            set_variable(stream, self.variable, value, meta)
        if first.finish_reason == "cancelled":
            stream.fail(stream.stop_reason())

    async def _generate(self, stream: Stream) -> list[Generation]:
        """All `n` samples; the first one goes on in the stream's own context."""
        assert stream.context is not None
        others = [stream.context.fork() for _ in range(self.merged.n - 1)]
        received: list[str] = []

        def on_delta(delta: Delta) -> None:
            received.append(delta.text)
            if background.is_current():
                self._show(stream, delta)
            else:  # the generation's own end comes by the same way, so after this
                background.post(lambda: self._show(stream, delta))

        async def sample(index: int) -> Generation:
            context = others[index - 1] if index else stream.context
            assert context is not None
            options: dict[str, Any] = {}
            if self.merged.logprob_start_len is not None and self.merged.logprob_start_len >= 0:
                options["logprob_start"] = self.merged.logprob_start_len
            return await context.generate(
                sample_params(self.params, index),
                owner=stream.branch.owner(self.node.name, self.line),
                cancel=stream.branch.cancel,
                on_delta=_ignore if index else on_delta,
                **options,
            )

        samples = await asyncio.gather(*(sample(index) for index in range(self.merged.n)), return_exceptions=True)
        results: list[Generation] = []
        for result in samples:
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        shown = "".join(received)
        if shown != results[0].text and results[0].text.startswith(shown):  # a backend that does not stream
            self._show(stream, Delta(results[0].text[len(shown) :], results[0].completion_tokens - len(received)))
        return results

    def _show(self, stream: Stream, delta: Delta) -> None:
        stream.add_generated(delta.text, delta.num_tokens, delta.logprobs)
        if self.variable is not None:
            self.variable.push(Chunk(delta.text, delta.num_tokens, delta.logprobs))


class SelectStep(Step):
    """Chooses one of the choices and adds its text."""

    announces = True

    def __init__(self, where: str, variable: Variable | None, node: Select, line: int | None) -> None:
        super().__init__(where, *([variable] if variable else []))
        self.variable = variable
        self.node = node
        self.line = line

    async def run(self, stream: Stream) -> None:
        """Score the choices, decide, go on with the decision."""
        assert stream.context is not None
        branch = stream.branch
        stream.publish(GenStarted(branch.id, self.node.name, "select", "choices", self.line))
        started = time.monotonic()
        try:
            decision = await self._decide(stream, branch.cancel)
        except BaseException:
            _publish_end(stream, "cancelled" if branch.cancel.cancelled else "error", None, started, [])
            raise
        method = self.node.method
        choices = list(self.node.choices)
        stream.publish(ChoiceMade(branch.id, decision.decision, choices, method.scores(decision), method.name))
        stream.append(decision.decision, tell=False)
        _publish_end(stream, "stop", None, started, [])
        if self.variable is not None:
            set_variable(stream, self.variable, decision.decision, decision.meta_info)

    async def _decide(self, stream: Stream, cancel: CancelToken) -> ChoicesDecision:
        assert stream.context is not None
        method = self.node.method
        scores = await stream.context.score(
            self.node.choices,
            unconditional=method.requires_unconditional_logprobs,
            owner=stream.branch.owner(self.node.name, self.line),
            cancel=cancel,
        )
        conditional = [triples(score.logprobs, stream.backend) for score in scores]
        decision = method(
            choices=list(self.node.choices),
            normalized_prompt_logprobs=[mean_logprob(row) for row in conditional],
            input_token_logprobs=conditional,
            output_token_logprobs=[[] for _ in scores],
            unconditional_token_logprobs=[triples(score.unconditional, stream.backend) for score in scores]
            if method.requires_unconditional_logprobs
            else None,
        )
        if not isinstance(decision, ChoicesDecision) or decision.decision not in self.node.choices:
            raise ArgumentError(
                f"{method.name} must return a ChoicesDecision with one of the choices, not {decision!r}"
            )
        return decision


class ForkStep(Step):
    """Starts children with all that the stream has said."""

    def __init__(self, where: str, children: Sequence[Stream]) -> None:
        super().__init__(where)
        self.children = children

    def bind(self, stream: Stream) -> None:
        """Number the children's branches."""
        parent = stream.branch
        fork = parent.run.next_fork()
        for index, child in enumerate(self.children):
            child.hold(parent.run.new_branch(parent, index=index, fork=fork, cancel=parent.cancel))

    async def run(self, stream: Stream) -> None:
        """Copy the prompt; before branches race, make it cheap to extend."""
        assert stream.context is not None
        if len(self.children) > 1 and stream.text:
            await stream.context.commit()
        for child in self.children:
            child.adopt(stream)
        self._open()

    def skip(self, stream: Stream, failure: Failure) -> None:
        """The children share the failure."""
        self._open()
        for child in self.children:
            child.fail(failure)

    def _open(self) -> None:
        for child in self.children:
            child.open_branch()
            child.release()


class JoinStep(Step):
    """Tells of a join and, for a join of texts, says again in the parent what the branches said."""

    def __init__(self, where: str, branches: Sequence[Branch], mode: str, pieces: Sequence[Piece] = ()) -> None:
        super().__init__(where)
        self.branches = branches
        self.mode = mode
        self.pieces = pieces

    async def run(self, stream: Stream) -> None:
        """Replay."""
        here = stream.branch
        joined = [branch.id for branch in self.branches if branch.run is here.run]
        stream.publish(BranchesJoined(here.id, joined, self.mode))
        for piece in self.pieces:
            if piece.kind == "role":
                stream.begin_role(piece.text)
            elif piece.kind == "role_end":
                stream.end_role()
            else:
                stream.append(piece.text, data=piece.kind == "generated")


def set_variable(stream: Stream, variable: Variable, value: Any, meta: dict[str, Any] | None = None) -> None:
    """Give a variable its value, and tell views."""
    variable.set(value, meta)
    stream.publish(VariableSet(stream.branch.id, variable.name, str(value)))


def sample_params(params: SamplingParams, index: int) -> SamplingParams:
    """The parameters of the sample of that index: a seed of its own, so that samples differ."""
    if index == 0 or params.seed is None:
        return params
    return replace(params, seed=params.seed + index)


def merged_pieces(pieces: Sequence[Piece]) -> list[Piece]:
    """The same with neighbours of one kind joined."""
    result: list[Piece] = []
    for piece in pieces:
        if result and piece.kind == result[-1].kind and piece.kind in ("text", "generated"):
            result[-1] = Piece(piece.kind, result[-1].text + piece.text)
        else:
            result.append(piece)
    return result


def check_replayable(pieces: Sequence[Piece], role: str | None, index: int) -> None:
    """ProgramError unless a branch that was forked in `role` also ends in it."""
    end = role
    for piece in pieces:
        end = piece.text if piece.kind == "role" else None if piece.kind == "role_end" else end
    if end != role:
        raise ProgramError(
            f"branch {index} was forked {_inside(role)} and ends {_inside(end)}; "
            "join('concate_and_append') needs branches that close the roles they open, and no others"
        )


def _inside(role: str | None) -> str:
    return f"inside {role}" if role else "outside of roles"


def _ignore(delta: Delta) -> None:
    """Samples after the first are not streamed."""


def _publish_end(
    stream: Stream, reason: str, matched: str | int | None, started: float, results: Sequence[Generation]
) -> None:
    stream.publish(
        GenFinished(
            branch=stream.branch.id,
            finish_reason=reason,
            matched=matched,
            reused=sum(result.cached_tokens for result in results),
            computed=sum(result.prompt_tokens - result.cached_tokens for result in results),
            generated=sum(result.completion_tokens for result in results),
            first_token_seconds=results[0].first_token_seconds if results else None,
            seconds=time.monotonic() - started,
        )
    )

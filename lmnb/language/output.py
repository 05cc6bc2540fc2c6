"""Where the text of one generation goes while it comes: into the stream's text and its variables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lmnb.backends.base import Context, Delta, Generation
from lmnb.language.generated import Generated
from lmnb.language.reasoning import ReasoningFormat, ReasoningSplitter
from lmnb.language.steps import set_variable
from lmnb.language.stream import Stream
from lmnb.language.variables import Chunk, Variable


class Output:
    """All of the text, as the model writes it into the stream's own prompt. On the background loop only."""

    def __init__(self, stream: Stream, variable: Variable | None) -> None:
        assert stream.context is not None
        self.stream = stream
        self.variable = variable
        self.greedy = False  # whether the likeliest allowed token is always taken: views then know what was not allowed
        self.record: Generated | None = None  # where its pieces are noted
        self.context: Context = stream.context
        self._began = time.monotonic()
        self._received = ""
        self._num_received = 0

    def push(self, delta: Delta) -> None:
        """Take a piece of the text."""
        if self.record is not None:
            delta = self.record.told(delta)
            self.record.take(delta)
        self._received += delta.text
        self._num_received += delta.num_tokens
        self._show(delta)

    def finish(self, result: Generation) -> None:
        """The generation is over. What a backend that does not stream has not told before is told now."""
        rest = result.text.removeprefix(self._received)
        if rest and result.text.startswith(self._received):
            self.push(Delta(rest, result.completion_tokens - self._num_received))

    def set(self, results: Sequence[Generation], meta: dict[str, Any]) -> None:
        """Give the variable its value: a text, or a list of them."""
        if self.variable is not None:
            set_variable(self.stream, self.variable, _one_or_all([result.text for result in results]), meta)

    def _show(self, delta: Delta) -> None:
        seconds = time.monotonic() - self._began
        self.stream.add_generated(
            delta.text, delta.num_tokens, delta.logprobs, origin=delta.origin, seconds=seconds, greedy=self.greedy
        )
        if self.variable is not None:
            self.variable.push(Chunk(delta.text, delta.num_tokens, delta.logprobs))


class ReasoningOutput(Output):
    """Reasoning goes into a variable of its own and the answer into the text: later turns see the answer only."""

    def __init__(
        self, stream: Stream, variable: Variable, reasoning: Variable, form: ReasoningFormat, num_samples: int
    ) -> None:
        super().__init__(stream, variable)
        assert stream.context is not None
        self.context = stream.context.fork()  # where the model writes it all
        self._reasoning = reasoning
        self._form = form
        self._num_samples = num_samples
        self._splitter = ReasoningSplitter(form)
        self._answer = ""

    def finish(self, result: Generation) -> None:
        """Put the answer into the prompt."""
        super().finish(result)
        self._pass_on(self._splitter.finish(), Delta("", 0))
        if self._answer:
            assert self.stream.context is not None
            self.stream.context.append(self._answer, data=True)

    def set(self, results: Sequence[Generation], meta: dict[str, Any]) -> None:
        """Give both variables their values."""
        assert self.variable is not None
        parts = [self._form.split(result.text) for result in results]
        if not self._reasoning.done:
            set_variable(self.stream, self._reasoning, _one_or_all([reasoning for reasoning, _ in parts]))
        set_variable(self.stream, self.variable, _one_or_all([answer for _, answer in parts]), meta)

    def _show(self, delta: Delta) -> None:
        self._pass_on(self._splitter.feed(delta.text), delta)

    def _pass_on(self, parts: tuple[str, str], delta: Delta) -> None:
        reasoning, answer = parts
        if reasoning:
            self._reasoning.push(Chunk(reasoning))
        if self._splitter.past_reasoning and self._num_samples == 1 and not self._reasoning.done:
            text = "".join(chunk.text for chunk in self._reasoning.chunks)
            set_variable(self.stream, self._reasoning, text)  # readers need not wait for the answer
        self._answer += answer
        if answer or delta.num_tokens:
            super()._show(replace(delta, text=answer))


def _one_or_all(texts: list[str]) -> Any:
    return texts[0] if len(texts) == 1 else texts

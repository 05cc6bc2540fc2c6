"""How models mark the reasoning before an answer, and how a text is split there while it comes.

Knows tags and text only.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmnb.errors import ArgumentError
from lmnb.runtime.argument_checks import check_text

SUFFIX = "_reasoning_content"  # a generation `x` puts its reasoning into the variable `x_reasoning_content`


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning stands between `begin` and `end`, before the answer.

    `starts_inside`: the model writes reasoning from its first word on, because its template has written `begin`.
    """

    begin: str
    end: str
    starts_inside: bool = False

    def __post_init__(self) -> None:
        if not self.begin or not self.end:
            raise ArgumentError("a reasoning format needs the text that begins reasoning and the text that ends it")

    def split(self, text: str) -> tuple[str, str]:
        """(reasoning, answer) of a whole text."""
        splitter = ReasoningSplitter(self)
        first, last = splitter.feed(text), splitter.finish()
        return first[0] + last[0], first[1] + last[1]


class ReasoningSplitter:
    """Splits a text that arrives in pieces. The pieces that it returns add up to what `ReasoningFormat.split` gives.

    White space around reasoning, and before an answer behind reasoning, belongs to neither; a text without reasoning
    is the answer as it is.
    """

    def __init__(self, form: ReasoningFormat) -> None:
        self._form = form
        # A model that starts inside may write `begin` all the same.
        self._place = "opening" if form.starts_inside else "start"
        self._held = ""

    @property
    def past_reasoning(self) -> bool:
        """Whether no more reasoning can come."""
        return self._place in ("gap", "answer")

    def feed(self, text: str) -> tuple[str, str]:
        """(new reasoning, new answer)."""
        self._held += text
        reasoning = ""
        if self._place == "start":
            self._leave_start()
        if self._place == "opening":
            self._leave_opening()
        self._skip_space("leading", "reasoning")
        if self._place == "reasoning":
            reasoning = self._take_reasoning()
        self._skip_space("gap", "answer")
        answer = ""
        if self._place == "answer":
            answer, self._held = self._held, ""
        return reasoning, answer

    def finish(self) -> tuple[str, str]:
        """What was held back. A text that ends within its reasoning has no answer."""
        rest, self._held = self._held, ""
        if self._place == "start":
            return "", rest
        return (rest.rstrip() if self._place == "reasoning" else ""), ""

    def _leave_start(self) -> None:
        text = self._held.lstrip()
        if text.startswith(self._form.begin):
            self._place, self._held = "opening", text
        elif not self._form.begin.startswith(text):
            self._place = "answer"

    def _leave_opening(self) -> None:
        text = self._held.lstrip()
        if len(text) >= len(self._form.begin) or not self._form.begin.startswith(text):
            self._place, self._held = "leading", text.removeprefix(self._form.begin)

    def _skip_space(self, place: str, then: str) -> None:
        if self._place == place:
            self._held = self._held.lstrip()
            if self._held:
                self._place = then

    def _take_reasoning(self) -> str:
        reasoning, end, rest = self._held.partition(self._form.end)
        if end:
            self._place, self._held = "gap", rest
            return reasoning.rstrip()
        # The end of it may be the start of `end`, or white space before it.
        keep = max(
            (size for size in range(1, len(self._form.end)) if reasoning.endswith(self._form.end[:size])), default=0
        )
        shown = reasoning[: len(reasoning) - keep].rstrip()
        self._held = reasoning[len(shown) :]
        return shown


_THINK = ReasoningFormat("<think>", "</think>")
_THINKING = ReasoningFormat("<think>", "</think>", starts_inside=True)
_formats: dict[str, ReasoningFormat] = {
    "deepseek-r1": _THINKING,
    "deepseek-v3": _THINK,
    "glm45": _THINK,
    "kimi": ReasoningFormat("◁think▷", "◁/think▷"),
    "nemotron": _THINK,
    "qwen3": _THINK,
    "qwen3-thinking": _THINKING,
    "step3": _THINKING,
}


def register_reasoning_format(model_type: str, form: ReasoningFormat) -> None:
    """Make `separate_reasoning(expr, model_type)` know how a kind of model marks its reasoning."""
    check_text("model_type", model_type)
    if not isinstance(form, ReasoningFormat):
        raise ArgumentError(f"a reasoning format is a ReasoningFormat(begin, end), not {form!r}")
    _formats[model_type.lower()] = form


def get_reasoning_format(model_type: str) -> ReasoningFormat:
    """The format of a kind of model. ArgumentError if there is none of that name."""
    form = _formats.get(model_type.lower()) if isinstance(model_type, str) else None
    if form is None:
        raise ArgumentError(
            f"no reasoning format is known for {model_type!r}; there are: {', '.join(sorted(_formats))}; "
            "add your own with register_reasoning_format"
        )
    return form

"""Templates taken apart say, piece by piece, what they say when rendered whole."""

from __future__ import annotations

import itertools
from datetime import datetime
from typing import Any

import pytest
from jinja2 import Environment
from public_templates import (
    CHATML_WITHOUT_PROMPT,
    DEEPSEEK,
    GEMMA2,
    HARMONY,
    IMAGE_PARTS,
    LLAMA2,
    LLAMA3,
    MARKERS,
    MISTRAL3,
    PHI3,
    QWEN3,
    SMOLLM2,
    TRAINING,
    VARIABLES,
    VICUNA,
)

from lmnb.backends.jinja_template import JinjaTemplate
from lmnb.errors import TemplateError

SYSTEM = ("system", "Be brief.")
TURNS = (
    ("user", "Who?"),
    ("assistant", "Me <b>&amp;</b> 'you'."),
    ("user", "{{ 7 * 7 }} {% raw %}"),
    ("assistant", "49"),
)


def make(source: str) -> JinjaTemplate:
    return JinjaTemplate(source, VARIABLES, MARKERS)


def rendered(source: str, turns: Any, *, prompt: bool = False) -> str:
    """The whole template on the whole conversation, as a plain Jinja environment renders it."""

    def refuse(message: str) -> None:
        raise ValueError(message)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    messages = [{"role": role, "content": content} for role, content in turns]
    return environment.from_string(source).render(
        messages=messages,
        add_generation_prompt=prompt,
        raise_exception=refuse,
        strftime_now=lambda pattern: datetime.now().strftime(pattern),
        **VARIABLES,
    )


def assembled(template: JinjaTemplate, turns: Any) -> str:
    text = ""
    history: tuple[str, ...] = ()
    for role, content in turns:
        text += template.begin(history, role) + content + template.end(history, role)
        history += (role,)
    return text


SAME = {
    "smollm2": SMOLLM2,
    "chatml": CHATML_WITHOUT_PROMPT,
    "llama-3": LLAMA3,
    "deepseek": DEEPSEEK,
    "vicuna": VICUNA,
}


@pytest.mark.parametrize("source", SAME.values(), ids=SAME)
@pytest.mark.parametrize("turns", [TURNS, TURNS[:2], (SYSTEM, *TURNS), (SYSTEM, *TURNS, *TURNS)])
def test_conversation_reads_as_the_whole_template(source: str, turns: Any) -> None:
    assert assembled(make(source), turns) == rendered(source, turns)


WITH_SYSTEM = (SMOLLM2, LLAMA3, LLAMA2, PHI3, DEEPSEEK, QWEN3, VICUNA, HARMONY)


@pytest.mark.parametrize(("source", "system"), [(GEMMA2, False), *itertools.product(WITH_SYSTEM, (False, True))])
def test_open_assistant_turn_reads_as_the_generation_prompt(source: str, system: bool) -> None:
    turns = (SYSTEM, *TURNS[:1]) if system else TURNS[:1]
    template = make(source)
    text = assembled(template, turns) + template.begin([role for role, _ in turns], "assistant")
    assert text == rendered(source, turns, prompt=True)


def test_roles_that_are_named_otherwise() -> None:
    assert assembled(make(GEMMA2), TURNS) == rendered(GEMMA2, TURNS)


def test_system_message_inside_the_user_turn() -> None:
    template = make(LLAMA2)
    assert template.begin((), "system") == "<s>[INST] <<SYS>>\n"
    assert template.end((), "system") == "\n<</SYS>>\n\n"
    assert template.begin(("system",), "user") == ""
    # The blank before an answer is the model's first token's: written here, it would come twice.
    assert template.begin(("system", "user"), "assistant") == ""
    turns = [(role, " " + text if role == "assistant" else text) for role, text in (SYSTEM, *TURNS)]
    assert assembled(template, turns) == rendered(LLAMA2, (SYSTEM, *TURNS))


def test_system_message_that_moves_stays_where_it_was_first() -> None:
    text = assembled(make(MISTRAL3), (SYSTEM, *TURNS))
    first = rendered(MISTRAL3, (SYSTEM, TURNS[0]))
    later = rendered(MISTRAL3, TURNS)
    assert text.startswith(first)
    assert text[len(first) :] == later[len(rendered(MISTRAL3, TURNS[:1])) :]
    assert assembled(make(MISTRAL3), TURNS) == later


def test_end_of_text_after_the_last_turn_is_not_written_between_turns() -> None:
    text = assembled(make(PHI3), TURNS)
    assert text + "</s>" == rendered(PHI3, TURNS)


def test_assistant_prefix_is_what_the_model_was_prompted_with() -> None:
    template = make(QWEN3)
    assert template.begin(("user",), "assistant") == "<|im_start|>assistant\n"
    assert (
        assembled(template, TURNS) == rendered(QWEN3, [*TURNS, ("user", "")])[: -len("<|im_start|>user\n<|im_end|>\n")]
    )


def test_suffix_does_not_cut_a_marker() -> None:
    template = make(HARMONY)
    # `<|return|>` and `<|end|>` begin alike, and `<|end|>` has to wait until it is known to be right.
    assert template.end(("user",), "assistant") == ""
    assert template.begin(("user", "assistant"), "user") == "<|end|><|start|>user<|message|>"
    assert template.end((), "user") == "<|end|>"


def test_contents_as_parts() -> None:
    template = make(IMAGE_PARTS)
    assert template.begin((), "user") == "User: "
    assert template.end((), "user") == "<end_of_utterance>\n"
    assert template.begin(("user",), "assistant") == "Assistant:"


def test_marks_for_training_are_ignored() -> None:
    assert make(TRAINING).end(("user",), "assistant") == "<|end|>"


def test_own_system_message_is_text_before_the_first_role() -> None:
    begun = make(SMOLLM2).begin((), "user")
    assert begun.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert "SmolLM" not in make(SMOLLM2).begin((), "system")


@pytest.mark.parametrize(
    ("source", "stop"),
    [(SMOLLM2, "<|im_end|>"), (LLAMA3, "<|eot_id|>"), (LLAMA2, "</s>"), (GEMMA2, "<end_of_turn>"), (VICUNA, "</s>")],
)
def test_stop(source: str, stop: str) -> None:
    assert make(source).stop == (stop,)


def test_no_stop_where_nothing_closes_a_turn() -> None:
    assert make(HARMONY).stop == ()


def test_refusals_name_the_reason() -> None:
    with pytest.raises(TemplateError, match="System role not supported"):
        make(GEMMA2).begin((), "system")
    with pytest.raises(TemplateError, match="must alternate"):
        make(GEMMA2).begin(("user",), "user")
    with pytest.raises(TemplateError, match=r"drops the 'tool' message"):
        make(PHI3).begin(("user",), "tool")
    with pytest.raises(TemplateError, match="not valid Jinja"):
        make("{% for %}")


def test_template_cannot_reach_python() -> None:
    template = make("{{ messages.__class__.__mro__[1].__subclasses__() }}{{ messages[0].content }}")
    with pytest.raises(TemplateError, match="unsafe"):
        template.begin((), "user")
    with pytest.raises(TemplateError):
        make("{{ messages.append(1) }}{{ messages[0].content }}").begin((), "user")


def test_template_that_rewrites_earlier_turns_is_refused() -> None:
    source = "{% for m in messages %}{{ '[%d]' % messages|length }}{{ m.content }}{% endfor %}"
    with pytest.raises(TemplateError, match="rewrites earlier turns"):
        make(source).begin(("user", "assistant", "user"), "tool")


def test_json_filter_keeps_letters_and_signs() -> None:
    source = "{{ {'ä': '<'} | tojson }}{{ messages[0].content }}"
    assert make(source).begin((), "user") == '{"ä": "<"}'

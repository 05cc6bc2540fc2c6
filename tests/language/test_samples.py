"""What `check_constraint` says of samples is what becomes of them where they are generated, whatever they look like."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from small_tokenizers import small_tokenizer
from text_walks import GRAMMARS, random_text

from lmnb import check_constraint
from lmnb.errors import ArgumentError, GrammarError
from lmnb.language import check
from lmnb.language.shapes import ShapeArguments
from lmnb.runtime import constraint_size
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.request import Constraint

GPT2 = small_tokenizer("gpt2")
GPT2_GRAMMARS = Grammars(GPT2, GPT2.vocab_size)
COUNTING = "samples are tried without max_tokens="


@dataclass
class Wand:
    wood: Literal["oak", "elm"]
    length: int


class WandModel(BaseModel):
    wood: Literal["oak", "elm"]
    length: int


WANDS = [Wand, WandModel, WandModel.model_json_schema()]
TEXTS = [
    *('{"wood":"oak","length":11}', '{"wood":"elm","length":-10}', '{"wood":"oak"}', '{"length":1,"wood":"oak"}', ""),
    *('{"wood":"oak","length":11}<|im_end|>', '{"wood":"oak", "length":1}', '{"wood":"oak\ud83d', "\ud83d", "{"),
]


@pytest.mark.parametrize("engine", ["auto", "llguidance"])
def test_all_spellings_of_a_constraint_judge_samples_alike(engine: str) -> None:
    reports = [check_constraint(json_schema=spelled, samples=TEXTS, grammar_backend=engine) for spelled in WANDS]
    reports += [check_constraint(spelled, TEXTS, grammar_backend=engine) for spelled in WANDS]
    reports.append(check_constraint(dtype=Wand, samples=TEXTS, grammar_backend=engine))
    assert reports[0].accepted == [True, True, *[False] * 8]
    for report in reports:
        assert report.samples == reports[0].samples
        assert report.forced == '{"wood":"'


@pytest.mark.parametrize(
    "spelled",
    [
        {"regex": "oak|<elm>|é{2}"},
        {"ebnf": 'start: "oak" | "<elm>" | "éé"\n'},
        {"ebnf": 'root ::= "oak" | "<elm>" | "é" "é"\n'},
        {"dtype": Literal["oak", "<elm>", "éé"]},
    ],
    ids=str,
)
def test_texts_are_judged_alike_in_every_form(spelled: dict[str, Any]) -> None:
    texts = [
        "oak",
        "<elm>",
        "éé",
        "",
        "é",
        "oa",
        "oaks",
        "oak<|endoftext|>",
        "<|im_end|>",
        "\ud83d",
        "é\udc00",
        "e\u0301",
    ]
    report = check_constraint(**spelled, samples=texts)
    assert report.accepted == [True] * 3 + [False] * 9
    assert [sample.position for sample in report.samples[3:]] == [0, 1, 2, 3, 3, 1, 0, 1, 0]


def taken(constraint: Constraint, text: str) -> bool:
    """Whether a model of GPT-2's vocabulary may write it, in the tokens that its tokenizer makes of it, and end."""
    matcher = GPT2_GRAMMARS.compile(constraint)
    return matcher.follow(GPT2.encode(text)) and matcher.accept(min(GPT2.eos_ids))


@pytest.mark.parametrize(
    "spelled",
    [
        {"regex": r"(\w+ )*[a-z]+|\d{2}"},
        {"json_schema": Wand},
        {"json_schema": {"type": "array", "items": {"enum": ["é", 1, None]}, "minItems": 1}},
        {"json_schema": {"type": "string", "minLength": 1}, "json_style": "loose"},
        {"ebnf": 'root ::= "(" root ")" | [a-z]+ | "é"\n'},
        {"ebnf": 'start: e "."\ne: e "+" n | n\nn: /[0-9]+/\n%ignore " "\n'},
        {"ebnf": 'start: x "." x\nx[max_tokens=200]: /[a-z ]+/\n'},
        {"dtype": float},
    ],
    ids=str,
)  # fmt: skip
def test_what_a_sample_is_told_is_what_a_model_may_write(spelled: dict[str, Any]) -> None:
    rng = random.Random(7)
    shape = ShapeArguments(**spelled).shape()
    assert shape is not None
    matcher = GRAMMARS.compile(shape.constraint)
    texts = [text for _ in range(40) if (text := random_text(matcher.fork(), rng)) is not None][:20]
    for text in [*texts]:
        at = rng.randrange(len(text) + 1)
        texts += [text[:at], text[:at] + rng.choice(["<|endoftext|>", "a", " ", "1", '"', "é"]) + text[at:]]
    report = check_constraint(**spelled, samples=texts)
    assert report.accepted == [taken(shape.constraint, text) for text in texts]
    assert 5 < sum(report.accepted) < len(texts)


@pytest.mark.parametrize("header", ["x[max_tokens={}]", "!x [lazy, max_tokens = {}] ", 'x[suffix="]", max_tokens={}]'])
@pytest.mark.parametrize("count", ["1", "3", "+4"])
def test_tokens_are_not_counted_on_samples(header: str, count: str) -> None:
    """They are a model's; a byte is none."""
    end = "]" if "suffix" in header else "."
    source = f'start: x "!"\n{header.format(count)}: /[a-z ]+[.]?/\n'
    report = check_constraint(ebnf=source, samples=[f"long and longer{end}!", f"a{end}", f"LONG{end}!"])
    if "lazy" not in header:
        assert report.accepted == [True, False, False], report
    assert report.notes[-1].startswith(COUNTING)
    assert report.forced == ""
    assert not check_constraint(ebnf=source.replace("max_tokens", "capture")).notes


def test_no_tokens_are_none_whatever_the_tokens() -> None:
    report = check_constraint(ebnf='start: x "."\nx[max_tokens=0]: /[a-z]+/\n', samples=[".", "a."])
    assert report.accepted == [True, False]
    assert report.notes == ()


def test_limits_within_grammars_within_grammars_are_seen() -> None:
    report = check_constraint(
        ebnf='start: y "."\ny: %lark { start: z\nz[max_tokens=2]: /a+/\n}\n', samples=["aaaa.", "."]
    )
    assert report.accepted == [True, False]
    assert report.notes[-1].startswith(COUNTING)


def test_long_samples_are_followed_to_their_end() -> None:
    for spelled, text in (
        ({"regex": "[a-z ]*"}, "word " * 20_000),
        ({"json_schema": list[int]}, f"[{'1,' * 50_000}1]"),
        ({"json_schema": {"type": "array", "items": {"$ref": "#"}}}, "[" * 50_000 + "]" * 50_000),
        ({"ebnf": 'root ::= "(" root ")" | "é"'}, "(" * 50_000 + "é" + ")" * 50_000),
        ({"ebnf": 'start: start "a" | "b"\n'}, "b" + "a" * 100_000),
    ):
        report = check_constraint(**spelled, samples=[text, text + "?"])  # type: ignore[arg-type]
        assert report.accepted == [True, False]
        assert report.samples[1].position == len(text)


def test_a_limit_that_a_sample_meets_is_told_as_when_generating() -> None:
    wide = f'start: "xy" {" ".join(f"r{i}?" for i in range(1200))}\n' + "\n".join(f'r{i}: "a{i}"' for i in range(1200))
    rng = random.Random(1)
    many = "x" + "".join(rng.choices("ab", k=80_000))
    for kind, source, text in (("ebnf", wide, "xya0"), ("regex", "x(a|b)*a(a|b){17}x", many)):
        constraint = Constraint(kind, source)  # type: ignore[arg-type]
        report = check_constraint(**{kind: source}, samples=[text, "q"])  # type: ignore[arg-type]
        sample, other = report.samples
        assert sample.error == str(constraint_size.too_large(constraint))
        assert str(sample).startswith(
            f"failed    {text[:60]!r}: at position {sample.position}, the {constraint_size.KINDS[kind]} "
        )
        assert (other.accepted, other.position, other.error) == (False, 0, None)


def test_text_that_must_follow_a_sample_may_be_too_much() -> None:
    report = check_constraint(ebnf='start: "b" | "a" x\nx: "a" x\n', samples=["b", "aa", "ac"])
    assert [sample.error is None for sample in report.samples] == [True, False, True]
    assert "matches no text that ever ends" in str(report.samples[1])


def test_long_repetitions_are_advised_where_rules_end_with_themselves() -> None:
    text = "a" * 20_100 + "b"
    (sample,) = check_constraint(ebnf='start: "a" start | "b"\n', samples=[text]).samples
    assert str(sample.error).endswith("and long repetitions by * where a rule ends with itself")
    assert check_constraint(ebnf='start: "a"* "b"\n', samples=[text]).accepted == [True]


def test_choices_are_judged_as_the_texts_they_are() -> None:
    texts = ["a.", "b|c", "", "a", "ax", "a.b", "b"]
    report = check_constraint(choices=["a.", "b|c"], samples=texts)
    assert report.accepted == [True, True, *[False] * 5]
    with pytest.raises(ArgumentError, match="choices must be one or more non-empty texts"):
        check_constraint(choices=["a", ""])
    with pytest.raises(ArgumentError, match="choices= and regex= cannot both hold"):
        check_constraint("a", choices=["a"])


@pytest.mark.parametrize("texts", [["a", "b"], ("a",)])
def test_a_list_of_texts_is_told_to_be_choices(texts: Any) -> None:
    with pytest.raises(ArgumentError, match=r"not [\[(]'a'.*; one of several texts is choices=[\[(]'a'"):
        check_constraint(texts)


def test_a_librarys_panic_is_told_in_words() -> None:
    report = check_constraint(ebnf='start: p::0x0\np::_: "a" p::incr(_)\n')
    assert str(report.error).endswith(
        "cannot be enforced: llguidance, which enforces it, failed on it; say it in another way"
    )


def test_samples_of_one_call_share_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_SAMPLES_SECONDS", -1.0)
    report = check_constraint(regex="a+", samples=["aaa", "", "b"])
    assert [(sample.accepted, sample.position) for sample in report.samples] == [(False, 0)] * 3
    for sample in report.samples:
        assert sample.error == (
            "the 5 s that one call takes for its samples are over; try this one by itself, or a shorter one"
        )


def test_samples_have_as_much_time_as_generated_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_size, "_FOLLOWING_SECONDS", 0.0)
    monkeypatch.setattr(constraint_size, "_FOLLOWING_SECONDS_A_TOKEN", 0.0)
    (sample,) = check_constraint(regex="a+", samples=["aaa"]).samples
    assert not sample.accepted
    assert sample.error == str(constraint_size.too_slow(1.0, 1))
    assert isinstance(constraint_size.too_slow(1.0, 1), GrammarError)

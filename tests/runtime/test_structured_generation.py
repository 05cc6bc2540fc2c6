"""Constrained text from a model with random weights over SmolLM2's vocabulary, and the inputs users had trouble with.

Whatever the weights say, what ends by itself is a full match. Jump-forward is on, and compared with plain masks.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import schema_samples
from model_support import random_model

from lmnb.errors import GrammarError
from lmnb.runtime.config import EngineConfig
from lmnb.runtime.embedded import embedded_gguf
from lmnb.runtime.engine import Engine
from lmnb.runtime.gguf_file import GGUFFile
from lmnb.runtime.gguf_tokenizer import tokenizer_files
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.loading import LoadedModel, load_model
from lmnb.runtime.request import Completion, Constraint, Request, SamplingParams
from lmnb.runtime.retokenize import Retokenizer

CHECKER = jsonschema.FormatChecker(formats=["date", "ipv4", "ipv6", "uuid"])


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A tiny Llama without training, and SmolLM2's tokenizer."""
    folder: Path = tmp_path_factory.mktemp("random")
    sizes = {"vocab_size": 49152, "hidden_size": 32, "num_hidden_layers": 1, "max_position_embeddings": 2048}
    random_model("llama", **sizes).save_pretrained(folder)
    definition, settings = tokenizer_files(GGUFFile(embedded_gguf()))
    (folder / "tokenizer.json").write_text(json.dumps(definition), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return load_model(folder, dtype="float32")


@pytest.fixture(scope="module")
def engines(loaded: LoadedModel) -> Iterator[dict[bool, Engine]]:
    """One engine that jumps, and one that leaves every token to the model."""
    grammars = Grammars(loaded.tokenizer, loaded.model.vocab_size, cache_size=512)
    made = {
        jumps: Engine(loaded.model, loaded.tokenizer, EngineConfig(plain_masks=not jumps, pool_tokens=8192), grammars)
        for jumps in (True, False)
    }
    yield made
    for engine in made.values():
        engine.check_integrity()
        engine.close()


def ask(engine: Engine, loaded: LoadedModel, constraints: list[Constraint], **sampling: Any) -> list[Completion]:
    handles = []
    for i, constraint in enumerate(constraints):
        params = SamplingParams(
            **{"max_new_tokens": 120, "temperature": 1.0, "seed": i, **sampling, "constraint": constraint}
        )
        ids = tuple(loaded.tokenizer.encode(f"Question {i}:"))
        handles.append(engine.submit(Request(input_ids=ids, sampling=params)))
    return [handle.result(timeout=240) for handle in handles]


@pytest.mark.timeout(240)
def test_generated_schemas_always_validate(loaded: LoadedModel, engines: dict[bool, Engine]) -> None:
    rng = random.Random(7)
    schemas = [schema_samples.document(rng) for _ in range(200)]
    constraints = [Constraint("json_schema", json.dumps(schema)) for schema in schemas]
    completions = ask(engines[True], loaded, constraints, max_new_tokens=160)
    stopped = 0
    used = set()
    for schema, completion in zip(schemas, completions, strict=True):
        used.add(completion.grammar_engine)
        if completion.finish_reason == "stop":
            stopped += 1
            jsonschema.validate(json.loads(completion.text), schema, format_checker=CHECKER)
        else:
            assert completion.finish_reason == "length"
    assert stopped > 190
    assert used == {"xgrammar", "llguidance"}


@pytest.mark.timeout(240)
def test_generated_regexes_always_match(loaded: LoadedModel, engines: dict[bool, Engine]) -> None:
    rng = random.Random(8)
    constraints = [Constraint("regex", schema_samples.regex(rng, 3)) for _ in range(200)]
    completions = ask(engines[True], loaded, constraints)
    for constraint, completion in zip(constraints, completions, strict=True):
        assert completion.finish_reason == "stop"
        assert re.fullmatch(constraint.source, completion.text), constraint


@pytest.mark.timeout(240)
def test_greedy_text_is_the_same_with_jumps(loaded: LoadedModel, engines: dict[bool, Engine]) -> None:
    """Exactly: where plain masks led to the tokenizer's own tokens, jumping gives the same tokens. And in all cases
    it gives what a step for each forced token gives. A model without training seldom writes as the tokenizer would,
    so some constraints leave it little choice.
    """
    rng = random.Random(9)
    tight = [tight_schema(rng) for _ in range(50)]
    constraints = [
        *(Constraint("json_schema", json.dumps(schema)) for schema in tight),
        *(Constraint("json_schema", json.dumps(schema_samples.document(rng))) for _ in range(50)),
        *(Constraint("regex", schema_samples.regex(rng, 3)) for _ in range(80)),
    ]
    plain = ask(engines[False], loaded, constraints, temperature=0.0)
    jumped = ask(engines[True], loaded, constraints, temperature=0.0)
    stepped = ask(engines[True], loaded, constraints, temperature=0.0, jump_forward=False)
    retokenizer = Retokenizer(loaded.tokenizer)
    num_canonical = 0
    for constraint, off, on, step in zip(constraints, plain, jumped, stepped, strict=True):
        assert (on.token_ids, on.text, on.finish_reason) == (step.token_ids, step.text, step.finish_reason)
        ids = [i for i in off.token_ids if i != off.matched]
        if retokenizer.encode(retokenizer.bytes_of(ids).decode(errors="ignore")) == ids:
            num_canonical += 1
            assert on.token_ids == off.token_ids, constraint
            assert (on.text, on.finish_reason) == (off.text, off.finish_reason)
    assert num_canonical > 40
    assert sum(on.num_forced_tokens for on in jumped) > 500


def tight_schema(rng: random.Random) -> dict[str, Any]:
    """An object in which little is left to choose."""
    first, second = rng.sample(schema_samples.NAMES, 2)
    words = rng.sample([word for word in schema_samples.WORDS if word], 2)
    properties = {first: {"type": "boolean"}, second: {"enum": words}}
    return {"type": "object", "properties": properties, "required": [first, second]}


REPORTED = {
    "digits up to a limit": ("[0-9]+", {"max_new_tokens": 5}, r"[0-9]{1,5}"),
    "bounded digits can stop": ("[0-9]{1,20}", {}, "[0-9]{1,20}"),
    "a word holds no line end": (r"\w+", {"max_new_tokens": 20}, r"\w+"),
    "lines up to a limit": (r"(.*\n){1,6}", {"max_new_tokens": 20}, None),
    "anything but digits": ("[^0-9]+", {"max_new_tokens": 20}, "[^0-9]+"),
    "emoji": ("[😀-🙏]+", {"max_new_tokens": 12}, "[😀-🙏]*"),
}


@pytest.mark.parametrize("name", REPORTED)
def test_reported_regexes(loaded: LoadedModel, engines: dict[bool, Engine], name: str) -> None:
    source, sampling, expected = REPORTED[name]
    for jumps in (True, False):
        for completion in ask(engines[jumps], loaded, [Constraint("regex", source)] * 6, **sampling):
            assert len(completion.token_ids) <= sampling.get("max_new_tokens", 120)
            text = completion.text.rstrip("\ufffd") if completion.finish_reason == "length" else completion.text
            if expected is not None:
                assert re.fullmatch(expected, text)
            if completion.finish_reason == "stop":
                assert re.fullmatch(source, completion.text)
            else:
                assert len(completion.token_ids) == sampling["max_new_tokens"]


def test_bounded_digits_may_stop_after_other_digits(loaded: LoadedModel, engines: dict[bool, Engine]) -> None:
    """The prompt's own `(42` is not a part of the match, and the end is offered after every digit."""
    matcher = Grammars(loaded.tokenizer, loaded.model.vocab_size).compile(Constraint("regex", "[0-9]{1,20}"))
    for token_id in loaded.tokenizer.encode("42"):
        assert matcher.accept(token_id)
        assert all(matcher.fork().accept(eos) for eos in loaded.tokenizer.eos_ids)


def test_reported_schemas(loaded: LoadedModel, engines: dict[bool, Engine]) -> None:
    cities = {"type": "array", "items": {"enum": ["北京", "上海", "深圳"]}, "minItems": 1, "maxItems": 1}
    above = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    few = {"type": "integer", "minimum": 1, "maximum": 5}
    ordered = {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["b"]}
    schemas = [cities, above, few, ordered] * 5
    constraints = [Constraint("json_schema", json.dumps(schema)) for schema in schemas]
    for jumps in (True, False):
        for schema, completion in zip(schemas, ask(engines[jumps], loaded, constraints), strict=True):
            if completion.finish_reason == "stop":
                jsonschema.validate(json.loads(completion.text), schema)
            assert "\ufffd" not in completion.text
    with pytest.raises(GrammarError, match="enum"):
        ask(engines[True], loaded, [Constraint("json_schema", '{"enum":[]}')])


PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


SHOTS = (
    '{"name":"Oslo","population":709037}\n{"name":"Rome","population":2748109}\n{"name":"Lyon","population":522250}\n'
)
BONN = '{"name":"Bonn","population":330579}\n'
TOWN = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "population": {"type": "integer"}},
    "required": ["name", "population"],
}


@pytest.mark.model
@pytest.mark.timeout(240)
def test_a_trained_model_says_the_same_with_jumps(embedded_float32: LoadedModel) -> None:
    """Greedy, float32: names, populations and Chinese cities, with forced text at once and token by token."""
    loaded = embedded_float32
    town = Constraint("json_schema", json.dumps(TOWN))
    cities = {"type": "array", "items": {"enum": ["北京", "上海", "深圳"]}, "minItems": 2, "maxItems": 2}
    choice = Constraint("regex", r"The capital of (France is Paris|Italy is Rome|Japan is Tokyo), as everybody knows\.")
    asked = [
        (PROMPT.format("Tell me about the town of Paris as JSON."), town),
        (PROMPT.format("Which Chinese cities do you know?"), Constraint("json_schema", json.dumps(cities))),
        (PROMPT.format("What is the capital of Italy?"), choice),
        *((SHOTS + begin, town) for begin in ("", BONN, BONN.replace("Bonn", "Nice"))),
    ]
    grammars = Grammars(loaded.tokenizer, loaded.model.vocab_size)
    results: list[list[Completion]] = []
    modes: list[dict[str, Any]] = [{}, {"jump_forward": False}, {"plain_masks": True}]
    for mode in modes:
        engine = Engine(loaded.model, loaded.tokenizer, EngineConfig(pool_tokens=4096, **mode), grammars)
        handles = [
            engine.submit(
                Request(
                    input_ids=tuple(loaded.tokenizer.encode(text, trusted=True)),
                    sampling=SamplingParams(max_new_tokens=64, temperature=0.0, constraint=constraint),
                )
            )
            for text, constraint in asked
        ]
        results.append([handle.result(timeout=200) for handle in handles])
        engine.check_integrity()
        engine.close()
    retokenizer = Retokenizer(loaded.tokenizer)
    num_canonical = 0
    for jumped, stepped, plain in zip(*results, strict=True):
        assert (jumped.text, jumped.token_ids) == (stepped.text, stepped.token_ids)
        assert jumped.finish_reason == "stop"
        assert jumped.num_steps < stepped.num_steps
        if retokenizer.encode(plain.text) == [i for i in plain.token_ids if i != plain.matched]:
            num_canonical += 1
            assert jumped.text == plain.text
    assert num_canonical >= 3  # what was shown as compact JSON, the model goes on with as the tokenizer writes it
    assert json.loads(results[0][0].text)["name"] == "Paris"
    assert set(json.loads(results[0][1].text)) <= {"北京", "上海", "深圳"}

"""Constraints that go deep: whatever is done with them, the process goes on."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from typing import Any

import pytest

from lmnb.errors import GrammarError
from lmnb.language.check import check_constraint
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.request import Constraint
from lmnb.runtime.testing import ByteTokenizer

TOKENIZER = ByteTokenizer()
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def rules(count: int, *, terminals: bool) -> str:
    """A grammar whose every rule is the next one."""
    names = ["x" + "".join(word) for word in itertools.islice(itertools.product(LETTERS, repeat=3), count + 1)]
    names = [name.upper() for name in names] if terminals else names
    chain = "".join(f"{name}:{after}\n" for name, after in itertools.pairwise(names))
    return f'start:{names[0]}\n{chain}{names[-1]}:"z"\n'


PROGRAM = """
import json, sys
from lmnb.language.check import check_constraint
from lmnb.runtime import reading_pool
reading_pool._USUAL_SECONDS = 100.0  # on a busy machine, too
report = check_constraint(ebnf=sys.stdin.read(), samples=["z", "a"])
print(json.dumps([report.error, report.accepted]))
"""


@pytest.mark.parametrize("terminals", [False, True])
def test_long_rows_of_rules_do_not_end_the_process(terminals: bool) -> None:
    """On a usual stack the library's calls, one a rule, end the process without a word: so it is another one here."""
    source = rules(14_000, terminals=terminals)
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [None, [True, False]]


@pytest.mark.timeout(100)  # each order took minutes when all rules were looked through for each that was settled
@pytest.mark.parametrize("sign", [": ", " ::= "])
@pytest.mark.parametrize("order", ["as they refer", "the other way round", "none"])
def test_rules_are_read_in_any_order(order: str, sign: str) -> None:
    rows = [f'r{i}{sign}"{i % 10}" r{i + 1} | "b" r{i + 1}' for i in range(3000)] + [f'r3000{sign}"c"']
    if order == "the other way round":
        rows.reverse()
    if order == "none":
        random.Random(0).shuffle(rows)
    first = "start" if sign == ": " else "root"
    report = check_constraint(ebnf="\n".join([f"{first}{sign}r0", *rows]) + "\n", samples=["c"])
    assert (report.error, report.accepted) == (None, [False])


def chain(count: int, node: Any) -> dict[str, Any]:
    definitions = {f"d{i}": node(f"#/$defs/d{i + 1}") for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{count}": {"const": 1}}}


@pytest.mark.parametrize(
    ("node", "begins"),
    [
        (lambda ref: {"$ref": ref}, "1"),
        (lambda ref: {"type": "object", "properties": {"a": {"$ref": ref}}}, '{"a":{'),
        (lambda ref: {"type": "array", "items": {"$ref": ref}, "minItems": 1}, "[["),
    ],
    ids=["alone", "property", "item"],
)
def test_long_rows_of_definitions_are_enforced(node: Any, begins: str) -> None:
    grammars = Grammars(TOKENIZER, TOKENIZER.vocab_size)
    matcher = grammars.compile(Constraint("json_schema", json.dumps(chain(1500, node))))
    assert all(matcher.accept(byte) for byte in begins.encode())
    assert matcher.engine == "llguidance"


@pytest.mark.parametrize(
    "schema",
    ['{"items":' * 150 + "{}" + "}" * 150, '{"not":' * 301 + "{}" + "}" * 301, '{"allOf":[' * 400 + "{}" + "]}" * 400],
)
def test_deep_schemas_are_one_line(schema: str) -> None:
    grammars = Grammars(TOKENIZER, TOKENIZER.vocab_size)
    with pytest.raises(GrammarError) as caught:
        grammars.compile(Constraint("json_schema", schema))
    assert len(str(caught.value)) < 400


def doubled(keyword: str) -> dict[str, Any]:
    """A definition that holds the next one twice, and so on: exponentially many when written out."""
    definitions = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2, "maxLength": 50 - i} for i in range(40)}
    return {"$defs": {**definitions, "d40": {"type": "string"}}}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
@pytest.mark.parametrize("said", [{"not": {}}, {"unevaluatedProperties": False}, {"oneOf": [{"type": "null"}, {}]}])
def test_what_doubles_is_read_within_bounds(keyword: str, said: dict[str, Any]) -> None:
    """Enforced or refused, but not written out."""
    reference = {"$ref": "#/$defs/d0"}
    given = {"not": {"not": reference}, "oneOf": [{"type": "null"}, reference]}
    (name,) = said
    schema = {**doubled(keyword), **({name: given[name]} if name in given else {**said, **reference})}
    grammars = Grammars(TOKENIZER, TOKENIZER.vocab_size)
    try:
        matcher = grammars.compile(Constraint("json_schema", json.dumps(schema)))
    except GrammarError as error:
        assert len(str(error)) < 500  # noqa: PT017 - refused or not
    else:
        assert matcher.accept(ord('"'))

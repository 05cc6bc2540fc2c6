"""Runs the official JSON Schema test suite (draft 2020-12) against our grammars and prints a table.

    python scripts/json_schema_suite.py PATH [--verbose]

PATH is the suite's own folder, or a file or folder of its form: lists of {description, schema, tests: [{description,
data, valid}]}.
For each schema: it is refused, with a reason; or every instance that the grammar accepts must be valid, and every
valid instance must be accepted if it is written in our style. Our style: compact, properties in the schema's order,
no properties but those that are listed where only `properties` speaks of them, whole numbers without a fraction.
no leap seconds, no year 0000, no host names that encode other alphabets. Formats are enforced. An instance that breaks
these rules alone is counted as "style". Anything else is wrong, and makes the exit status 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmnb.errors import GrammarError
from lmnb.runtime.grammar import Grammars
from lmnb.runtime.grammar_protocol import GrammarMatcher
from lmnb.runtime.request import Constraint
from lmnb.runtime.testing import ByteTokenizer

_DRAFT = Path("tests", "draft2020-12")
_MOST_FORMS = 200
_UNWRITTEN = re.compile(r"(?i):60(\.\d+)?(z|[+-]\d\d:)|xn--")


def main() -> int:
    """Print the table; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the suite's folder, a folder of its tests, or one file")
    parser.add_argument("--verbose", action="store_true", help="also print why each schema was refused")
    options = parser.parse_args()
    path = tests_folder(options.path)
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    cases = {file: read_cases(file) for file in files}
    wrong = next((file for file in files if cases[file] is None), None if files else path)
    if wrong is not None:
        parser.error(
            f"{wrong} holds no tests of the suite; give the suite's folder, which has {_DRAFT.as_posix()} in it"
        )
    suite = Suite(verbose=options.verbose)
    total: Counter[str] = Counter()
    print(f"{'file':44}{'schemas':>9}{'refused':>9}{'accepted':>10}{'rejected':>10}{'style':>7}{'wrong':>7}")
    for file in files:
        counts = suite.run_cases(file, cases[file] or [])
        total += counts
        _print_row(str(file.relative_to(path) if file != path else file.name), counts)
    _print_row("total", total)
    for line in suite.wrong:
        print("WRONG", line)
    return 1 if suite.wrong else 0


def tests_folder(path: Path) -> Path:
    """Of the suite's own folder, or its `tests`, the draft's; any other path as it is."""
    return next((below for below in (path / _DRAFT, path / _DRAFT.name) if below.is_dir()), path)


def read_cases(file: Path) -> list[dict[str, Any]] | None:
    """A file's cases; None if it is not of the suite's form."""
    try:
        cases = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    is_ours = isinstance(cases, list) and all(
        isinstance(case, dict) and {"description", "schema", "tests"} <= case.keys() for case in cases
    )
    return cases if is_ours else None


def _print_row(name: str, counts: Counter[str]) -> None:
    columns = [("schemas", 9), ("refused", 9), ("accepted", 10), ("rejected", 10), ("style", 7), ("wrong", 7)]
    print(f"{name[:43]:44}" + "".join(f"{counts[column]:>{width}}" for column, width in columns))


class Suite:
    """Runs cases over one vocabulary of bytes."""

    def __init__(self, *, verbose: bool) -> None:
        self._tokenizer = ByteTokenizer()
        self._grammars = Grammars(self._tokenizer, self._tokenizer.vocab_size, cache_size=1)
        self._verbose = verbose
        self.wrong: list[str] = []

    def run_cases(self, path: Path, cases: list[dict[str, Any]]) -> Counter[str]:
        """Counts of one file's cases."""
        counts: Counter[str] = Counter()
        for case in cases:
            counts["schemas"] += 1
            try:
                matcher = self._compile(case["schema"])
            except GrammarError as error:
                counts["refused"] += 1
                if self._verbose:
                    print(f"    refused: {case['description']}: {error}")
                continue
            for test in case["tests"]:
                kind = self._judge(matcher, case["schema"], test, asserts_formats=path.parent.name == "format")
                counts[kind] += 1
                if kind == "wrong":
                    self.wrong.append(f"{path.name}: {case['description']}: {test['description']}: {test['data']!r}")
        return counts

    def _compile(self, schema: Any) -> GrammarMatcher:
        return self._grammars.compile(Constraint("json_schema", json.dumps(schema)))

    def _judge(self, matcher: GrammarMatcher, schema: Any, test: dict[str, Any], *, asserts_formats: bool) -> str:
        accepted = self._accepts(matcher, test["data"])
        if accepted:
            return "accepted" if test["valid"] else "wrong"
        if not test["valid"]:
            return "rejected"
        if asserts_formats and isinstance(test["data"], str) and _UNWRITTEN.search(test["data"]):
            return "style"
        others = itertools.islice(_forms(test["data"]), _MOST_FORMS)
        if any(self._accepts(matcher, form) for form in others):
            return "style"
        try:
            opened = self._compile(_opened(schema, asserts_formats=asserts_formats))
        except GrammarError:
            return "wrong"
        others = itertools.islice(_forms(test["data"]), _MOST_FORMS)
        return "style" if any(self._accepts(opened, form) for form in others) else "wrong"

    def _accepts(self, matcher: GrammarMatcher, value: Any) -> bool:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        copy = matcher.fork()
        ids = self._tokenizer.encode(text)
        return all(copy.accept(i) for i in ids) and copy.accept(next(iter(self._tokenizer.eos_ids)))


def _forms(value: Any) -> Iterator[Any]:
    """The same value with its properties in every order, and whole numbers as integers."""
    if isinstance(value, dict):
        for order in itertools.permutations(value):
            for parts in itertools.product(*(list(itertools.islice(_forms(value[key]), 24)) for key in order)):
                yield dict(zip(order, parts, strict=True))
    elif isinstance(value, list):
        for items in itertools.product(*(list(itertools.islice(_forms(item), 24)) for item in value)):
            yield list(items)
    else:
        yield value
        if isinstance(value, float) and value.is_integer():
            yield int(value)


def _opened(schema: Any, *, asserts_formats: bool) -> Any:
    """The schema with objects left open in words where they are open by default, and without formats where the
    suite takes those for annotations."""
    if isinstance(schema, list):
        return [_opened(item, asserts_formats=asserts_formats) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {
        key: value if key in ("const", "enum") else _opened(value, asserts_formats=asserts_formats)
        for key, value in schema.items()
        if asserts_formats or key != "format"
    }
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        result["additionalProperties"] = True
    return result


if __name__ == "__main__":
    sys.exit(main())

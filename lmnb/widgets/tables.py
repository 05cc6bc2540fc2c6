"""Finds tables in text, as programs and models write them: Markdown's pipes, printed data frames, CSV and TSV.

Careful: a table is drawn as one only where every line of it fits; what is drawn is the text of its cells and nothing
else. `src/tables.ts` finds the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_ROWS = 500
MOST_COLUMNS = 40

_RULE = re.compile(r":?-{3,}:?")  # below a column's name
_NUMBER = re.compile(r"^[-+−]?[\d.,\s]*\d(?:[eE][-+]?\d+)?\s*%?$|^(?:nan|NaN|None|<NA>)?$")
_LONGEST_NUMBER = 40  # characters
_FRAME_ROW = re.compile(r"^\d+\s+\S")


@dataclass(frozen=True)
class Table:
    """Lines [start, stop) of the text, as cells. `head` are the columns' names."""

    start: int
    stop: int
    head: list[str]
    rows: list[list[str]]

    def numeric(self, column: int) -> bool:
        """Whether the column holds numbers: they are aligned to the right."""
        values = [row[column] for row in self.rows]
        return any(values) and all(_is_number(value) for value in values)


def find_tables(text: str) -> list[Table]:
    """The tables in the text, in order."""
    if "\n" not in text.strip("\n"):
        return []
    lines = text.split("\n")
    found: list[Table] = []
    at = 0
    while at < len(lines) - 1:
        table = _piped(lines, at) or _separated(lines, at) or _printed(lines, at)
        if table is not None and table.rows:
            found.append(table)
        at = at + 1 if table is None else table.stop
    return found


def _piped(lines: list[str], at: int) -> Table | None:
    """Markdown: a head, a rule, rows."""
    if "|" not in lines[at] or "|" not in lines[at + 1]:
        return None
    head, rule = _cells(lines[at]), _cells(lines[at + 1])
    if len(head) != len(rule) or not all(map(_RULE.fullmatch, rule)):
        return None
    stop = at + 2
    while stop < len(lines) and "|" in lines[stop]:
        stop += 1
    rows = [(_cells(line) + [""] * len(head))[: len(head)] for line in lines[at + 2 : stop]]
    return _table(at, stop, head, rows)


def _separated(lines: list[str], at: int) -> Table | None:
    """Three lines or more of as many values each, between tabs or commas; the first names the columns."""
    for sign in ("\t", ","):
        size = lines[at].count(sign) + 1
        if size < (2 if sign == "\t" else 3) or (sign == "," and re.search(r",\s", lines[at])):
            continue
        head = [cell.strip() for cell in lines[at].split(sign)]
        if any(not cell or _is_number(cell) for cell in head):
            continue
        stop = at
        while stop < len(lines) and lines[stop].count(sign) + 1 == size and '"' not in lines[stop]:
            stop += 1
        if stop - at >= 3:
            return _table(
                at, stop, head, [[cell.strip() for cell in line.split(sign)] for line in lines[at + 1 : stop]]
            )
    return None


def _printed(lines: list[str], at: int) -> Table | None:
    """A data frame as it prints itself: names over columns, each row begins with its number."""
    if not lines[at].startswith(" ") or not lines[at].strip() or not _FRAME_ROW.match(lines[at + 1]):
        return None
    stop = at + 1
    while stop < len(lines) and _FRAME_ROW.match(lines[stop]) and len(lines[stop]) <= len(lines[at]) + 1:
        stop += 1
    head = re.split(r"\s{2,}", lines[at].strip())
    if len(head) == 1:
        head = lines[at].split()
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines[at + 1 : stop]]
    if stop - at < 3 or any(len(row) != len(head) + 1 for row in rows):
        return None
    return _table(at, stop, ["", *head], rows)


def _cells(line: str) -> list[str]:
    inside = line.strip().removeprefix("|")
    inside = re.sub(r"(?<!\\)\|$", "", inside)
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", inside)]


def _is_number(cell: str) -> bool:
    return len(cell) <= _LONGEST_NUMBER and _NUMBER.match(cell) is not None


def _table(start: int, stop: int, head: list[str], rows: list[list[str]]) -> Table:
    """Without rows if there are too many to be drawn: it stays text."""
    fits = len(rows) <= MOST_ROWS and len(head) <= MOST_COLUMNS
    return Table(start, stop, head, rows if fits else [])

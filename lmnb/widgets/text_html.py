"""A transcript's text as HTML: line breaks that hold without a style sheet, tables, folds, and what is left out.

No script: a fold is a `details` element.
"""

from __future__ import annotations

from collections.abc import Callable

from lmnb.widgets.escape import cut, isolated
from lmnb.widgets.tables import Table, find_tables

FOLD_OVER = 2400  # characters; longer text shows its beginning and end only, as in the live view (`run_text.ts`)
FOLD_HEAD = 1200
FOLD_TAIL = 400
NEAR = 200  # characters to look for a line's or a word's end, before the one and behind the other


def lines(text: str) -> str:
    """The text with its line breaks as elements: some sites keep no white space and no style."""
    return isolated(text).replace("\n", "<br>")


def with_tables(text: str) -> str:
    """The text, with its tables as tables."""
    found = find_tables(text)
    if not found:
        return lines(text)
    rows, pieces, at = text.split("\n"), "", 0
    for table in found:
        pieces += lines("\n".join(rows[at : table.start])) + _table(table)
        at = table.stop
    return pieces + lines("\n".join(rows[at:]))


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters of the text; a note in the place of the rest."""
    head, missing, tail = cut(text, limit)
    if not missing:
        return with_tables(head)
    note = f"… {missing:,} characters not shown; s.text() has them …"
    return f'{lines(head)}<i class="lmnb-cut"> {note} </i>{lines(tail)}'


def folded(text: str, limit: int, num_tokens: Callable[[int, int], int] = lambda start, stop: 0) -> str:
    """The same, and the middle of a long text opens on a click. `num_tokens` counts what begins between two places."""
    place = fold(text) if limit >= FOLD_OVER else None
    if place is None:
        return shortened(text, limit)
    start, stop = place
    hidden = shortened(text[start:stop], limit - FOLD_HEAD - FOLD_TAIL)
    return with_tables(text[:start]) + opening(hidden, stop - start, num_tokens(*place)) + with_tables(text[stop:])


def opening(hidden: str, num_characters: int, num_tokens: int) -> str:
    """HTML that opens on a click, which says how much there is; `num_tokens` is 0 if nobody knows."""
    words = f"{num_characters:,} more characters"
    if num_tokens:
        tokens = f"{num_tokens:,} more token{'' if num_tokens == 1 else 's'}"
        words = f"{tokens} · {num_characters:,} character{'' if num_characters == 1 else 's'}"
    return f'<details class="lmnb-long"><summary>… {words} …</summary>{hidden}</details>'


def fold(text: str) -> tuple[int, int] | None:
    """From where to where a fold hides the text: between lines or else words, and no part of a table.

    None if the text is short, or little would be hidden.
    """
    if len(text) <= FOLD_OVER:
        return None
    start, stop = _end_near(text, FOLD_HEAD), _begin_near(text, len(text) - FOLD_TAIL)
    for first, end in _tables(text):
        start = end if first < start < end else start
        stop = first if first < stop < end else stop
    return (start, stop) if stop - start > FOLD_OVER - FOLD_HEAD - FOLD_TAIL else None


def _end_near(text: str, at: int) -> int:
    for space in ("\n", " "):
        if (found := text.rfind(space, at - NEAR, at)) >= 0:
            return found + 1
    return at


def _begin_near(text: str, at: int) -> int:
    for space in ("\n", " "):
        if (found := text.find(space, at, at + NEAR)) >= 0:
            return found + 1
    return at


def _tables(text: str) -> list[tuple[int, int]]:
    """From which to which character each table reaches."""
    starts = [0]
    for row in text.split("\n"):
        starts.append(starts[-1] + len(row) + 1)
    return [(starts[table.start], min(len(text), starts[table.stop])) for table in find_tables(text)]


def _table(table: Table) -> str:
    numeric = [' class="lmnb-number"' if table.numeric(column) else "" for column in range(len(table.head))]
    head = "".join(
        f'<th scope="col"{kind}>{isolated(cell)}</th>' if cell else "<td></td>"
        for cell, kind in zip(table.head, numeric, strict=True)
    )
    rows = "".join(
        "<tr>" + "".join(f"<td{kind}>{isolated(cell)}</td>" for cell, kind in zip(row, numeric, strict=True)) + "</tr>"
        for row in table.rows
    )
    return f'<table class="lmnb-table"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'

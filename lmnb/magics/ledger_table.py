"""The ledger as a table of plain text, with units. Knows nothing of notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lmnb.language.ledger import Account, Ledger, Price, total_cost

_LONGEST = 28  # characters of a program's or model's name
_MARKS = {"running": " …", "failed": " ✕", "cancelled": " ■", "done": ""}


def ledger_text(ledger: Ledger, prices: Mapping[str, Price]) -> str:
    """One line for each cell, program and model; then the sums, and what reuse saved."""
    entries = ledger.entries()
    if not entries:
        return "Nothing has run since lmnb was loaded."
    priced = total_cost(entries, prices) is not None
    header = ["cell", "program", "model", "runs", "reused", "computed", "generated", "seconds"]
    rows = [header + (["money"] if priced else [])]
    rows += [_row(entry, prices, priced) for entry in entries]
    if len(entries) > 1:
        rows.append(_sums(entries, prices, priced))
    lines = _aligned(rows)
    lines += [line for entry in ledger.totals().values() if (line := _saved(entry, prices))]
    return "\n".join(lines)


def _row(entry: Account, prices: Mapping[str, Price], priced: bool) -> list[str]:
    price = prices.get(entry.model)
    money = [f"{entry.cost(price):.4f}" if price is not None else "-"] if priced else []
    name = _cut(entry.program) + _MARKS[entry.status]
    return [entry.cell or "-", name, _cut(entry.model), *_numbers(entry.runs, entry), *money]


def _sums(entries: Sequence[Account], prices: Mapping[str, Price], priced: bool) -> list[str]:
    total = Account(None, "", "", runs=0)
    for entry in entries:
        total.add(entry)
    money = [f"{total_cost(entries, prices) or 0:.4f}"] if priced else []
    return ["all", "", "", *_numbers(total.runs, total), *money]


def _numbers(runs: int, account: Account) -> list[str]:
    counts = [f"{count:,}" for count in (runs, account.reused, account.computed, account.generated)]
    return [*counts, f"{account.seconds:.2f}"]


def _saved(entry: Account, prices: Mapping[str, Price]) -> str:
    """What reuse and jumping ahead saved on one model."""
    prompt = entry.reused + entry.computed
    parts = []
    if entry.reused:
        parts.append(f"{entry.reused:,} of {prompt:,} prompt tokens reused ({entry.reused / prompt:.0%})")
    seconds = entry.saved_seconds()
    if seconds is not None and seconds >= 0.01:
        parts.append(f"about {seconds:.2f} s of computing saved")
    price = prices.get(entry.model)
    if entry.reused and price is not None and len(price) > 2:
        parts.append(f"{entry.reused * (price[0] - price[2]) / 1e6:.4f} of money saved")
    if entry.forced:
        parts.append(
            f"{entry.forced:,} of {entry.generated:,} generated tokens forced by a grammar, without a step each"
        )
    return f"{_cut(entry.model)}: {', '.join(parts)}" if parts else ""


def _aligned(rows: list[list[str]]) -> list[str]:
    """Columns of equal width: names to the left, numbers to the right; a rule below the header."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    aligns = "<<<" + ">" * (len(widths) - 3)
    lines = ["  ".join(f"{c:{a}{w}}" for c, a, w in zip(row, aligns, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return [line.rstrip() for line in lines]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else "…" + text[-_LONGEST + 1 :]

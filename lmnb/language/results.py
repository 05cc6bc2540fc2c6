"""The results of `Program.map` as data: a row of variables for each row, in the kind of table that the rows came in.

Knows pandas and polars by their objects only; neither is imported unless the rows, or the user, bring it.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lmnb.backends.well_formed import well_formed
from lmnb.errors import ArgumentError
from lmnb.language import arguments
from lmnb.language.row_usage import Usage

if TYPE_CHECKING:
    from lmnb.language.state import ProgramState

ACCOUNT = ("error", "prompt_tokens", "cached_tokens", "completion_tokens", "seconds")
_SHOWN_ROWS = 20
_SHOWN_CHARACTERS = 120


class Results(list[dict[str, Any]]):
    """One dict a row: the program's variables, `returned` if the program returns something, and the row's account:
    `error` (text, or None), `prompt_tokens`, `cached_tokens` (of these, reused), `completion_tokens`, `seconds`.

    A variable with the name of an account column gets a `_` behind it. Every row has the same keys.
    """

    @property
    def columns(self) -> list[str]:
        """The keys of each row."""
        return list(self[0]) if self else list(ACCOUNT)

    def to_pandas(self, index: Any = None) -> Any:
        """A pandas frame."""
        pandas = import_module("pandas")
        return pandas.DataFrame(list(self), columns=self.columns, index=index)

    def to_polars(self) -> Any:
        """A polars frame."""
        polars = import_module("polars")
        return polars.DataFrame(list(self), schema=self.columns, strict=False, infer_schema_length=None)

    def _repr_html_(self) -> str:
        """The first rows, shortened, for notebooks."""
        head = "".join(f"<th>{html.escape(well_formed(name))}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_shown(value))}</td>" for value in row.values()) + "</tr>"
            for row in self[:_SHOWN_ROWS]
        )
        more = f"<p>{len(self)} rows</p>" if len(self) > _SHOWN_ROWS else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


class BatchStopped(KeyboardInterrupt):
    """A `map` was interrupted. `partial` has the finished rows, and an `error` in the others."""

    def __init__(self, partial: Any, num_finished: int, num_rows: int) -> None:
        self.partial = partial
        super().__init__(
            f"stopped with {num_finished} of {num_rows} rows finished; they are kept: go on with "
            "program.map(rows, resume=lmnb.partial_results())"
        )

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython prints."""
        return [f"{type(self).__name__}: {self}"]


_partial: Any = None


def partial_results() -> Any:
    """What the last `map` that was interrupted had finished, in its own kind of table; None if there was none."""
    return _partial


def keep_partial(partial: Any) -> None:
    """Remember what an interrupted `map` had finished."""
    global _partial
    _partial = partial


def frame_kind(rows: Any) -> str | None:
    """ "pandas" or "polars" for their frames, else None. ArgumentError for a polars LazyFrame."""
    kind = type(rows).__module__.partition(".")[0]
    if kind not in ("pandas", "polars"):
        return None
    if not (hasattr(type(rows), "columns") and hasattr(type(rows), "shape")):
        raise ArgumentError(
            f"map needs a frame or a list of rows, not a {kind} {type(rows).__name__}; collect it first"
        )
    return kind


def frame_rows(frame: Any, kind: str, wanted: Sequence[str]) -> list[dict[str, Any]]:
    """The frame's rows as dicts of the columns that are wanted; other columns are left out."""
    columns = [name for name in frame.columns if name in wanted]
    if kind == "pandas":
        rows: list[dict[str, Any]] = frame[columns].to_dict("records")
        return rows if columns else [{} for _ in range(len(frame))]
    return list(frame.select(columns).to_dicts()) if columns else [{} for _ in range(frame.height)]


def as_kind(results: Results, rows: Any, kind: str | None) -> Any:
    """The results in the kind of table that `rows` is, with its index."""
    if kind == "pandas":
        return results.to_pandas(index=rows.index)
    return results.to_polars() if kind == "polars" else results


def earlier_records(earlier: Any, num_rows: int) -> dict[int, dict[str, Any]]:
    """The finished rows of an earlier result, by number. ArgumentError unless it is the result of as many rows."""
    kind = frame_kind(earlier)
    if kind == "pandas":
        records = earlier.to_dict("records")
    elif kind == "polars":
        records = earlier.to_dicts()
    else:
        records = list(arguments.listed("resume", earlier, "the result of an earlier map"))
    if len(records) != num_rows or not all(isinstance(row, Mapping) and "error" in row for row in records):
        raise ArgumentError(
            f"resume needs the result of an earlier map of the same {num_rows} rows, with its `error` column"
        )
    return {number: dict(row) for number, row in enumerate(records) if not isinstance(row["error"], str)}


def record(state: ProgramState | None, usage: Usage, error: str | None) -> dict[str, Any]:
    """One row's variables, and its account. Variables that have no value are left out."""
    row: dict[str, Any] = {}
    if state is not None:
        row = {
            f"{name}_" if name in ACCOUNT else name: variable.value
            for name, variable in list(state.variables.items())
            if variable.available
        }
        if state.ret_value is not None:
            row["returned"] = state.ret_value
    account = (error, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.seconds)
    return {**row, **dict(zip(ACCOUNT, account, strict=True))}


def aligned(records: Sequence[Mapping[str, Any]]) -> Results:
    """All rows with the same columns: variables in the order in which they appear, `returned`, the account."""
    names = dict.fromkeys(name for row in records for name in row if name not in (*ACCOUNT, "returned"))
    last = ["returned"] if any("returned" in row for row in records) else []
    columns = [*names, *last, *ACCOUNT]
    return Results({name: row.get(name) for name in columns} for row in records)


def _shown(value: Any) -> str:
    text = "" if value is None else f"{value:.3f}" if isinstance(value, float) else well_formed(str(value))
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"

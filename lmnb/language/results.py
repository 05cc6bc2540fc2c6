"""The results of `Program.map` as data: a row of variables for each row, in the kind of table that the rows came in.

Knows pandas and polars by their objects only; neither is imported unless the rows, or the user, bring it.
"""

from __future__ import annotations

import html
from collections import deque
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lmnb.backends.well_formed import well_formed
from lmnb.errors import ArgumentError
from lmnb.language import arguments
from lmnb.language.row_usage import Usage

if TYPE_CHECKING:
    from lmnb.language.state import ProgramState

KEY = "row_key"
ACCOUNT = ("error", "prompt_tokens", "cached_tokens", "completion_tokens", "seconds", KEY)
_SHOWN_ROWS = 20
_SHOWN_CHARACTERS = 120


class Results(list[dict[str, Any]]):
    """One dict a row: the program's variables, `returned` if the program returns something, and the row's account:
    `error` (text, or None), `prompt_tokens`, `cached_tokens` (of these, reused), `completion_tokens`, `seconds`, and
    `row_key`, by which `resume=` knows the row's arguments again.

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
        """A polars frame. A column whose values have no type in common holds them as Python objects."""
        polars = import_module("polars")
        return polars.DataFrame([_polars_column(polars, name, [row[name] for row in self]) for name in self.columns])

    def _repr_html_(self) -> str:
        """The first rows, shortened, for notebooks."""
        columns = [name for name in self.columns if name != KEY]
        head = "".join(f"<th>{html.escape(well_formed(name))}</th>" for name in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_shown(row[name]))}</td>" for name in columns) + "</tr>"
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
    """What the last `map` that was interrupted had finished, in its own kind of table; None if there was none.

    Where no such table could be made of a map's results, they are `Results` here."""
    return _partial


def keep_partial(partial: Any) -> None:
    """Remember what a `map` that did not come to its end had finished."""
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
    """The frame's rows as dicts of the columns that are wanted; other columns are left out. ArgumentError where two
    of them have one name."""
    columns = [name for name in frame.columns if name in wanted]
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise ArgumentError(f"the frame has {columns.count(twice)} columns {twice!r}; rename or drop all but one")
    if kind == "pandas":
        rows: list[dict[str, Any]] = frame[columns].to_dict("records")
        return rows if columns else [{} for _ in range(len(frame))]
    return list(frame.select(columns).to_dicts()) if columns else [{} for _ in range(frame.height)]


def as_kind(results: Results, rows: Any, kind: str | None) -> Any:
    """The results in the kind of table that `rows` is, with its index. If that fails, they are kept, and the error says
    where."""
    try:
        if kind == "pandas":
            return results.to_pandas(index=rows.index)
        return results.to_polars() if kind == "polars" else results
    except Exception as error:
        keep_partial(results)
        raise ArgumentError(
            f"{kind} cannot hold these results ({error}); lmnb.partial_results() has them as a list of dicts"
        ) from error


def earlier_records(earlier: Any, keys: Sequence[str]) -> dict[int, dict[str, Any]]:
    """The finished rows of an earlier result, by the number of the row that has the same key now. Their order does not
    matter. ArgumentError for what is no such result, or has finished other rows only."""
    kind = frame_kind(earlier)
    if kind == "pandas":
        records = earlier.to_dict("records")
    elif kind == "polars":
        records = earlier.to_dicts()
    else:
        records = list(arguments.listed("resume", earlier, "the result of an earlier map"))
    if not all(isinstance(row, Mapping) and "error" in row and isinstance(row.get(KEY), str) for row in records):
        raise ArgumentError(f"resume needs the result of an earlier map, with its columns `error` and `{KEY}`")
    finished: dict[str, deque[dict[str, Any]]] = {}
    for row in records:
        if not isinstance(row["error"], str):
            finished.setdefault(row[KEY], deque()).append(dict(row))
    if finished and keys and not {row[KEY] for row in records} & set(keys):
        raise ArgumentError("resume has the result of other rows: none of them has the arguments of a row here")
    return {number: finished[key].popleft() for number, key in enumerate(keys) if finished.get(key)}


def record(state: ProgramState | None, usage: Usage, error: str | None, key: str) -> dict[str, Any]:
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
    account = (error, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.seconds, key)
    return {**row, **dict(zip(ACCOUNT, account, strict=True))}


def aligned(records: Sequence[Mapping[str, Any]]) -> Results:
    """All rows with the same columns: variables in the order in which they appear, `returned`, the account."""
    names = dict.fromkeys(name for row in records for name in row if name not in (*ACCOUNT, "returned"))
    last = ["returned"] if any("returned" in row for row in records) else []
    columns = [*names, *last, *ACCOUNT]
    return Results({name: row.get(name) for name in columns} for row in records)


def _polars_column(polars: Any, name: str, values: list[Any]) -> Any:
    """The values as a polars Series, of the type that polars finds for them if it loses nothing of them."""
    try:
        column = polars.Series(name, values, strict=False)
        if _is_kept(values, column.to_list()):
            return column
    except Exception:  # of one of polars' many kinds: there is no such type
        pass
    return polars.Series(name, values, dtype=polars.Object)


def _is_kept(before: Any, after: Any) -> bool:
    """Whether `after` says what `before` says. Dicts may have got more keys, with None."""
    if isinstance(before, dict):
        return isinstance(after, dict) and all(_is_kept(before.get(key), value) for key, value in after.items())
    if isinstance(before, (list, tuple)):
        pairs = zip(before, after, strict=False) if isinstance(after, list) else ()
        return isinstance(after, list) and len(before) == len(after) and all(_is_kept(*pair) for pair in pairs)
    if isinstance(before, (int, float)) and isinstance(after, (int, float)):
        same = before == after or (before != before and after != after)  # NaN is not equal to itself
        return same and isinstance(before, bool) == isinstance(after, bool)
    return type(before) is type(after) and bool(before == after)


def _shown(value: Any) -> str:
    text = "" if value is None else f"{value:.3f}" if isinstance(value, float) else well_formed(str(value))
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"

"""`Program.map`: rows in, a table of variables out. A stop keeps the finished rows; a resume runs what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lmnb.language.batch import Batch
from lmnb.language.results import (
    BatchStopped,
    Results,
    aligned,
    as_kind,
    earlier_records,
    frame_kind,
    frame_rows,
    keep_partial,
    record,
)
from lmnb.language.row_keys import row_key
from lmnb.language.row_usage import Usage

if TYPE_CHECKING:
    from lmnb.language.call import RunOptions
    from lmnb.language.program import Program

_STOPPED = "not finished: the batch was stopped"


def map_rows(
    program: Program, rows: Any, options: RunOptions, num_threads: int | str, progress_bar: bool, resume: Any
) -> Any:
    """See `Program.map`."""
    kind = frame_kind(rows)
    checked = program.parameters.rows(rows if kind is None else frame_rows(rows, kind, program.arg_names))
    keys = [row_key(program.parameters.by_name(row.args, row.kwargs)) for row in checked]
    done = {} if resume is None else earlier_records(resume, keys)
    missing = [row for row in checked if row.number not in done]
    batch = Batch(program, missing, options, num_threads=num_threads, progress_bar=progress_bar)
    try:
        for _ in batch.states() if missing else ():
            pass  # each row's state is in the batch
    except KeyboardInterrupt as interrupt:
        partial = as_kind(_results(batch, keys, done), rows, kind)
        keep_partial(partial)
        num_finished = len(done) + sum(call.finished for call in batch.calls.values())
        raise BatchStopped(partial, num_finished, len(checked)) from interrupt
    return as_kind(_results(batch, keys, done), rows, kind)


def _results(batch: Batch, keys: Sequence[str], done: dict[int, dict[str, Any]]) -> Results:
    records = []
    for number, key in enumerate(keys):
        if number in done:
            records.append(done[number])
            continue
        call = batch.calls.get(number)
        finished = call is not None and call.finished
        failure = call.state.stream.failure if call is not None and finished else None
        error = _STOPPED if not finished else None if failure is None else str(failure.error())
        usage = batch.usage.rows.get(number, Usage())
        records.append(record(None if call is None else call.state, usage, error, key))
    return aligned(records)

"""Draws for the language: a saved run as a page or in a cell, two runs compared.

Fulfils `lmnb.language.pictures.Painter`. Knows nothing of engines and of files.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

from lmnb.language.events import to_json
from lmnb.language.run_diff import BranchDiff, Line, RunDiff, Summary
from lmnb.language.saved_run import SavedRun
from lmnb.widgets.escape import cut, markup, plain
from lmnb.widgets.run_html import STILL, WORDS, style
from lmnb.widgets.run_sinks import RunRecord
from lmnb.widgets.run_text import seconds
from lmnb.widgets.run_view import RunView

CONTEXT = 3  # lines that are the same, shown around each that differs
LONGEST_VALUE = 400  # characters of a variable
LONGEST_LINE = 4000
MOST_LINES = 4000  # of one branch

_STYLE = """<style>
.lmnb-diff{padding:8px 10px;font:13px/1.5 var(--jp-ui-font-family,system-ui,sans-serif);overflow-x:auto}
.lmnb-diff h4{margin:.8em 0 .2em;font-size:1em}
.lmnb-diff table{border-collapse:collapse}
.lmnb-diff td,.lmnb-diff th{text-align:left;padding:1px 10px 1px 0;vertical-align:top;white-space:pre-wrap}
.lmnb-diff tr>*{overflow-wrap:anywhere}
.lmnb-diff th{min-width:6ch}
.lmnb-diff th~td{min-width:14ch;width:45%}
.lmnb-diff pre{margin:0;white-space:pre-wrap;font:12px/1.5 var(--jp-code-font-family,ui-monospace,monospace)}
.lmnb-diff del,.lmnb-diff ins{display:block;text-decoration:none}
.lmnb-diff del{background:rgba(213,94,0,.13)}
.lmnb-diff ins{background:rgba(0,114,178,.13)}
.lmnb-diff b.w{font-weight:600;text-decoration:underline}
.lmnb-diff .skip{opacity:.65}
</style>"""


def run_html(run: SavedRun) -> str:
    """The run's view as a page that needs neither kernel nor network."""
    return _view(run).to_html()


def run_picture(run: SavedRun) -> str:
    """The run as HTML without scripts, of a size for a notebook."""
    record = RunRecord()
    record.apply([to_json(event) for event in run.events])
    return str(record.bundle()["text/html"])


def show_run(run: SavedRun) -> None:
    """Show the run in the running cell, in the best way that the front end has."""
    view = RunView(run)
    view.display()
    view.finish(5.0 if run.status != "running" else 0.0)


def diff_text(diff: RunDiff) -> str:
    """The comparison as plain text: one line a run, then what differs, with a few lines around it."""
    parts = [f"{sign} {_about(summary)}" for sign, summary in zip("-+", diff.summaries, strict=True)]
    if diff.same:
        parts.append("Both runs say the same.")
    for branch in diff.branches:
        if not branch.same:
            parts += ["", _title(branch)]
            parts += [f"  {line.sign} {plain(_short(line.text))}" for line in _hunks(branch)]
    if diff.variables:
        parts += ["", "variables"]
        for change in diff.variables:
            values = f"{_value(change.first)} → {_value(change.second)}"
            parts.append(f"    {plain(change.name)}{_where(change.branch)}: {values}")
    return "\n".join(parts)


def diff_html(diff: RunDiff) -> str:
    """The comparison as HTML: no script, nothing fetched; signs as well as colours tell what is whose."""
    runs = "".join(
        f"<tr><td>{sign}</td><td>{markup(_about(summary))}</td></tr>"
        for sign, summary in zip("−+", diff.summaries, strict=True)
    )
    body = "<p>Both runs say the same.</p>" if diff.same else ""
    for branch in diff.branches:
        if not branch.same:
            lines = list(_hunks(branch))
            body += f"<h4>{markup(_title(branch))}</h4><pre>{''.join(_html_lines(lines))}</pre>"
    if diff.variables:
        rows = "".join(
            f'<tr><th scope="row">{markup(change.name + _where(change.branch))}</th>'
            f"<td>− {markup(_value(change.first))}</td><td>+ {markup(_value(change.second))}</td></tr>"
            for change in diff.variables
        )
        body += f"<h4>Variables</h4><table><tbody>{rows}</tbody></table>"
    return f'{style()}{_STYLE}<div class="lmnb {STILL} lmnb-diff"><table><tbody>{runs}</tbody></table>{body}</div>'


def _view(run: SavedRun) -> RunView:
    """A view that has seen all of the run and shows nothing."""
    view = RunView(run, "off")
    view.display()
    view.finish(60.0 if run.status != "running" else 0.0)
    return view


def _about(run: Summary) -> str:
    parts = [f"{run.program} · {run.model}", WORDS[run.status]]
    if run.seconds is not None:
        parts.append(seconds(run.seconds))
    parts.append(f"{run.reused:,} reused, {run.computed:,} computed, {run.generated:,} generated tokens")
    text = " · ".join(parts) + f" · {run.id}"
    return plain(f"{text} · error: {run.error}" if run.error else text)


def _title(branch: BranchDiff) -> str:
    where = {None: "", 1: ", in − only", 2: ", in + only"}[branch.only]
    return plain(f"branch {branch.label}{where}")


def _where(branch: str) -> str:
    return "" if branch == "0" else f" [{branch}]"


def _short(text: str) -> str:
    head, missing, tail = cut(text, LONGEST_LINE)
    return f"{head} … {missing:,} more characters … {tail}" if missing else text


def _value(value: str | None) -> str:
    if value is None:
        return "(not set)"
    head, missing, tail = cut(" ".join(plain(value).split()), LONGEST_VALUE)
    return f'"{head} … {missing:,} more characters … {tail}"' if missing else f'"{head}"'


def _hunks(branch: BranchDiff) -> Iterator[Line]:
    """The lines that differ and a few around them; a line in their place says how many are left out."""
    lines = branch.lines
    near = [False] * len(lines)
    for number, line in enumerate(lines):
        if line.sign != " ":
            for place in range(max(0, number - CONTEXT), min(len(lines), number + CONTEXT + 1)):
                near[place] = True
    shown = skipped = 0
    for line, wanted in zip(lines, near, strict=True):
        if not wanted or shown >= MOST_LINES:
            skipped += 1
            continue
        if skipped:
            yield Line(" ", _skipped(skipped))
            skipped = 0
        shown += 1
        yield line
    if skipped:
        yield Line(" ", _skipped(skipped))


def _skipped(count: int) -> str:
    return f"… {count:,} more line{'' if count == 1 else 's'}"


def _html_lines(lines: list[Line]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if line.sign == " ":
            kind = ' class="skip"' if line.text.startswith("… ") else ""
            yield f"<div{kind}>  {markup(_short(line.text))}</div>"
            continue
        tag, sign = ("del", "−") if line.sign == "-" else ("ins", "+")
        yield f"<{tag}>{sign} {_marked(line, _partner(lines, number))}</{tag}>"


def _partner(lines: list[Line], number: int) -> str | None:
    """The other run's line in place of this one, where as many lines stand for as many."""
    start = number
    while start and lines[start - 1].sign != " " and (lines[start - 1].sign == "-" or lines[start].sign == "+"):
        start -= 1
    olds = _length(lines, start, "-")
    news = _length(lines, start + olds, "+")
    if olds != news:
        return None
    return lines[number + olds if lines[number].sign == "-" else number - olds].text


def _length(lines: list[Line], start: int, sign: str) -> int:
    """How many lines from `start` on have that sign."""
    end = start
    while end < len(lines) and lines[end].sign == sign:
        end += 1
    return end - start


def _marked(line: Line, partner: str | None) -> str:
    """The line with the words that its partner does not have marked."""
    text = _short(line.text)
    if partner is None:
        return markup(text)
    words, others = text.split(" "), _short(partner).split(" ")
    pieces = []
    for kind, i, j, _, _ in SequenceMatcher(None, words, others, autojunk=False).get_opcodes():
        piece = markup(" ".join(words[i:j]))
        if piece:
            pieces.append(piece if kind == "equal" else f'<b class="w">{piece}</b>')
    return " ".join(pieces)

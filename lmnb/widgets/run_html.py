"""A run as self-contained HTML: no script, no link, readable even where style sheets are stripped.

Uses the class names of the live view, so one style sheet serves both. Without it elements and attributes say the same:
line breaks, lists, and spaces between what style would set apart. All text is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from lmnb.language.events import image_label
from lmnb.language.token_parts import index_of_units
from lmnb.widgets import choice_html, origin_html, run_text
from lmnb.widgets.escape import cut, isolated, markup
from lmnb.widgets.parted_html import changed, parted
from lmnb.widgets.run_model import Branch, RunModel, limit_of, untold
from lmnb.widgets.text_html import folded, lines, shortened

STATIC = Path(__file__).parent / "static"
LIVE_CHARACTERS = 40_000  # of transcript in an update while the run goes on
FINAL_CHARACTERS = 800_000
MANY = 12  # branches of a fork; more of them are lines that open
MOST_LINES = 512
PREVIEW = 160  # characters
BOX = "max-height:640px;overflow:auto"  # about the live view's; said in place, for pages that strip style sheets
STILL = "lmnb-static mathjax_ignore tex2jax_ignore"  # classes of every picture; dollars in a text are no formula
_PREVIEW = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[\w+/=]+", re.ASCII)  # nothing else, nothing fetched
SIGNS = {"running": "◌", "done": "✓", "failed": "✕", "cancelled": "■"}
WORDS = {"running": "running", "done": "done", "failed": "failed", "cancelled": "stopped"}


@lru_cache(maxsize=1)
def style() -> str:
    """The style element for static output."""
    return f"<style>{(STATIC / 'still.css').read_text(encoding='utf-8')}</style>"


def render(model: RunModel) -> str:
    """One `div` with its style. Transcripts beyond some 800,000 characters are cut in the middle, and say so."""
    writer = _Writer(model, FINAL_CHARACTERS if model.ended else LIVE_CHARACTERS)
    root = model.branches.get(0)
    transcript = writer.branch(root) if root else ""
    classes = f"lmnb lmnb-run {STILL}" + (" lmnb-rerun" if model.head["rerun"] else "")
    box = f'<div class="lmnb-body" style="{BOX}" tabindex="0" role="region" aria-label="Transcript">{transcript}</div>'
    return (
        f'{style()}<div class="{classes}" data-status="{markup(model.head["status"])}">'
        f"{_header(model)}{box}{_variables(model)}</div>"
    )


def _header(model: RunModel) -> str:
    head = model.head
    status = WORDS[head["status"]]
    if head["seconds"] is not None:
        status += f" · {run_text.seconds(head['seconds'])}"
    metrics = "".join(f'<span class="lmnb-metric"><b>{value}</b> {label}</span> ' for value, label in _metrics(model))
    error = f'<pre class="lmnb-error">✕ {markup(head["error"])}</pre>' if head["error"] else ""
    return (
        f'<div class="lmnb-head"><span class="lmnb-title"><span class="lmnb-status" data-status="{head["status"]}">'
        f'<span class="lmnb-sign">{SIGNS[head["status"]]}</span> {status}</span> '
        f'<b class="lmnb-program">{isolated(head["program"])}</b> '
        f'<span class="lmnb-model">{isolated(head["model"])}</span></span> '
        f'<div class="lmnb-metrics">{metrics}</div></div>{_bar(model)}{error}'
    )


def _metrics(model: RunModel) -> list[tuple[str, str]]:
    head = model.head
    known = model.ended or head["reused"] or head["computed"]  # they are told when a generation ends
    metrics = [(f"{head[name]:,}", name) for name in ("reused", "computed") if known]
    metrics.append((f"{head['generated']:,}", "generated tokens"))
    if head["first_token_seconds"] is not None:
        metrics.append((run_text.seconds(head["first_token_seconds"]), "to first token"))
    if (speed := model.tokens_per_second()) is not None:
        metrics.append((f"{speed:,.0f}", "tok/s"))
    return metrics


def _bar(model: RunModel) -> str:
    parts = [(name, model.head[name]) for name in ("reused", "computed", "generated") if model.head[name]]
    pieces = "".join(f'<span class="lmnb-{name}" style="flex-grow:{count}"></span>' for name, count in parts)
    return f'<div class="lmnb-bar">{pieces}</div>'


def _variables(model: RunModel) -> str:
    rows = []
    for branch in model.branches.values():
        where = "" if branch["parent"] is None else f' <span class="lmnb-where">{markup(branch["label"])}</span>'
        for variable in branch["vars"].values():
            head, missing, tail = cut(variable["value"], 2000)
            value = lines(head) + (f"<i> … {missing:,} more characters … </i>{lines(tail)}" if missing else "")
            kind = variable.get("kind")
            typed = f' <span class="lmnb-where">{markup(kind)}</span>' if kind not in (None, "str") else ""
            typed += ' <span class="lmnb-where">incomplete</span>' if variable.get("incomplete") else ""
            rows.append(
                f'<tr><th scope="row">{isolated(variable["name"])}{where}{typed}</th>'
                f'<td><div class="lmnb-value">{value}</div></td></tr>'
            )
    if not rows:
        return ""
    noun = "variable" if len(rows) == 1 else "variables"
    return (
        f'<details class="lmnb-vars"{" open" if len(rows) <= 12 else ""}><summary>{len(rows)} {noun}</summary>'
        f"<table><tbody>{''.join(rows)}</tbody></table></details>"
    )


def _mark(mark: dict[str, Any]) -> str:
    why = markup(mark["why"])
    word = "≠ not cached" if mark["at"] is None else "≠ changed"
    return f'<details class="lmnb-mark"><summary title="{why}">{word}</summary>{why}</details>'


def _image(item: dict[str, Any]) -> str:
    label = image_label(item["mime"], item["width"], item["height"], item["frames"])
    if not _PREVIEW.fullmatch(item["preview"]):
        return isolated(label)
    facts = markup(label[1:-1])
    return (
        f'<figure class="lmnb-image"><img src="{item["preview"]}" alt="{facts}">'
        f"<figcaption>{facts} · {_size(item['num_bytes'])}</figcaption></figure>"
    )


def _size(num_bytes: int) -> str:
    """`590 kB`, `1.2 MB`."""
    size, unit = (1e3, "kB") if num_bytes < 1e6 else (1e6, "MB")
    return f"{num_bytes / size:.{1 if num_bytes / size < 10 else 0}f} {unit}"


def _branches(count: int) -> str:
    return f"{count:,} branch" if count == 1 else f"{count:,} branches"


class _Writer:
    """Writes branches as nested blocks, within a budget of characters shared fairly by the branches."""

    def __init__(self, model: RunModel, budget: int) -> None:
        self.model = model
        self.per_item = max(400, budget // max(1, sum(len(b["items"]) for b in model.branches.values())))

    def branch(self, branch: Branch) -> str:
        blocks: list[str] = []
        role = ""
        inline: list[str] = []
        behind: list[str] = []  # the open block

        def close() -> None:
            if role or "".join(inline).strip():  # white space between roles is no block
                label = f'<b class="lmnb-role" data-role="{markup(role)}">{markup(role)}</b>' if role else ""
                blocks.append(
                    f'<div class="lmnb-block{"" if role else " lmnb-raw"}">{label}'
                    f'<div class="lmnb-text" style="white-space:pre-wrap">{"".join(inline)}</div></div>'
                )
            inline.clear()
            blocks.extend(behind)
            behind.clear()

        marks = {mark["item"]: mark for mark in branch["marks"]}
        for index, item in enumerate(branch["items"]):
            kind = item["type"]
            mark = marks.get(index)
            if kind == "role":
                close()
                role = item["role"]
                inline += [_mark(mark)] if mark else []
            elif kind == "role_end":
                inline += [_mark(mark)] if mark else []
                close()
                role = ""
            elif kind == "text":
                inline.append(self._marked(item["text"], mark, lambda text, start: folded(text, self.per_item)))
            elif kind == "image":
                inline.append(_image(item))
                inline += [_mark(mark)] if mark else []
            elif kind == "gen":
                inline.append(self._gen(item, mark))
                behind += [self._variants(item)] if item["variants"] else []
            else:
                close()
                blocks.append(self._fork(item) if kind == "fork" else self._join(item))
        close()
        if given := untold(branch):
            blocks.append(f'<p class="lmnb-hint">put there: <b>{isolated(given)}</b></p>')
        if branch["error"] and branch["parent"] is not None:
            blocks.append(f'<pre class="lmnb-error">✕ {markup(branch["error"])}</pre>')
        if branch["note"]:
            blocks.append(f'<p class="lmnb-hint">{markup(branch["note"])}</p>')
        return "".join(blocks)

    def _marked(self, text: str, mark: dict[str, Any] | None, draw: Callable[[str, int], str]) -> str:
        """The text with what marks a place in it. `draw` gets a stretch of the text, and where it starts."""
        if mark is None or mark["at"] is None:
            return draw(text, 0) + (_mark(mark) if mark else "")
        at = index_of_units(text, mark["at"])
        return draw(text[:at], 0) + _mark(mark) + draw(text[at:], at)

    def _generated(self, gen: dict[str, Any], text: str, start: int) -> str:
        """A stretch of a generation's text. One that still grows does not fold: it would jump."""
        if gen["status"] == "running":
            return shortened(text, self.per_item)
        return folded(text, self.per_item, lambda i, j: origin_html.tokens_between(gen, start + i, start + j))

    def _gen(self, item: dict[str, Any], mark: dict[str, Any] | None) -> str:
        status = item["status"]
        chip = f'<small class="lmnb-var">{isolated(item["var"])}</small> ' if item["var"] else ""
        classes = "lmnb-gen lmnb-chosen" if item["kind"] == "select" else "lmnb-gen"
        shown = parted(self.model, item, self.per_item) or self._origins(item, mark)
        shown = shown or self._marked(item["text"], mark, lambda text, start: self._generated(item, text, start))
        text = f'<ins class="{classes}" data-status="{status}">{shown}</ins>'
        notes = {"cancelled": "stopped", "failed": "failed"}
        note = notes.get(status) or limit_of(item)
        cost = ""
        sign = f' <small class="lmnb-note">{SIGNS.get(status, "") if status != "done" else ""} {note}</small>'
        if status != "running":
            counts = f"{item['reused']:,} reused · {item['computed']:,} computed · {item['tokens']:,} generated"
            saved = origin_html.steps_saved(item)
            counts += f" · {saved:,} {'step' if saved == 1 else 'steps'} saved" if saved else ""
            if "grammar" in item:
                counts += f" · {markup(item['constraint'].replace('_', ' '))} by {markup(item['grammar'])}"
            cost = f' <small class="lmnb-cost">{counts}</small>'
        return (
            chip + text + (sign if note else "") + cost + (choice_html.html(item["choice"]) if item["choice"] else "")
        )

    def _origins(self, item: dict[str, Any], mark: dict[str, Any] | None) -> str:
        """The text of a constrained generation with its tokens' origins; "" where it is cut, or marked inside."""
        is_whole = len(item["text"]) <= self.per_item and (mark is None or mark["at"] is None)
        if not is_whole or not origin_html.is_constrained(item):
            return ""
        return origin_html.spans(item) + (_mark(mark) if mark else "")

    def _variants(self, item: dict[str, Any]) -> str:
        """The branches that part from inside a generation."""
        return self._fork({"branches": item["variants"]}, f" from inside {isolated(item['var'] or 'the text')}")

    def _fork(self, item: dict[str, Any], where: str = "") -> str:
        count = len(item["branches"])
        many = count > MANY
        lane, most = (self._line, MOST_LINES) if many else (self._lane, MANY)
        lanes = "".join(lane(self.model.branches[id]) for id in item["branches"][:most])
        lanes = f'<div class="lmnb-lanes lmnb-lines">{lanes}</div>' if many else f'<ul class="lmnb-lanes">{lanes}</ul>'
        rest = f'<div class="lmnb-more">{count - most:,} more branches not shown here</div>' if count > most else ""
        return f'<div class="lmnb-fork"><div class="lmnb-fork-head">{_branches(count)}{where}</div>{lanes}{rest}</div>'

    def _lane(self, branch: Branch) -> str:
        return (
            f'<li class="lmnb-lane" data-status="{branch["status"]}"><div class="lmnb-lane-head">'
            f"{self._lane_head(branch)}</div>"
            f'<div class="lmnb-lane-body">{changed(self.model, branch)}{self.branch(branch)}</div></li>'
        )

    def _line(self, branch: Branch) -> str:
        """A lane that opens: of many, only the end of the last generated text is on show."""
        said = [item["text"] for item in branch["items"] if item["type"] == "gen"]
        preview = " ".join((branch["error"] or (said[-1] if said else ""))[-PREVIEW:].split())
        return (
            f'<details class="lmnb-lane" data-status="{branch["status"]}"><summary class="lmnb-lane-head">'
            f"{self._lane_head(branch, preview)}</summary>"
            f'<div class="lmnb-lane-body">{changed(self.model, branch)}{self.branch(branch)}</div></details>'
        )

    def _lane_head(self, branch: Branch, preview: str = "") -> str:
        shown = f'<span class="lmnb-preview">{isolated(preview)}</span> ' if preview else ""
        return (
            f'<span class="lmnb-sign">{SIGNS[branch["status"]]}</span> <b>{isolated(run_text.lane_name(branch))}</b> '
            f"{shown}<span>{branch['generated']:,} tok</span>"
        )

    def _join(self, item: dict[str, Any]) -> str:
        mode = markup(item["mode"].replace("_", " "))
        return f'<div class="lmnb-join">{_branches(len(item["branches"]))} joined · {mode}</div>'

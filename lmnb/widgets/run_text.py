"""A run as plain text: for terminals, text/plain, and whoever reads a notebook without any renderer.

Generated text stands in «guillemets». The same writer streams: `transcript(model, stable=True)` ends where the
text can still change, so that each longer one starts with the one before.
"""

from __future__ import annotations

from typing import Any

from lmnb.language.events import image_label
from lmnb.language.token_parts import index_of_units
from lmnb.widgets import choice_html
from lmnb.widgets.escape import cut, terminal
from lmnb.widgets.run_model import Branch, RunModel, is_incomplete, kept_units, limit_of, origin_of, untold

SAVED_CHARACTERS = 400_000


def render(model: RunModel) -> str:
    """Everything: what ran, its cost, the transcript, the variables, why choices were made, what changed."""
    return _report(model, None)


def saved(model: RunModel) -> str:
    """`render` for a notebook file: very long texts are cut in their middle, and say where the rest is."""
    return _report(model, max(400, SAVED_CHARACTERS // max(1, sum(len(b["items"]) for b in model.branches.values()))))


def _report(model: RunModel, limit: int | None) -> str:
    writer = _Writer(model, stable=False, limit=limit)
    writer.all_branches()
    parts = [summary(model), "".join(writer.parts), variables(model), choices(model), changes(model)]
    return "\n".join(part for part in parts if part) + "\n"


def title(model: RunModel) -> str:
    """What ran, on which model."""
    return terminal(" · ".join(part for part in (model.head["program"], model.head["model"]) if part))


def summary(model: RunModel) -> str:
    """Two lines: what ran and how it ended; its tokens and speed."""
    head = model.head
    status = {"running": "running", "done": "done", "failed": "failed", "cancelled": "stopped"}[head["status"]]
    if head["seconds"] is not None:
        status += f" after {seconds(head['seconds'])}"
    lines = [f"{title(model)} · {status}", costs(model)]
    if head["error"]:
        lines.append(f"error: {terminal(head['error'])}")
    return "\n".join(lines)


def costs(model: RunModel) -> str:
    """Tokens by where they came from, time to first token, speed."""
    head = model.head
    parts = [f"{head[name]:,} {name}" for name in ("reused", "computed", "generated")]
    parts[-1] += " tokens"
    if head["first_token_seconds"] is not None:
        parts.append(f"first token {seconds(head['first_token_seconds'])}")
    if (speed := model.tokens_per_second()) is not None:
        parts.append(f"{speed:,.0f} tokens/s")
    return " · ".join(parts)


def seconds(value: float) -> str:
    """`83 ms`, `1.42 s`, `3 min 05 s`."""
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 59.995:
        return f"{value:.2f} s"
    return f"{int(value + 0.5) // 60} min {int(value + 0.5) % 60:02d} s"


def variables(model: RunModel, limit: int = 200) -> str:
    """One line a variable; values are cut to `limit` characters."""
    lines = []
    for branch in model.branches.values():
        for variable in branch["vars"].values():
            name = variable["name"] if branch["parent"] is None else f"{variable['name']} [{branch['label']}]"
            value = " ".join(terminal(variable["value"][: 8 * limit]).split())
            shown = value if len(value) <= limit else value[: limit - 1] + "…"
            lines.append(f"  {terminal(name)} = {shown}{' [incomplete]' if variable.get('incomplete') else ''}")
    return "\n".join(["variables", *lines]) if lines else ""


def changes(model: RunModel, most: int = 16) -> str:
    """What differed from the last run, a line a branch."""
    told = [(branch, mark) for branch in model.branches.values() for mark in branch["marks"]]
    lines = [
        terminal(f"  {'' if branch['parent'] is None else '[' + branch['label'] + '] '}{mark['why']}")
        for branch, mark in told[:most]
    ]
    if len(told) > most:
        lines.append(f"  … and {len(told) - most:,} more")
    return "\n".join(["since the last run", *lines]) if lines else ""


def choices(model: RunModel, most: int = 16) -> str:
    """Why each select chose as it did."""
    made = [
        (branch, item)
        for branch in model.branches.values()
        for item in branch["items"]
        if item["type"] == "gen" and item["choice"]
    ]
    lines: list[str] = []
    for branch, item in made[:most]:
        name = terminal((item["var"] or "a choice") + ("" if branch["parent"] is None else f" [{branch['label']}]"))
        first, *rest = choice_html.text(item["choice"])
        lines += [f"  {name}: {first}", *(f"  {line}" for line in rest)]
    if len(made) > most:
        lines.append(f"  … and {len(made) - most:,} more")
    return "\n".join(["choices", *lines]) if lines else ""


def transcript(model: RunModel, *, stable: bool = False) -> str:
    """The text of all branches, lanes indented under their parent at the place of their fork. Those that part from
    inside a generation come last; ↳ is where they part."""
    writer = _Writer(model, stable)
    writer.all_branches()
    return "".join(writer.parts)


class _Writer:
    def __init__(self, model: RunModel, stable: bool, limit: int | None = None) -> None:
        self.limit = limit  # characters of one text
        self.parts: list[str] = []
        self.model = model
        self.stable = stable
        self.indent = ""
        self.at_line_start = True
        self.growing = False  # more may be added to the item that is being written

    def all_branches(self) -> bool:
        """Write the root, with what is forked below it, and then the branches that part from inside generations."""
        found = self.model.branches.values()
        if not all(self.branch(branch) for branch in found if branch["parent"] is None):
            return False
        return all(self._lane(branch) for branch in found if branch["at"] is not None)

    def branch(self, branch: Branch) -> bool:
        """Write the branch. False if it may still grow, and nothing after it can be written yet."""
        for item in branch["items"]:
            self.growing = self.stable and branch["status"] == "running" and item is branch["items"][-1]
            if not getattr(self, f"_{item['type']}")(item):
                return False
        if given := untold(branch):
            self._line(f"put there: «{given}»")
        if branch["error"] and branch["parent"] is not None:
            self._line(f"error: {branch['error']}")
        if branch["note"] and branch["status"] != "running":
            self._line(f"({branch['note']})")
        return not (self.stable and branch["status"] == "running")

    def _write(self, text: str, *, open_end: bool = False) -> None:
        if self.limit is not None and len(text) > self.limit:
            head, missing, tail = cut(text, self.limit)
            text = f"{head} … {missing:,} characters not shown; s.text() has them … {tail}"
        for piece in terminal(text, open_end=open_end).splitlines(keepends=True):
            self.parts.append((self.indent if self.at_line_start else "") + piece)
            self.at_line_start = piece.endswith("\n")

    def _line(self, text: str) -> None:
        if not self.at_line_start:
            self._write("\n")
        self._write(text + "\n")

    def _role(self, item: dict[str, Any]) -> bool:
        if not self.at_line_start:
            self._write("\n")
        self._write(f"{item['role']}: ")
        return True

    def _role_end(self, item: dict[str, Any]) -> bool:
        if not self.at_line_start:
            self._write("\n")
        return True

    def _text(self, item: dict[str, Any]) -> bool:
        self._write(item["text"], open_end=self.growing)
        return True

    def _image(self, item: dict[str, Any]) -> bool:
        self._write(image_label(item["mime"], item["width"], item["height"], item["frames"]))
        return True

    def _gen(self, item: dict[str, Any]) -> bool:
        running = item["status"] == "running"
        if running and self.stable and item["kind"] == "select":
            return False  # its text is not decided
        kept = index_of_units(item["text"], kept_units(item))
        is_variant = item["parts"] and origin_of(item["parts"][0]) in ("kept", "given")
        self._write(f"«{item['text'][:kept]}{'↳' if is_variant else ''}{item['text'][kept:]}", open_end=running)
        if running and self.stable:
            return False
        self._write("…»" if running else "»")
        if item["status"] in ("cancelled", "failed"):
            self._write(" [stopped]" if item["status"] == "cancelled" else " [failed]")
        elif is_incomplete(item):
            self._write(f" [{limit_of(item)}]")
        return True

    def _fork(self, item: dict[str, Any]) -> bool:
        return all(self._lane(self.model.branches[id]) for id in item["branches"])

    def _lane(self, branch: Branch) -> bool:
        outer = self.indent
        self._line(f"┌ {lane_name(branch)}")
        self.indent = outer + "│ "
        complete = self.branch(branch)
        if not complete and self.stable:
            return False
        if not self.at_line_start:
            self._write("\n")
        self.indent = outer
        return True

    def _join(self, item: dict[str, Any]) -> bool:
        count = len(item["branches"])
        self._line(f"└ {count} {'branch' if count == 1 else 'branches'} joined ({item['mode'].replace('_', ' ')})")
        return True


def lane_name(branch: Branch) -> str:
    """`branch 0.2`, `judge · row 3`, `branch 0~1 = s_1`."""
    parts = [branch["program"]] if branch["program"] else []
    parts.append(f"row {branch['row']}" if branch["row"] is not None else f"branch {branch['label']}")
    return " · ".join(parts) + (f" = {branch['name']}" if branch["name"] else "")

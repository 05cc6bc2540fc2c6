"""The cache tree as static SVG, HTML and text, for wherever the live canvas cannot be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from zlib import crc32

from lmnb.widgets.escape import markup, plain
from lmnb.widgets.run_html import STILL, style
from lmnb.widgets.tree_layout import Box, layout
from lmnb.widgets.tree_model import Marks, Node, Tree, counted

WIDTH = 760
BASE = 12  # pixels that each node gets before its tokens count
MOST_ROWS = 400
_MARKER = re.compile(r"<\|([^|<>\n]{1,40})\|>|<(/?s|bos|eos|start_of_turn|end_of_turn)>")
LEGEND = (("hit", "● reused"), ("new", "+ new"), ("evicted", "✕ evicted"), ("kept", "⚑ pinned"))

# The colour of the words follows the notebook's theme where there is one; fills are see-through, so they suit light and
# dark. Attributes say the rest: some sites strip style sheets.
_STYLE = """<style>
.lmnb-tree-svg text{font:11px var(--jp-ui-font-family,system-ui,sans-serif);fill:var(--jp-content-font-color1,#24292f)}
.lmnb-tree-svg .n{fill:var(--jp-content-font-color1,#24292f);opacity:.75}
</style>"""
_LOOK = {
    "kept": 'fill="#808890" fill-opacity=".14" stroke="#808890" stroke-opacity=".55"',
    "hit": 'fill="#e69f00" fill-opacity=".2" stroke="#c98a00" stroke-width="2"',
    "new": 'fill="#009e73" fill-opacity=".16" stroke="#009e73" stroke-width="1.5" stroke-dasharray="4 2"',
    "evicted": 'fill="url(#HATCH)" stroke="#d55e00" stroke-opacity=".9" stroke-dasharray="1 3"',
}
_TEXT = 'font-family="system-ui,sans-serif" font-size="11" fill="#6e7781"'  # readable on light and on dark
_HATCH = (
    '<defs><pattern id="HATCH" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path d="M0 0V6" stroke="#d55e00" stroke-opacity=".5" stroke-width="1.5"/></pattern></defs>'
)


def svg(tree: Tree, marks: Marks | None = None, *, width: int = WIDTH, titles: bool = True) -> str:
    """One self-contained `svg` element. Boxes: width by tokens, a row a branch, state by outline, sign and colour.

    With `titles` a box tells more where a mouse rests on it. Without, a site that leaves of a drawing nothing but its
    words shows one line of labels.
    """
    marks = marks or Marks()
    nodes: Mapping[int, Node] = {**tree, **marks.evicted}
    boxes = layout(nodes)
    rows = min(MOST_ROWS, max((box.row + box.rows for box in boxes), default=1))
    height = 22 if rows <= 60 else 14
    scales = ((width - 2 - (box.depth + 1) * BASE) / max(1, box.end) for box in boxes)
    scale = max(0.0, min(scales, default=0.0))  # pixels a token: the most at which the longest box still fits
    # Of its own: a page may hold many pictures, and a pattern in one that is hidden paints nothing elsewhere.
    hatch = f"lmnb-hatch-{crc32(repr((boxes, list(nodes.values()))).encode()):x}"
    drawn = [box for box in boxes if box.row < MOST_ROWS]
    shapes = [_box(box, nodes[box.node], marks, scale, height, hatch, titles) for box in drawn]
    empty = f'<text x="8" y="16" {_TEXT}>The cache is empty.</text>' if not boxes else ""
    return (
        f'<svg class="lmnb-tree-svg" xmlns="http://www.w3.org/2000/svg" width="{width}" height="{rows * height + 2}" '
        f'viewBox="0 0 {width} {rows * height + 2}" style="max-width:100%" role="img" '
        f'aria-label="{markup(summary(tree))}">{_STYLE}{_HATCH.replace("HATCH", hatch)}{"".join(shapes)}{empty}</svg>'
    )


def _box(box: Box, node: Node, marks: Marks, scale: float, height: int, hatch: str, titles: bool) -> str:
    state, sign = state_of(box.node, marks)
    x = 1 + box.depth * BASE + box.start * scale
    width = BASE + (box.end - box.start) * scale
    y, full = 1 + box.row * height, box.rows * height
    count = f"{flag(node)}{sign}{node['num_tokens']:,}"
    fits = int((width - 12) / 6.2)  # characters of 11 px text, roughly
    label = ""
    if fits >= len(count) and height > 14:
        words = label_text(node["text"])
        room = fits - len(count) - 1
        shown = "" if room < 4 else words if len(words) <= room else words[: room - 1] + "…"
        middle = y + min(full, height * 3) / 2 + 4
        place = f'x="{x + 5:.1f}" y="{middle:.1f}"'
        end = "" if titles else '<tspan fill="none" opacity="0"> · </tspan>'  # unseen in the drawing
        label = f'<text {place} {_TEXT}><tspan class="n">{markup(count)}</tspan> {markup(shown)}{end}</text>'
    pinned = "pinned · " if node["pinned"] else ""
    counts = f"{counted(node['num_tokens'], 'token')} · {counted(node['hits'], 'hit')}"
    told = markup(f"{pinned}{counts} · {node['owner']}\n{node['text'][:300]}")
    return (
        f'<g class="{state}">{f"<title>{told}</title>" if titles else ""}'
        f'<rect {_LOOK[state].replace("HATCH", hatch)} x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" rx="2" '
        f'width="{max(1.0, width - 2):.1f}" height="{full - 2}"/>{label}</g>'
    )


def label_text(text: str) -> str:
    """A node's text in one line, with chat markers shortened: `<|im_start|>user` is `▸user`."""
    return " ".join(_MARKER.sub(_short_marker, plain(text)).split())


def _short_marker(found: re.Match[str]) -> str:
    name = (found[1] or found[2]).lower()
    if name.startswith(("/", "eo")) or "end" in name:
        return "◂"
    return "▸" if "start" in name or "begin" in name or name in ("s", "bos") else "◆"


def state_of(node: int, marks: Marks) -> tuple[str, str]:
    """(state, sign) of a node: told apart by sign and outline, not by colour alone."""
    if node in marks.evicted:
        return "evicted", "✕ "
    if node in marks.new:
        return "new", "+ "
    if node in marks.hit:
        return "hit", "● "
    return "kept", ""


def flag(node: Node) -> str:
    """The sign of a pinned node."""
    return "⚑ " if node["pinned"] else ""


def summary(tree: Tree) -> str:
    """One sentence for screen readers and captions."""
    tokens = sum(node["num_tokens"] for node in tree.values())
    return f"Cache tree: {counted(len(tree), 'node')}, {counted(tokens, 'token')}"


def html(tree: Tree, marks: Marks, caption: str, *, titles: bool = True) -> str:
    """The picture, a caption with its legend, and the tree as text for those who cannot see it.

    Where sites take drawings and style sheets away, the text is to be seen. `titles`: see `svg`.
    """
    drawing = svg(tree, marks, titles=titles)
    legend = " ".join(f'<span class="lmnb-legend" data-state="{state}">{text}</span>' for state, text in LEGEND)
    return (
        f'{style()}<div class="lmnb {STILL}"><div class="lmnb-head"><span class="lmnb-title">'
        '<b class="lmnb-program">Cache tree</b> '
        f'<span class="lmnb-model">{markup(caption)}</span></span> <div class="lmnb-metrics">{legend}</div></div>'
        f'<div class="lmnb-drawing" style="height:0;max-height:480px;overflow:hidden">{drawing}</div>'
        f"<details><summary>{markup(summary(tree))}</summary></details>"
        f'<pre style="max-height:480px;overflow:auto">{markup(text(tree, marks))}</pre></div>'
    )


def text(tree: Tree, marks: Marks | None = None, *, most: int = 200) -> str:
    """The tree as indented lines: sign, tokens, hits, text."""
    marks = marks or Marks()
    nodes = {**tree, **marks.evicted}
    boxes = sorted(layout(nodes), key=lambda box: (box.row, box.depth))
    lines = [summary(tree)]
    for box in boxes[:most]:
        node = nodes[box.node]
        words = label_text(node["text"])
        shown = words if len(words) <= 60 else words[:59] + "…"
        sign = flag(node) + state_of(box.node, marks)[1].strip()
        hits = f", {counted(node['hits'], 'hit')}" if node["hits"] else ""
        lines.append(f"{'  ' * (box.depth + 1)}{sign}{counted(node['num_tokens'], 'token')}{hits}: {shown}")
    if len(boxes) > most:
        lines.append(f"  … and {len(boxes) - most:,} more nodes")
    return "\n".join(lines)

// What stands beside the icicle: the details of the selected node, and the tree as a list for keyboards and
// screen readers.

import { h, OWN_KEYS, setText } from "./dom";
import { ago, bytes, count, oneLine, plural } from "./format";
import { type Box, neighbour } from "./tree_layout";
import { type CacheModel, type Marks, path, stateOf, STATE_SIGNS, type Tree } from "./tree_model";

const MOST_ROWS = 200;
const STATE_WORDS = { kept: "kept", hit: "reused just now", new: "new", evicted: "evicted" } as const;

export class DetailsView {
  readonly el = h("aside", { class: "lmnb-details", "aria-label": "Selected node" });
  private readonly _hint = h("p", { class: "lmnb-hint" }, "Select a node: click it, or use the arrow keys.");
  private readonly _facts = h("dl");
  private readonly _text = h("pre", { class: "lmnb-node-text", tabindex: 0 });
  private readonly _values = new Map<string, HTMLElement>();

  constructor() {
    for (const name of ["State", "Tokens", "From root", "Hits", "Last use", "Made by", "Used by", "Why"]) {
      const value = h("dd");
      this._values.set(name, value);
      this._facts.append(h("dt", {}, name), value);
    }
    this.el.append(this._hint, this._facts, this._text);
    this.show(null, new Map(), null, 0);
  }

  show(id: number | null, tree: Tree, marks: Marks | null, now: number, model?: CacheModel, shown = 0, tokenBytes = 0): void {
    const node = id === null ? undefined : tree.get(id);
    this._hint.hidden = node !== undefined;
    this._facts.hidden = this._text.hidden = node === undefined;
    if (!node || !marks) return;
    const above = path(tree, node.node);
    const start = above.slice(1).reduce((sum, other) => sum + other.num_tokens, 0);
    const state = stateOf(node.node, marks);
    this._set("State", `${STATE_SIGNS[state]}${STATE_WORDS[state]}${node.locks > 0 ? ", in use" : ""}`);
    this._set("Tokens", count(node.num_tokens) + (tokenBytes ? ` · ${bytes(node.num_tokens * tokenBytes)}` : ""));
    this._set("From root", `${count(start)} – ${count(start + node.num_tokens)}, depth ${above.length}`);
    this._set("Hits", count(node.hits));
    this._set("Last use", ago(Math.max(0, now - node.last)));
    this._set("Made by", node.owner || "—");
    this._set("Used by", model?.users(node.node, tree, shown).join(", ") ?? "");
    this._set("Why", (state === "evicted" && model?.why(node.node, shown)) || "");
    setText(this._text, node.text);
  }

  private _set(name: string, value: string): void {
    const element = this._values.get(name);
    if (!element) return;
    setText(element, value);
    element.hidden = (element.previousElementSibling as HTMLElement).hidden = value === "";
  }
}

export class ListView {
  readonly el: HTMLDetailsElement;
  private readonly _summary = h("summary");
  private readonly _list = h("ul", { ...OWN_KEYS, role: "tree", "aria-label": "Cache tree" });
  private readonly _rest = h("p", { class: "lmnb-hint" });
  private _rows: Box[] = [];
  private _tree: Tree = new Map();
  private _redraw: (() => void) | null = null;

  constructor(private readonly _onSelect: (node: number | null) => void) {
    this.el = h("details", { class: "lmnb-list" }, this._summary, this._list, this._rest);
    this.el.addEventListener("toggle", () => this.el.open && this._redraw?.());
    this._list.addEventListener("click", (event) => this._onSelect(nodeOf(event)));
    this._list.addEventListener("keydown", (event) => this._move(event));
  }

  show(boxes: Box[], tree: Tree, marks: Marks, selected: number | null): void {
    this._tree = tree;
    this._rows = [...boxes].sort((a, b) => a.row - b.row || a.depth - b.depth);
    setText(this._summary, `As a list: ${plural(boxes.length, "node")}`);
    this._redraw = () => this._draw(marks, selected);
    if (this.el.open) this._redraw();
  }

  private _draw(marks: Marks, selected: number | null): void {
    const focused = this._list.contains(document.activeElement);
    const shown = this._rows.slice(0, MOST_ROWS);
    const current = shown.some((box) => box.node === selected) ? selected : (shown[0]?.node ?? null);
    const items = shown.map((box) => {
      const node = this._tree.get(box.node);
      const label = node ? `${STATE_SIGNS[stateOf(box.node, marks)]}${plural(node.num_tokens, "token")}, ${plural(node.hits, "hit")}: ` : "";
      return h(
        "li",
        {
          role: "treeitem",
          "data-node": box.node,
          "aria-level": box.depth + 1,
          "aria-selected": box.node === selected ? "true" : "false",
          tabindex: box.node === current ? 0 : -1,
          style: `padding-left:${8 + box.depth * 16}px`,
        },
        h("b", { class: "lmnb-number" }, label),
        oneLine(node?.text ?? "").slice(0, 120),
      );
    });
    this._list.replaceChildren(...items);
    if (focused) items.find((item) => item.tabIndex === 0)?.focus({ preventScroll: true });
    const more = this._rows.length - shown.length;
    this._rest.hidden = more === 0;
    setText(this._rest, `and ${plural(more, "more node")}`);
  }

  private _move(event: KeyboardEvent): void {
    const id = nodeOf(event);
    const place = this._rows.findIndex((box) => box.node === id);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const next =
      step === undefined ? neighbour(this._rows, this._tree, id, event.key) : (this._rows[place + step]?.node ?? null);
    if (next === null) return;
    event.preventDefault();
    event.stopPropagation();
    this._onSelect(next);
  }
}

function nodeOf(event: Event): number | null {
  const item = event.target instanceof Element ? event.target.closest<HTMLElement>("[data-node]") : null;
  return item ? Number(item.dataset["node"]) : null;
}

// What stands beside the icicle: the details of the selected node, and the tree as a list for keyboards and
// screen readers.

import { h, OWN_KEYS, setText } from "./dom";
import { ago, count, oneLine, plural } from "./format";
import { type Box, neighbour } from "./tree_layout";
import { type Marks, path, stateOf, STATE_SIGNS, type Tree } from "./tree_model";

const MOST_ROWS = 200;
const STATE_WORDS = { kept: "kept", hit: "reused just now", new: "new", evicted: "evicted" } as const;

export class DetailsView {
  readonly el = h("aside", { class: "lmnb-details", "aria-label": "Selected node" });
  private readonly hint = h("p", { class: "lmnb-hint" }, "Select a node: click it, or use the arrow keys.");
  private readonly facts = h("dl");
  private readonly text = h("pre", { class: "lmnb-node-text", tabindex: 0 });
  private readonly values = new Map<string, HTMLElement>();

  constructor() {
    for (const name of ["State", "Tokens", "From root", "Hits", "Last use", "Made by"]) {
      const value = h("dd");
      this.values.set(name, value);
      this.facts.append(h("dt", {}, name), value);
    }
    this.el.append(this.hint, this.facts, this.text);
    this.show(null, new Map(), null, 0);
  }

  show(id: number | null, tree: Tree, marks: Marks | null, now: number): void {
    const node = id === null ? undefined : tree.get(id);
    this.hint.hidden = node !== undefined;
    this.facts.hidden = this.text.hidden = node === undefined;
    if (!node || !marks) return;
    const above = path(tree, node.node);
    const start = above.slice(1).reduce((sum, other) => sum + other.num_tokens, 0);
    const state = stateOf(node.node, marks);
    this.set("State", `${STATE_SIGNS[state]}${STATE_WORDS[state]}${node.locks > 0 ? ", in use" : ""}`);
    this.set("Tokens", count(node.num_tokens));
    this.set("From root", `${count(start)} – ${count(start + node.num_tokens)}, depth ${above.length}`);
    this.set("Hits", count(node.hits));
    this.set("Last use", ago(Math.max(0, now - node.last)));
    this.set("Made by", node.owner || "—");
    setText(this.text, node.text);
  }

  private set(name: string, value: string): void {
    const element = this.values.get(name);
    if (element) setText(element, value);
  }
}

export class ListView {
  readonly el: HTMLDetailsElement;
  private readonly summary = h("summary");
  private readonly list = h("ul", { ...OWN_KEYS, role: "tree", "aria-label": "Cache tree" });
  private readonly rest = h("p", { class: "lmnb-hint" });
  private rows: Box[] = [];
  private tree: Tree = new Map();
  private redraw: (() => void) | null = null;

  constructor(private readonly onSelect: (node: number | null) => void) {
    this.el = h("details", { class: "lmnb-list" }, this.summary, this.list, this.rest);
    this.el.addEventListener("toggle", () => this.el.open && this.redraw?.());
    this.list.addEventListener("click", (event) => this.onSelect(nodeOf(event)));
    this.list.addEventListener("keydown", (event) => this.move(event));
  }

  show(boxes: Box[], tree: Tree, marks: Marks, selected: number | null): void {
    this.tree = tree;
    this.rows = [...boxes].sort((a, b) => a.row - b.row || a.depth - b.depth);
    setText(this.summary, `As a list: ${plural(boxes.length, "node")}`);
    this.redraw = () => this.draw(marks, selected);
    if (this.el.open) this.redraw();
  }

  private draw(marks: Marks, selected: number | null): void {
    const focused = this.list.contains(document.activeElement);
    const shown = this.rows.slice(0, MOST_ROWS);
    const current = shown.some((box) => box.node === selected) ? selected : (shown[0]?.node ?? null);
    const items = shown.map((box) => {
      const node = this.tree.get(box.node);
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
    this.list.replaceChildren(...items);
    if (focused) items.find((item) => item.tabIndex === 0)?.focus({ preventScroll: true });
    const more = this.rows.length - shown.length;
    this.rest.hidden = more === 0;
    setText(this.rest, `and ${plural(more, "more node")}`);
  }

  private move(event: KeyboardEvent): void {
    const id = nodeOf(event);
    const place = this.rows.findIndex((box) => box.node === id);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const next =
      step === undefined ? neighbour(this.rows, this.tree, id, event.key) : (this.rows[place + step]?.node ?? null);
    if (next === null) return;
    event.preventDefault();
    event.stopPropagation();
    this.onSelect(next);
  }
}

function nodeOf(event: Event): number | null {
  const item = event.target instanceof Element ? event.target.closest<HTMLElement>("[data-node]") : null;
  return item ? Number(item.dataset["node"]) : null;
}

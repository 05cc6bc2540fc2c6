// What stands beside the icicle: the details of the selected node, and the tree as a list for keyboards and
// screen readers.

import { h, OWN_KEYS, paced, setText } from "./dom";
import { ago, bytes, count, oneLine, plural } from "./format";
import type { Act, Pool } from "./protocol";
import { type Box, neighbour } from "./tree_layout";
import { type CacheModel, type Marks, path, PIN_SIGN, stateOf, STATE_SIGNS, type Tree } from "./tree_model";

const MOST_ROWS = 200;
const LIST_INTERVAL = 500; // milliseconds between drawings while events come: a list is read, not watched
const STATE_WORDS = { kept: "kept", hit: "reused", new: "new", evicted: "evicted" } as const;

/** What the details of a node are read from. */
export interface Moment {
  model: CacheModel;
  shown: number; // events
  tree: () => Tree; // with the evicted nodes that are still drawn
  marks: Marks;
  held: Set<number>; // what pins hold
  now: number; // seconds since 1970
  pool: Pool | undefined;
  live: boolean; // the newest moment of an engine that is there
}

const FACTS = ["State", "Tokens", "From root", "Hits", "In use", "Last use", "Made by", "Source line", "Used by", "Why"] as const;

export class DetailsView {
  readonly el = h("aside", { class: "lmnb-details", "aria-label": "Selected node" });
  private readonly _hint = h("p", { class: "lmnb-hint" }, "Select a node: click it, or use the arrow keys.");
  private readonly _facts = h("dl");
  private readonly _text = h("pre", { class: "lmnb-node-text", tabindex: 0, "aria-label": "Text of the node" });
  private readonly _values = new Map<string, HTMLElement>();
  private readonly _pin = h("button", { type: "button", class: "lmnb-toggle", title: "Keep this node and all above it (key P)" });
  private readonly _evict = h("button", { type: "button", title: "Give up this node and all below it (key Delete)" }, "Evict");
  private readonly _buttons = h("div", { class: "lmnb-node-acts" }, this._pin, this._evict);
  private readonly _notice = h("p", { class: "lmnb-notice", role: "status" });
  private _act: Act = "pin"; // of the first button
  private _shown: number | null = null;

  /** `act` is null where there is no kernel to act in. */
  constructor(act: ((act: Act) => void) | null) {
    for (const name of FACTS) {
      const value = h("dd");
      this._values.set(name, value);
      this._facts.append(h("dt", {}, name), value);
    }
    this._pin.addEventListener("click", () => act?.(this._act));
    this._evict.addEventListener("click", () => act?.("evict"));
    this._hint.append(act ? " P pins it, Delete evicts it." : "");
    this.el.append(this._hint, this._facts, ...(act ? [this._buttons] : []), this._notice, this._text);
    this.show(null, null);
  }

  notice(text: string): void {
    setText(this._notice, text);
  }

  get noticed(): string {
    return this._notice.textContent ?? "";
  }

  /** What the key or first button would do. */
  get pinAct(): Act {
    return this._act;
  }

  show(id: number | null, moment: Moment | null): void {
    const node = id === null ? undefined : moment?.tree().get(id);
    this._hint.hidden = node !== undefined;
    this._facts.hidden = this._text.hidden = this._buttons.hidden = node === undefined;
    if (this._shown !== id) this.notice("");
    this._shown = id;
    if (!node || !moment) return;
    const { model, shown, marks, held, now, pool, live } = moment;
    const tree = moment.tree();
    const above = path(tree, node.node);
    const start = above.slice(1).reduce((sum, other) => sum + other.num_tokens, 0);
    const state = stateOf(node.node, marks);
    const pinned = node.pinned ? `, ${PIN_SIGN}pinned` : held.has(node.node) ? ", held by a pin below" : "";
    const size = pool?.token_bytes ? ` · ${bytes(node.num_tokens * pool.token_bytes)}` : "";
    const [owner, line] = node.owner.split(" · line ");
    this._set("State", `${STATE_SIGNS[state]}${STATE_WORDS[state]}${pinned}`);
    this._set("Tokens", count(node.num_tokens) + size);
    this._set("From root", `${count(start)} – ${count(start + node.num_tokens)}, depth ${above.length}`);
    this._set("Hits", count(node.hits));
    this._set("In use", live ? holders(node.node, tree, pool) : "");
    this._set("Last use", ago(Math.max(0, now - node.last)));
    this._set("Made by", owner || "—");
    this._set("Source line", [line, node.source].filter(Boolean).join(": "));
    this._set("Used by", model.users(node.node, tree, shown).join(", "));
    this._set("Why", (state === "evicted" && model.why(node.node, shown)) || "");
    this._act = node.pinned ? "unpin" : "pin";
    setText(this._pin, node.pinned ? "Unpin" : "Pin");
    this._pin.setAttribute("aria-pressed", String(node.pinned));
    this._pin.disabled = this._evict.disabled = !live || state === "evicted";
    setText(this._text, node.text);
  }

  private _set(name: (typeof FACTS)[number], value: string): void {
    const element = this._values.get(name);
    if (!element) return;
    setText(element, value);
    element.hidden = (element.previousElementSibling as HTMLElement).hidden = value === "";
  }
}

/** Whether a running request holds a node. */
export function isHeld(id: number, tree: Tree, pool: Pool | undefined): boolean {
  return (pool?.held ?? []).some(([end]) => path(tree, end).some((above) => above.node === id));
}

/** Who holds a node just now: `2 requests: cell 3, cell 4`. */
function holders(id: number, tree: Tree, pool: Pool | undefined): string {
  let total = 0;
  const owners = new Set<string>();
  for (const [end, number, ...names] of pool?.held ?? []) {
    if (!path(tree, end).some((above) => above.node === id)) continue;
    total += number;
    for (const name of names) if (name) owners.add(name);
  }
  return total ? `${plural(total, "request")}${owners.size ? `: ${[...owners].slice(0, 3).join(", ")}` : ""}` : "";
}

export class ListView {
  readonly el: HTMLDetailsElement;
  private readonly _summary = h("summary");
  private readonly _list = h("ul", { ...OWN_KEYS, role: "tree", "aria-label": "Cache tree" });
  private readonly _rest = h("p", { class: "lmnb-hint" });
  private _rows: Box[] = [];
  private _tree: Tree = new Map();
  private _redraw: (() => void) | null = null;
  private _selected: number | null = null;
  private readonly _drawing = paced(() => this.el.open && this._redraw?.(), LIST_INTERVAL);

  constructor(
    private readonly _onSelect: (node: number | null) => void,
    private readonly _onAct: (key: string) => boolean,
  ) {
    this.el = h("details", { class: "lmnb-list" }, this._summary, this._list, this._rest);
    this.el.addEventListener("toggle", () => this.el.open && this._redraw?.());
    this._list.addEventListener("click", (event) => this._onSelect(nodeOf(event)));
    this._list.addEventListener("keydown", (event) => this._move(event));
  }

  /** `size`: how many of the boxes are in the tree; the others were evicted. */
  show(boxes: Box[], size: number, tree: () => Tree, marks: Marks, selected: number | null): void {
    const gone = boxes.length - size;
    setText(this._summary, `As a list: ${plural(size, "node")}${gone > 0 ? `, ${count(gone)} evicted` : ""}`);
    this._redraw = () => {
      this._tree = tree();
      this._rows = [...boxes].sort((a, b) => a.row - b.row || a.depth - b.depth);
      this._draw(marks, selected);
    };
    if (selected !== this._selected) this._drawing.cancel(); // that is shown at once
    this._selected = selected;
    this._drawing.request();
  }

  close(): void {
    this._drawing.cancel();
  }

  private _draw(marks: Marks, selected: number | null): void {
    const focused = this._list.contains(document.activeElement);
    const shown = this._rows.slice(0, MOST_ROWS);
    const current = shown.some((box) => box.node === selected) ? selected : (shown[0]?.node ?? null);
    const items = shown.map((box) => {
      const node = this._tree.get(box.node);
      const label = node ? `${node.pinned ? PIN_SIGN : ""}${STATE_SIGNS[stateOf(box.node, marks)]}${plural(node.num_tokens, "token")}, ${plural(node.hits, "hit")}: ` : "";
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
    if (id !== null && this._onAct(event.key)) return event.preventDefault(), event.stopPropagation();
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

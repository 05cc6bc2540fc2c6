// The view of a cache: gauge and legend, icicle, details, timeline and list, kept in step with a connection.

import { type Connection, GONE, type Reducer, SILENT } from "./connection";
import { frameScheduler, h, OWN_KEYS, setText } from "./dom";
import { count, plural } from "./format";
import type { Act, CacheEvent, Pool } from "./protocol";
import { type Scene, TINTS, TreeCanvas } from "./tree_canvas";
import { neighbour } from "./tree_layout";
import { CacheModel, type CacheState, type Marks, PIN_SIGN, pinHeld, type Tree } from "./tree_model";
import { DetailsView, isHeld, ListView } from "./tree_panel";
import { Timeline } from "./tree_timeline";

const AGE_INTERVAL = 5000; // milliseconds between looks at the clock
const FOLLOWED = 12; // events at once that an eye may follow
const SETTLED = 1500; // milliseconds in which what was done shows; what changes later makes its notice untrue

export class CacheStore implements Reducer<CacheState, CacheEvent> {
  model = new CacheModel();
  pool: Pool | undefined;
  said = { text: "", number: 0 };
  private _received = 0; // when `pool` came, by the page's clock

  /** The time at the kernel; `stopped` for a page that stands alone, whose time is that of its picture. */
  now(stopped: boolean): number {
    if (this.pool?.now === undefined) return this.model.events[this.model.events.length - 1]?.time ?? 0;
    return this.pool.now + (stopped ? 0 : (performance.now() - this._received) / 1000);
  }

  notice(text: string): void {
    this.said = { text, number: this.said.number + 1 };
  }

  lost(): void {
    if (this.pool) this._take({ ...this.pool, now: this.now(false), running: 0, waiting: 0, held: [] }); // it runs nothing any more
  }

  reset(state: CacheState, pool: Pool | undefined): void {
    this.model = new CacheModel(state);
    this._take(pool);
  }

  apply(events: CacheEvent[], pool: Pool | undefined): void {
    for (const event of events) this.model.append(event);
    this._take(pool ?? this.pool);
  }

  private _take(pool: Pool | undefined): void {
    if (pool !== this.pool) this._received = performance.now();
    this.pool = pool;
  }
}

/** Draw a cache into `el`. Returns what takes everything back. */
export function renderCache(
  el: HTMLElement,
  store: CacheStore,
  connection: Connection<CacheState, CacheEvent>,
  live: boolean,
): () => void {
  const view = new CacheViewElement(store, live ? (act, node) => connection.request({ type: "act", act, ...(node !== undefined && { node }) }, (why) => view.notice(why)) : null, () => live && connection.lost);
  el.append(view.root);
  const frames = frameScheduler(() => view.update());
  const unsubscribe = connection.subscribe(() => frames.request());
  const observer = new MutationObserver(() => view.recolour());
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"] });
  view.update();
  return () => {
    unsubscribe();
    frames.cancel();
    observer.disconnect();
    view.close();
  };
}

/** Nodes in which a match of `query` ends: it may have begun above them, because a split cuts words, too. */
function search(tree: Tree, query: string): Set<number> {
  const before = new Map<number, string>(); // the end of the text up to and with a node
  const end = (id: number): string => {
    const node = tree.get(id);
    if (!node) return "";
    let text = before.get(id);
    if (text === undefined) before.set(id, (text = query.length > 1 ? (end(node.parent) + node.text.toLowerCase()).slice(1 - query.length) : ""));
    return text;
  };
  const found = [...tree.values()].filter((node) => (end(node.parent) + node.text.toLowerCase()).includes(query));
  return new Set(found.map((node) => node.node));
}

function numTokens(tree: Tree): number {
  let total = 0;
  for (const node of tree.values()) total += node.num_tokens;
  return total;
}

class CacheViewElement {
  readonly root: HTMLElement;
  private _selected: number | null = null;
  private _tree: Tree = new Map();
  private _marks: Marks = { fresh: new Set(), hit: new Set(), evicted: new Map() };
  private readonly _usage = h("span", { class: "lmnb-model", role: "status" });
  private _query = "";
  private _found: Set<number> | null = null;
  private _seen = -1; // events drawn before
  private _badgeTimer: ReturnType<typeof setTimeout> | undefined;
  private readonly _ageTimer = setInterval(() => this._grow(), AGE_INTERVAL);
  private readonly _badge = h("span", { class: "lmnb-badge", title: "More happened at once than the picture could show one by one" });
  private readonly _tint = h("select", { ...OWN_KEYS, "aria-label": "Colour of nodes" }, ...TINTS.map((name) => h("option", { value: name }, `by ${name}`)));
  private readonly _search = h("input", { ...OWN_KEYS, type: "search", placeholder: "Search text", "aria-label": "Search the cached text" });
  private readonly _gauge = h("span", { class: "lmnb-gauge-fill" });
  private readonly _pinned = h("span", { class: "lmnb-gauge-pinned" });
  private readonly _bar = h("div", { class: "lmnb-bar lmnb-gauge", role: "img" }, this._pinned, this._gauge);
  private readonly _frame = h("div", {
    ...OWN_KEYS,
    class: "lmnb-tree-frame",
    tabindex: 0,
    role: "group",
    "aria-label": "Cache tree. Arrow keys walk through it.",
  });
  private readonly _empty = h("p", { class: "lmnb-hint" }, "The cache is empty.");
  private readonly _details: DetailsView;
  private readonly _list = new ListView(
    (node) => this._select(node),
    (key) => this._onActKey(key),
  );
  private readonly _flush = h("button", { type: "button", title: "Forget all that is not pinned" }, "Flush");
  private _held = new Set<number>();
  private _noticed: number;
  private _notice = { at: 0, where: "", what: "" };
  private readonly _timeline = new Timeline(() => this.update());
  private readonly _canvas: TreeCanvas;

  constructor(
    private readonly store: CacheStore,
    private readonly _post: ((act: Act, node?: number) => void) | null,
    private readonly _isLost: () => boolean,
  ) {
    this._noticed = store.said.number;
    this._details = new DetailsView(_post ? (act) => this._actOn(act) : null);
    this._flush.addEventListener("click", () => this._post?.("flush"));
    const reduced = window.matchMedia?.("(prefers-reduced-motion: reduce)").matches ?? false;
    this._canvas = new TreeCanvas(reduced, (node) => this._select(node));
    this._frame.append(this._empty, this._canvas.el);
    this._frame.addEventListener("keydown", (event) => this._onKey(event));
    this._tint.addEventListener("change", () => this.update());
    this._search.addEventListener("input", () => {
      this._query = this._search.value.trim().toLowerCase();
      this.update();
    });
    this._search.addEventListener("keydown", (event) => event.key === "Enter" && this._nextFound());
    const legend = h(
      "span",
      { class: "lmnb-tree-legend lmnb-metrics" },
      h("span", { class: "lmnb-legend", "data-state": "hit" }, "● reused"),
      h("span", { class: "lmnb-legend", "data-state": "new" }, "+ new"),
      h("span", { class: "lmnb-legend", "data-state": "evicted" }, "✕ evicted"),
      h("span", { class: "lmnb-legend" }, `${PIN_SIGN}pinned`),
    );
    const tools = h("span", { class: "lmnb-metrics" }, this._badge, this._search, this._tint, _post ? this._flush : null);
    const title = h("span", { class: "lmnb-title" }, h("b", { class: "lmnb-program" }, "Cache tree"), this._usage);
    this.root = h(
      "div",
      { class: "lmnb lmnb-cache" },
      h("div", { class: "lmnb-head" }, title, tools),
      this._bar,
      h("div", { class: "lmnb-tree-columns" }, h("div", { class: "lmnb-tree-picture" }, this._frame, legend), this._details.el),
      this._timeline.el,
      this._list.el,
    );
  }

  update(): void {
    const { model, pool } = this.store;
    this._timeline.show(model.events, model.baseSeq + 1, numTokens(model.base), pool?.pool_tokens);
    const place = this._timeline.place;
    this._tree = place === null ? model.head : model.at(place);
    const { since } = this._timeline;
    const shown = place ?? model.events.length;
    if (since !== null) this._marks = model.compare(Math.min(shown, since), Math.max(shown, since));
    else this._marks = place === null ? model.marks() : model.marks(place, Math.max(0, place - this._timeline.stride));
    if (place === null) this._tell(model.baseSeq + 1 + model.events.length);
    else setText(this._badge, ""); // it speaks of now
    this._held = pinHeld(this._tree);
    this._found = null;
    if (this._query) {
      this._found = search(new Map([...this._tree, ...this._marks.evicted]), this._query);
    }
    const now = this._now();
    this._canvas.show({ tree: this._tree, marks: this._marks, tint: this._tint.value as Scene["tint"], found: this._found, held: this._held, now }, this._summary());
    this._frame.style.minHeight = `${this._canvas.tallest + 20}px`; // nothing below moves while it gets smaller
    this._empty.hidden = this._canvas.boxes.length > 0;
    this._canvas.el.hidden = !this._empty.hidden;
    if (this._selected !== null && !this._canvas.node(this._selected)) this._selected = null;
    this._canvas.select(this._selected);
    this._showPool(place === null ? pool : undefined);
    this._showSelected();
    if (this.store.said.number !== this._noticed) this.notice(this.store.said.text);
    this._noticed = this.store.said.number;
  }

  /** The time that ages are counted to: that of the moment shown. */
  private _now(): number {
    const place = this._timeline.place;
    return place === null ? this.store.now(this._post === null) : (this.store.model.events[place - 1]?.time ?? 0);
  }

  /** More events at once than an animation can show are at least counted. */
  private _tell(total: number): void {
    const fresh = this._seen < 0 ? 0 : total - this._seen;
    this._seen = total;
    if (fresh <= FOLLOWED) return;
    setText(this._badge, `+${count(fresh)} events`);
    clearTimeout(this._badgeTimer);
    this._badgeTimer = setTimeout(() => setText(this._badge, ""), 2000);
  }

  private _nextFound(): void {
    const boxes = this._canvas.boxes.filter((box) => this._found?.has(box.node));
    const place = boxes.findIndex((box) => box.node === this._selected);
    this._select(boxes[(place + 1) % boxes.length]?.node ?? null);
  }

  /** Nothing happens, and things get older. */
  private _grow(): void {
    if (this._timeline.place !== null || !this._post || this._isLost()) return;
    if (this._tint.value === "age") this.update();
    else if (this._selected !== null) this._showSelected();
  }

  notice(text: string): void {
    this._details.notice(text);
    this._notice = { at: performance.now(), where: this._where(text), what: this._what() };
  }

  /** Take a notice back once it is untrue: its reader, or what it speaks of, is elsewhere. */
  private _checkNotice(): void {
    const text = this._details.noticed;
    if (!text) return;
    const what = this._what();
    if (this._notice.where !== this._where(text)) this._details.notice("");
    else if (this._notice.what === what) return;
    else if (performance.now() - this._notice.at < SETTLED) this._notice.what = what; // that is what was done
    else this._details.notice("");
  }

  private _where(text: string): string {
    const heard = text === SILENT ? this.store.pool?.now : ""; // a kernel that says something is not silent
    return `${this._selected} ${this._timeline.place === null} ${this._isLost()} ${heard}`;
  }

  private _what(): string {
    const { model, pool } = this.store;
    if (this._selected === null) return String(model.baseSeq + model.events.length);
    const node = model.head.get(this._selected);
    return `${node?.pinned} ${isHeld(this._selected, model.head, pool)}`;
  }

  recolour(): void {
    this._canvas.restyle();
  }

  close(): void {
    this._timeline.close();
    this._list.close();
    clearTimeout(this._badgeTimer);
    clearInterval(this._ageTimer);
    this._canvas.close();
    this.root.remove();
  }

  private _select(node: number | null): void {
    this._selected = node;
    this._canvas.select(node);
    this._showSelected();
  }

  private _showSelected(): void {
    const { model, pool } = this.store;
    const shown = this._timeline.place ?? model.events.length;
    const now = this._now();
    const live = this._timeline.place === null && pool?.closed !== 1 && !this._isLost();
    this._flush.disabled = !live;
    this._checkNotice();
    this._details.show(this._selected, { model, shown, tree: () => this._canvas.nodes, marks: this._marks, held: this._held, now, pool, live });
    this._list.show(this._canvas.boxes, this._tree.size, () => this._canvas.nodes, this._marks, this._selected);
  }

  private _showPool(pool: Pool | undefined): void {
    const tokens = numTokens(this._tree);
    let pinned = 0;
    for (const id of this._held) pinned += this._tree.get(id)?.num_tokens ?? 0;
    const total = this.store.pool?.pool_tokens ?? 0;
    const parts = [plural(this._tree.size, "node"), `${count(tokens)}${total ? ` of ${count(total)}` : ""} tokens cached`];
    if (pinned) parts.push(`${count(pinned)} pinned`);
    if (this._found) parts.unshift(`${count(this._found.size)} found`);
    const { place, since } = this._timeline;
    const word = place !== null && since !== null && place < since ? "until" : "since"; // what is to come is not there yet
    if (since !== null) parts.unshift(`${word} event ${this._timeline.number(since)}: ${this._changes()}`);
    const closed = this.store.pool?.closed === 1;
    if (this._isLost()) parts.unshift(GONE);
    if (closed) parts.unshift("the model was unloaded; this was its cache");
    this.root.classList.toggle("lmnb-closed", closed);
    if (pool && pool.running + pool.waiting > 0) parts.push(`${count(pool.running)} running, ${count(pool.waiting)} waiting`);
    setText(this._usage, parts.join(" · "));
    const share = (part: number) => (total ? Math.min(100, (100 * part) / total) : 0);
    this._pinned.style.width = `${share(pinned)}%`;
    this._gauge.style.width = `${share(tokens - pinned)}%`;
    const words = `KV pool: ${share(tokens).toFixed(0)} % cached (${share(pinned).toFixed(0)} % pinned)`;
    this._bar.setAttribute("aria-label", words);
    this._bar.title = words;
  }

  private _summary(): string {
    return `Cache tree: ${plural(this._tree.size, "node")}; last change: ${this._changes()}`;
  }

  private _changes(): string {
    const { fresh, hit, evicted } = this._marks;
    return `${count(hit.size)} reused, ${count(fresh.size)} new, ${count(evicted.size)} evicted`;
  }

  private _actOn(act: Act): void {
    if (this._selected !== null) this._post?.(act, this._selected);
  }

  /** Whether the key does something to the selected node. */
  private _onActKey(key: string): boolean {
    const act = key === "Delete" ? "evict" : key.toLowerCase() === "p" ? this._details.pinAct : null;
    if (!act || !this._post) return false;
    if (this._isLost()) this.notice(GONE);
    else if (this._timeline.place === null) this._actOn(act);
    else this.notice("This is the past: go back to Live first.");
    return true;
  }

  private _onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") this._select(null);
    else if (event.key === " ") this._timeline.toggle();
    else if (event.key === "," || event.key === ".") this._timeline.step(event.key === "," ? -1 : 1);
    else if (!this._onActKey(event.key)) {
      const keys = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];
      if (!keys.includes(event.key)) return;
      const next = neighbour(this._canvas.boxes, this._canvas.nodes, this._selected, event.key);
      if (next !== null) this._select(next);
    }
    // Notebooks have their own meaning for these keys.
    event.preventDefault();
    event.stopPropagation();
  }
}

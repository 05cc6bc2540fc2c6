// The view of a cache: gauge and legend, icicle, details, timeline and list, kept in step with a connection.

import type { Connection, Reducer } from "./connection";
import { frameScheduler, h, OWN_KEYS, setText } from "./dom";
import { count, plural } from "./format";
import type { CacheEvent, Pool } from "./protocol";
import { TreeCanvas } from "./tree_canvas";
import { neighbour } from "./tree_layout";
import { CacheModel, type CacheState, type Marks, type Tree } from "./tree_model";
import { DetailsView, ListView } from "./tree_panel";
import { Timeline } from "./tree_timeline";

export class CacheStore implements Reducer<CacheState, CacheEvent> {
  model = new CacheModel();
  pool: Pool | undefined;

  reset(state: CacheState, pool: Pool | undefined): void {
    this.model = new CacheModel(state);
    this.pool = pool;
  }

  apply(events: CacheEvent[], pool: Pool | undefined): void {
    for (const event of events) this.model.append(event);
    this.pool = pool ?? this.pool;
  }
}

/** Draw a cache into `el`. Returns what takes everything back. */
export function renderCache(
  el: HTMLElement,
  store: CacheStore,
  connection: Connection<CacheState, CacheEvent>,
): () => void {
  const view = new CacheViewElement(store);
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

class CacheViewElement {
  readonly root: HTMLElement;
  private selected: number | null = null;
  private tree: Tree = new Map();
  private marks: Marks = { fresh: new Set(), hit: new Set(), evicted: new Map() };
  private readonly usage = h("span", { class: "lmnb-model", role: "status" });
  private readonly gauge = h("span", { class: "lmnb-gauge-fill" });
  private readonly frame = h("div", {
    ...OWN_KEYS,
    class: "lmnb-tree-frame",
    tabindex: 0,
    role: "group",
    "aria-label": "Cache tree. Arrow keys walk through it.",
  });
  private readonly empty = h("p", { class: "lmnb-hint" }, "The cache is empty.");
  private readonly details = new DetailsView();
  private readonly list = new ListView((node) => this.select(node));
  private readonly timeline = new Timeline(() => this.update());
  private readonly canvas: TreeCanvas;

  constructor(private readonly store: CacheStore) {
    const reduced = window.matchMedia?.("(prefers-reduced-motion: reduce)").matches ?? false;
    this.canvas = new TreeCanvas(reduced, (node) => this.select(node));
    this.frame.append(this.empty, this.canvas.el);
    this.frame.addEventListener("keydown", (event) => this.onKey(event));
    const legend = h(
      "span",
      { class: "lmnb-metrics" },
      h("span", { class: "lmnb-legend", "data-state": "hit" }, "● reused"),
      h("span", { class: "lmnb-legend", "data-state": "new" }, "+ new"),
      h("span", { class: "lmnb-legend", "data-state": "evicted" }, "✕ evicted"),
    );
    const title = h("span", { class: "lmnb-title" }, h("b", { class: "lmnb-program" }, "Cache tree"), this.usage);
    this.root = h(
      "div",
      { class: "lmnb lmnb-cache" },
      h("div", { class: "lmnb-head" }, title, legend),
      h("div", { class: "lmnb-bar lmnb-gauge", "aria-hidden": "true" }, this.gauge),
      h("div", { class: "lmnb-tree-columns" }, this.frame, this.details.el),
      this.timeline.el,
      this.list.el,
    );
  }

  update(): void {
    const { model, pool } = this.store;
    this.timeline.show(model.events);
    const place = this.timeline.place;
    this.tree = place === null ? model.head : model.at(place);
    this.marks = place === null ? model.marks() : model.marks(place, Math.max(0, place - this.timeline.stride));
    this.canvas.show({ tree: this.tree, marks: this.marks }, this.summary());
    this.empty.hidden = this.canvas.boxes.length > 0;
    this.canvas.el.hidden = !this.empty.hidden;
    if (this.selected !== null && !this.canvas.nodes.has(this.selected)) this.selected = null;
    this.canvas.select(this.selected);
    this.showPool(place === null ? pool : undefined);
    this.showSelected();
  }

  recolour(): void {
    this.canvas.redraw();
  }

  close(): void {
    this.timeline.pause();
    this.canvas.close();
    this.root.remove();
  }

  private select(node: number | null): void {
    this.selected = node;
    this.canvas.select(node);
    this.showSelected();
  }

  private showSelected(): void {
    const place = this.timeline.place ?? this.store.model.events.length;
    const newest = this.store.model.events[place - 1]?.time ?? 0;
    this.details.show(this.selected, this.canvas.nodes, this.marks, newest);
    this.list.show(this.canvas.boxes, this.canvas.nodes, this.marks, this.selected);
  }

  private showPool(pool: Pool | undefined): void {
    let tokens = 0;
    for (const node of this.tree.values()) tokens += node.num_tokens;
    const total = this.store.pool?.pool_tokens ?? 0;
    const parts = [plural(this.tree.size, "node"), `${count(tokens)}${total ? ` of ${count(total)}` : ""} tokens cached`];
    const closed = this.store.pool?.closed === 1;
    if (closed) parts.unshift("the model was unloaded; this was its cache");
    this.root.classList.toggle("lmnb-closed", closed);
    if (pool && pool.running + pool.waiting > 0) parts.push(`${count(pool.running)} running, ${count(pool.waiting)} waiting`);
    setText(this.usage, parts.join(" · "));
    this.gauge.style.width = total ? `${Math.min(100, (100 * tokens) / total)}%` : "0";
  }

  private summary(): string {
    const { fresh, hit, evicted } = this.marks;
    return `Cache tree: ${plural(this.tree.size, "node")}; just now ${count(hit.size)} reused, ${count(fresh.size)} new, ${count(evicted.size)} evicted`;
  }

  private onKey(event: KeyboardEvent): void {
    if (event.key === "Escape") this.select(null);
    else if (event.key === " ") this.timeline.toggle();
    else if (event.key === "," || event.key === ".") this.timeline.step(event.key === "," ? -1 : 1);
    else {
      const keys = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];
      if (!keys.includes(event.key)) return;
      const next = neighbour(this.canvas.boxes, this.canvas.nodes, this.selected, event.key);
      if (next !== null) this.select(next);
    }
    // Notebooks have their own meaning for these keys.
    event.preventDefault();
    event.stopPropagation();
  }
}

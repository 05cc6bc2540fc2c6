// A fork: its branches as lanes side by side or, where there are many, as lines that open. Lanes can be searched and
// sorted; they keep their places and widths while text streams, until a reader or the run's end puts them in order.

import { h, OWN_KEYS, setText } from "./dom";
import { count, plural, WORDS } from "./format";
import type { ItemView, RunUi } from "./run_branch";
import { laneName, LaneView } from "./run_lane";
import type { Branch, Item, RunModel } from "./run_model";
import { type Score, scoresOf } from "./run_score";

const MANY = 12; // branches; more than these begin as lines
const LANES = { first: MANY, more: 48 };
const LINES = { first: 64, more: 256 };
const SORTS = ["in order", "longest", "shortest", "unfinished first"]; // and by score, highest first
const BURST = 400; // milliseconds in which the branches of one fork open

/** What a reader chose for one fork. */
export interface ForkUi {
  extra: number; // lanes shown beyond the first
  lines: boolean | null;
  query: string;
  sort: string;
  room: { lanes: number; many: boolean } | null; // what the lanes were laid out for
}

export class ForkView implements ItemView {
  readonly el: HTMLElement;
  private readonly _title = h("span");
  private readonly _lanes = h("div", { class: "lmnb-lanes" });
  private readonly _search: HTMLInputElement;
  private readonly _sort: HTMLSelectElement;
  private readonly _more = h("button", { type: "button", class: "lmnb-more" });
  private readonly _tools: HTMLElement;
  private readonly _layout = h("button", { type: "button", class: "lmnb-toggle" }, "Lines");
  private readonly _views = new Map<number, LaneView>();
  private readonly _choice: ForkUi;
  private _item: Extract<Item, { type: "fork" }> | null = null;
  private _order: number[] = [];
  private _shown: number[] = [];
  private _arranged = ""; // what `order` was made for
  private _scores: Score[] = [];
  private readonly _begun = performance.now();
  private _width = -1; // for which rows were counted

  constructor(
    private readonly _model: RunModel,
    private readonly _ui: RunUi,
    key: string,
    private readonly _where = "",
  ) {
    this._choice = _ui.forks.get(key) ?? { extra: 0, lines: null, query: "", sort: "in order", room: null };
    _ui.forks.set(key, this._choice);
    const search = (this._search = h("input", { ...OWN_KEYS, type: "search", placeholder: "Search branches", "aria-label": "Search branches", value: this._choice.query }));
    const sort = (this._sort = h("select", { ...OWN_KEYS, "aria-label": "Order of branches" }, ...SORTS.map((name) => this._option(name))));
    this._tools = h("span", { class: "lmnb-fork-tools", hidden: true }, search, sort, this._layout);
    this.el = h("div", { class: "lmnb-fork" }, h("div", { class: "lmnb-fork-head" }, this._title, this._tools), this._lanes, this._more);
    search.addEventListener("input", () => this._choose({ query: search.value }));
    sort.addEventListener("change", () => this._choose({ sort: sort.value }));
    this._layout.addEventListener("click", () => this._choose({ lines: !this.lines }));
    this._more.addEventListener("click", () => this._choose({ extra: this._choice.extra + this._step.more }));
  }

  private get lines(): boolean {
    return this._choice.lines ?? this._choice.room?.many ?? false;
  }

  private get _step() {
    return this.lines ? LINES : LANES;
  }

  private get _score(): Score | null {
    return this._scores.find(({ name }) => name === this._choice.sort) ?? null;
  }

  private _option(name: string): HTMLOptionElement {
    return h("option", { value: name, selected: name === this._choice.sort }, name);
  }

  private _choose(change: Partial<ForkUi>): void {
    Object.assign(this._choice, change);
    this._arranged = "";
    if (this._item) this._draw(this._item, true);
  }

  update(item: Item): void {
    if (item.type === "fork") this._draw(item, false);
  }

  private _draw(item: Extract<Item, { type: "fork" }>, chosen: boolean): void {
    this._item = item;
    this._offer(item.branches);
    const state = `${item.branches.length} ${this._model.state.status !== "running"}`;
    if (state !== this._arranged) this._arrange(item.branches, chosen);
    this._arranged = state;
    for (const id of this._shown) this._views.get(id)?.update(this.lines, this._score);
    this._findRows();
    setText(this._title, this._summary(item.branches));
  }

  /** Lanes that stand in several rows have one height while the run goes on: none pushes those below it. */
  private _findRows(): void {
    const width = this._lanes.clientWidth;
    if (width === this._width) return;
    this._width = width;
    const columns = getComputedStyle(this._lanes).gridTemplateColumns.split(" ").length; // one, where there is no layout
    this._lanes.classList.toggle("lmnb-rows", width > 0 && !this.lines && this._lanes.childElementCount > columns);
  }

  /** Put the scores that branches have by now into the menu. */
  private _offer(ids: number[]): void {
    const scores = scoresOf(ids.map((id) => this._model.branch(id)));
    for (const { name } of scores) {
      if (!this._scores.some((known) => known.name === name)) this._sort.append(this._option(name));
    }
    this._scores = scores;
    this._search.hidden = this._layout.hidden = ids.length <= MANY;
    // Of a few lanes it is the score that may be wanted: the tools come when the run is over, and push nothing before.
    const scored = scores.length > 0 && ids.length > 1 && this._model.state.status !== "running";
    this._tools.hidden &&= ids.length <= MANY && !scored;
  }

  /** Lanes take room from each other only while none that is shown has text that still grows. */
  private _settle(ids: number[], chosen: boolean): void {
    const streams = this._shown.some((id) => this._views.get(id)?.drawn && this._model.branch(id).status === "running");
    const open = chosen || !streams || performance.now() - this._begun < BURST;
    if (open || !this._choice.room) this._choice.room = { lanes: Math.min(ids.length, this._step.first), many: ids.length > MANY };
    this._lanes.style.setProperty("--lanes", String(this._choice.room.lanes));
  }

  private _arrange(ids: number[], chosen: boolean): void {
    this._settle(ids, chosen);
    const { query, sort } = this._choice;
    const wanted = query.trim().toLowerCase();
    const order = wanted ? ids.filter((id) => matches(this._model.branch(id), wanted)) : [...ids];
    const size = (id: number) => this._model.branch(id).generated;
    if (sort === "longest") order.sort((a, b) => size(b) - size(a));
    if (sort === "shortest") order.sort((a, b) => size(a) - size(b));
    if (sort === "unfinished first") order.sort((a, b) => Number(this._model.branch(a).status === "done") - Number(this._model.branch(b).status === "done"));
    const score = this._score;
    if (score) {
      const values = new Map(order.map((id) => [id, score.of(this._model.branch(id)) ?? -Infinity]));
      order.sort((a, b) => compare(values.get(b) ?? 0, values.get(a) ?? 0));
    }
    this._order = order;
    this._width = -1;
    const shown = (this._shown = order.slice(0, this._step.first + this._choice.extra));
    const elements = shown.map((id) => {
      const view = this._views.get(id) ?? new LaneView(this._model, id, this._ui);
      this._views.set(id, view);
      return view.el;
    });
    const now = this._lanes.children;
    if (elements.length < now.length || elements.some((el, index) => index < now.length && now[index] !== el)) this._lanes.replaceChildren(...elements);
    else this._lanes.append(...elements.slice(now.length)); // what is there keeps its place and its scrolling
    this._lanes.classList.toggle("lmnb-lines", this.lines);
    this._layout.setAttribute("aria-pressed", String(this.lines));
    const rest = order.length - shown.length;
    this._more.hidden = rest === 0;
    setText(this._more, `Show ${count(Math.min(rest, this._step.more))} more of ${count(rest)}`);
  }

  private _summary(ids: number[]): string {
    const parts = [plural(ids.length, "branch", "branches") + this._where];
    if (this._choice.query.trim()) parts.push(`${count(this._order.length)} found`);
    const states = ids.map((id) => this._model.branch(id).status);
    for (const status of ["running", "failed", "cancelled"] as const) {
      const number = states.filter((state) => state === status).length;
      if (number > 0) parts.push(`${count(number)} ${WORDS[status]}`);
    }
    return parts.join(" · ");
  }
}

/** Like a difference, but equal infinities are equal. */
function compare(a: number, b: number): number {
  return a === b ? 0 : a - b;
}

function matches(branch: Branch, wanted: string): boolean {
  if (laneName(branch).toLowerCase().includes(wanted)) return true;
  return branch.items.some((item) => (item.type === "text" || item.type === "gen") && item.text.toLowerCase().includes(wanted));
}

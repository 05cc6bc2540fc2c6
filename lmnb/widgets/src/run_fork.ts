// A fork: its branches as lanes side by side or, where there are many, as lines that open. Lanes can be searched and
// sorted; they keep their places while text streams, until a reader or the run's end puts them in order.

import { h, OWN_KEYS, setText, stickToEnd } from "./dom";
import { count, oneLine, plural, SIGNS, WORDS } from "./format";
import { BranchView, type ItemView, type RunUi } from "./run_branch";
import type { Branch, Item, RunModel } from "./run_model";

const MANY = 12; // branches; more than these begin as lines
const LANES = { first: MANY, more: 48 };
const LINES = { first: 64, more: 256 };
const SORTS = ["in order", "longest", "shortest", "unfinished first"] as const;

/** What a reader chose for one fork. */
export interface ForkUi {
  extra: number; // lanes shown beyond the first
  lines: boolean | null;
  query: string;
  sort: (typeof SORTS)[number];
}

export class ForkView implements ItemView {
  readonly el: HTMLElement;
  private readonly _title = h("span");
  private readonly _lanes = h("div", { class: "lmnb-lanes" });
  private readonly _more = h("button", { type: "button", class: "lmnb-more" });
  private readonly _tools: HTMLElement;
  private readonly _layout = h("button", { type: "button", class: "lmnb-toggle" }, "Lines");
  private readonly _views = new Map<number, LaneView>();
  private readonly _choice: ForkUi;
  private _item: Extract<Item, { type: "fork" }> | null = null;
  private _order: number[] = [];
  private _shown: number[] = [];
  private _arranged = ""; // what `order` was made for

  constructor(
    private readonly _model: RunModel,
    private readonly _ui: RunUi,
    key: string,
    private readonly _where = "",
  ) {
    this._choice = _ui.forks.get(key) ?? { extra: 0, lines: null, query: "", sort: "in order" };
    _ui.forks.set(key, this._choice);
    const search = h("input", { ...OWN_KEYS, type: "search", placeholder: "Search branches", "aria-label": "Search branches", value: this._choice.query });
    const sort = h("select", { ...OWN_KEYS, "aria-label": "Order of branches" }, ...SORTS.map((name) => h("option", { selected: name === this._choice.sort }, name)));
    this._tools = h("span", { class: "lmnb-fork-tools" }, search, sort, this._layout);
    this.el = h("div", { class: "lmnb-fork" }, h("div", { class: "lmnb-fork-head" }, this._title, this._tools), this._lanes, this._more);
    search.addEventListener("input", () => this._choose({ query: search.value }));
    sort.addEventListener("change", () => this._choose({ sort: sort.value as ForkUi["sort"] }));
    this._layout.addEventListener("click", () => this._choose({ lines: !this.lines }));
    this._more.addEventListener("click", () => this._choose({ extra: this._choice.extra + this._step.more }));
  }

  private get lines(): boolean {
    return this._choice.lines ?? (this._item?.branches.length ?? 0) > MANY;
  }

  private get _step() {
    return this.lines ? LINES : LANES;
  }

  private _choose(change: Partial<ForkUi>): void {
    Object.assign(this._choice, change);
    this._arranged = "";
    if (this._item) this.update(this._item);
  }

  update(item: Item): void {
    if (item.type !== "fork") return;
    this._item = item;
    const state = `${item.branches.length} ${this._model.state.status !== "running"}`;
    if (state !== this._arranged) this._arrange(item.branches);
    this._arranged = state;
    for (const id of this._shown) this._views.get(id)?.update(this.lines);
    setText(this._title, this._summary(item.branches));
  }

  private _arrange(ids: number[]): void {
    const { query, sort } = this._choice;
    const wanted = query.trim().toLowerCase();
    const order = wanted ? ids.filter((id) => matches(this._model.branch(id), wanted)) : [...ids];
    const size = (id: number) => this._model.branch(id).generated;
    if (sort === "longest") order.sort((a, b) => size(b) - size(a));
    if (sort === "shortest") order.sort((a, b) => size(a) - size(b));
    if (sort === "unfinished first") order.sort((a, b) => Number(this._model.branch(a).status === "done") - Number(this._model.branch(b).status === "done"));
    this._order = order;
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
    this._tools.hidden = ids.length <= MANY;
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

function matches(branch: Branch, wanted: string): boolean {
  if (laneName(branch).toLowerCase().includes(wanted)) return true;
  return branch.items.some((item) => (item.type === "text" || item.type === "gen") && item.text.toLowerCase().includes(wanted));
}

class LaneView {
  readonly el: HTMLElement;
  private readonly _sign = h("span", { class: "lmnb-sign", role: "img" });
  private readonly _name: HTMLElement;
  private readonly _preview = h("span", { class: "lmnb-preview" });
  private readonly _tokens = h("span", { class: "lmnb-number" });
  private readonly _body = h("div", { class: "lmnb-lane-body" });
  private readonly _branch: BranchView;
  private readonly _stick = stickToEnd(this._body);
  private lines = false;
  private _doneAt: number | null = null; // seconds of the run's end that was drawn: a run may go on, and end again

  constructor(
    private readonly _model: RunModel,
    private readonly _id: number,
    private readonly _ui: RunUi,
  ) {
    const name = laneName(_model.branch(_id));
    this._branch = new BranchView(_model, _id, _ui);
    this._body.append(this._branch.el);
    this._name = h("button", { type: "button", class: "lmnb-lane-name" }, name);
    const head = h("div", { class: "lmnb-lane-head" }, this._sign, this._name, this._preview, this._tokens);
    this.el = h("section", { class: "lmnb-lane", "aria-label": name, "data-branch": _id }, head, this._body);
    head.addEventListener("click", () => {
      this._ui.folded.set(this._id, this._isOpen);
      this._doneAt = null;
      this.update(this.lines);
    });
  }

  private get _isOpen(): boolean {
    return !(this._ui.folded.get(this._id) ?? this.lines);
  }

  update(lines: boolean): void {
    const { status, seconds } = this._model.state;
    if (this._doneAt !== null && this._doneAt === seconds && lines === this.lines) return;
    this.lines = lines;
    const branch = this._model.branch(this._id);
    const open = this._isOpen;
    this._body.hidden = !open;
    this._preview.hidden = open;
    this._name.setAttribute("aria-expanded", String(open));
    if (open) {
      this._stick.before();
      this._branch.update();
      this._stick.after();
      // reachable for scrolling by keys
      if (this._body.scrollHeight > this._body.clientHeight) this._body.tabIndex = 0;
    } else {
      const last = branch.items.findLast((item) => item.type === "gen");
      setText(this._preview, branch.error ?? (last?.type === "gen" ? oneLine(last.text.slice(-400)).slice(-200) : ""));
    }
    if (this.el.dataset["status"] !== branch.status) {
      this.el.dataset["status"] = branch.status;
      setText(this._sign, SIGNS[branch.status]);
      this._sign.setAttribute("aria-label", WORDS[branch.status]);
    }
    setText(this._name, laneName(branch));
    setText(this._tokens, `${count(branch.generated)} tok`);
    this._doneAt = status === "running" ? null : seconds;
  }
}

/** `0.2`, `judge · row 3`: the same names as in the text form. */
function laneName(branch: Branch): string {
  const parts = branch.program ? [branch.program] : [];
  parts.push(branch.row === null ? `branch ${branch.label}` : `row ${branch.row}`);
  return parts.join(" · ") + (branch.name ? ` = ${branch.name}` : "");
}

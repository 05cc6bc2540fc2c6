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
  private readonly title = h("span");
  private readonly lanes = h("div", { class: "lmnb-lanes" });
  private readonly more = h("button", { type: "button", class: "lmnb-more" });
  private readonly tools: HTMLElement;
  private readonly layout = h("button", { type: "button", class: "lmnb-toggle" }, "Lines");
  private readonly views = new Map<number, LaneView>();
  private readonly choice: ForkUi;
  private item: Extract<Item, { type: "fork" }> | null = null;
  private order: number[] = [];
  private arranged = ""; // what `order` was made for

  constructor(
    private readonly model: RunModel,
    private readonly ui: RunUi,
    key: string,
  ) {
    this.choice = ui.forks.get(key) ?? { extra: 0, lines: null, query: "", sort: "in order" };
    ui.forks.set(key, this.choice);
    const search = h("input", { ...OWN_KEYS, type: "search", placeholder: "Search branches", "aria-label": "Search branches", value: this.choice.query });
    const sort = h("select", { ...OWN_KEYS, "aria-label": "Order of branches" }, ...SORTS.map((name) => h("option", { selected: name === this.choice.sort }, name)));
    this.tools = h("span", { class: "lmnb-fork-tools" }, search, sort, this.layout);
    this.el = h("div", { class: "lmnb-fork" }, h("div", { class: "lmnb-fork-head" }, this.title, this.tools), this.lanes, this.more);
    search.addEventListener("input", () => this.choose({ query: search.value }));
    sort.addEventListener("change", () => this.choose({ sort: sort.value as ForkUi["sort"] }));
    this.layout.addEventListener("click", () => this.choose({ lines: !this.lines }));
    this.more.addEventListener("click", () => this.choose({ extra: this.choice.extra + this.step.more }));
  }

  private get lines(): boolean {
    return this.choice.lines ?? (this.item?.branches.length ?? 0) > MANY;
  }

  private get step() {
    return this.lines ? LINES : LANES;
  }

  private choose(change: Partial<ForkUi>): void {
    Object.assign(this.choice, change);
    this.arranged = "";
    if (this.item) this.update(this.item);
  }

  update(item: Item): void {
    if (item.type !== "fork") return;
    this.item = item;
    const state = `${item.branches.length} ${this.model.state.status !== "running"}`;
    if (state !== this.arranged) this.arrange(item.branches);
    this.arranged = state;
    for (const view of this.views.values()) if (view.el.isConnected || !view.el.parentNode) view.update(this.lines);
    setText(this.title, this.summary(item.branches));
  }

  private arrange(ids: number[]): void {
    const { query, sort } = this.choice;
    const wanted = query.trim().toLowerCase();
    const order = wanted ? ids.filter((id) => matches(this.model.branch(id), wanted)) : [...ids];
    const size = (id: number) => this.model.branch(id).generated;
    if (sort === "longest") order.sort((a, b) => size(b) - size(a));
    if (sort === "shortest") order.sort((a, b) => size(a) - size(b));
    if (sort === "unfinished first") order.sort((a, b) => Number(this.model.branch(a).status === "done") - Number(this.model.branch(b).status === "done"));
    this.order = order;
    const shown = order.slice(0, this.step.first + this.choice.extra);
    const elements = shown.map((id) => {
      const view = this.views.get(id) ?? new LaneView(this.model, id, this.ui);
      this.views.set(id, view);
      return view.el;
    });
    const now = this.lanes.children;
    if (elements.length < now.length || elements.some((el, index) => index < now.length && now[index] !== el)) this.lanes.replaceChildren(...elements);
    else this.lanes.append(...elements.slice(now.length)); // what is there keeps its place and its scrolling
    this.lanes.classList.toggle("lmnb-lines", this.lines);
    this.layout.setAttribute("aria-pressed", String(this.lines));
    this.tools.hidden = ids.length <= MANY;
    const rest = order.length - shown.length;
    this.more.hidden = rest === 0;
    setText(this.more, `Show ${count(Math.min(rest, this.step.more))} more of ${count(rest)}`);
  }

  private summary(ids: number[]): string {
    const parts = [plural(ids.length, "branch", "branches")];
    if (this.choice.query.trim()) parts.push(`${count(this.order.length)} found`);
    const states = ids.map((id) => this.model.branch(id).status);
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
  private readonly sign = h("span", { class: "lmnb-sign", role: "img" });
  private readonly name: HTMLElement;
  private readonly preview = h("span", { class: "lmnb-preview" });
  private readonly tokens = h("span", { class: "lmnb-number" });
  private readonly body = h("div", { class: "lmnb-lane-body" });
  private readonly branch: BranchView;
  private readonly stick = stickToEnd(this.body);
  private lines = false;
  private done = false;

  constructor(
    private readonly model: RunModel,
    private readonly id: number,
    private readonly ui: RunUi,
  ) {
    const name = laneName(model.branch(id));
    this.branch = new BranchView(model, id, ui);
    this.body.append(this.branch.el);
    this.name = h("button", { type: "button", class: "lmnb-lane-name" }, name);
    const head = h("div", { class: "lmnb-lane-head" }, this.sign, this.name, this.preview, this.tokens);
    this.el = h("section", { class: "lmnb-lane", "aria-label": name }, head, this.body);
    head.addEventListener("click", () => {
      this.ui.folded.set(this.id, this.isOpen);
      this.done = false;
      this.update(this.lines);
    });
  }

  private get isOpen(): boolean {
    return !(this.ui.folded.get(this.id) ?? this.lines);
  }

  update(lines: boolean): void {
    if (this.done && lines === this.lines) return;
    this.lines = lines;
    const branch = this.model.branch(this.id);
    const open = this.isOpen;
    this.body.hidden = !open;
    this.preview.hidden = open;
    this.name.setAttribute("aria-expanded", String(open));
    if (open) {
      this.stick.before();
      this.branch.update();
      this.stick.after();
      // reachable for scrolling by keys
      if (this.body.scrollHeight > this.body.clientHeight) this.body.tabIndex = 0;
    } else {
      const last = branch.items.findLast((item) => item.type === "gen");
      setText(this.preview, branch.error ?? (last?.type === "gen" ? oneLine(last.text.slice(-400)).slice(-200) : ""));
    }
    if (this.el.dataset["status"] !== branch.status) {
      this.el.dataset["status"] = branch.status;
      setText(this.sign, SIGNS[branch.status]);
      this.sign.setAttribute("aria-label", WORDS[branch.status]);
    }
    setText(this.tokens, `${count(branch.generated)} tok`);
    this.done = this.model.state.status !== "running";
  }
}

/** `0.2`, `judge · row 3`: the same names as in the text form. */
function laneName(branch: Branch): string {
  const parts = branch.program ? [branch.program] : [];
  parts.push(branch.row === null ? `branch ${branch.label}` : `row ${branch.row}`);
  return parts.join(" · ");
}

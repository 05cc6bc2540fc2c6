// One branch's transcript: role blocks, text, generations, and forks as lanes side by side. Elements are only
// ever added to or appended to, so selections stay and nothing jumps.

import { h, setText, stickToEnd } from "./dom";
import { count, plural, SIGNS, WORDS } from "./format";
import { GenView, TextView } from "./run_gen";
import type { Mark } from "./protocol";
import type { Branch, Item, RunModel } from "./run_model";
import type { Colour } from "./run_tokens";

const FIRST_LANES = 12; // of a fork; the others are shown on request
const MORE_LANES = 48;

/** What a reader opened, kept across redraws and views. */
export interface RunUi {
  lanes: Map<string, number>; // by fork: lanes shown
  opened: Set<string>; // folded texts and tables of choices that were opened
  vars: boolean | null; // the table of variables, once a reader opened or closed it
  markup: boolean; // template text shown
  colour: Colour; // of generated tokens
  scrollTop: number | null; // where the transcript was left
  fetch: ((branch: number, item: number) => void) | null; // asks the kernel for a text that it has kept back
}

export const newUi = (): RunUi => ({  lanes: new Map(), opened: new Set(), vars: null, markup: false, colour: "none", scrollTop: null, fetch: null });

interface ItemView {
  update(item: Item): void;
  mark?(at: number | null, mark: HTMLElement): void;
}

export class BranchView {
  readonly el = h("div", { class: "lmnb-branch" });
  private readonly views: ItemView[] = [];
  private numMarks = 0;
  private firstOpen = 0; // items before this one will not change
  private block: HTMLElement | null = null;
  private role = "";
  private error: HTMLElement | null = null;

  constructor(
    private readonly model: RunModel,
    private readonly id: number,
    private readonly ui: RunUi,
  ) {}

  update(): void {
    const branch = this.model.branch(this.id);
    const items = branch.items;
    for (let index = this.firstOpen; index < items.length; index++) {
      const item = items[index] as Item;
      (this.views[index] ??= this.create(item, index)).update(item);
    }
    for (; this.numMarks < branch.marks.length; this.numMarks++) {
      const { item, at, why } = branch.marks[this.numMarks] as Mark;
      this.views[item]?.mark?.(at, markElement(at, why));
    }
    while (this.firstOpen < items.length - 1 && isFinal(items[this.firstOpen] as Item)) this.firstOpen++;
    if (branch.error && branch.parent !== null && !this.error) {
      this.error = h("pre", { class: "lmnb-error" }, `✕ ${branch.error}`);
      this.el.append(this.error);
    }
  }

  private create(item: Item, index: number): ItemView {
    switch (item.type) {
      case "role":
        this.role = item.role;
        this.block = null;
        return this.template(this.openBlock(), item.prefix);
      case "role_end": {
        const view = this.template(this.openBlock(), item.suffix);
        this.block = null;
        this.role = "";
        return view;
      }
      case "text": {
        const block = this.openBlock();
        const key = `${this.id}:${index}`;
        const { opened, fetch } = this.ui;
        const text = new TextView(block, {
          isOpen: () => opened.has(key),
          open: () => opened.add(key),
          fetch: fetch && (() => fetch(this.id, index)),
        });
        return {
          update(now) {
            if (now.type !== "text") return;
            text.update(now);
            if (now.text.trim() !== "") show(block);
          },
          mark(at, mark) {
            show(block);
            text.mark(at ?? 0, mark);
          },
        };
      }
      case "gen": {
        const block = this.openBlock();
        show(block);
        const gen = new GenView(block, item, this.ui.colour, this.ui.opened, `${this.id}:${index}`);
        return { update: (now) => now.type === "gen" && gen.update(now), mark: (at, mark) => gen.mark(at, mark) };
      }
      case "fork":
        this.block = null;
        return this.append(new ForkView(this.model, this.ui, `${this.id}:${item.fork}`));
      case "join":
        this.block = null;
        this.el.append(h("div", { class: "lmnb-join" }, `${plural(item.branches.length, "branch", "branches")} joined · ${item.mode.replaceAll("_", " ")}`));
        return still;
    }
  }

  private template(block: HTMLElement, text: string): ItemView {
    const el = h("span", { class: "lmnb-template" }, text);
    block.append(el);
    return { ...still, mark: (_, mark) => el.after(mark) };
  }

  private append<T extends { el: HTMLElement }>(view: T): T {
    this.el.append(view.el);
    return view;
  }

  /** The place for inline text: the open role's block, or a block of raw text. */
  private openBlock(): HTMLElement {
    if (!this.block) {
      const text = h("div", { class: "lmnb-text" });
      const label = this.role ? h("div", { class: "lmnb-role", "data-role": this.role }, this.role) : null;
      // A raw block may turn out to be the white space between roles: it shows itself when it is more.
      this.el.append(h("div", { class: this.role ? "lmnb-block" : "lmnb-block lmnb-raw lmnb-blank" }, label, text));
      this.block = text;
    }
    return this.block;
  }
}

const still: ItemView = { update: () => undefined };

function show(block: HTMLElement): void {
  block.parentElement?.classList.remove("lmnb-blank");
}

/** What differs from the last run: a word where it begins, and why on request. */
function markElement(at: number | null, why: string): HTMLElement {
  return h("details", { class: "lmnb-mark" }, h("summary", { title: why }, at === null ? "≠ not cached" : "≠ changed"), why);
}

function isFinal(item: Item): boolean {
  return item.type !== "fork" && (item.type !== "gen" || item.status !== "running");
}

class ForkView implements ItemView {
  readonly el: HTMLElement;
  private readonly title = h("span");
  private readonly lanes = h("div", { class: "lmnb-lanes" });
  private readonly more = h("button", { type: "button", class: "lmnb-more" });
  private readonly views: LaneView[] = [];
  private item: Extract<Item, { type: "fork" }> | null = null;

  constructor(
    private readonly model: RunModel,
    private readonly ui: RunUi,
    private readonly key: string,
  ) {
    this.el = h("div", { class: "lmnb-fork" }, h("div", { class: "lmnb-fork-head" }, this.title), this.lanes, this.more);
    this.more.addEventListener("click", () => {
      this.ui.lanes.set(this.key, this.limit + MORE_LANES);
      if (this.item) this.update(this.item);
    });
  }

  private get limit(): number {
    return this.ui.lanes.get(this.key) ?? FIRST_LANES;
  }

  update(item: Item): void {
    if (item.type !== "fork") return;
    this.item = item;
    const shown = Math.min(this.limit, item.branches.length);
    for (let index = this.views.length; index < shown; index++) {
      const view = new LaneView(this.model, item.branches[index] as number, this.ui);
      this.views.push(view);
      this.lanes.append(view.el);
    }
    for (const view of this.views) view.update();
    setText(this.title, this.summary(item.branches));
    const rest = item.branches.length - shown;
    this.more.hidden = rest === 0;
    setText(this.more, `Show ${count(Math.min(rest, MORE_LANES))} more of ${count(rest)}`);
  }

  private summary(ids: number[]): string {
    const parts = [plural(ids.length, "branch", "branches")];
    const states = ids.map((id) => this.model.branch(id).status);
    for (const status of ["running", "failed", "cancelled"] as const) {
      const number = states.filter((state) => state === status).length;
      if (number > 0) parts.push(`${count(number)} ${WORDS[status]}`);
    }
    return parts.join(" · ");
  }
}

class LaneView {
  readonly el: HTMLElement;
  private readonly sign = h("span", { class: "lmnb-sign", role: "img" });
  private readonly tokens = h("span", { class: "lmnb-number" });
  private readonly body = h("div", { class: "lmnb-lane-body" });
  private readonly branch: BranchView;
  private readonly stick = stickToEnd(this.body);
  private done = false;

  constructor(
    private readonly model: RunModel,
    private readonly id: number,
    ui: RunUi,
  ) {
    const name = laneName(model.branch(id));
    this.branch = new BranchView(model, id, ui);
    this.body.append(this.branch.el);
    const head = h("div", { class: "lmnb-lane-head" }, this.sign, h("b", {}, name), this.tokens);
    this.el = h("section", { class: "lmnb-lane", "aria-label": name }, head, this.body);
  }

  update(): void {
    if (this.done) return;
    const branch = this.model.branch(this.id);
    this.stick.before();
    this.branch.update();
    this.stick.after();
    if (this.el.dataset["status"] !== branch.status) {
      this.el.dataset["status"] = branch.status;
      setText(this.sign, SIGNS[branch.status]);
      this.sign.setAttribute("aria-label", WORDS[branch.status]);
    }
    setText(this.tokens, `${count(branch.generated)} tok`);
    if (this.body.scrollHeight > this.body.clientHeight) this.body.tabIndex = 0; // reachable for scrolling by keys
    this.done = this.model.state.status !== "running";
  }
}

/** `0.2`, `judge · row 3`: the same names as in the text form. */
function laneName(branch: Branch): string {
  const parts = branch.program ? [branch.program] : [];
  parts.push(branch.row === null ? `branch ${branch.label}` : `row ${branch.row}`);
  return parts.join(" · ");
}

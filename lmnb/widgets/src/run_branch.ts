// One branch's transcript: role blocks, text, generations and forks. Elements are only ever added to or appended
// to, so selections stay and nothing jumps.

import { h } from "./dom";
import { plural } from "./format";
import { type ForkUi, ForkView } from "./run_fork";
import { GenView, TextView } from "./run_gen";
import type { Mark } from "./protocol";
import type { Item, RunModel } from "./run_model";
import type { Colour } from "./run_tokens";

/** What a reader opened, kept across redraws and views. */
export interface RunUi {
  forks: Map<string, ForkUi>;
  folded: Map<number, boolean>; // by branch, where a reader chose
  opened: Set<string>; // folded texts and tables of choices that were opened
  vars: boolean | null; // the table of variables, once a reader opened or closed it
  markup: boolean; // template text shown
  colour: Colour; // of generated tokens
  scrollTop: number | null; // where the transcript was left
  fetch: ((branch: number, item: number) => void) | null; // asks the kernel for a text that it has kept back
}

export const newUi = (): RunUi => ({  forks: new Map(), folded: new Map(), opened: new Set(), vars: null, markup: false, colour: "none", scrollTop: null, fetch: null });

export interface ItemView {
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

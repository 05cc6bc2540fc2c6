// One branch's transcript: role blocks, text, generations and forks. Elements are only ever added to or appended
// to, so selections stay and nothing jumps.

import { h, stickToEnd } from "./dom";
import { bytes, imageLabel, plural } from "./format";
import { type ForkUi, ForkView } from "./run_fork";
import { GenView } from "./run_gen";
import type { Mark } from "./protocol";
import type { Branch, GenItem, Item, RunModel } from "./run_model";
import { TextView } from "./run_text";
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
  reveal: { branch: number; until: number } | null; // a branch to go to as soon as it is there
  fetch: ((branch: number, item: number) => void) | null; // asks the kernel for a text that it has kept back
}

export const newUi = (): RunUi => ({  forks: new Map(), folded: new Map(), opened: new Set(), vars: null, markup: false, colour: "none", scrollTop: null, reveal: null, fetch: null });

export interface ItemView {
  update(item: Item): void;
  mark?(at: number | null, mark: HTMLElement): void;
  part?(item: GenItem, fork: ForkView, marker: (index: number) => [number, Element]): void;
}

export class BranchView {
  readonly el = h("div", { class: "lmnb-branch" });
  private readonly _views: ItemView[] = [];
  private _segment: Segment | null = null;
  private _numMarks = 0;
  private _firstOpen = 0; // items before this one will not change
  private _block: HTMLElement | null = null;
  private _role = "";
  private _error: HTMLElement | null = null;
  private _numGens = 0;
  private _note: HTMLElement | null = null;
  private readonly _variants = new Map<number, ForkView>(); // by item
  private readonly _stick = stickToEnd(this.el, () => this.el.querySelector(":scope > .lmnb-fork:last-child"));

  constructor(
    private readonly _model: RunModel,
    private readonly _id: number,
    private readonly _ui: RunUi,
    private readonly _inLane = false,
  ) {}

  update(): void {
    this._segment?.stick.before();
    if (this._forks) this._stick.before();
    const branch = this._model.branch(this._id);
    const items = branch.items;
    for (let index = this._firstOpen; index < items.length; index++) {
      const item = items[index] as Item;
      (this._views[index] ??= this._create(item, index)).update(item);
    }
    for (const index of branch.parted) this._part(branch, index);
    for (; this._numMarks < branch.marks.length; this._numMarks++) {
      const { item, at, why } = branch.marks[this._numMarks] as Mark;
      this._views[item]?.mark?.(at, markElement(at, why));
    }
    while (this._firstOpen < items.length - 1 && isFinal(items[this._firstOpen] as Item)) this._firstOpen++;
    if (branch.error && branch.parent !== null && !this._error) {
      this._error = h("pre", { class: "lmnb-error" }, `✕ ${branch.error}`);
      this.el.append(this._error);
    }
    if (branch.note && branch.status !== "running" && !this._note) {
      this._note = h("p", { class: "lmnb-hint" }, branch.note);
      this.el.append(this._note);
    }
    this._segment?.follow();
    if (this._forks) this._stick.after();
  }

  /** Whether this is a lane with lanes in it, which scrolls as a whole where it has one height with others. */
  private get _forks(): boolean {
    return this._inLane && this.el.childElementCount > 1;
  }

  /** The branches that part from inside a generation: below its block, with a mark in its text for each. */
  private _part({ items }: Branch, index: number): void {
    const gen = items[index];
    const view = this._views[index];
    if (gen?.type !== "gen" || !view?.part) return;
    let fork = this._variants.get(index);
    if (!fork) {
      fork = new ForkView(this._model, this._ui, `${this._id}:v${index}`, ` from inside ${gen.var ?? "the text"}`);
      fork.el.classList.add("lmnb-variants");
      this._variants.set(index, fork);
    }
    view.part(gen, fork, (number) => {
      const { id, label, at } = this._model.branch(gen.variants[number] as number);
      const name = `branch ${label}`;
      const mark = h("button", { type: "button", class: "lmnb-parting", title: name, "aria-label": `${name} parts here` }, `↳${label.split("~").pop()}`);
      mark.addEventListener("click", () => laneButton(mark.closest(".lmnb-run"), id)?.focus());
      return [at?.[1] ?? 0, mark];
    });
    fork.update({ type: "fork", fork: -1, branches: gen.variants });
  }

  private _create(item: Item, index: number): ItemView {
    switch (item.type) {
      case "role":
        this._role = item.role;
        this._block = null;
        return this._template(this._openBlock(), item.prefix);
      case "role_end": {
        const view = this._template(this._openBlock(), item.suffix);
        this._block = null;
        this._role = "";
        return view;
      }
      case "text": {
        const block = this._openBlock();
        const key = `${this._id}:${index}`;
        const { opened, fetch } = this._ui;
        const el = h("span");
        block.append(el);
        const text = new TextView(el, {
          isOpen: () => opened.has(key),
          open: () => opened.add(key),
          fetch: fetch && (() => fetch(this._id, index)),
        });
        return {
          update(now) {
            if (now.type !== "text") return;
            text.update(now.text, true, now.cut);
            if (now.text.trim() !== "") show(block);
          },
          mark(at, mark) {
            show(block);
            text.mark(at ?? 0, mark);
          },
        };
      }
      case "image": {
        const block = this._openBlock();
        show(block);
        const el = imageElement(item);
        block.append(el);
        return { ...still, mark: (_, mark) => el.after(mark) };
      }
      case "gen": {
        const block = this._openBlock();
        show(block);
        const place = { branch: this._id, gen: this._numGens };
        const isVariant = place.gen === 0 && this._model.branch(this._id).at !== null;
        if (item.kind === "gen") this._numGens++;
        const gen = new GenView(block, item, this._ui.colour, this._ui.opened, `${this._id}:${index}`, place, isVariant);
        return {
          update: (now) => now.type === "gen" && gen.update(now),
          mark: (at, mark) => gen.mark(at, mark),
          part: (now, fork, marker) => {
            if (!fork.el.parentElement) this._putBelow(block, fork.el);
            gen.parted(now.variants.length, marker);
          },
        };
      }
      case "fork":
        this._closeSegment();
        return this._append(new ForkView(this._model, this._ui, `${this._id}:${item.fork}`));
      case "join":
        this._closeSegment();
        this.el.append(h("div", { class: "lmnb-join" }, `${plural(item.branches.length, "branch", "branches")} joined · ${item.mode.replaceAll("_", " ")}`));
        return still;
    }
  }

  private _template(block: HTMLElement, text: string): ItemView {
    const el = h("span", { class: "lmnb-template" }, text);
    block.append(el);
    return { ...still, mark: (_, mark) => el.after(mark) };
  }

  private _append<T extends { el: HTMLElement }>(view: T): T {
    this.el.append(view.el);
    return view;
  }

  /** Where blocks go: the open segment of a lane, or the transcript itself. */
  private _place(): HTMLElement {
    if (!this._inLane) return this.el;
    if (!this._segment) {
      this._segment = new Segment();
      this.el.append(this._segment.el);
    }
    return this._segment.el;
  }

  private _closeSegment(): void {
    this._block = null;
    this._segment?.follow();
    this._segment = null;
  }

  /** Below the block, or the segment that it is in, and what parts from it already. */
  private _putBelow(block: HTMLElement, fork: HTMLElement): void {
    let above: Element | null = this._inLane ? block.closest(".lmnb-segment") : block.parentElement;
    while (above?.nextElementSibling?.classList.contains("lmnb-variants")) above = above.nextElementSibling;
    above?.after(fork);
  }

  /** The place for inline text: the open role's block, or a block of raw text. */
  private _openBlock(): HTMLElement {
    if (!this._block) {
      const text = h("div", { class: "lmnb-text" });
      const label = this._role ? h("div", { class: "lmnb-role", "data-role": this._role }, this._role) : null;
      // A raw block may turn out to be the white space between roles: it shows itself when it is more.
      this._place().append(h("div", { class: this._role ? "lmnb-block" : "lmnb-block lmnb-raw lmnb-blank" }, label, text));
      this._block = text;
    }
    return this._block;
  }
}

/** A stretch of a lane's text between forks. It scrolls by itself, so that what stands below it, and beside the lane,
 * stays where it is. */
class Segment {
  readonly el = h("div", { class: "lmnb-segment" });
  readonly stick = stickToEnd(this.el);

  follow(): void {
    this.stick.after();
    if (this.el.scrollHeight > this.el.clientHeight) this.el.tabIndex = 0; // reachable for scrolling by keys
  }
}

const still: ItemView = { update: () => undefined };

const PREVIEW = /^data:image\/(png|jpeg|gif|webp);base64,[\w+/=]+$/; // nothing else is shown, and nothing fetched

function imageElement(item: Extract<Item, { type: "image" }>): HTMLElement {
  const label = imageLabel(item);
  if (!PREVIEW.test(item.preview)) return h("span", {}, label);
  const facts = `${label.slice(1, -1)} · ${bytes(item.num_bytes)}`;
  return h("figure", { class: "lmnb-image" }, h("img", { src: item.preview, alt: label.slice(1, -1) }), h("figcaption", {}, facts));
}

/** The head of a branch's lane. */
export function laneButton(root: Element | null, branch: number): HTMLElement | null {
  return root?.querySelector<HTMLElement>(`[data-branch="${branch}"] .lmnb-lane-name`) ?? null;
}

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

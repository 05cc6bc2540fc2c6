// One run of text in a transcript: what the program gave, what the model generated, what a select chose.

import { h, setAttributes, setText } from "./dom";
import { count, plural, seconds, SIGNS } from "./format";
import { choiceTable } from "./run_choice";
import type { GenItem, TextItem } from "./run_model";
import { type Colour, TokenSpans } from "./run_tokens";

const FOLD_OVER = 2400; // characters; longer given text shows its beginning and end only
const FOLD_HEAD = 1200;
const FOLD_TAIL = 400;

/** What a reader may do with a long text: keep it open, and ask for what the kernel has kept back. */
export interface Folding {
  isOpen(): boolean;
  open(): void;
  fetch: (() => void) | null;
}

/** Given text. It can grow, by appending; long text folds, keeping what was opened open. */
export class TextView {
  private readonly el = h("span");
  private readonly node = document.createTextNode("");
  private readonly fold = h("button", { type: "button", class: "lmnb-cut" });
  private text = "";
  private cut: TextItem["cut"];
  private marked: { at: number; el: HTMLElement } | null = null;

  constructor(
    parent: HTMLElement,
    private readonly folding: Folding,
  ) {
    parent.append(this.el);
    this.el.append(this.node);
    this.fold.addEventListener("click", () => {
      this.folding.open();
      if (this.cut) this.folding.fetch?.();
      else this.draw();
    });
  }

  update({ text, cut }: TextItem): void {
    if (text.length === this.text.length) return;
    const grown = text.slice(this.text.length);
    [this.text, this.cut] = [text, cut];
    if (this.el.firstChild === this.node && !this.hidden()) this.node.appendData(grown);
    else this.draw();
  }

  /** Put `el` at a place in the text; where that is folded, at the fold. */
  mark(at: number, el: HTMLElement): void {
    this.marked = { at: this.cut && at > this.cut.at ? Math.max(this.cut.at, at - this.cut.missing) : at, el };
    this.draw();
  }

  /** The part of the text that a fold hides, from and to. */
  private hidden(): [number, number] | null {
    if (this.cut) return [FOLD_HEAD, this.text.length - FOLD_TAIL];
    return this.text.length <= FOLD_OVER || this.folding.isOpen() ? null : [FOLD_HEAD, this.text.length - FOLD_TAIL];
  }

  private draw(): void {
    const { text } = this;
    const hidden = this.hidden();
    const pieces: (Node | string)[] = [];
    let mark = this.marked;
    const put = (from: number, to: number) => {
      if (mark && mark.at <= to) {
        pieces.push(text.slice(from, mark.at), mark.el);
        from = Math.max(from, mark.at);
        mark = null;
      }
      pieces.push(text.slice(from, to));
    };
    if (hidden) {
      put(0, hidden[0]);
      if (mark && mark.at < hidden[1]) {
        pieces.push(mark.el);
        mark = null;
      }
      setText(this.fold, `… ${count(hidden[1] - hidden[0] + (this.cut?.missing ?? 0))} more characters …`);
      this.fold.disabled = this.cut !== undefined && !this.folding.fetch;
      pieces.push(this.fold);
      put(hidden[1], text.length);
    } else if (mark) {
      put(0, text.length);
    } else {
      this.node.data = text;
      pieces.push(this.node);
    }
    this.el.replaceChildren(...pieces);
  }
}

/** A generation: a chip with its variable, its text with a caret while it grows, a note if it was cut short. */
export class GenView {
  private readonly node = document.createTextNode("");
  private readonly text: HTMLElement;
  private readonly note = h("small", { class: "lmnb-note" });
  private readonly cost = h("small", { class: "lmnb-cost" }); // shown where an earlier run is there to compare with
  private choice: HTMLElement | null = null;
  private readonly spans: TokenSpans | null = null; // in place of the one text, where tokens are coloured

  constructor(
    parent: HTMLElement,
    item: GenItem,
    colour: Colour,
    private readonly opened: Set<string>,
    private readonly key: string,
  ) {
    const classes = item.kind === "select" ? "lmnb-gen lmnb-chosen" : "lmnb-gen";
    this.text = h("ins", { class: classes }, this.node);
    if (item.constraint === "json_schema") this.text.classList.add("lmnb-mono");
    if (colour !== "none" && item.kind === "gen") {
      this.spans = new TokenSpans(this.text, colour);
      this.text.classList.add("lmnb-coloured");
      setAttributes(this.text, { tabindex: 0, role: "group", "aria-label": `generated ${item.var ?? "text"}` });
    }
    if (item.var) parent.append(h("small", { class: "lmnb-var" }, item.var));
    parent.append(this.text, this.note, this.cost);
  }

  update(item: GenItem): void {
    const shown = this.node.data;
    if (this.spans) {
      this.spans.update(item);
    } else if (item.text.length > shown.length && item.text.startsWith(shown)) {
      this.node.appendData(item.text.slice(shown.length));
    } else if (item.text !== shown) {
      this.node.data = item.text;
    }
    if (this.text.dataset["status"] !== item.status) {
      this.text.dataset["status"] = item.status;
      this.text.title = item.status === "running" ? "" : describe(item);
      setText(this.note, noteOf(item));
      if (item.status !== "running") setText(this.cost, `${count(item.reused)} reused · ${count(item.computed)} computed · ${count(item.tokens)} generated`);
    }
    if (item.choice && !this.choice) {
      const table = choiceTable(item.choice);
      table.open = this.opened.has(this.key); // also when the view is drawn anew
      table.addEventListener("toggle", () => (table.open ? this.opened.add(this.key) : this.opened.delete(this.key)));
      this.cost.after(table);
      this.choice = table;
    }
  }

  /** Put `el` where the text differs from the last run's, or behind it. */
  mark(at: number | null, el: HTMLElement): void {
    if (at === null || this.spans) this.note.before(el);
    else this.node.splitText(Math.min(at, this.node.length)).before(el);
  }
}

function describe(item: GenItem): string {
  const parts = [plural(item.tokens, "token")];
  if (item.constraint) parts.push(`constrained by ${item.constraint.replace("_", " ")}`);
  if (item.seconds !== null) parts.push(seconds(item.seconds));
  parts.push(`prompt: ${count(item.reused)} reused, ${count(item.computed)} computed`);
  if (item.finish_reason) parts.push(`ended by ${item.finish_reason}`);
  if (item.line !== null) parts.push(`line ${item.line}`);
  return parts.join(" · ");
}

function noteOf(item: GenItem): string {
  if (item.status === "cancelled") return ` ${SIGNS.cancelled} stopped`;
  if (item.status === "failed") return ` ${SIGNS.failed} failed`;
  return item.finish_reason === "length" ? " token limit" : "";
}

// One run of text in a transcript: what the program gave, what the model generated, what a select chose.

import { h, setAttributes, setText } from "./dom";
import { count, plural, seconds, SIGNS } from "./format";
import { choiceTable } from "./run_choice";
import type { GenItem, TextItem } from "./run_model";
import { withTables } from "./tables";
import { type Colour, spreads, TokenSpans } from "./run_tokens";

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
  private readonly _el = h("span");
  private readonly _node = document.createTextNode("");
  private readonly _fold = h("button", { type: "button", class: "lmnb-cut" });
  private _text = "";
  private _cut: TextItem["cut"];
  private _marked: { at: number; el: HTMLElement } | null = null;

  constructor(
    parent: HTMLElement,
    private readonly _folding: Folding,
  ) {
    parent.append(this._el);
    this._el.append(this._node);
    this._fold.addEventListener("click", () => {
      this._folding.open();
      if (this._cut) this._folding.fetch?.();
      else this._draw();
    });
  }

  update({ text, cut }: TextItem): void {
    if (text.length === this._text.length) return;
    const grown = text.slice(this._text.length);
    [this._text, this._cut] = [text, cut];
    const plain = this._el.firstChild === this._node && !this._hidden() && !withTables(text);
    if (plain) this._node.appendData(grown); // the reader's selection stays
    else this._draw();
  }

  /** Put `el` at a place in the text; where that is folded, at the fold. */
  mark(at: number, el: HTMLElement): void {
    this._marked = { at: this._cut && at > this._cut.at ? Math.max(this._cut.at, at - this._cut.missing) : at, el };
    this._draw();
  }

  /** The part of the text that a fold hides, from and to. */
  private _hidden(): [number, number] | null {
    if (this._cut) return [FOLD_HEAD, this._text.length - FOLD_TAIL];
    return this._text.length <= FOLD_OVER || this._folding.isOpen() ? null : [FOLD_HEAD, this._text.length - FOLD_TAIL];
  }

  private _draw(): void {
    const text = this._text;
    const hidden = this._hidden();
    const pieces: (Node | string)[] = [];
    let mark = this._marked;
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
      setText(this._fold, `… ${count(hidden[1] - hidden[0] + (this._cut?.missing ?? 0))} more characters …`);
      this._fold.disabled = this._cut !== undefined && !this._folding.fetch;
      pieces.push(this._fold);
      put(hidden[1], text.length);
    } else if (mark) {
      put(0, text.length);
    } else {
      const drawn = withTables(text);
      this._node.data = drawn ? "" : text;
      pieces.push(...(drawn ?? [this._node]));
    }
    this._el.replaceChildren(...pieces);
  }
}

/** A generation: a chip with its variable, its text with a caret while it grows, a note if it was cut short. */
export class GenView {
  private readonly _node = document.createTextNode("");
  private readonly _text: HTMLElement;
  private readonly _note = h("small", { class: "lmnb-note" });
  private readonly _cost = h("small", { class: "lmnb-cost" }); // shown where an earlier run is there to compare with
  private _choice: HTMLElement | null = null;
  private _spans: TokenSpans | null = null; // in place of the one text, where single tokens matter
  private _item: GenItem;
  private _numParted = 0;

  constructor(
    parent: HTMLElement,
    item: GenItem,
    private readonly _colour: Colour,
    private readonly _opened: Set<string>,
    private readonly _key: string,
    private readonly _place: { branch: number; gen: number },
    spread: boolean,
  ) {
    this._item = item;
    const classes = item.kind === "select" ? "lmnb-gen lmnb-chosen" : "lmnb-gen";
    this._text = h("ins", { class: classes }, this._node);
    if (item.constraint === "json_schema") this._text.classList.add("lmnb-mono");
    if (item.kind === "gen") {
      setAttributes(this._text, { tabindex: 0, role: "group", "aria-label": `generated ${item.var ?? "text"}` });
      spreads.set(this._text, () => this._spread());
      if (spread || _colour !== "none") this._spread();
      this._cost.classList.toggle("lmnb-shown", spread);
    }
    if (item.var) parent.append(h("small", { class: "lmnb-var" }, item.var));
    parent.append(this._text, this._note, this._cost);
  }

  /** Draw every token as an element of its own. */
  private _spread(): void {
    if (this._spans) return;
    const marks = [...this._text.querySelectorAll(":scope > .lmnb-mark")]; // and no tables: tokens are text again
    this._text.replaceChildren();
    this._spans = new TokenSpans(this._text, this._colour, this._place);
    this._text.classList.add(this._colour === "none" ? "lmnb-spread" : "lmnb-coloured");
    this._spans.update(this._item);
    this._note.before(...marks);
  }

  /** Mark where branches part from the text: `marker` gives the place of each, and what leads to it. */
  parted(numVariants: number, marker: (index: number) => [number, Element]): void {
    for (; this._numParted < numVariants; this._numParted++) {
      this._spread();
      this._spans?.part(...marker(this._numParted));
    }
  }

  update(item: GenItem): void {
    this._item = item;
    const shown = this._node.data;
    if (this._spans) {
      this._spans.update(item);
    } else if (item.text.length > shown.length && item.text.startsWith(shown)) {
      this._node.appendData(item.text.slice(shown.length));
    } else if (item.text !== shown) {
      this._node.data = item.text;
    }
    if (this._text.dataset["status"] !== item.status) {
      this._text.dataset["status"] = item.status;
      const drawn = item.status === "running" || this._spans ? null : withTables(item.text);
      if (drawn) this._text.replaceChildren(...drawn);
      this._text.title = item.status === "running" ? "" : describe(item);
      setText(this._note, noteOf(item));
      if (item.status !== "running") setText(this._cost, `${count(item.reused)} reused · ${count(item.computed)} computed · ${count(item.tokens)} generated`);
    }
    if (item.choice && !this._choice) {
      const table = choiceTable(item.choice);
      table.open = this._opened.has(this._key); // also when the view is drawn anew
      table.addEventListener("toggle", () => (table.open ? this._opened.add(this._key) : this._opened.delete(this._key)));
      this._cost.after(table);
      this._choice = table;
    }
  }

  /** Put `el` where the text differs from the last run's, or behind it. */
  mark(at: number | null, el: HTMLElement): void {
    if (at === null || this._node.parentNode !== this._text) this._note.before(el); // tokens, or tables, stand there
    else this._node.splitText(Math.min(at, this._node.length)).before(el);
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

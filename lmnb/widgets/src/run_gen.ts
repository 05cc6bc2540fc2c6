// One generation in a transcript: what the model wrote, or what a select chose.

import { h, setAttributes, setText } from "./dom";
import { count, plural, seconds, SIGNS } from "./format";
import { choiceTable } from "./run_choice";
import { type GenItem, isIncomplete } from "./run_model";
import { hiddenPart, TextView } from "./run_text";
import { type Colour, spreads, TokenSpans } from "./run_tokens";

/** A generation: a chip with its variable, its text with a caret while it grows, a note if it was cut short. */
export class GenView {
  private readonly _text: HTMLElement;
  private readonly _plain: TextView;
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
    private readonly _isVariant: boolean,
  ) {
    this._item = item;
    const classes = item.kind === "select" ? "lmnb-gen lmnb-chosen" : "lmnb-gen";
    this._text = h("ins", { class: classes });
    this._plain = new TextView(this._text, {
      isOpen: () => this._isOpen,
      open: () => _opened.add(this._textKey),
      fetch: null,
      tokens: (from, to) => tokensBetween(this._item, from, to),
    });
    if (item.constraint === "json_schema") this._text.classList.add("lmnb-mono");
    if (item.kind === "gen") {
      setAttributes(this._text, { tabindex: 0, role: "group", "aria-label": `generated ${item.var ?? "text"}` });
      spreads.set(this._text, () => this._spread());
      if (_isVariant || _colour !== "none") this._spread();
      this._cost.classList.toggle("lmnb-shown", _isVariant);
    }
    if (item.var) parent.append(h("small", { class: "lmnb-var" }, item.var));
    parent.append(this._text, this._note, this._cost);
  }

  private get _textKey(): string {
    return `${this._key}:text`;
  }

  /** A branch that parts from another one's text folds what it has kept (`run_tokens.ts`). */
  private get _isOpen(): boolean {
    return this._isVariant || this._opened.has(this._textKey);
  }

  /** Draw every token as an element of its own. */
  private _spread(): void {
    if (this._spans) return;
    const marks = [...this._text.querySelectorAll(":scope > .lmnb-mark")]; // and no tables: tokens are text again
    this._text.replaceChildren();
    this._spans = new TokenSpans(this._text, this._colour, this._place, this._opened);
    this._text.classList.add(this._colour === "none" ? "lmnb-spread" : "lmnb-coloured");
    this._drawSpans();
    this._note.before(...marks);
  }

  /** Mark where branches part from the text: `marker` gives the place of each, and what leads to it. */
  parted(numVariants: number, marker: (index: number) => [number, Element]): void {
    for (; this._numParted < numVariants; this._numParted++) {
      this._spread();
      this._spans?.part(...marker(this._numParted));
    }
  }

  private _drawSpans(): void {
    this._spans?.update(this._item);
    const hidden = this._item.status === "running" || this._isOpen ? null : hiddenPart(this._item.text);
    if (hidden) this._spans?.fold(this._item.text, hidden, tokensBetween(this._item, ...hidden), this._textKey);
  }

  update(item: GenItem): void {
    this._item = item;
    if (item.status === "running") this._opened.add(this._textKey); // what a reader has seen come stays
    if (this._spans) this._drawSpans();
    else this._plain.update(item.text, item.status !== "running");
    if (this._text.dataset["status"] !== item.status) {
      this._text.dataset["status"] = item.status;
      this._text.title = item.status === "running" ? "" : describe(item);
      setText(this._note, noteOf(item));
      if (item.status !== "running") setText(this._cost, `${count(item.reused)} reused · ${count(item.computed)} computed · ${count(item.tokens)} generated`);
    }
    if (item.choice && !this._choice) {
      const table = choiceTable(item.choice);
      table.open = this._opened.has(this._key); // also when the view is drawn anew
      table.addEventListener("toggle", () => {
        if (table.open && !this._opened.has(this._key)) table.scrollIntoView?.({ block: "nearest", inline: "nearest" }); // its reader opened it
        if (table.open) this._opened.add(this._key);
        else this._opened.delete(this._key);
      });
      this._cost.after(table);
      this._choice = table;
    }
  }

  /** Put `el` where the text differs from the last run's, or behind it. */
  mark(at: number | null, el: HTMLElement): void {
    if (at === null || this._spans) this._note.before(el);
    else this._plain.mark(at, el);
  }
}

function tokensBetween({ parts }: GenItem, from: number, to: number): number {
  let [start, found] = [0, 0];
  for (const [length, tokens] of parts) {
    if (start >= from && start < to) found += tokens;
    start += length;
  }
  return found;
}

function describe(item: GenItem): string {
  const parts = [plural(item.tokens, "token")];
  if (item.constraint) parts.push(`constrained by ${item.constraint.replace("_", " ")}${item.grammar ? ` (${item.grammar})` : ""}`);
  if (item.seconds !== null) parts.push(seconds(item.seconds));
  parts.push(`prompt: ${count(item.reused)} reused, ${count(item.computed)} computed`);
  if (item.finish_reason) parts.push(`ended by ${item.finish_reason}`);
  if (item.line !== null) parts.push(`line ${item.line}`);
  return parts.join(" · ");
}

function noteOf(item: GenItem): string {
  if (item.status === "cancelled") return ` ${SIGNS.cancelled} stopped`;
  if (item.status === "failed") return ` ${SIGNS.failed} failed`;
  const limit = item.cut ? "stop string" : item.finish_reason === "length" ? "token limit" : "";
  return limit && (isIncomplete(item) ? ` incomplete: ${limit}` : ` ${limit}`);
}

// Plain text in a transcript: it grows, its tables are drawn as such, and a long one shows its beginning and end only.

import { h, readable, setText } from "./dom";
import { count, plural } from "./format";
import type { TextItem } from "./run_model";
import { withTables } from "./tables";

const FOLD_OVER = 2400; // characters; the same in pictures (`text_html.py`)
const FOLD_HEAD = 1200;
const FOLD_TAIL = 400;
const NEAR = 200; // characters to look for a line's or a word's end, before the one and behind the other

/** What a reader may do with a long text: keep it open, and ask for what the kernel has kept back. */
export interface Folding {
  isOpen(): boolean;
  open(): void;
  fetch: (() => void) | null;
  /** How many tokens begin between two places in the text; 0 if nobody knows. */
  tokens?(from: number, to: number): number;
}

/** The part of a text that a fold hides, from and to: between lines or else words. */
export function hiddenPart(text: string): [number, number] | null {
  if (text.length <= FOLD_OVER) return null;
  const tail = text.length - FOLD_TAIL;
  const start = text.slice(FOLD_HEAD - NEAR, FOLD_HEAD);
  const end = text.slice(tail, tail + NEAR);
  const sign = (part: string) => (part.includes("\n") ? "\n" : " ");
  const before = start.lastIndexOf(sign(start)) + 1;
  return [before ? FOLD_HEAD - NEAR + before : FOLD_HEAD, tail + end.indexOf(sign(end)) + 1];
}

/** Stands in place of what is hidden. */
export function foldButton(open: () => void): HTMLButtonElement {
  const button = h("button", { type: "button", class: "lmnb-cut" });
  button.addEventListener("click", (event) => {
    event.stopPropagation(); // no token was meant
    open();
  });
  return button;
}

/** `… 5,321 more characters …`, `… 1,204 more tokens · 5,321 characters …`. */
export function foldWords(characters: number, tokens: number): string {
  return tokens === 0 ? `… ${count(characters)} more characters …` : `… ${count(tokens)} more ${tokens === 1 ? "token" : "tokens"} · ${plural(characters, "character")} …`;
}

/** Where whole lines are hidden, the button has a line of its own. */
export function placeFold(button: HTMLElement, text: string, end: number): void {
  button.classList.toggle("lmnb-cut-lines", text[end - 1] === "\n");
}

/** Text in an element of its own. It can grow, by appending; long text folds, keeping what was opened open. */
export class TextView {
  private readonly _node = document.createTextNode("");
  private readonly _fold: HTMLButtonElement;
  private _text = "";
  private _cut: TextItem["cut"];
  private _settled = false;
  private _marked: { at: number; el: HTMLElement } | null = null;

  constructor(
    private readonly _el: HTMLElement,
    private readonly _folding: Folding,
  ) {
    _el.append(this._node);
    this._fold = foldButton(() => {
      this._folding.open();
      if (this._cut) this._folding.fetch?.();
      else this._draw();
    });
  }

  /** Only text that is `settled` has tables, and folds. */
  update(text: string, settled = true, cut?: TextItem["cut"]): void {
    if (text === this._text && settled === this._settled && cut === this._cut) return;
    const grown = text.startsWith(this._text) ? text.slice(this._text.length) : null;
    [this._text, this._settled, this._cut] = [text, settled, cut];
    const plain = this._el.firstChild === this._node && !this._hidden() && !(settled && withTables(text));
    if (plain && grown !== null) this._node.appendData(readable(grown)); // the reader's selection stays
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
    return !this._settled || this._folding.isOpen() ? null : hiddenPart(this._text);
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
      const missing = hidden[1] - hidden[0] + (this._cut?.missing ?? 0);
      setText(this._fold, foldWords(missing, this._folding.tokens?.(...hidden) ?? 0));
      placeFold(this._fold, text, hidden[1]);
      this._fold.disabled = this._cut !== undefined && !this._folding.fetch;
      pieces.push(this._fold);
      put(hidden[1], text.length);
    } else if (mark) {
      put(0, text.length);
    } else {
      const drawn = this._settled ? withTables(text) : null;
      this._node.data = drawn ? "" : readable(text);
      pieces.push(...(drawn ?? [this._node]));
    }
    this._el.replaceChildren(...pieces.map((piece) => (typeof piece === "string" ? readable(piece) : piece)));
  }
}

// One run of text in a transcript: what the program gave, what the model generated, what a select chose.

import { h, setAttributes, setText } from "./dom";
import { count, plural, seconds, SIGNS } from "./format";
import { choiceTable } from "./run_choice";
import type { GenItem } from "./run_model";
import { type Colour, TokenSpans } from "./run_tokens";

const FOLD_OVER = 2400; // characters; longer given text shows its beginning and end only
const FOLD_HEAD = 1200;
const FOLD_TAIL = 400;

/** Given text. It can grow, by appending; long text folds, keeping what was opened open. */
export class TextView {
  private readonly node = document.createTextNode("");
  private length = 0;
  private fold: HTMLElement | null = null;
  private tail: Text | null = null;

  constructor(
    parent: HTMLElement,
    private readonly isOpen: () => boolean,
    private readonly open: () => void,
  ) {
    parent.append(this.node);
  }

  update(text: string): void {
    if (text.length === this.length) return;
    const whole = text.length <= FOLD_OVER || this.isOpen();
    if (whole && !this.fold) {
      this.node.appendData(text.slice(this.length));
    } else if (whole) {
      this.node.data = text;
      this.fold?.remove();
      this.tail?.remove();
      this.fold = this.tail = null;
    } else {
      this.node.data = text.slice(0, FOLD_HEAD);
      this.showFold(text);
    }
    this.length = text.length;
  }

  private showFold(text: string): void {
    const label = `… ${count(text.length - FOLD_HEAD - FOLD_TAIL)} more characters …`;
    if (!this.fold || !this.tail) {
      const fold = h("button", { type: "button", class: "lmnb-cut" });
      fold.addEventListener("click", () => {
        this.open();
        this.length = -1;
        this.update(this.full);
      });
      this.tail = document.createTextNode("");
      this.node.after(fold, this.tail);
      this.fold = fold;
    }
    this.full = text;
    setText(this.fold, label);
    this.tail.data = text.slice(-FOLD_TAIL);
  }

  private full = "";
}

/** A generation: a chip with its variable, its text with a caret while it grows, a note if it was cut short. */
export class GenView {
  private readonly node = document.createTextNode("");
  private readonly text: HTMLElement;
  private readonly note = h("small", { class: "lmnb-note" });
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
    parent.append(this.text, this.note);
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
    }
    if (item.choice && !this.choice) {
      const table = choiceTable(item.choice);
      table.open = this.opened.has(this.key); // also when the view is drawn anew
      table.addEventListener("toggle", () => (table.open ? this.opened.add(this.key) : this.opened.delete(this.key)));
      this.note.after(table);
      this.choice = table;
    }
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

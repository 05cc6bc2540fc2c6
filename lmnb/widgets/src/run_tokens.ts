// Generated text token by token: coloured by origin, probability or latency, and each a place where a branch may part.

import { h, OWN_KEYS, setText } from "./dom";
import { plural } from "./format";
import type { Origin, Part, Parting } from "./protocol";
import type { GenItem } from "./run_model";
import { foldButton, foldWords, placeFold } from "./run_text";

const KEPT_SHOWN = 200; // characters before the place where a branch parts
const FOLD_OVER = 400; // characters; less is not worth a fold

export const COLOURS = ["none", "origin", "probability", "latency"] as const;
export type Colour = (typeof COLOURS)[number];

export interface Token {
  text: string;
  parts: Part[];
  wait: number | null; // seconds since the token before
  place: Parting;
}

/** The tokens that elements show. */
export const tokens = new WeakMap<Element, Token>();
/** What draws a generation token by token, by the element that has its text in one piece. */
export const spreads = new WeakMap<Element, () => void>();

/** Draws a generation's parts as elements; they are only ever appended. */
export class TokenSpans {
  private _drawn = 0; // parts
  private _length = 0; // of their text
  private _count = 0; // tokens
  private _pending: Part[] = []; // tokens with no text yet: they belong to the next that has some
  private _time: number | null = 0;
  private readonly _starts: [number, Element][] = [];
  private readonly _kept: HTMLElement[] = []; // at the beginning
  private _folded = 0; // of these
  private _foldedLength = 0;
  private _fold: HTMLButtonElement | null = null;
  private readonly _partings: [number, Element][] = [];

  constructor(
    private readonly el: HTMLElement, // that can have the focus
    private readonly _colour: Colour,
    private readonly _place: Omit<Parting, "token">,
    private readonly _opened: Set<string>,
  ) {}

  update(item: GenItem): void {
    for (; this._drawn < item.parts.length; this._drawn++) {
      const part = item.parts[this._drawn] as Part;
      this._pending.push(part);
      if (part[0] > 0) this._append(item.text.slice(this._length, this._length + part[0]), this._pending.splice(0));
      this._length += part[0];
    }
    this._foldKept();
  }

  /** Of a long text that the branch's origin has, too, leave the end: where the branch parts is then in sight. */
  private _foldKept(): void {
    const key = `${this._place.branch}:${this._place.gen}:kept`;
    if (this._opened.has(key)) return;
    let [shown, end] = [0, this._kept.length];
    while (end > this._folded && shown < KEPT_SHOWN) shown += lengthOf(this._kept[--end]);
    const fresh = this._kept.slice(this._folded, end);
    const length = fresh.reduce((sum, span) => sum + lengthOf(span), this._foldedLength);
    if (fresh.length === 0 || length < FOLD_OVER) return;
    for (const span of fresh) span.hidden = true;
    [this._folded, this._foldedLength] = [end, length];
    if (!this._fold) {
      this._fold = foldButton(() => this._open(key, this._kept, this._fold));
      this.el.prepend(this._fold);
    }
    setText(this._fold, `… ${plural(length, "character")} as before …`);
  }

  /** Hide what begins between two places, behind a button that says how much that is. */
  fold(text: string, [from, to]: [number, number], numTokens: number, key: string): void {
    const hidden = this._starts.filter(([start]) => start >= from && start < to).map(([, el]) => el as HTMLElement);
    if (hidden.length === 0 || hidden[0]?.hidden) return;
    const button = foldButton(() => this._open(key, hidden, button));
    setText(button, foldWords(to - from, numTokens));
    placeFold(button, text, to);
    for (const span of hidden) span.hidden = true;
    hidden[0]?.before(button);
  }

  private _open(key: string, spans: HTMLElement[], button: Element | null): void {
    this._opened.add(key);
    for (const span of spans) span.hidden = false;
    button?.remove();
    this.el.focus({ preventScroll: true });
  }

  /** Put `el` before the token at that place in the text. */
  part(at: number, el: Element): void {
    this._partings.push([at, el]);
    const next = this._starts.find(([start]) => start >= at);
    if (next) next[1].before(el);
    else this.el.append(el);
  }

  private _append(text: string, parts: Part[]): void {
    const now = parts[parts.length - 1]?.[2] ?? null;
    const wait = now === null || this._time === null ? null : Math.max(0, now - this._time);
    this._time = now;
    const token = { text, parts, wait, place: { ...this._place, token: this._count } };
    this._count += numTokens(token);
    const origin = originOf(token);
    const told = this._colour === "origin" || origin === "kept" || origin === "given";
    const span = h("span", { class: "lmnb-tok", "data-o": told ? origin : null }, text);
    const strength = this._colour === "probability" ? surprise(token) : this._colour === "latency" ? slowness(wait) : null;
    if (strength !== null) span.style.setProperty("--p", strength.toFixed(2));
    if (strength !== null && strength > 0.9) span.dataset["high"] = "";
    tokens.set(span, token);
    this.el.append(span);
    if (origin === "kept" && this._kept.length === this._starts.length) this._kept.push(span);
    this._starts.push([this._length, span]);
    for (const [at, el] of this._partings) if (at === this._length) span.before(el); // it was last until now
  }
}

function lengthOf(span: HTMLElement | undefined): number {
  return span?.textContent?.length ?? 0;
}

export function numTokens({ parts }: Token): number {
  return parts.reduce((sum, part) => sum + part[1], 0);
}

export function originOf({ parts }: Token): Origin {
  const origins = parts.map((part) => part[3] ?? "free");
  return origins.find((origin) => origin !== "free") ?? "free";
}

export function details({ parts }: Token) {
  return parts.flatMap((part) => part[4] ?? []);
}

/** 1 minus the probability (of several tokens: their geometric mean), or null where it was not asked for. */
function surprise(token: Token): number | null {
  const known = details(token).flatMap(([, logprob]) => (logprob === null ? [] : [logprob]));
  return known.length === 0 ? null : 1 - Math.exp(known.reduce((sum, value) => sum + value, 0) / known.length);
}

function slowness(wait: number | null): number | null {
  return wait === null ? null : Math.min(1, Math.max(0, Math.log(wait / 0.005) / Math.log(100)));
}

/** The menu of colours. */
export function colourMenu(current: Colour, choose: (colour: Colour) => void): HTMLElement {
  const select = h("select", { ...OWN_KEYS, "aria-label": "Colour of generated tokens" });
  for (const name of COLOURS) select.append(h("option", { value: name, selected: name === current }, name === "none" ? "Colour" : name));
  select.addEventListener("change", () => choose(select.value as Colour));
  setText(select.options[0] as Element, current === "none" ? "Colour" : "no colour");
  return select;
}

// Generated text token by token: coloured by origin, probability or latency, with a strip that tells of one token.

import { h, OWN_KEYS, setText } from "./dom";
import { percent, plural, seconds, visible } from "./format";
import type { Alternative, Origin, Part } from "./protocol";
import type { GenItem } from "./run_model";

export const COLOURS = ["none", "origin", "probability", "latency"] as const;
export type Colour = (typeof COLOURS)[number];

const ORIGINS: Record<Origin, string> = { free: "sampled freely", masked: "sampled under the constraint", forced: "forced by the constraint" };
const LEGENDS: Record<Colour, [string, string][]> = {
  none: [],
  origin: [["free", "generated"], ["masked", "under a constraint"], ["forced", "forced"], ["chosen", "chosen"]],
  probability: [["p0", "likely"], ["p1", "unlikely"]],
  latency: [["l0", "≤ 5 ms"], ["l1", "≥ 0.5 s"]],
};

interface Token {
  text: string;
  parts: Part[];
  wait: number | null; // seconds since the token before
}

const tokens = new WeakMap<Element, Token>();

/** Draws a generation's parts as elements; they are only ever appended. */
export class TokenSpans {
  private _drawn = 0; // parts
  private _length = 0; // of their text
  private _pending: Part[] = []; // tokens with no text yet: they belong to the next that has some
  private _time: number | null = 0;

  constructor(
    private readonly el: HTMLElement,
    private readonly _colour: Colour,
  ) {}

  update(item: GenItem): void {
    for (; this._drawn < item.parts.length; this._drawn++) {
      const part = item.parts[this._drawn] as Part;
      this._pending.push(part);
      if (part[0] > 0) this._append(item.text.slice(this._length, this._length + part[0]), this._pending.splice(0));
      this._length += part[0];
    }
  }

  private _append(text: string, parts: Part[]): void {
    const now = parts[parts.length - 1]?.[2] ?? null;
    const wait = now === null || this._time === null ? null : Math.max(0, now - this._time);
    this._time = now;
    const token = { text, parts, wait };
    const span = h("span", { class: "lmnb-tok", "data-o": this._colour === "origin" ? originOf(token) : null }, text);
    const strength = this._colour === "probability" ? surprise(token) : this._colour === "latency" ? slowness(wait) : null;
    if (strength !== null) span.style.setProperty("--p", strength.toFixed(2));
    if (strength !== null && strength > 0.9) span.dataset["high"] = "";
    tokens.set(span, token);
    this.el.append(span);
  }
}

function originOf(token: Token): Origin {
  const origins = token.parts.map((part) => part[3] ?? "free");
  return origins.find((origin) => origin !== "free") ?? "free";
}

function details(token: Token) {
  return token.parts.flatMap((part) => part[4] ?? []);
}

/** 1 minus the probability (of several tokens: their geometric mean), or null where it was not asked for. */
function surprise(token: Token): number | null {
  const known = details(token).flatMap(([, logprob]) => (logprob === null ? [] : [logprob]));
  return known.length === 0 ? null : 1 - Math.exp(known.reduce((sum, value) => sum + value, 0) / known.length);
}

function slowness(wait: number | null): number | null {
  return wait === null ? null : Math.min(1, Math.max(0, Math.log(wait / 0.005) / Math.log(100)));
}

/** What the colours mean, and one token's story: the one under the pointer, or the one that arrow keys reached. */
export class TokenStrip {
  readonly el: HTMLElement;
  private readonly _facts = h("div", { class: "lmnb-strip-token", "aria-live": "polite" }, "Point at a token, or walk through a generation with ← and →.");
  private _current: Element | null = null;

  constructor(body: HTMLElement, colour: Colour, hasDetails: () => boolean) {
    const legend = LEGENDS[colour].map(([mark, words]) => h("span", { class: "lmnb-tok", "data-o": mark }, words));
    const lacking = h("span", {}, "Not asked for: run the cell with %%lmprog --logprobs N.");
    lacking.hidden = colour !== "probability" || hasDetails();
    this.el = h("div", { class: "lmnb-strip" }, h("div", { class: "lmnb-strip-legend" }, ...legend, lacking), this._facts);
    body.addEventListener("pointerover", (event) => this._show(tokenAt(event)));
    body.addEventListener("click", (event) => this._show(tokenAt(event)));
    body.addEventListener("keydown", (event) => this._walk(event));
  }

  private _walk(event: KeyboardEvent): void {
    const gen = event.target instanceof Element ? event.target.closest(".lmnb-gen") : null;
    if (!gen || (event.key !== "ArrowRight" && event.key !== "ArrowLeft")) return;
    const forward = event.key === "ArrowRight";
    const inside = this._current && gen.contains(this._current) ? this._current : null;
    const next = inside ? (forward ? inside.nextElementSibling : inside.previousElementSibling) : (forward ? gen.firstElementChild : gen.lastElementChild);
    if (next) this._show(next);
    event.preventDefault();
    event.stopPropagation();
  }

  private _show(element: Element | null): void {
    const token = element && tokens.get(element);
    if (!token || element === this._current) return;
    this._current?.removeAttribute("data-on");
    this._current = element;
    element.setAttribute("data-on", "");
    const number = token.parts.reduce((sum, part) => sum + part[1], 0);
    const facts = [ORIGINS[originOf(token)], ...(number === 1 ? [] : [plural(number, "token")])];
    if (token.wait !== null) facts.push(`${seconds(token.wait)} after the one before`);
    this._facts.replaceChildren(h("b", { class: "lmnb-tok-name" }, visible(token.text)), ` ${facts.join(" · ")}`);
    for (const [text, logprob, top] of details(token)) {
      const list = top.some(([other]) => other === text) || logprob === null ? top : [[text, logprob] as Alternative, ...top];
      const chips = list.map(([other, value, out]) => {
        const sign = other === text ? "✓ " : out ? "✕ " : "";
        const attributes = { class: `lmnb-token${other === text ? " lmnb-best" : out ? " lmnb-out" : ""}`, style: `--p:${Math.exp(value).toFixed(3)}`, title: out ? "likelier, but ruled out" : null };
        return h("span", attributes, sign, visible(other), h("small", {}, percent(value)));
      });
      this._facts.append(h("div", { class: "lmnb-tokens" }, ...chips));
    }
  }
}

function tokenAt(event: Event): Element | null {
  return event.target instanceof Element ? event.target.closest(".lmnb-body .lmnb-tok") : null;
}

/** The menu of colours. */
export function colourMenu(current: Colour, choose: (colour: Colour) => void): HTMLElement {
  const select = h("select", { ...OWN_KEYS, "aria-label": "Colour of generated tokens" });
  for (const name of COLOURS) select.append(h("option", { value: name, selected: name === current }, name === "none" ? "Colour" : name));
  select.addEventListener("change", () => choose(select.value as Colour));
  setText(select.options[0] as Element, current === "none" ? "Colour" : "no colour");
  return select;
}

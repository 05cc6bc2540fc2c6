// The strip below a transcript: what the colours mean, one token's story, and the way to another one in its place.
// Pointing shows a token; a click, or Enter, holds it, and what else was likely there can then be chosen.

import { h, OWN_KEYS, setText } from "./dom";
import { percent, plural, seconds, visible } from "./format";
import type { Alternative, Origin, Parting, Reply, TokenDetail } from "./protocol";
import { type Colour, details, numTokens, originOf, spreads, type Token, tokens } from "./run_tokens";

const ORIGINS: Record<Origin, string> = {
  free: "sampled freely",
  masked: "sampled under the constraint",
  forced: "forced by the constraint: nothing else was possible here",
  kept: "kept from the branch that this one parts from",
  given: "put here in place of what was generated",
};
const LEGENDS: Record<Colour, [string, string][]> = {
  none: [],
  origin: [["free", "generated"], ["masked", "under a constraint"], ["forced", "forced"], ["chosen", "chosen"]],
  probability: [["p0", "likely"], ["p1", "unlikely"]],
  latency: [["l0", "≤ 5 ms"], ["l1", "≥ 0.5 s"]],
};

/** How the kernel is asked: what else was likely, and for a branch. */
export interface PartingActions {
  ask(place: Parting): void;
  part(place: Parting, what: { text?: string; id?: number }): void;
}

export class TokenStrip {
  readonly el: HTMLElement;
  private readonly _facts = h("div", { class: "lmnb-strip-token", "aria-live": "polite" });
  private readonly _likely = h("div", { class: "lmnb-tokens" });
  private readonly _input = h("input", { ...OWN_KEYS, type: "text", placeholder: "or type other text", "aria-label": "Other text from this token on" });
  private readonly _go = h("button", { type: "button" });
  private readonly _why = h("span", { class: "lmnb-refused", role: "alert" });
  private readonly _close = h("button", { type: "button" }, "Close");
  private readonly _panel: HTMLElement;
  private _current: Element | null = null;
  private _held: Token | null = null;

  /** `actions` is null where there is no kernel to ask. */
  constructor(
    body: HTMLElement,
    private readonly _colour: Colour,
    hasDetails: () => boolean,
    private readonly _actions: PartingActions | null,
  ) {
    const legend = LEGENDS[_colour].map(([mark, words]) => h("span", { class: "lmnb-tok", "data-o": mark }, words));
    const lacking = h("span", {}, "Not asked for: run the cell with %%lmprog --logprobs N.");
    lacking.hidden = _colour !== "probability" || hasDetails();
    const form = h("div", { class: "lmnb-part-form" }, this._input, this._go, this._close, this._why);
    this._panel = h("div", { class: "lmnb-part", role: "group", "aria-label": "Branch before this token" }, this._likely, form);
    this.el = h("div", { class: "lmnb-strip" }, h("div", { class: "lmnb-strip-legend" }, ...legend, lacking), this._facts, this._panel);
    if (_colour !== "none") this._facts.append("Point at a token, or walk through a generation with ←, →, Home and End.");
    this._release();
    const go = () => this._part(this._input.value ? { text: this._input.value } : {});
    this._go.addEventListener("click", go);
    this._input.addEventListener("input", () => this._name());
    this._close.addEventListener("click", () => this._back());
    this._panel.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this._back();
      else if (event.key === "Enter" && event.target === this._input) go(); // a form would not hear of it in JupyterLab
    });
    // Not `pointerover`: that also comes when text moves under a mouse at rest.
    body.addEventListener("pointermove", (event) => _colour !== "none" && !this._held && this._show(tokenAt(event)));
    body.addEventListener("click", (event) => this._click(event));
    body.addEventListener("keydown", (event) => this._key(event));
  }

  /** What the kernel says of the held token. */
  answer(reply: Reply): void {
    const place = this._held?.place;
    if (!place || place.branch !== reply.branch || place.gen !== reply.gen || place.token !== reply.token) return;
    if (reply.type === "parted") return this._release();
    this._busy(false);
    if (reply.type === "refused") setText(this._why, `✕ ${reply.why}`);
    else this._likely.replaceChildren(...(reply.detail ? this._choices(reply.detail, reply.ids) : []));
  }

  private _click(event: MouseEvent): void {
    const gen = genAt(event);
    const selection = getSelection();
    if (!gen || (selection && !selection.isCollapsed && gen.contains(selection.anchorNode))) return; // text is being selected
    let element = tokenAt(event);
    if (!element && spreads.has(gen)) {
      spreads.get(gen)?.();
      element = (gen.getRootNode() as Document).elementFromPoint?.(event.clientX, event.clientY)?.closest(".lmnb-tok") ?? null;
    }
    this._hold(element);
  }

  private _key(event: KeyboardEvent): void {
    const gen = event.target instanceof Element && event.target.matches(".lmnb-gen") ? event.target : null;
    const { key } = event;
    if (!gen || !["ArrowRight", "ArrowLeft", "Home", "End", "Enter", "Escape"].includes(key)) return;
    event.preventDefault();
    event.stopPropagation();
    if (key === "Escape") return this._release();
    spreads.get(gen)?.();
    const all = [...gen.querySelectorAll(".lmnb-tok:not([hidden])")];
    const at = this._current ? all.indexOf(this._current) : -1;
    if (key === "Enter") {
      this._hold(all[Math.max(at, 0)]);
      if (this._held) this._input.focus({ preventScroll: true });
      return;
    }
    const last = all.length - 1;
    const place = { ArrowRight: at + 1, ArrowLeft: at < 0 ? last : at - 1, Home: 0, End: last }[key] ?? 0;
    const next = all[place];
    if (this._held) this._hold(next);
    else this._show(next);
    next?.scrollIntoView?.({ block: "nearest", inline: "nearest" });
  }

  private _hold(element: Element | null | undefined): void {
    this._show(element);
    const token = element && tokens.get(element);
    if (!token || !this._actions || token === this._held) return;
    this._held = token;
    this._panel.hidden = false;
    this._input.value = "";
    this._name();
    setText(this._why, "");
    this._busy(false);
    this._likely.replaceChildren();
    this._actions.ask(token.place);
  }

  private _release(): void {
    this._held = null;
    this._panel.hidden = true;
    this._current?.removeAttribute("data-on");
    this._current = null;
    this.el.hidden = this._colour === "none";
  }

  private _back(): void {
    const gen = this._current?.closest<HTMLElement>(".lmnb-gen");
    this._release();
    gen?.focus({ preventScroll: true });
  }

  private _name(): void {
    setText(this._go, this._input.value ? "Branch here" : "Draw again");
  }

  private _busy(busy: boolean): void {
    for (const button of this._panel.querySelectorAll("button")) {
      button.disabled = button !== this._close && (busy || button.classList.contains("lmnb-out"));
    }
  }

  private _part(what: { text?: string; id?: number }): void {
    if (!this._held || !this._actions) return;
    setText(this._why, "");
    this._busy(true);
    this._actions.part(this._held.place, what);
  }

  private _show(element: Element | null | undefined): void {
    const token = element && tokens.get(element);
    if (!token || element === this._current) return;
    this._current?.removeAttribute("data-on");
    this._current = element;
    element.setAttribute("data-on", "");
    this.el.hidden = false;
    const number = numTokens(token);
    const facts = [ORIGINS[originOf(token)], ...(number === 1 ? [] : [plural(number, "token")])];
    if (token.wait !== null) facts.push(`${seconds(token.wait)} after the one before`);
    const [, before, , after] = details(token)[0] ?? [];
    if (number === 1 && after !== undefined && before != null) facts.push(`${percent(before)} before the mask, ${percent(after)} after it`);
    this._facts.replaceChildren(h("b", { class: "lmnb-tok-name" }, visible(token.text)), ` ${facts.join(" · ")}`);
    for (const detail of details(token)) this._facts.append(h("div", { class: "lmnb-tokens" }, ...chips(detail, originOf(token) === "forced")));
  }

  /** What else was likely, as buttons. */
  private _choices(detail: TokenDetail, ids: number[]): HTMLElement[] {
    this._facts.querySelector(".lmnb-tokens")?.remove(); // the same, without buttons
    const list = chips(detail, this._held ? originOf(this._held) === "forced" : false);
    const first = list.length - ids.length; // a token that is not among the likeliest comes before them
    return list.map((chip, index) => {
      const id = ids[index - first];
      if (id === undefined) return chip;
      const button = h("button", { type: "button", class: chip.className, style: chip.getAttribute("style"), title: chip.title || null, disabled: chip.classList.contains("lmnb-out") }, ...chip.childNodes);
      button.addEventListener("click", () => this._part({ id }));
      return button;
    });
  }
}

/** A token and what else was likely; beside one that was `forced` nothing else was possible. */
function chips([text, logprob, top]: TokenDetail, forced: boolean): HTMLElement[] {
  const list = top.some(([other]) => other === text) || logprob === null ? top : [[text, logprob] as Alternative, ...top];
  return list.map(([other, value, ruledOut]) => {
    const out = ruledOut === 1 || (forced && other !== text);
    const sign = other === text ? "✓ " : out ? "✕ " : "";
    const attributes = { class: `lmnb-token${other === text ? " lmnb-best" : out ? " lmnb-out" : ""}`, style: `--p:${Math.exp(value).toFixed(3)}`, title: out ? "ruled out: no branch can go on with it" : null };
    return h("span", attributes, sign, visible(other), h("small", {}, percent(value)));
  });
}

function tokenAt(event: Event): Element | null {
  return event.target instanceof Element ? event.target.closest(".lmnb-body .lmnb-tok") : null;
}

function genAt(event: Event): HTMLElement | null {
  return event.target instanceof Element ? event.target.closest<HTMLElement>(".lmnb-gen") : null;
}

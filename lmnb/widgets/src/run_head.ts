// The line above a transcript: state, program, tokens by origin, speed, and the buttons.

import { h, setText } from "./dom";
import { count, seconds, SIGNS, WORDS } from "./format";
import { type RunState, tokensPerSecond } from "./run_model";

const ORIGINS = ["reused", "computed", "generated"] as const;
const RATE_WINDOW = 2000; // milliseconds over which the live speed is measured

export class HeadView {
  readonly el: HTMLElement;
  readonly bar: HTMLElement;
  private readonly _sign = h("span", { class: "lmnb-sign", "aria-hidden": "true" });
  private readonly _word = h("span");
  private readonly _status = h("span", { class: "lmnb-status", role: "status", "aria-live": "polite" }, this._sign, this._word);
  private readonly _program = h("b", { class: "lmnb-program" });
  private readonly _model = h("span", { class: "lmnb-model" });
  private readonly _metrics = new Map<string, { el: HTMLElement; value: HTMLElement }>();
  private readonly _segments = ORIGINS.map((name) => h("span", { class: `lmnb-${name}` }));
  private readonly _stop = h("button", { type: "button", class: "lmnb-cancel" }, "Cancel");
  private readonly _markup = h("button", { type: "button", class: "lmnb-toggle", "aria-pressed": "false" }, "Template");
  private readonly _samples: { time: number; tokens: number }[] = [];

  private readonly _canCancel: boolean;

  constructor(actions: { cancel: () => void; markup: (shown: boolean) => void; markupShown: boolean; canCancel: boolean; menu: HTMLElement }) {
    const names: [string, string][] = [...ORIGINS.map((name): [string, string] => [name, name === "generated" ? "generated tokens" : name]), ["first", "to first token"], ["rate", "tok/s"]];
    const metrics = h("span", { class: "lmnb-metrics" });
    for (const [key, label] of names) {
      const value = h("b", { class: "lmnb-number" });
      const el = h("span", { class: "lmnb-metric", "data-metric": key }, value, ` ${label}`);
      this._metrics.set(key, { el, value });
      metrics.append(el);
    }
    this._canCancel = actions.canCancel;
    this._stop.addEventListener("click", () => {
      this._stop.disabled = true;
      setText(this._stop, "Stopping…");
      actions.cancel();
    });
    this._markup.setAttribute("aria-pressed", String(actions.markupShown));
    this._markup.hidden = true; // until there is a role
    this._markup.title = "Show the chat template's own text";
    this._markup.addEventListener("click", () => {
      const shown = this._markup.getAttribute("aria-pressed") !== "true";
      this._markup.setAttribute("aria-pressed", String(shown));
      actions.markup(shown);
    });
    const title = h("span", { class: "lmnb-title" }, this._status, this._program, this._model);
    this.el = h("div", { class: "lmnb-head" }, title, metrics, h("span", { class: "lmnb-buttons" }, actions.menu, this._markup, this._stop));
    this.bar = h("div", { class: "lmnb-bar", role: "img" }, ...this._segments);
  }

  update(state: RunState): void {
    if (this._status.dataset["status"] !== state.status) {
      this._status.dataset["status"] = state.status;
      setText(this._sign, SIGNS[state.status]);
      const after = state.seconds === null ? "" : ` · ${seconds(state.seconds)}`;
      setText(this._word, WORDS[state.status] + after);
      this._stop.hidden = state.status !== "running" || !this._canCancel;
      this.offerCancel(); // a run that was over may go on
    }
    this._markup.hidden &&= !state.branches.some((branch) => branch.items.some((item) => item.type === "role"));
    setText(this._program, state.program);
    setText(this._model, state.model);
    this._model.title = state.model;
    const unknown = state.status === "running" ? "–" : ""; // its place is kept: nothing moves when it is known
    const told = state.status !== "running" || state.reused + state.computed > 0; // of the prompts, when a generation ends
    for (const name of ORIGINS) this._show(name, told || name === "generated" ? count(state[name]) : unknown);
    this._show("first", state.first_token_seconds === null ? unknown : seconds(state.first_token_seconds));
    const speed = state.status === "running" ? this._liveRate(state.generated) : tokensPerSecond(state);
    this._show("rate", speed === null ? unknown : count(speed));
    ORIGINS.forEach((name, index) => {
      (this._segments[index] as HTMLElement).style.flexGrow = String(state[name]);
    });
    this.bar.setAttribute("aria-label", ORIGINS.map((name) => `${count(state[name])} tokens ${name}`).join(", "));
  }

  offerCancel(): void {
    this._stop.disabled = false;
    setText(this._stop, "Cancel");
  }

  private _show(key: string, value: string): void {
    const metric = this._metrics.get(key);
    if (!metric) return;
    metric.el.hidden = value === "";
    setText(metric.value, value);
  }

  /** Tokens a second over the last two seconds, by this page's clock; null until half a second has passed. */
  private _liveRate(tokens: number): number | null {
    const now = performance.now();
    if (this._samples[this._samples.length - 1]?.tokens !== tokens) this._samples.push({ time: now, tokens });
    while (this._samples.length > 2 && now - (this._samples[1] as { time: number }).time > RATE_WINDOW) this._samples.shift();
    const first = this._samples[0];
    const last = this._samples[this._samples.length - 1];
    if (!first || !last || last.time - first.time < 500) return null;
    return ((last.tokens - first.tokens) * 1000) / (last.time - first.time);
  }
}

// The line above a transcript: state, program, tokens by origin, speed, and the buttons.

import { h, setText } from "./dom";
import { count, seconds, SIGNS, WORDS } from "./format";
import { type RunState, tokensPerSecond } from "./run_model";

const ORIGINS = ["reused", "computed", "generated"] as const;
const RATE_WINDOW = 2000; // milliseconds over which the live speed is measured

export class HeadView {
  readonly el: HTMLElement;
  readonly bar: HTMLElement;
  private readonly sign = h("span", { class: "lmnb-sign", "aria-hidden": "true" });
  private readonly word = h("span");
  private readonly status = h("span", { class: "lmnb-status", role: "status", "aria-live": "polite" }, this.sign, this.word);
  private readonly program = h("b", { class: "lmnb-program" });
  private readonly model = h("span", { class: "lmnb-model" });
  private readonly metrics = new Map<string, { el: HTMLElement; value: HTMLElement }>();
  private readonly segments = ORIGINS.map((name) => h("span", { class: `lmnb-${name}` }));
  private readonly stop = h("button", { type: "button", class: "lmnb-cancel" }, "Cancel");
  private readonly markup = h("button", { type: "button", class: "lmnb-toggle", "aria-pressed": "false" }, "Template");
  private readonly samples: { time: number; tokens: number }[] = [];

  constructor(actions: { cancel: () => void; markup: (shown: boolean) => void; markupShown: boolean; canCancel: boolean; menu: HTMLElement }) {
    const names: [string, string][] = [...ORIGINS.map((name): [string, string] => [name, name === "generated" ? "generated tokens" : name]), ["first", "to first token"], ["rate", "tok/s"]];
    const metrics = h("span", { class: "lmnb-metrics" });
    for (const [key, label] of names) {
      const value = h("b", { class: "lmnb-number" });
      const el = h("span", { class: "lmnb-metric", "data-metric": key }, value, ` ${label}`);
      this.metrics.set(key, { el, value });
      metrics.append(el);
    }
    this.stop.hidden = !actions.canCancel;
    this.stop.addEventListener("click", () => {
      this.stop.disabled = true;
      setText(this.stop, "Stopping…");
      actions.cancel();
    });
    this.markup.setAttribute("aria-pressed", String(actions.markupShown));
    this.markup.hidden = true; // until there is a role
    this.markup.title = "Show the chat template's own text";
    this.markup.addEventListener("click", () => {
      const shown = this.markup.getAttribute("aria-pressed") !== "true";
      this.markup.setAttribute("aria-pressed", String(shown));
      actions.markup(shown);
    });
    const title = h("span", { class: "lmnb-title" }, this.status, this.program, this.model);
    this.el = h("div", { class: "lmnb-head" }, title, metrics, h("span", { class: "lmnb-buttons" }, actions.menu, this.markup, this.stop));
    this.bar = h("div", { class: "lmnb-bar", role: "img" }, ...this.segments);
  }

  update(state: RunState): void {
    if (this.status.dataset["status"] !== state.status) {
      this.status.dataset["status"] = state.status;
      setText(this.sign, SIGNS[state.status]);
      const after = state.seconds === null ? "" : ` · ${seconds(state.seconds)}`;
      setText(this.word, WORDS[state.status] + after);
      if (state.status !== "running") this.stop.hidden = true;
    }
    this.markup.hidden &&= !state.branches.some((branch) => branch.items.some((item) => item.type === "role"));
    setText(this.program, state.program);
    setText(this.model, state.model);
    this.model.title = state.model;
    for (const name of ORIGINS) this.show(name, count(state[name]));
    this.show("first", state.first_token_seconds === null ? "" : seconds(state.first_token_seconds));
    const speed = state.status === "running" ? this.liveRate(state.generated) : tokensPerSecond(state);
    this.show("rate", speed === null ? "" : count(speed));
    ORIGINS.forEach((name, index) => {
      (this.segments[index] as HTMLElement).style.flexGrow = String(state[name]);
    });
    this.bar.setAttribute("aria-label", ORIGINS.map((name) => `${count(state[name])} tokens ${name}`).join(", "));
  }

  private show(key: string, value: string): void {
    const metric = this.metrics.get(key);
    if (!metric) return;
    metric.el.hidden = value === "";
    setText(metric.value, value);
  }

  /** Tokens a second over the last two seconds, by this page's clock; null until half a second has passed. */
  private liveRate(tokens: number): number | null {
    const now = performance.now();
    if (this.samples[this.samples.length - 1]?.tokens !== tokens) this.samples.push({ time: now, tokens });
    while (this.samples.length > 2 && now - (this.samples[1] as { time: number }).time > RATE_WINDOW) this.samples.shift();
    const first = this.samples[0];
    const last = this.samples[this.samples.length - 1];
    if (!first || !last || last.time - first.time < 500) return null;
    return ((last.tokens - first.tokens) * 1000) / (last.time - first.time);
  }
}

// The timeline under the tree: play, step, scrub, and back to live. It holds a place among the recorded events.

import { h, OWN_KEYS, paced, setText } from "./dom";
import { count, plural } from "./format";
import type { CacheEvent } from "./protocol";

const TICK = 400; // milliseconds between steps while playing
const LONGEST = 30_000; // milliseconds that playing everything takes at most; then steps get larger

const CURVE_INTERVAL = 250; // milliseconds between drawings of the curve while events come
const WINDOW = 64; // events that the hit rate looks back over

const WHAT: Record<CacheEvent["kind"], string> = {
  insert: "new",
  extend: "grew by",
  hit: "reused",
  split: "split after",
  evict: "evicted",
  pin: "pinned",
  unpin: "unpinned",
  reset: "flushed",
};

export class Timeline {
  readonly el: HTMLElement;
  /** Number of events shown, or null while following the newest. */
  place: number | null = null;
  /** Events that the last move went over: they are what "just happened". */
  stride = 1;
  /** The moment that the tree is compared with, as a number of events, or null. */
  since: number | null = null;
  private _events: readonly CacheEvent[] = [];
  private _first = 0; // the number of the oldest event that is kept; numbers that are shown count from the very first
  private _tokens = 0;
  private _poolTokens = 0;
  private _timer: ReturnType<typeof setInterval> | undefined;
  private readonly _slider = h("input", { type: "range", min: 0, value: 0, "aria-label": "Place in the recorded events" });
  private readonly _play = h("button", { type: "button", class: "lmnb-play" }, "Play");
  private readonly _live = h("button", { type: "button", class: "lmnb-live", "aria-pressed": "true" }, "Live");
  private readonly _compare = h("button", { type: "button", title: "Show what differs from this moment on" }, "Compare");
  private readonly _rate = h("div", { class: "lmnb-curve-rate" });
  private readonly _fill = h("div", { class: "lmnb-curve-fill" });
  private readonly _curve = h("div", { class: "lmnb-curve", role: "img" }, this._rate, this._fill);
  private _drawn = -1; // events in the curve
  private readonly _curving = paced(() => this._drawCurve(), CURVE_INTERVAL);
  private readonly _caption = h("span", { class: "lmnb-caption lmnb-number" });

  constructor(private readonly _onMove: () => void) {
    const back = h("button", { type: "button", "aria-label": "Step back" }, "‹");
    const forth = h("button", { type: "button", "aria-label": "Step forward" }, "›");
    this.el = h(
      "div",
      { ...OWN_KEYS, class: "lmnb-timeline", role: "group", "aria-label": "Timeline" },
      this._play,
      back,
      forth,
      h("span", { class: "lmnb-range" }, this._curve, this._slider),
      this._live,
      this._compare,
      this._caption,
    );
    this._compare.addEventListener("click", () => {
      this.since = this.since === null ? (this.place ?? this._events.length) : null;
      this._draw();
      this._onMove();
    });
    this._play.addEventListener("click", () => (this._timer === undefined ? this._start() : this.pause()));
    back.addEventListener("click", () => this.step(-1));
    forth.addEventListener("click", () => this.step(1));
    this._slider.addEventListener("input", () => this._go(Number(this._slider.value), 1));
    this._slider.addEventListener("keydown", (event) => event.stopPropagation()); // notebooks take the arrow keys
    this._live.addEventListener("click", () => this.follow());
  }

  /** `first`: the number of the oldest event; those before it are gone. `tokens`: in the tree before it. */
  show(events: readonly CacheEvent[], first = 0, tokens = 0, poolTokens = 0): void {
    const gone = first - this._first;
    this._events = events;
    this._first = first;
    this._tokens = tokens;
    this._poolTokens = poolTokens;
    if (gone > 0) {
      if (this.place !== null) this.place = Math.max(0, this.place - gone);
      if (this.since !== null) this.since = Math.max(0, this.since - gone);
      this._drawn = -1;
    }
    if (this.place !== null && this.place > events.length) this.place = null;
    if (this.since !== null && this.since > events.length) this.since = null;
    this._draw();
  }

  /** A moment as people read it: the number of events before it, also of those that are no longer kept. */
  number(place: number): string {
    return count(this._first + place);
  }

  step(by: number): void {
    this.pause();
    this._go((this.place ?? this._events.length) + by, 1);
  }

  toggle(): void {
    if (this._timer === undefined) this._start();
    else this.pause();
  }

  follow(): void {
    this.pause();
    this.place = null;
    this._draw();
    this._onMove();
  }

  pause(): void {
    clearInterval(this._timer);
    this._timer = undefined;
    setText(this._play, "Play");
  }

  private _start(): void {
    const total = this._events.length;
    if (total === 0) return;
    if (this.place === null || this.place >= total) this._go(0, 1);
    const stride = Math.max(1, Math.ceil((total - (this.place ?? 0)) / (LONGEST / TICK)));
    setText(this._play, "Pause");
    this._timer = setInterval(() => {
      const next = (this.place ?? 0) + stride;
      if (next >= this._events.length) this.pause();
      this._go(next, stride);
    }, TICK);
  }

  private _go(place: number, stride: number): void {
    this.place = Math.max(0, Math.min(place, this._events.length));
    this.stride = stride;
    this._draw();
    this._onMove();
  }

  /** Nothing of this is drawn any more. */
  close(): void {
    this.pause();
    this._curving.cancel();
  }

  /** The curve looks at all events. */
  private _drawCurve(): void {
    this._drawn = this._events.length;
    const { rates, tokens } = curves(this._events, this._tokens);
    const at = (share: number, index: number) => `${index}% ${(100 - 100 * share).toFixed(1)}%`;
    this._rate.style.clipPath = `polygon(0 100%,${rates.map(at).join()},100% 100%)`;
    const fills = tokens.map((count) => (this._poolTokens ? Math.min(1, count / this._poolTokens) : 0));
    const under = fills.map((fill, index) => at(fill - 0.12, index)).reverse(); // a line as thick as that
    this._fill.style.clipPath = `polygon(${[...fills.map(at), ...under].join()})`;
    const words = `Hit rate ${(100 * (rates[100] ?? 0)).toFixed(0)} % over the last ${WINDOW} events; pool ${(100 * (fills[100] ?? 0)).toFixed(0)} % full`;
    this._curve.title = words;
    this._curve.setAttribute("aria-label", words);
  }

  private _draw(): void {
    const total = this._events.length;
    const place = this.place ?? total;
    this._slider.max = String(total);
    this._slider.value = String(place);
    this._slider.disabled = this._play.disabled = total === 0;
    this._live.setAttribute("aria-pressed", String(this.place === null));
    this._compare.setAttribute("aria-pressed", String(this.since !== null));
    setText(this._compare, this.since === null ? "Compare" : `Since ${this.number(this.since)}`);
    if (this._drawn !== total) this._curving.request();
    const words = describe(this._events[place - 1]);
    this._slider.setAttribute("aria-valuetext", `${this.number(place)} of ${this.number(total)}: ${words}`);
    setText(this._caption, `${this.number(place)} / ${this.number(total)}${words ? ` · ${words}` : ""}`);
  }
}

/** At each of 101 places among the events: the share of prompt tokens that were reused, over the last events before it,
 * and the tokens in the tree, of which there were `first` at the beginning. */
export function curves(events: readonly CacheEvent[], first: number): { rates: number[]; tokens: number[] } {
  const total = events.length;
  const hit = new Float64Array(total + 1); // sums
  const fresh = new Float64Array(total + 1);
  const tokens = new Float64Array(total + 1).fill(first);
  events.forEach(({ kind, num_tokens }, index) => {
    const grown = kind === "insert" || kind === "extend" ? num_tokens : kind === "evict" ? -num_tokens : 0;
    hit[index + 1] = (hit[index] as number) + (kind === "hit" ? num_tokens : 0);
    fresh[index + 1] = (fresh[index] as number) + (kind === "insert" ? num_tokens : 0);
    tokens[index + 1] = kind === "reset" ? 0 : (tokens[index] as number) + grown;
  });
  const places = Array.from({ length: 101 }, (_, index) => Math.round((index * total) / 100));
  const recent = (sums: Float64Array, end: number) => (sums[end] as number) - (sums[Math.max(0, end - WINDOW)] as number);
  return {
    rates: places.map((end) => recent(hit, end) / (recent(hit, end) + recent(fresh, end) || 1)),
    tokens: places.map((end) => tokens[end] as number),
  };
}

function describe(event: CacheEvent | undefined): string {
  if (!event) return "";
  const tokens = event.num_tokens === 0 ? "" : ` ${plural(event.num_tokens, "token")}`;
  return `${WHAT[event.kind]}${tokens}${event.owner ? ` · ${event.kind === "evict" ? "made by " : ""}${event.owner}` : ""}`;
}

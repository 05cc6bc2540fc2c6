// The timeline under the tree: play, step, scrub, and back to live. It holds a place among the recorded events.

import { h, OWN_KEYS, setText } from "./dom";
import { count, plural } from "./format";
import type { CacheEvent } from "./protocol";

const TICK = 400; // milliseconds between steps while playing
const LONGEST = 30_000; // milliseconds that playing everything takes at most; then steps get larger

const WHAT: Record<CacheEvent["kind"], string> = {
  insert: "new",
  extend: "grew by",
  hit: "reused",
  split: "split after",
  evict: "evicted",
  reset: "flushed",
};

export class Timeline {
  readonly el: HTMLElement;
  /** Number of events shown, or null while following the newest. */
  place: number | null = null;
  /** Events that the last move went over: they are what "just happened". */
  stride = 1;
  private events: readonly CacheEvent[] = [];
  private timer: ReturnType<typeof setInterval> | undefined;
  private readonly slider = h("input", { type: "range", min: 0, value: 0, "aria-label": "Place in the recorded events" });
  private readonly play = h("button", { type: "button", class: "lmnb-play" }, "Play");
  private readonly live = h("button", { type: "button", class: "lmnb-live", "aria-pressed": "true" }, "Live");
  private readonly caption = h("span", { class: "lmnb-caption lmnb-number" });

  constructor(private readonly onMove: () => void) {
    const back = h("button", { type: "button", "aria-label": "Step back" }, "‹");
    const forth = h("button", { type: "button", "aria-label": "Step forward" }, "›");
    this.el = h(
      "div",
      { ...OWN_KEYS, class: "lmnb-timeline", role: "group", "aria-label": "Timeline" },
      this.play,
      back,
      forth,
      this.slider,
      this.live,
      this.caption,
    );
    this.play.addEventListener("click", () => (this.timer === undefined ? this.start() : this.pause()));
    back.addEventListener("click", () => this.step(-1));
    forth.addEventListener("click", () => this.step(1));
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value), 1));
    this.slider.addEventListener("keydown", (event) => event.stopPropagation()); // notebooks take the arrow keys
    this.live.addEventListener("click", () => this.follow());
  }

  show(events: readonly CacheEvent[]): void {
    this.events = events;
    if (this.place !== null && this.place > events.length) this.place = null;
    this.draw();
  }

  step(by: number): void {
    this.pause();
    this.go((this.place ?? this.events.length) + by, 1);
  }

  toggle(): void {
    if (this.timer === undefined) this.start();
    else this.pause();
  }

  follow(): void {
    this.pause();
    this.place = null;
    this.draw();
    this.onMove();
  }

  pause(): void {
    clearInterval(this.timer);
    this.timer = undefined;
    setText(this.play, "Play");
  }

  private start(): void {
    const total = this.events.length;
    if (total === 0) return;
    if (this.place === null || this.place >= total) this.go(0, 1);
    const stride = Math.max(1, Math.ceil((total - (this.place ?? 0)) / (LONGEST / TICK)));
    setText(this.play, "Pause");
    this.timer = setInterval(() => {
      const next = (this.place ?? 0) + stride;
      if (next >= this.events.length) this.pause();
      this.go(next, stride);
    }, TICK);
  }

  private go(place: number, stride: number): void {
    this.place = Math.max(0, Math.min(place, this.events.length));
    this.stride = stride;
    this.draw();
    this.onMove();
  }

  private draw(): void {
    const total = this.events.length;
    const place = this.place ?? total;
    this.slider.max = String(total);
    this.slider.value = String(place);
    this.slider.disabled = this.play.disabled = total === 0;
    this.live.setAttribute("aria-pressed", String(this.place === null));
    const words = describe(this.events[place - 1]);
    this.slider.setAttribute("aria-valuetext", `${place} of ${total}: ${words}`);
    setText(this.caption, `${count(place)} / ${count(total)}${words ? ` · ${words}` : ""}`);
  }
}

function describe(event: CacheEvent | undefined): string {
  if (!event) return "";
  const tokens = event.kind === "reset" ? "" : ` ${plural(event.num_tokens, "token")}`;
  return `${WHAT[event.kind]}${tokens}${event.owner ? ` · ${event.owner}` : ""}`;
}

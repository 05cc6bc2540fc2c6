// Numbers with units, and words for states: one wording for all views.

import { readable } from "./dom";
import type { Image, Status } from "./protocol";

export const SIGNS: Record<Status, string> = { running: "◌", done: "✓", failed: "✕", cancelled: "■" };
export const WORDS: Record<Status, string> = {
  running: "running",
  done: "done",
  failed: "failed",
  cancelled: "stopped",
};

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function count(value: number): string {
  return whole.format(value);
}

/** `1 branch`, `2 branches`. */
export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** `[image 640×480 png]`, `[video 640×480 png, 8 frames]`. */
export function imageLabel({ mime, width, height, frames = 1 }: Image): string {
  const kind = mime.replace("image/", "");
  return frames === 1 ? `[image ${width}×${height} ${kind}]` : `[video ${width}×${height} ${kind}, ${frames} frames]`;
}

/** `83 ms`, `1.42 s`, `3 min 05 s`. */
export function seconds(value: number): string {
  if (value < 0.9995) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 59.995) return `${value.toFixed(2)} s`;
  const rounded = Math.round(value);
  return `${Math.floor(rounded / 60)} min ${String(rounded % 60).padStart(2, "0")} s`;
}

/** A length of time in one unit: `12 s`, `3 min`. */
export function span(value: number): string {
  if (value < 60) return `${Math.floor(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min`;
  return `${Math.floor(value / 3600)} h`;
}

/** How long ago: `now`, `12 s ago`. */
export function ago(value: number): string {
  return value < 1 ? "now" : `${span(value)} ago`;
}

const MARKER = /<\|([^|<>\n]{1,40})\|>|<(\/?s|bos|eos|start_of_turn|end_of_turn)>/g;

/** `590 kB`, `1.2 MB`. */
export function bytes(value: number): string {
  const [size, unit] = value < 1e6 ? [1e3, "kB"] : value < 1e9 ? [1e6, "MB"] : [1e9, "GB"];
  return `${(value / size).toFixed(value / size < 10 ? 1 : 0)} ${unit}`;
}

/** One line for labels: whitespace made visible, chat markers shortened (`<|im_start|>user` is `▸user`). */
export function oneLine(text: string): string {
  const short = text.replace(MARKER, (_, a?: string, b?: string) => {
    const name = (a ?? b ?? "").toLowerCase();
    if (name.startsWith("/") || name.includes("end") || name.startsWith("eo")) return "◂";
    return /start|begin|^s$|^bos$/.test(name) ? "▸" : "◆";
  });
  return readable(short).replace(/\s*\n\s*/g, " ⏎ ").replace(/\s+/g, " ").trim();
}

/** A log-probability as a share: `98 %`, `0.4 %`, `<0.1 %`. */
export function percent(logprob: number): string {
  const share = 100 * Math.exp(logprob);
  return share < 0.1 ? "<0.1 %" : `${share < 9.95 ? share.toFixed(1) : share.toFixed(0)} %`;
}

/** A token's text with its white space visible. */
export function visible(text: string): string {
  return text === "" ? "∅" : text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥");
}

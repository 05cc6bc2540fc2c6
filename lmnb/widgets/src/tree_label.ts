// One line of text that fits into a box. Widths are added up from those of single characters, measured once each, so
// that a box that moves measures nothing.

import { count, oneLine } from "./format";

const LONGEST = 400; // characters of a node's text that a label may have
const MOST_LINES = 4000; // remembered

interface Line {
  text: string;
  ends: Uint16Array; // of each character, in UTF-16 units
  widths: Float32Array; // of the text up to there
}

export class Labels {
  private readonly _advances = new Map<string, number>();
  private readonly _lines = new Map<string, Line>();
  private _font = "";

  constructor(private readonly _measure: (text: string) => number) {}

  /** Widths are those of `font` from now on. */
  use(font: string): void {
    if (font === this._font) return;
    this._font = font;
    this._advances.clear();
    this._lines.clear();
  }

  /** `text` in one line, or its beginning and "…"; "" where not even that fits. `room` in pixels. */
  fit(text: string, room: number): string {
    const line = this._line(text);
    const last = line.ends.length - 1;
    if (last < 0 || (line.widths[last] as number) <= room) return line.text;
    const left = room - this._advance("…");
    let [low, high] = [-1, last];
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if ((line.widths[middle] as number) <= left) low = middle;
      else high = middle - 1;
    }
    return low > 0 ? `${line.text.slice(0, line.ends[low]).trimEnd()}…` : "";
  }

  width(text: string): number {
    const { widths } = this._line(text);
    return widths.length ? (widths[widths.length - 1] as number) : 0;
  }

  private _line(text: string): Line {
    const key = text.length > LONGEST ? text.slice(0, LONGEST) : text;
    let line = this._lines.get(key);
    if (line) return line;
    if (this._lines.size >= MOST_LINES) this._lines.clear();
    const shown = oneLine(key);
    const points = [...shown];
    line = { text: shown, ends: new Uint16Array(points.length), widths: new Float32Array(points.length) };
    let [end, width] = [0, 0];
    points.forEach((point, index) => {
      (line as Line).ends[index] = end += point.length;
      (line as Line).widths[index] = width += this._advance(point);
    });
    this._lines.set(key, line);
    return line;
  }

  private _advance(point: string): number {
    let width = this._advances.get(point);
    if (width === undefined) this._advances.set(point, (width = this._measure(point)));
    return width;
  }
}

const counts = new Map<number, string>();

/** `count`, remembered: formatting a number takes longer than drawing it. */
export function shownCount(value: number): string {
  let text = counts.get(value);
  if (text === undefined) {
    if (counts.size > 10_000) counts.clear();
    counts.set(value, (text = count(value)));
  }
  return text;
}

// Paints boxes and their labels on a canvas. Boxes that look the same are one path: a few strokes a frame, however many
// boxes there are. States differ by outline, pattern and sign; colour only helps.

import { Labels, shownCount } from "./tree_label";
import type { Rect } from "./tree_layout";
import type { Moving } from "./tree_motion";
import { type NodeState, PIN_SIGN, STATE_SIGNS, type TreeNode } from "./tree_model";

const FONT = 11.5;
const LABEL_FROM = 13; // pixels of height
const ROUND_FROM = 8;
export const COLOURS = ["ink", "soft", "paper", "line", "hit", "new", "bad", "generated"] as const;
export type Palette = Record<(typeof COLOURS)[number], string>;

/** What a box stands for: a colour and its strength in place of the state's, and the words that say the same. */
export interface Tint {
  colour?: string;
  strength?: number;
  words?: string;
}

export interface Look extends Tint {
  state: NodeState;
  node: TreeNode | undefined;
  hovered: boolean;
  held: boolean; // by a pin
  faded: boolean; // not what was searched for
}

interface Batch {
  state: NodeState;
  alpha: number;
  fill: string;
  fillAlpha: number;
  path: Path2D; // of round boxes
  flat: [number, number, number, number][]; // of the others, which are drawn faster: x, y, width, height
}

interface Label {
  x: number;
  width: number;
  middle: number;
  alpha: number;
  look: Look;
  node: TreeNode;
}

export class Painter {
  private readonly _labels: Labels;
  private readonly _batches = new Map<string, Batch>();
  private readonly _texts: Label[] = [];
  private readonly _pins: [number, number, number, number, number][] = [];
  private _hatch: { colour: string; pattern: CanvasPattern | null } = { colour: "", pattern: null };
  private _palette: Palette = { ink: "", soft: "", paper: "", line: "", hit: "", new: "", bad: "", generated: "" };

  constructor(private readonly _context: CanvasRenderingContext2D) {
    this._labels = new Labels((text) => _context.measureText(text).width);
  }

  begin(palette: Palette, fontFamily: string): void {
    this._palette = palette;
    const context = this._context;
    context.font = `${FONT}px ${fontFamily}`;
    context.textBaseline = "middle";
    this._labels.use(context.font);
  }

  /** Add a box. `middle`: of what can be seen of it. */
  box(rect: Moving, middle: number, look: Look): void {
    const { state, node } = look;
    const alpha = Math.round(rect.alpha * (look.faded ? 0.25 : 1) * 20) / 20;
    if (alpha === 0) return;
    const stroke = this._stroke(state);
    const fill = look.colour ?? stroke;
    const strength = look.strength ?? (state === "evicted" ? 0.05 : state === "kept" ? 0.07 : 0.17);
    const fillAlpha = Math.round(alpha * strength * (look.hovered ? 1.5 : 1) * 100) / 100;
    const key = `${state} ${fill} ${fillAlpha} ${alpha}`;
    let batch = this._batches.get(key);
    if (!batch) this._batches.set(key, (batch = { state, alpha, fill, fillAlpha, path: new Path2D(), flat: [] }));
    const [x, y, width, height] = [rect.x + 0.5, rect.y + 0.5, Math.max(1, rect.width - 2), Math.max(1, rect.height - 2)];
    if (height < ROUND_FROM) batch.flat.push([x, y, width, height]);
    else batch.path.roundRect(x, y, width, height, 3);
    if (look.held) this._pins.push([x, y, node?.pinned ? 3 : 1.5, height, alpha]);
    if (node && height >= LABEL_FROM) this._texts.push({ x, width, middle, alpha, look, node });
  }

  /** Paint what was added. */
  end(): void {
    const context = this._context;
    for (const { state, alpha, fill, fillAlpha, path, flat } of this._batches.values()) {
      context.globalAlpha = fillAlpha;
      context.fillStyle = fill;
      context.fill(path);
      for (const [x, y, width, height] of flat) context.fillRect(x, y, width, height);
      if (state === "evicted") this._paintHatch(path, flat, alpha);
      context.globalAlpha = alpha * (state === "kept" ? 0.4 : 1);
      context.setLineDash(state === "new" ? [4, 2] : state === "evicted" ? [1.5, 2.5] : []);
      context.lineWidth = state === "hit" ? 2 : state === "kept" ? 1 : 1.5;
      context.strokeStyle = this._stroke(state);
      context.stroke(path);
      for (const [x, y, width, height] of flat) context.strokeRect(x, y, width, height);
    }
    context.setLineDash([]);
    context.fillStyle = this._palette.ink;
    for (const [x, y, width, height, alpha] of this._pins) {
      context.globalAlpha = alpha;
      context.fillRect(x, y, width, height);
    }
    for (const label of this._texts) this._paintLabel(label);
    context.globalAlpha = 1;
    this._batches.clear();
    this._texts.length = this._pins.length = 0;
  }

  outline(rect: Rect): void {
    const context = this._context;
    context.strokeStyle = this._palette.ink;
    context.lineWidth = 2;
    context.beginPath();
    context.roundRect(rect.x - 0.5, rect.y - 0.5, rect.width, rect.height, 4);
    context.stroke();
  }

  private _stroke(state: NodeState): string {
    const { soft, hit, bad } = this._palette;
    return { kept: soft, hit, new: this._palette.new, evicted: bad }[state];
  }

  private _paintLabel({ x, width, middle, alpha, look, node }: Label): void {
    const sign = `${node.pinned ? PIN_SIGN : ""}${STATE_SIGNS[look.state]}${shownCount(node.num_tokens)}`;
    const signWidth = this._labels.width(sign);
    if (width < signWidth + 6) return;
    const left = x + (node.pinned ? 7 : 4);
    const context = this._context;
    context.globalAlpha = alpha;
    context.fillStyle = this._stroke(look.state);
    context.fillText(sign, left, middle + 0.5);
    const room = width - signWidth - 12 - (left - x);
    if (room < 24) return;
    const words = look.words === undefined ? node.text : `${look.words}: ${node.text.slice(0, 400)}`;
    context.fillStyle = this._palette.ink;
    context.fillText(this._labels.fit(words, room), left + signWidth + 7, middle + 0.5);
  }

  private _paintHatch(path: Path2D, flat: Batch["flat"], alpha: number): void {
    const colour = this._palette.bad;
    if (this._hatch.colour !== colour) this._hatch = { colour, pattern: hatch(this._context, colour) };
    if (!this._hatch.pattern) return;
    this._context.globalAlpha = alpha * 0.35;
    this._context.fillStyle = this._hatch.pattern;
    this._context.fill(path);
    for (const [x, y, width, height] of flat) this._context.fillRect(x, y, width, height);
  }
}

/** Slanted lines, twice as large as they are shown, so that they are sharp on fine screens. */
function hatch(context: CanvasRenderingContext2D, colour: string): CanvasPattern | null {
  const size = 12;
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const drawing = tile.getContext("2d");
  if (!drawing) return null;
  drawing.strokeStyle = colour;
  drawing.lineWidth = 2;
  drawing.beginPath();
  for (const offset of [-size, 0, size]) {
    drawing.moveTo(offset - 1, size + 1);
    drawing.lineTo(offset + size + 1, -1);
  }
  drawing.stroke();
  const pattern = context.createPattern(tile, "repeat");
  pattern?.setTransform(new DOMMatrix().scale(0.5));
  return pattern;
}

// Boxes on their way from where they were to where they go. Numbers in arrays, so that thousands of boxes cost a frame
// little; only those that can be seen become rectangles. Knows no DOM.

import { IdTable } from "./id_table";
import type { Box, Rect, Scale } from "./tree_layout";

const MOVE = 320; // milliseconds of a transition
const FIELDS = 5; // x, y, width, height, alpha

export interface Moving extends Rect {
  alpha: number;
}

export class Motion {
  private _ids = new Float64Array(0);
  private _indices = new IdTable([]);
  private _from = new Float64Array(0);
  private _to = new Float64Array(0);
  private _began = 0;

  /** Go to where `boxes` are now; at once if `still`. What is no longer among them fades. */
  retarget(boxes: Box[], scale: Scale, now: number, still: boolean): void {
    const [known, was] = [this._indices, this._current(now)];
    const kept = new Uint8Array(this._ids.length);
    const gone: number[] = [];
    const from = new Float64Array((boxes.length + this._ids.length) * FIELDS);
    const to = new Float64Array(from.length);
    const ids = new Float64Array(boxes.length + this._ids.length);
    const { base, perToken, rowHeight } = scale;
    let count = 0;
    for (const box of boxes) {
      const at = count * FIELDS;
      to[at] = box.depth * base + box.start * perToken; // as `rectOf` has it
      to[at + 1] = box.row * rowHeight;
      to[at + 2] = base + (box.end - box.start) * perToken;
      to[at + 3] = box.rows * rowHeight;
      to[at + 4] = 1;
      const old = known.get(box.node);
      if (old < 0) {
        from[at] = to[at] as number; // it grows from its left edge
        from[at + 1] = to[at + 1] as number;
        from[at + 3] = to[at + 3] as number;
      } else {
        kept[old] = 1;
        for (let field = 0; field < FIELDS; field++) from[at + field] = was[old * FIELDS + field] as number;
      }
      ids[count++] = box.node;
    }
    for (let old = 0; old < kept.length; old++) if (!kept[old] && (was[old * FIELDS + 4] as number) > 0.05) gone.push(old);
    for (const old of still ? [] : gone) {
      for (let field = 0; field < FIELDS; field++) {
        from[count * FIELDS + field] = was[old * FIELDS + field] as number;
        to[count * FIELDS + field] = field === 4 ? 0 : (was[old * FIELDS + field] as number);
      }
      ids[count++] = this._ids[old] as number;
    }
    const isFirst = this._ids.length === 0;
    this._ids = ids.subarray(0, count);
    [this._indices, this._from, this._to] = [new IdTable(this._ids), from, to];
    this._began = still || isFirst ? now - MOVE : now;
  }

  /** Where a box goes. */
  target(id: number): Rect | undefined {
    const index = this._indices.get(id);
    if (index < 0) return undefined;
    const [x, y, width, height] = this._to.subarray(index * FIELDS, index * FIELDS + 4) as unknown as [number, number, number, number];
    return { x, y, width, height };
  }

  /** Call `draw` with the boxes between two heights. The rectangle is the same object each time. Whether they still move. */
  each(now: number, top: number, bottom: number, draw: (id: number, rect: Moving) => void): boolean {
    const part = eased(now - this._began);
    const [from, to] = [this._from, this._to];
    const mix = (at: number) => (part === 1 ? (to[at] as number) : (from[at] as number) + ((to[at] as number) - (from[at] as number)) * part);
    const rect: Moving = { x: 0, y: 0, width: 0, height: 0, alpha: 0 };
    for (let index = 0, at = 0; index < this._ids.length; index++, at += FIELDS) {
      rect.y = mix(at + 1);
      if (rect.y > bottom) continue;
      rect.height = mix(at + 3);
      rect.alpha = mix(at + 4);
      if (rect.y + rect.height < top || rect.alpha <= 0) continue;
      rect.x = mix(at);
      rect.width = mix(at + 2);
      draw(this._ids[index] as number, rect);
    }
    return part < 1;
  }

  private _current(now: number): Float64Array {
    const part = eased(now - this._began);
    if (part === 1) return this._to;
    const values = new Float64Array(this._ids.length * FIELDS);
    for (let at = 0; at < values.length; at++) values[at] = (this._from[at] as number) + ((this._to[at] as number) - (this._from[at] as number)) * part;
    return values;
  }
}

function eased(passed: number): number {
  return passed >= MOVE ? 1 : 1 - (1 - Math.max(0, passed) / MOVE) ** 3;
}

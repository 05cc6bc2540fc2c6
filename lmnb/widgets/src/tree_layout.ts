// Where the nodes of a prefix tree go in an icicle: x by tokens from the root, y by branches. Knows no DOM.
// `tree_layout.py` is the same layout; both read the same fixtures.

import type { Tree } from "./tree_model";

export interface Box {
  node: number;
  start: number; // tokens from the root to the node's first token
  end: number;
  depth: number; // nodes above it, the root not counted
  row: number;
  rows: number;
}

export interface Rect {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** Boxes in drawing order, parents first. Children are ordered by the smallest id below them, which a split
 * does not change, so boxes keep their place. A node whose parent is not there hangs from the root. */
export function layout(nodes: Tree): Box[] {
  const children = new Map<number, number[]>();
  for (const node of nodes.values()) {
    const parent = nodes.has(node.parent) ? node.parent : 0;
    const siblings = children.get(parent);
    if (siblings) siblings.push(node.node);
    else children.set(parent, [node.node]);
  }
  const order = [...(children.get(0) ?? [])];
  for (const id of order) order.push(...(children.get(id) ?? [])); // grows while it is read
  const smallest = new Map<number, number>();
  const rows = new Map<number, number>();
  for (const id of order.reverse()) {
    let least = id;
    let leaves = 0;
    for (const child of children.get(id) ?? []) {
      least = Math.min(least, smallest.get(child) ?? child);
      leaves += rows.get(child) ?? 1;
    }
    smallest.set(id, least);
    rows.set(id, leaves || 1);
  }
  const boxes: Box[] = [];
  const stack = [{ id: 0, start: 0, row: 0, depth: -1 }];
  for (let place = stack.pop(); place; place = stack.pop()) {
    const node = nodes.get(place.id);
    const end = place.start + (node?.num_tokens ?? 0);
    if (node) boxes.push({ node: place.id, start: place.start, end, depth: place.depth, row: place.row, rows: rows.get(place.id) ?? 1 });
    let row = place.row;
    const below = (children.get(place.id) ?? []).sort((a, b) => (smallest.get(a) ?? a) - (smallest.get(b) ?? b));
    for (const child of below) {
      stack.push({ id: child, start: end, row, depth: place.depth + 1 });
      row += rows.get(child) ?? 1;
    }
  }
  return boxes.sort((a, b) => a.depth - b.depth || a.row - b.row);
}

export interface Scale {
  base: number; // pixels that each node gets before its tokens count, so that small nodes stay visible
  perToken: number;
  rowHeight: number;
  height: number; // of everything
}

/** Fit boxes into `width`; rows get what fits into `height`, within limits (the rest scrolls). */
export function fit(boxes: Box[], width: number, height: number): Scale {
  let depth = 1;
  let rows = 1;
  for (const box of boxes) {
    depth = Math.max(depth, box.depth + 1);
    rows = Math.max(rows, box.row + box.rows);
  }
  const base = Math.min(14, width / 2 / depth);
  const rowHeight = Math.max(5, Math.min(28, Math.floor(height / rows)));
  let perToken = width; // the most at which the longest box still fits
  for (const box of boxes) perToken = Math.min(perToken, (width - (box.depth + 1) * base) / Math.max(1, box.end));
  return { base, perToken: Math.max(0, perToken), rowHeight, height: rows * rowHeight };
}

export function rectOf(box: Box, scale: Scale): Rect {
  return {
    x: box.depth * scale.base + box.start * scale.perToken,
    y: box.row * scale.rowHeight,
    width: scale.base + (box.end - box.start) * scale.perToken,
    height: box.rows * scale.rowHeight,
  };
}

/** The node that an arrow key leads to from `id`, or null. With no `id`: the first node. */
export function neighbour(boxes: Box[], nodes: Tree, id: number | null, key: string): number | null {
  const current = boxes.find((box) => box.node === id);
  if (!current) return boxes[0]?.node ?? null;
  const level = boxes.filter((box) => box.depth === current.depth);
  const place = level.indexOf(current);
  switch (key) {
    case "ArrowLeft": {
      const parent = nodes.get(current.node)?.parent ?? 0;
      return nodes.has(parent) ? parent : null;
    }
    case "ArrowRight":
      return boxes.find((box) => nodes.get(box.node)?.parent === current.node)?.node ?? null;
    case "ArrowUp":
      return level[place - 1]?.node ?? null;
    case "ArrowDown":
      return level[place + 1]?.node ?? null;
    case "Home":
      return boxes[0]?.node ?? null;
    case "End":
      return boxes[boxes.length - 1]?.node ?? null;
    default:
      return null;
  }
}

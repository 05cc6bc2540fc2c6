// Where the nodes of a prefix tree go in an icicle: x by tokens from the root, y by branches. Knows no DOM.
// `tree_layout.py` is the same layout; both read the same fixtures.

import { IdTable } from "./id_table";
import type { Tree, TreeNode } from "./tree_model";

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

/** Boxes in drawing order, parents first, of the nodes of both trees, which share none. Children are ordered by the smallest id below them, which a split
 * does not change, so boxes keep their place. A node whose parent is not there hangs from the root.
 *
 * Trees of thousands of nodes are laid out 20 times a second: arrays by rank (place in the order of ids), no sorting of
 * objects. In that order a node is met first, or below it the node that decides its place among its siblings. */
export function layout(nodes: Tree, others: Tree = new Map()): Box[] {
  const all: TreeNode[] = [...nodes.values(), ...others.values()];
  const size = all.length;
  const ids = new Float64Array(size);
  for (let place = 0; place < size; place++) ids[place] = (all[place] as TreeNode).node;
  ids.sort();
  const ranks = new IdTable(ids);
  const parents = new Int32Array(size); // `size` stands for the root
  const tokens = new Float64Array(size);
  for (const node of all) {
    const rank = ranks.get(node.node);
    const parent = ranks.get(node.parent);
    parents[rank] = parent < 0 ? size : parent;
    tokens[rank] = node.num_tokens;
  }
  const first = new Int32Array(size + 1).fill(-1);
  const last = new Int32Array(size + 1).fill(-1);
  const next = new Int32Array(size).fill(-1);
  const placed = new Uint8Array(size + 1);
  placed[size] = 1;
  for (let rank = 0; rank < size; rank++) {
    for (let node = rank; !placed[node]; node = parents[node] as number) {
      placed[node] = 1;
      const parent = parents[node] as number;
      if (last[parent] === -1) first[parent] = node;
      else next[last[parent] as number] = node;
      last[parent] = node;
    }
  }
  const levels: Box[][] = [];
  const open: Box[] = []; // the path from the root
  const path: number[] = []; // the same as ranks
  let row = 0;
  let node = first[size] as number;
  while (node !== -1) {
    const depth = open.length;
    const start = depth ? (open[depth - 1] as Box).end : 0;
    const box: Box = { node: ids[node] as number, start, end: start + (tokens[node] as number), depth, row, rows: 1 };
    (levels[depth] ??= []).push(box);
    open.push(box);
    path.push(node);
    if (first[node] !== -1) {
      node = first[node] as number;
      continue;
    }
    row++;
    node = -1;
    while (node === -1 && path.length) {
      const done = open.pop() as Box;
      done.rows = Math.max(1, row - done.row);
      node = next[path.pop() as number] as number;
    }
  }
  return levels.flat();
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

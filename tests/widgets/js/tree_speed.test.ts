// What keeps a large tree fluid must draw the same picture as what is simple.
import { describe, expect, it, vi } from "vitest";
import { paced } from "../../../lmnb/widgets/src/dom";
import { IdTable } from "../../../lmnb/widgets/src/id_table";
import type { CacheEvent } from "../../../lmnb/widgets/src/protocol";
import { Labels } from "../../../lmnb/widgets/src/tree_label";
import { type Box, fit, layout, rectOf } from "../../../lmnb/widgets/src/tree_layout";
import { CacheModel, type Marks, path, step, type Tree, type TreeNode } from "../../../lmnb/widgets/src/tree_model";
import { Motion, type Moving } from "../../../lmnb/widgets/src/tree_motion";

/** Numbers below `most`, the same ones for the same seed. */
function dice(seed: number): (most: number) => number {
  let state = seed;
  return (most) => (state = (state * 16807) % 2147483647) % most;
}

function traffic(seed: number, number: number): CacheEvent[] {
  const roll = dice(seed);
  const tree: Tree = new Map();
  const events: CacheEvent[] = [];
  let next = 1;
  while (events.length < number) {
    const ids = [...tree.keys()];
    const node = ids[roll(Math.max(1, ids.length))] ?? 0;
    const base = { seq: events.length, time: 100 + events.length / 10, owner: "cell 1", num_tokens: 1 + roll(9) };
    const leaf = ids.find((id) => ![...tree.values()].some((other) => other.parent === id));
    const kinds: CacheEvent[] = [{ ...base, kind: "insert", node: next, parent: roll(4) ? node : 0, text: "a", source: "" }];
    if (node) kinds.push({ ...base, kind: "hit", node }, { ...base, kind: "extend", node, parent: 0, text: "ab" }, { ...base, kind: roll(2) ? "pin" : "unpin", node });
    const child = tree.get(node);
    if (child && child.num_tokens > 1) kinds.push({ ...base, kind: "split", node: next, parent: child.parent, child: node, num_tokens: 1, text: "a", child_text: "b" });
    if (leaf) kinds.push({ ...base, kind: "evict", node: leaf, reason: "room", for: "" });
    if (roll(50) === 0) kinds.splice(0, kinds.length, { ...base, kind: "reset", node: 0 });
    const event = kinds[roll(kinds.length)] as CacheEvent;
    if (event.kind === "insert" || event.kind === "split") next += 1 + roll(3);
    step(tree, event);
    events.push(event);
  }
  return events;
}

function simpleLayout(nodes: Tree): Box[] {
  const below = (id: number) => [...nodes.values()].filter((node) => (nodes.has(node.parent) ? node.parent : 0) === id).map((node) => node.node);
  const least = (id: number): number => Math.min(id, ...below(id).map(least));
  const boxes: Box[] = [];
  const place = (id: number, start: number, row: number, depth: number): number => {
    const box: Box = { node: id, start, end: start + (nodes.get(id)?.num_tokens ?? 0), depth, row, rows: 0 };
    for (const child of below(id).sort((a, b) => least(a) - least(b))) box.rows += place(child, box.end, row + box.rows, depth + 1);
    box.rows ||= 1;
    if (id) boxes.push(box);
    return box.rows;
  };
  place(0, 0, 0, -1);
  return boxes.sort((a, b) => a.depth - b.depth || a.row - b.row);
}

function simpleMarks(events: CacheEvent[], start: number, end: number): Marks {
  const marks: Marks = { fresh: new Set(), hit: new Set(), evicted: new Map() };
  const tree: Tree = new Map();
  events.slice(0, end).forEach((event, place) => {
    if (place < start) return step(tree, event);
    if (event.kind === "evict") marks.evicted.set(event.node, tree.get(event.node) as TreeNode);
    if (event.kind === "reset") for (const [id, node] of tree) marks.evicted.set(id, node);
    step(tree, event);
    if (event.kind === "insert" || event.kind === "extend") marks.fresh.add(event.node);
    else if (event.kind === "split" && marks.fresh.has(event.child)) marks.fresh.add(event.node);
    else if (event.kind === "hit") for (const node of path(tree, event.node)) marks.hit.add(node.node);
  });
  for (const id of marks.fresh) if (!tree.has(id)) marks.fresh.delete(id);
  for (const id of marks.hit) if (!tree.has(id) || marks.fresh.has(id)) marks.hit.delete(id);
  return marks;
}

describe("a tree under load", () => {
  it("is laid out and marked as the simplest way would", () => {
    for (const seed of [1, 2, 3, 4]) {
      const events = traffic(seed, 300);
      const model = new CacheModel();
      for (const [place, event] of events.entries()) {
        model.append(event);
        if (place % 7) continue;
        const marks = model.marks();
        const shown: Tree = new Map([...model.head, ...marks.evicted]);
        expect(layout(model.head, marks.evicted)).toEqual(simpleLayout(shown));
        const start = events.findIndex((one) => one.time >= event.time - 1);
        expect(marks).toEqual(simpleMarks(events, start, place + 1));
      }
      for (const [start, end] of [[0, 300], [40, 200], [199, 200]] as const) expect(model.marks(end, start)).toEqual(simpleMarks(events, start, end));
    }
  });

  it("marks the same after the oldest events are gone", () => {
    const events = traffic(9, 900);
    const model = new CacheModel(undefined, 300);
    for (const event of events) model.append(event);
    expect(model.baseSeq).toBeGreaterThan(0);
    const gone = model.baseSeq + 1;
    expect(model.marks(model.events.length, 10)).toEqual(simpleMarks(events, gone + 10, 900));
    expect(model.marks(200, 100)).toEqual(simpleMarks(events, gone + 100, gone + 200));
  });

  it("finds ids that are close together and far apart", () => {
    for (const ids of [[], [7], [5, 6, 9], [1, 1e9, 3e9]]) {
      const table = new IdTable(ids);
      expect(ids.map((id) => table.get(id))).toEqual(ids.map((_, place) => place));
      for (const other of [-1, 0, 4, 8, 2e9]) expect(table.get(other)).toBe(-1);
    }
  });
});

describe("boxes on their way", () => {
  const node = (id: number, parent: number, num_tokens = 10): [number, TreeNode] => [id, { node: id, parent, num_tokens, text: "", hits: 0, pinned: false, owner: "", source: "", last: 0 }];
  const show = (motion: Motion, now: number, top = -1e9, bottom = 1e9) => {
    const seen = new Map<number, Moving>();
    const moves = motion.each(now, top, bottom, (id, rect) => seen.set(id, { ...rect }));
    return { seen, moves };
  };
  const go = (motion: Motion, tree: Tree, now: number, still = false) => {
    const boxes = layout(tree);
    const scale = fit(boxes, 500, 100);
    motion.retarget(boxes, scale, now, still);
    return new Map(boxes.map((box) => [box.node, { ...rectOf(box, scale), alpha: 1 }]));
  };

  it("stand where the layout puts them at first, and after they have moved", () => {
    const motion = new Motion();
    const first = go(motion, new Map([node(1, 0), node(2, 1), node(3, 1)]), 0);
    expect(show(motion, 0)).toEqual({ seen: first, moves: false });
    const second = go(motion, new Map([node(1, 0), node(3, 1), node(4, 1, 30)]), 1000);
    expect(show(motion, 1000).seen.get(3)).toEqual(first.get(3));
    expect(show(motion, 1000).seen.get(2)).toEqual(first.get(2)); // it fades
    expect(show(motion, 1000).seen.has(4)).toBe(false); // it comes
    const { seen, moves } = show(motion, 1100);
    expect(moves).toBe(true);
    expect(seen.get(4)?.alpha).toBeGreaterThan(0.3);
    expect(seen.get(2)?.alpha).toBeLessThan(0.7);
    const [from, to, now] = [first, second, seen].map((places) => places.get(3)?.y ?? NaN) as [number, number, number];
    expect((now - from) * (to - now)).toBeGreaterThan(0);
    expect(show(motion, 1400)).toEqual({ seen: second, moves: false });
    expect(motion.target(4)).toEqual({ x: second.get(4)?.x, y: second.get(4)?.y, width: second.get(4)?.width, height: second.get(4)?.height });
  });

  it("go on from where they are when they are sent elsewhere, and jump where nothing may move", () => {
    const motion = new Motion();
    go(motion, new Map([node(1, 0), node(2, 1), node(3, 1)]), 0);
    go(motion, new Map([node(1, 0), node(3, 1)]), 1000);
    const middle = show(motion, 1100).seen.get(3);
    go(motion, new Map([node(1, 0), node(3, 1), node(4, 1)]), 1100);
    expect(show(motion, 1100).seen.get(3)).toEqual(middle);
    const last = go(motion, new Map([node(1, 0), node(4, 1)]), 1150, true);
    expect(show(motion, 1150)).toEqual({ seen: last, moves: false });
  });

  it("are left out where they cannot be seen", () => {
    const motion = new Motion();
    const all = go(motion, new Map([node(1, 0), ...Array.from({ length: 500 }, (_, index) => node(index + 2, 1))]), 0);
    const { seen } = show(motion, 0, 1000, 1400);
    const expected = [...all].filter(([, { y, height }]) => y <= 1400 && y + height >= 1000).map(([id]) => id);
    expect([...seen.keys()].sort()).toEqual(expected.sort());
    expect(seen.size).toBeLessThan(100);
  });
});

describe("what is drawn rarely", () => {
  it("is drawn at once, then no more often than it may be, and in the end as it is", () => {
    vi.useFakeTimers();
    let state = 0;
    const drawn: number[] = [];
    const drawing = paced(() => drawn.push(state), 100);
    for (state = 1; state <= 25; state++) {
      drawing.request();
      vi.advanceTimersByTime(10);
    }
    vi.advanceTimersByTime(1000);
    expect(drawn).toEqual([1, 10, 20, 26]);
    drawing.request();
    expect(drawn.at(-1)).toBe(26);
    state = 30;
    drawing.request();
    drawing.cancel();
    drawing.request(); // after that it does not wait
    expect(drawn.at(-1)).toBe(30);
    vi.useRealTimers();
  });
});

describe("labels", () => {
  const wide = (text: string) => (text === "…" ? 10 : text.codePointAt(0) === 0x1f680 ? 20 : 10);

  it("fit into their room, cut between characters, and are measured once", () => {
    const measured: string[] = [];
    const labels = new Labels((text) => (measured.push(text), wide(text)));
    labels.use("11px a");
    expect(labels.fit("abc def", 70)).toBe("abc def");
    expect(labels.fit("abc def", 69)).toBe("abc d…");
    expect(labels.fit("abc def", 55)).toBe("abc…"); // no space before the dots
    expect(labels.fit("🚀🚀🚀", 50)).toBe("🚀🚀…");
    expect(labels.fit("abc", 19)).toBe("");
    expect(labels.fit("a\nb", 1000)).toBe("a ⏎ b");
    expect(labels.fit("", 10)).toBe("");
    expect(labels.width("ab")).toBe(20);
    expect(measured.length).toBe(new Set(measured).size);
    labels.use("12px a");
    labels.fit("abc", 100);
    expect(measured.filter((text) => text === "a")).toHaveLength(2);
  });
});

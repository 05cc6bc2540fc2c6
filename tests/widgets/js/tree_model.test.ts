import { describe, expect, it } from "vitest";
import type { CacheEvent } from "../../../lmnb/widgets/src/protocol";
import recorded from "../fixtures/tree.json";
import { type Box, fit, layout, neighbour, rectOf } from "../../../lmnb/widgets/src/tree_layout";
import { CacheModel, type Marks, step, type Tree, type TreeNode } from "../../../lmnb/widgets/src/tree_model";

interface MarkIds {
  fresh: number[];
  hit: number[];
  evicted: number[];
}

interface Fixture {
  events: CacheEvent[];
  places: { count: number; nodes: TreeNode[]; recent: MarkIds; step: MarkIds; boxes: Box[] }[];
}

const fixture = recorded as unknown as Fixture;
const whole = () => new CacheModel({ base: [], base_seq: -1, events: fixture.events });
const ids = (values: Iterable<number>) => [...values].sort((a, b) => a - b);
const marked = (marks: Marks): MarkIds => ({
  fresh: ids(marks.fresh),
  hit: ids(marks.hit),
  evicted: ids(marks.evicted.keys()),
});

function chain(number: number): CacheEvent[] {
  const base = { time: 0, owner: "", source: "", num_tokens: 2, text: "ab", kind: "insert" as const };
  return Array.from({ length: number }, (_, seq) => ({ ...base, seq, node: seq + 1, parent: Math.floor(seq / 3) }));
}

describe("the cache model", () => {
  const model = whole();
  for (const place of fixture.places) {
    it(`agrees with the Python model after ${place.count} events`, () => {
      const tree = model.at(place.count);
      expect([...tree.values()].sort((a, b) => a.node - b.node)).toEqual(place.nodes);
      expect(marked(model.marks(place.count))).toEqual(place.recent);
      expect(marked(model.marks(place.count, place.count - 1))).toEqual(place.step);
      expect(layout(tree)).toEqual(place.boxes);
    });
  }

  it("gives the tree at any moment as the replay up to it, across checkpoints", () => {
    const events = chain(1000);
    const long = new CacheModel({ base: [], base_seq: -1, events });
    const replay: Tree = new Map();
    events.forEach((event, index) => {
      step(replay, event);
      if (index % 83 === 0 || index % 256 > 253) expect(long.at(index + 1)).toEqual(replay);
    });
    expect(long.at(5000)).toEqual(replay);
    expect(long.at(-1).size).toBe(0);
  });

  it("forgets the oldest events without changing the tree", () => {
    const events = chain(2000);
    const [short, long] = [new CacheModel(undefined, 300), new CacheModel({ base: [], base_seq: -1, events })];
    for (const event of events) short.append(event);
    expect(short.events.length).toBeLessThan(300 + 2 * 256);
    expect(short.head).toEqual(long.head);
    for (let count = 0; count <= short.events.length; count += 50)
      expect(short.at(count)).toEqual(long.at(short.baseSeq + 1 + count));
  });

  it("refuses events out of order and nodes never seen", () => {
    expect(() => whole().append(fixture.events[0] as CacheEvent)).toThrow("should");
    expect(() => new CacheModel().append({ ...(chain(1)[0] as CacheEvent), kind: "evict" } as CacheEvent)).toThrow("never seen");
  });
});

describe("the layout", () => {
  const tree = whole().head;
  const boxes = layout(tree);

  it("fits the width exactly and keeps every box visible", () => {
    const scale = fit(boxes, 600, 400);
    const rects = boxes.map((box) => rectOf(box, scale));
    expect(Math.max(...rects.map((rect) => rect.x + rect.width))).toBeCloseTo(600);
    for (const rect of rects) expect(rect.width).toBeGreaterThanOrEqual(scale.base);
  });

  it("lays out 5,000 nodes quickly", () => {
    const big = new CacheModel({ base: [], base_seq: -1, events: chain(5000) }).head;
    const began = performance.now();
    expect(layout(big).length).toBe(5000);
    expect(performance.now() - began).toBeLessThan(500);
    expect(fit(layout(big), 600, 400).rowHeight).toBe(5);
  });

  it("lets arrow keys reach every node", () => {
    const reached = new Set<number>();
    const queue = [neighbour(boxes, tree, null, "ArrowDown")];
    for (const id of queue) {
      if (id === null || id === undefined || reached.has(id)) continue;
      reached.add(id);
      for (const key of ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"]) queue.push(neighbour(boxes, tree, id, key));
    }
    expect(reached.size).toBe(tree.size);
    expect(neighbour(boxes, tree, [...tree.keys()][0] as number, "x")).toBeNull();
  });
});

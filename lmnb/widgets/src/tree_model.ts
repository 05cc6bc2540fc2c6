// The cache tree at any recorded moment: a base tree and the events since. `tree_model.py` is the same model.

import { span } from "./format";
import type { CacheEvent } from "./protocol";

const CHECKPOINT = 256; // events between kept states: what a scrub replays at most
const LIMIT = 5000; // events kept; a few more until the oldest go
const RECENT = 1; // seconds: events this close to the newest are drawn as just happened

export interface TreeNode {
  node: number;
  parent: number;
  num_tokens: number;
  text: string;
  hits: number;
  pinned: boolean; // itself; a pin holds the nodes above as well
  owner: string;
  source: string; // the line of the program that made it, where that is known
  last: number; // seconds since 1970
}

export type Tree = Map<number, TreeNode>; // by id, without the root; nodes are replaced, never changed

export interface CacheState {
  base: TreeNode[];
  base_seq: number;
  events: CacheEvent[];
}

export interface Marks {
  fresh: Set<number>;
  hit: Set<number>;
  evicted: Tree; // no longer in the tree, but still shown
}

export type NodeState = "kept" | "hit" | "new" | "evicted";

export const STATE_SIGNS: Record<NodeState, string> = { kept: "", hit: "● ", new: "+ ", evicted: "✕ " };

export const PIN_SIGN = "⚑ ";

/** What an event touched: the ids that a hit reused, the nodes that went. */
type Touched = number[] | TreeNode[] | null;

/** Apply one event to `tree`. Throws for a node that was never seen. */
export function step(tree: Tree, event: CacheEvent): Touched {
  switch (event.kind) {
    case "insert":
      tree.set(event.node, {
        node: event.node,
        parent: event.parent,
        num_tokens: event.num_tokens,
        text: event.text,
        hits: 0,
        pinned: false,
        owner: event.owner,
        source: event.source,
        last: event.time,
      });
      return null;
    case "extend": {
      const node = need(tree, event.node);
      const num_tokens = node.num_tokens + event.num_tokens;
      tree.set(event.node, { ...node, num_tokens, text: event.text, last: event.time });
      return null;
    }
    case "hit": {
      const node = tree.get(event.node);
      if (node) tree.set(event.node, { ...node, hits: node.hits + 1 });
      const reused = path(tree, event.node);
      for (const above of reused) tree.set(above.node, { ...above, last: event.time });
      return reused.map((above) => above.node);
    }
    case "split": {
      const child = need(tree, event.child);
      const length = event.num_tokens;
      tree.set(event.node, { ...child, node: event.node, parent: event.parent, num_tokens: length, text: event.text, pinned: false });
      const rest = { parent: event.node, num_tokens: child.num_tokens - length, text: event.child_text };
      tree.set(child.node, { ...child, ...rest });
      return null;
    }
    case "evict": {
      const gone = need(tree, event.node);
      tree.delete(event.node);
      return [gone];
    }
    case "pin":
    case "unpin":
      tree.set(event.node, { ...need(tree, event.node), pinned: event.kind === "pin" });
      return null;
    case "reset": {
      const gone = [...tree.values()];
      tree.clear();
      return gone;
    }
  }
}

/** The nodes that pins hold: those pinned, and all above them. */
export function pinHeld(tree: Tree): Set<number> {
  const held = new Set<number>();
  for (const { node, pinned } of tree.values()) if (pinned) for (const above of path(tree, node)) held.add(above.node);
  return held;
}

/** The node and those above it, up to the root. */
export function path(tree: Tree, id: number): TreeNode[] {
  const nodes: TreeNode[] = [];
  for (let node = tree.get(id); node; node = tree.get(node.parent)) nodes.push(node);
  return nodes;
}

function need(tree: Tree, id: number): TreeNode {
  const node = tree.get(id);
  if (!node) throw new Error(`cache node ${id} was never seen`);
  return node;
}

export class CacheModel {
  base: Tree;
  baseSeq: number; // grows when the oldest events become part of the base
  readonly events: CacheEvent[] = [];
  readonly head: Tree;
  private _checkpoints: Tree[];
  private readonly _touched: Touched[] = []; // by each of the events

  constructor(
    state: CacheState = { base: [], base_seq: -1, events: [] },
    private readonly _limit = LIMIT,
  ) {
    this.base = new Map(state.base.map((node) => [node.node, node]));
    this.baseSeq = state.base_seq;
    this.head = new Map(this.base);
    this._checkpoints = [new Map(this.base)];
    for (const event of state.events) this.append(event);
  }

  /** Apply the next event. Throws if it is not the next one. */
  append(event: CacheEvent): void {
    const expected = this.baseSeq + this.events.length + 1;
    if (event.seq !== expected) throw new Error(`cache event ${event.seq} came where ${expected} should`);
    this._touched.push(step(this.head, event));
    this.events.push(event);
    if (this.events.length % CHECKPOINT === 0) this._checkpoints.push(new Map(this.head));
    if (this.events.length >= this._limit + Math.max(CHECKPOINT, this._limit / 4)) this._forget(this.events.length - this._limit);
  }

  /** Make the first events part of the base. */
  private _forget(wanted: number): void {
    const count = wanted - (wanted % CHECKPOINT);
    this._checkpoints = this._checkpoints.slice(count / CHECKPOINT);
    this.base = new Map(this._checkpoints[0]);
    this.baseSeq += count;
    this.events.splice(0, count);
    this._touched.splice(0, count);
  }

  /** The tree after the first `count` of `events`. */
  at(count: number): Tree {
    const wanted = Math.max(0, Math.min(count, this.events.length));
    const index = Math.floor(wanted / CHECKPOINT);
    const tree: Tree = new Map(this._checkpoints[index]);
    for (let place = index * CHECKPOINT; place < wanted; place++) step(tree, this.events[place] as CacheEvent);
    return tree;
  }

  /** What happened in the events `since` .. `count`; by default in the last second before the last of them. */
  marks(count: number = this.events.length, since?: number): Marks {
    const end = Math.max(0, Math.min(count, this.events.length));
    let start = since ?? end;
    if (since === undefined && end > 0) {
      const newest = (this.events[end - 1] as CacheEvent).time;
      while (start > 0 && (this.events[start - 1] as CacheEvent).time >= newest - RECENT) start--;
    }
    return this._collect(Math.max(0, start), end);
  }

  /** How two moments differ: what came and went between them is in neither. */
  compare(before: number, after: number): Marks {
    const marks = this._collect(before, after);
    const passing = new Set<number>();
    for (const event of this.events.slice(before, after)) {
      if (event.kind === "insert" || (event.kind === "split" && passing.has(event.child))) passing.add(event.node);
    }
    for (const id of passing) marks.evicted.delete(id);
    return marks;
  }

  /** Why `id`, which `count` events found evicted, had to go. */
  why(id: number, count: number): string {
    for (let place = count - 1; place >= 0; place--) {
      const event = this.events[place] as CacheEvent;
      if (event.kind === "reset") return "the cache was flushed";
      if (event.kind !== "evict" || event.node !== id) continue;
      if (event.reason !== "room") return event.reason === "flush" ? "the cache was flushed" : "evicted by hand";
      const node = this.at(place).get(id);
      const rest = node ? `, unused for ${span(event.time - node.last)}` : "";
      return `least recently used${rest}; made room for ${event.for || "what was running"}`;
    }
    return "";
  }

  /** Who reused `id` last, newest first. */
  users(id: number, tree: Tree, count: number): string[] {
    const users = new Set<string>();
    for (let place = count - 1; place >= 0 && users.size < 3; place--) {
      const { kind, node, owner } = this.events[place] as CacheEvent;
      if (kind === "hit" && owner && path(tree, node).some((above) => above.node === id)) users.add(owner);
    }
    return [...users];
  }

  private _collect(start: number, end: number): Marks {
    const marks: Marks = { fresh: new Set(), hit: new Set(), evicted: new Map() };
    const tree = end === this.events.length ? this.head : this.at(end);
    for (let place = start; place < end; place++) {
      const event = this.events[place] as CacheEvent;
      const touched = this._touched[place] ?? [];
      if (event.kind === "evict" || event.kind === "reset") for (const node of touched as TreeNode[]) marks.evicted.set(node.node, node);
      else if (event.kind === "insert" || event.kind === "extend") marks.fresh.add(event.node);
      else if (event.kind === "split" && marks.fresh.has(event.child)) marks.fresh.add(event.node);
      else if (event.kind === "hit") for (const id of touched as number[]) marks.hit.add(id);
    }
    for (const id of marks.fresh) if (!tree.has(id)) marks.fresh.delete(id);
    for (const id of marks.hit) if (!tree.has(id) || marks.fresh.has(id)) marks.hit.delete(id);
    return marks;
  }
}

export function stateOf(id: number, marks: Marks): NodeState {
  if (marks.evicted.has(id)) return "evicted";
  if (marks.fresh.has(id)) return "new";
  return marks.hit.has(id) ? "hit" : "kept";
}

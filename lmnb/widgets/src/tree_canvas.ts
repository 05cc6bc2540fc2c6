// Draws the icicle on a canvas and moves boxes from where they were to where they go. States differ by outline,
// pattern and sign, colour only helps. Knows boxes and marks; selection and time are given to it.

import { h } from "./dom";
import { ago, count, oneLine } from "./format";
import { type Box, fit, layout, type Rect, rectOf, type Scale } from "./tree_layout";
import { type Marks, type NodeState, PIN_SIGN, STATE_SIGNS, stateOf, type Tree, type TreeNode } from "./tree_model";

const MOVE = 320; // milliseconds of a transition
const VIEWPORT = 420; // pixels; taller trees scroll
const FONT = 11.5;
const COLOURS = ["ink", "soft", "paper", "line", "hit", "new", "bad", "generated"] as const;

type Colour = (typeof COLOURS)[number];
type Moving = Rect & { alpha: number };

export const TINTS = ["state", "owner", "age"] as const;
const OWNERS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a8a8a"]; // safe for colour-blind readers

export interface Scene {
  tree: Tree;
  marks: Marks;
  tint: (typeof TINTS)[number];
  found: Set<number> | null; // what a search found: the rest steps back
  held: Set<number>; // what pins hold
  now: number; // seconds since 1970
}

export class TreeCanvas {
  readonly el: HTMLElement;
  boxes: Box[] = [];
  nodes: Tree = new Map(); // with the evicted ones that are still shown
  selected: number | null = null;
  private _hovered: number | null = null;
  private readonly _canvas = h("canvas", { role: "img" });
  private readonly _sizer = h("div", { class: "lmnb-tree-sizer" }, this._canvas);
  private readonly _probes = new Map<Colour, HTMLElement>();
  private readonly context: CanvasRenderingContext2D | null;
  private readonly _abort = new AbortController();
  private readonly _resize: ResizeObserver | undefined;
  private _scene: Scene = { tree: new Map(), marks: { fresh: new Set(), hit: new Set(), evicted: new Map() }, tint: "state", found: null, held: new Set(), now: 0 };
  private readonly _owners = new Map<string, string>(); // and their colours, in the order of appearance
  private _scale: Scale = { base: 0, perToken: 0, rowHeight: 20, height: 20 };
  private _from = new Map<number, Moving>();
  private _to = new Map<number, Moving>();
  private _began = 0;
  private _frame = 0;
  private _width = 0;

  constructor(
    private readonly _reducedMotion: boolean,
    private readonly _onSelect: (node: number | null) => void,
  ) {
    const probes = h("span", { "aria-hidden": "true", class: "lmnb-probes" });
    for (const name of COLOURS) {
      const probe = h("i", { style: `color:var(--${name})` });
      this._probes.set(name, probe);
      probes.append(probe);
    }
    this.el = h("div", { class: "lmnb-tree-scroll" }, this._sizer, probes);
    this.context = this._canvas.getContext("2d");
    const { signal } = this._abort;
    this._canvas.addEventListener("pointermove", (event) => this._hover(this._hit(event)), { signal });
    this._canvas.addEventListener("pointerleave", () => this._hover(null), { signal });
    this._canvas.addEventListener("click", (event) => this._onSelect(this._hit(event)), { signal });
    this.el.addEventListener("scroll", () => this._request(), { signal });
    if (typeof ResizeObserver !== "undefined") {
      this._resize = new ResizeObserver(() => this.el.clientWidth !== this._width && this._place(false));
      this._resize.observe(this.el);
    }
  }

  show(scene: Scene, label: string): void {
    this._scene = scene;
    this.nodes = new Map([...scene.tree, ...scene.marks.evicted]);
    this.boxes = layout(this.nodes);
    this._canvas.setAttribute("aria-label", label);
    this._place(true);
  }

  select(node: number | null): void {
    this.selected = node;
    const rect = node === null ? undefined : this._to.get(node);
    if (rect && (rect.y < this.el.scrollTop || rect.y > this.el.scrollTop + this.el.clientHeight - 20)) {
      this.el.scrollTop = rect.y - 40;
    }
    this._request();
  }

  redraw(): void {
    this._request();
  }

  close(): void {
    this._abort.abort();
    this._resize?.disconnect();
    cancelAnimationFrame(this._frame);
  }

  private _place(moving: boolean): void {
    this._width = this.el.clientWidth;
    this._scale = fit(this.boxes, Math.max(40, this._width - 2), VIEWPORT);
    const now = performance.now();
    const shown = this._current(now);
    this._to = new Map(this.boxes.map((box) => [box.node, { ...rectOf(box, this._scale), alpha: 1 }]));
    this._from = new Map();
    for (const [id, rect] of this._to) this._from.set(id, shown.get(id) ?? { ...rect, width: 0, alpha: 0 });
    for (const [id, rect] of shown) {
      if (!this._to.has(id) && rect.alpha > 0.05) {
        this._from.set(id, rect);
        this._to.set(id, { ...rect, alpha: 0 });
      }
    }
    const still = !moving || this._reducedMotion || shown.size === 0;
    this._began = still ? now - MOVE : now;
    this._sizer.style.height = `${Math.max(this._scale.height, 30) + 2}px`;
    this._request();
  }

  private _current(now: number): Map<number, Moving> {
    const part = Math.min(1, (now - this._began) / MOVE);
    if (part >= 1) return this._to;
    const ease = 1 - (1 - part) ** 3;
    const mix = (a: number, b: number) => a + (b - a) * ease;
    const rects = new Map<number, Moving>();
    for (const [id, to] of this._to) {
      const from = this._from.get(id) ?? to;
      rects.set(id, {
        x: mix(from.x, to.x),
        y: mix(from.y, to.y),
        width: mix(from.width, to.width),
        height: mix(from.height, to.height),
        alpha: mix(from.alpha, to.alpha),
      });
    }
    return rects;
  }

  private _request(): void {
    if (this._frame === 0) this._frame = requestAnimationFrame((now) => this._draw(now));
  }

  private _draw(now: number): void {
    this._frame = 0;
    const context = this.context;
    if (!context) return;
    const ratio = window.devicePixelRatio || 1;
    const height = Math.min(this._scale.height + 2, this.el.clientHeight || VIEWPORT);
    const pixels = [Math.round(this._width * ratio), Math.round(height * ratio)] as const;
    if (this._canvas.width !== pixels[0] || this._canvas.height !== pixels[1]) {
      [this._canvas.width, this._canvas.height] = pixels;
      this._canvas.style.height = `${height}px`;
    }
    const top = this.el.scrollTop;
    context.setTransform(ratio, 0, 0, ratio, ratio, (1 - top) * ratio);
    context.clearRect(-1, top - 1, this._width + 2, height + 2);
    context.font = `${FONT}px ${getComputedStyle(this.el).fontFamily}`;
    context.textBaseline = "middle";
    const colours = this.colours();
    const last = { current: null as (() => void) | null };
    for (const [id, rect] of this._current(now)) {
      if (rect.y > top + height || rect.y + rect.height < top || rect.alpha <= 0) continue;
      const node = this.nodes.get(id);
      context.globalAlpha = rect.alpha * (this._scene.found?.has(id) === false ? 0.25 : 1);
      const seen = [Math.max(rect.y, top), Math.min(rect.y + rect.height, top + height)] as const;
      this._drawBox(context, rect, (seen[0] + seen[1]) / 2, stateOf(id, this._scene.marks), node, colours, id);
      if (id === this.selected) last.current = () => outline(context, rect, colours.ink);
    }
    context.globalAlpha = 1;
    last.current?.();
    if (now - this._began < MOVE) this._request();
    else for (const [id, rect] of this._to) if (rect.alpha === 0) this._to.delete(id);
  }

  private _drawBox(
    context: CanvasRenderingContext2D,
    rect: Moving,
    middle: number, // of what can be seen of it
    state: NodeState,
    node: TreeNode | undefined,
    colours: Record<Colour, string>,
    id: number,
  ): void {
    const alpha = context.globalAlpha;
    const stroke = { kept: colours.soft, hit: colours.hit, new: colours.new, evicted: colours.bad }[state];
    const [x, y, width, height] = [rect.x + 0.5, rect.y + 0.5, Math.max(1, rect.width - 2), Math.max(1, rect.height - 2)];
    const box = new Path2D();
    box.roundRect(x, y, width, height, Math.min(3, height / 3));
    const [tint, strength, words] = this._tintOf(node, colours);
    context.globalAlpha = alpha * (strength ?? (state === "evicted" ? 0.05 : state === "kept" ? 0.07 : 0.17)) * (id === this._hovered ? 1.5 : 1);
    context.fillStyle = tint ?? stroke;
    context.fill(box);
    if (state === "evicted") hatch(context, box, { x, y, width, height }, colours.bad, alpha);
    context.globalAlpha = alpha * (state === "kept" ? 0.4 : 1);
    context.setLineDash(state === "new" ? [4, 2] : state === "evicted" ? [1.5, 2.5] : []);
    context.lineWidth = state === "hit" ? 2 : state === "kept" ? 1 : 1.5;
    context.strokeStyle = stroke;
    context.stroke(box);
    context.setLineDash([]);
    context.globalAlpha = alpha;
    if (this._scene.held.has(id)) {
      context.fillStyle = colours.ink;
      context.fillRect(x, y, node?.pinned ? 3 : 1.5, height);
    }
    if (node && height >= 13) drawLabel(context, { x, width, middle }, node, state, colours, words);
  }

  /** Colour and strength that stand for a node's owner or age, and the words that say the same. */
  private _tintOf(node: TreeNode | undefined, colours: Record<Colour, string>): [(string | undefined)?, number?, string?] {
    if (!node || this._scene.tint === "state") return [];
    if (this._scene.tint === "age") {
      const age = Math.max(0, this._scene.now - node.last);
      return [colours.generated, Math.max(0.04, 0.4 - 0.06 * Math.log2(1 + age)), ago(age)];
    }
    const owner = node.owner.split(/ · (?=branch |line )/)[0] ?? "";
    if (!this._owners.has(owner)) this._owners.set(owner, OWNERS[this._owners.size % OWNERS.length] as string);
    return [this._owners.get(owner), 0.3, owner];
  }

  private colours(): Record<Colour, string> {
    const entries = COLOURS.map((name) => [name, getComputedStyle(this._probes.get(name) as Element).color]);
    return Object.fromEntries(entries) as Record<Colour, string>;
  }

  private _hit(event: MouseEvent): number | null {
    const bounds = this._canvas.getBoundingClientRect();
    const x = event.clientX - bounds.left - 1;
    const y = event.clientY - bounds.top - 1 + this.el.scrollTop;
    for (const box of this.boxes) {
      const rect = rectOf(box, this._scale);
      if (x >= rect.x && x < rect.x + rect.width && y >= rect.y && y < rect.y + rect.height) return box.node;
    }
    return null;
  }

  private _hover(node: number | null): void {
    if (node === this._hovered) return;
    this._hovered = node;
    this._canvas.style.cursor = node === null ? "" : "pointer";
    const entry = node === null ? undefined : this.nodes.get(node);
    this._canvas.title = entry ? `${entry.pinned ? "pinned · " : ""}${count(entry.num_tokens)} tokens · ${oneLine(entry.text).slice(0, 160)}` : "";
    this._request();
  }
}

function drawLabel(
  context: CanvasRenderingContext2D,
  rect: { x: number; width: number; middle: number },
  node: TreeNode,
  state: NodeState,
  colours: Record<Colour, string>,
  words: string | undefined,
): void {
  const sign = `${node.pinned ? PIN_SIGN : ""}${STATE_SIGNS[state]}${count(node.num_tokens)}`;
  const signWidth = context.measureText(sign).width;
  if (rect.width < signWidth + 6) return;
  const middle = rect.middle + 0.5;
  context.fillStyle = state === "kept" ? colours.soft : { hit: colours.hit, new: colours.new, evicted: colours.bad }[state];
  context.fillText(sign, rect.x + (node.pinned ? 7 : 4), middle);
  const room = rect.width - signWidth - 16;
  if (room < 24) return;
  const text = (words === undefined ? "" : `${words}: `) + oneLine(node.text.slice(0, Math.ceil(room)));
  context.fillStyle = colours.ink;
  context.fillText(shorten(context, text, room), rect.x + signWidth + 11, middle);
}

function shorten(context: CanvasRenderingContext2D, text: string, room: number): string {
  if (context.measureText(text).width <= room) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (context.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
    else high = middle - 1;
  }
  return low > 1 ? `${text.slice(0, low).trimEnd()}…` : "";
}

function hatch(context: CanvasRenderingContext2D, box: Path2D, rect: Rect, colour: string, alpha: number): void {
  const { x, y, width, height } = rect;
  context.save();
  context.clip(box);
  context.globalAlpha = alpha * 0.35;
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  for (let offset = -height; offset < width; offset += 6) {
    context.moveTo(x + offset, y + height);
    context.lineTo(x + offset + height, y);
  }
  context.stroke();
  context.restore();
}

function outline(context: CanvasRenderingContext2D, rect: Rect, colour: string): void {
  context.strokeStyle = colour;
  context.lineWidth = 2;
  context.beginPath();
  context.roundRect(rect.x - 0.5, rect.y - 0.5, rect.width, rect.height, 4);
  context.stroke();
}

// Draws the icicle on a canvas and moves boxes from where they were to where they go. States differ by outline,
// pattern and sign, colour only helps. Knows boxes and marks; selection and time are given to it.

import { h } from "./dom";
import { count, oneLine } from "./format";
import { type Box, fit, layout, type Rect, rectOf, type Scale } from "./tree_layout";
import { type Marks, type NodeState, STATE_SIGNS, stateOf, type Tree, type TreeNode } from "./tree_model";

const MOVE = 320; // milliseconds of a transition
const VIEWPORT = 420; // pixels; taller trees scroll
const FONT = 11.5;
const COLOURS = ["ink", "soft", "paper", "line", "hit", "new", "bad", "generated"] as const;

type Colour = (typeof COLOURS)[number];
type Moving = Rect & { alpha: number };

export interface Scene {
  tree: Tree;
  marks: Marks;
}

export class TreeCanvas {
  readonly el: HTMLElement;
  boxes: Box[] = [];
  nodes: Tree = new Map(); // with the evicted ones that are still shown
  selected: number | null = null;
  private hovered: number | null = null;
  private readonly canvas = h("canvas", { role: "img" });
  private readonly sizer = h("div", { class: "lmnb-tree-sizer" }, this.canvas);
  private readonly probes = new Map<Colour, HTMLElement>();
  private readonly context: CanvasRenderingContext2D | null;
  private readonly abort = new AbortController();
  private readonly resize: ResizeObserver | undefined;
  private marks: Marks = { fresh: new Set(), hit: new Set(), evicted: new Map() };
  private scale: Scale = { base: 0, perToken: 0, rowHeight: 20, height: 20 };
  private from = new Map<number, Moving>();
  private to = new Map<number, Moving>();
  private began = 0;
  private frame = 0;
  private width = 0;

  constructor(
    private readonly reducedMotion: boolean,
    private readonly onSelect: (node: number | null) => void,
  ) {
    const probes = h("span", { "aria-hidden": "true", class: "lmnb-probes" });
    for (const name of COLOURS) {
      const probe = h("i", { style: `color:var(--${name})` });
      this.probes.set(name, probe);
      probes.append(probe);
    }
    this.el = h("div", { class: "lmnb-tree-scroll" }, this.sizer, probes);
    this.context = this.canvas.getContext("2d");
    const { signal } = this.abort;
    this.canvas.addEventListener("pointermove", (event) => this.hover(this.hit(event)), { signal });
    this.canvas.addEventListener("pointerleave", () => this.hover(null), { signal });
    this.canvas.addEventListener("click", (event) => this.onSelect(this.hit(event)), { signal });
    this.el.addEventListener("scroll", () => this.request(), { signal });
    if (typeof ResizeObserver !== "undefined") {
      this.resize = new ResizeObserver(() => this.el.clientWidth !== this.width && this.place(false));
      this.resize.observe(this.el);
    }
  }

  show(scene: Scene, label: string): void {
    this.marks = scene.marks;
    this.nodes = new Map([...scene.tree, ...scene.marks.evicted]);
    this.boxes = layout(this.nodes);
    this.canvas.setAttribute("aria-label", label);
    this.place(true);
  }

  select(node: number | null): void {
    this.selected = node;
    const rect = node === null ? undefined : this.to.get(node);
    if (rect && (rect.y < this.el.scrollTop || rect.y > this.el.scrollTop + this.el.clientHeight - 20)) {
      this.el.scrollTop = rect.y - 40;
    }
    this.request();
  }

  redraw(): void {
    this.request();
  }

  close(): void {
    this.abort.abort();
    this.resize?.disconnect();
    cancelAnimationFrame(this.frame);
  }

  private place(moving: boolean): void {
    this.width = this.el.clientWidth;
    this.scale = fit(this.boxes, Math.max(40, this.width - 2), VIEWPORT);
    const now = performance.now();
    const shown = this.current(now);
    this.to = new Map(this.boxes.map((box) => [box.node, { ...rectOf(box, this.scale), alpha: 1 }]));
    this.from = new Map();
    for (const [id, rect] of this.to) this.from.set(id, shown.get(id) ?? { ...rect, width: 0, alpha: 0 });
    for (const [id, rect] of shown) {
      if (!this.to.has(id) && rect.alpha > 0.05) {
        this.from.set(id, rect);
        this.to.set(id, { ...rect, alpha: 0 });
      }
    }
    const still = !moving || this.reducedMotion || shown.size === 0;
    this.began = still ? now - MOVE : now;
    this.sizer.style.height = `${Math.max(this.scale.height, 30) + 2}px`;
    this.request();
  }

  private current(now: number): Map<number, Moving> {
    const part = Math.min(1, (now - this.began) / MOVE);
    if (part >= 1) return this.to;
    const ease = 1 - (1 - part) ** 3;
    const mix = (a: number, b: number) => a + (b - a) * ease;
    const rects = new Map<number, Moving>();
    for (const [id, to] of this.to) {
      const from = this.from.get(id) ?? to;
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

  private request(): void {
    if (this.frame === 0) this.frame = requestAnimationFrame((now) => this.draw(now));
  }

  private draw(now: number): void {
    this.frame = 0;
    const context = this.context;
    if (!context) return;
    const ratio = window.devicePixelRatio || 1;
    const height = Math.min(this.scale.height + 2, this.el.clientHeight || VIEWPORT);
    const pixels = [Math.round(this.width * ratio), Math.round(height * ratio)] as const;
    if (this.canvas.width !== pixels[0] || this.canvas.height !== pixels[1]) {
      [this.canvas.width, this.canvas.height] = pixels;
      this.canvas.style.height = `${height}px`;
    }
    const top = this.el.scrollTop;
    context.setTransform(ratio, 0, 0, ratio, ratio, (1 - top) * ratio);
    context.clearRect(-1, top - 1, this.width + 2, height + 2);
    context.font = `${FONT}px ${getComputedStyle(this.el).fontFamily}`;
    context.textBaseline = "middle";
    const colours = this.colours();
    const last = { current: null as (() => void) | null };
    for (const [id, rect] of this.current(now)) {
      if (rect.y > top + height || rect.y + rect.height < top || rect.alpha <= 0) continue;
      const node = this.nodes.get(id);
      context.globalAlpha = rect.alpha;
      this.drawBox(context, rect, stateOf(id, this.marks), node, colours, id);
      if (id === this.selected) last.current = () => outline(context, rect, colours.ink);
    }
    context.globalAlpha = 1;
    last.current?.();
    if (now - this.began < MOVE) this.request();
    else for (const [id, rect] of this.to) if (rect.alpha === 0) this.to.delete(id);
  }

  private drawBox(
    context: CanvasRenderingContext2D,
    rect: Moving,
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
    context.globalAlpha = alpha * (state === "evicted" ? 0.05 : state === "kept" ? 0.07 : 0.17) * (id === this.hovered ? 1.5 : 1);
    context.fillStyle = stroke;
    context.fill(box);
    if (state === "evicted") hatch(context, box, { x, y, width, height }, colours.bad, alpha);
    context.globalAlpha = alpha * (state === "kept" ? 0.4 : 1);
    context.setLineDash(state === "new" ? [4, 2] : state === "evicted" ? [1.5, 2.5] : []);
    context.lineWidth = state === "hit" ? 2 : state === "kept" ? 1 : 1.5;
    context.strokeStyle = stroke;
    context.stroke(box);
    context.setLineDash([]);
    context.globalAlpha = alpha;
    if (node && height >= 13) drawLabel(context, { x, y, width, height }, node, state, colours);
  }

  private colours(): Record<Colour, string> {
    const entries = COLOURS.map((name) => [name, getComputedStyle(this.probes.get(name) as Element).color]);
    return Object.fromEntries(entries) as Record<Colour, string>;
  }

  private hit(event: MouseEvent): number | null {
    const bounds = this.canvas.getBoundingClientRect();
    const x = event.clientX - bounds.left - 1;
    const y = event.clientY - bounds.top - 1 + this.el.scrollTop;
    for (const box of this.boxes) {
      const rect = rectOf(box, this.scale);
      if (x >= rect.x && x < rect.x + rect.width && y >= rect.y && y < rect.y + rect.height) return box.node;
    }
    return null;
  }

  private hover(node: number | null): void {
    if (node === this.hovered) return;
    this.hovered = node;
    this.canvas.style.cursor = node === null ? "" : "pointer";
    const entry = node === null ? undefined : this.nodes.get(node);
    this.canvas.title = entry ? `${count(entry.num_tokens)} tokens · ${oneLine(entry.text).slice(0, 160)}` : "";
    this.request();
  }
}

function drawLabel(
  context: CanvasRenderingContext2D,
  rect: Rect,
  node: TreeNode,
  state: NodeState,
  colours: Record<Colour, string>,
): void {
  const sign = `${STATE_SIGNS[state]}${count(node.num_tokens)}`;
  const signWidth = context.measureText(sign).width;
  if (rect.width < signWidth + 6) return;
  const middle = rect.y + Math.min(rect.height, VIEWPORT) / 2 + 0.5;
  context.fillStyle = state === "kept" ? colours.soft : { hit: colours.hit, new: colours.new, evicted: colours.bad }[state];
  context.fillText(sign, rect.x + 4, middle);
  const room = rect.width - signWidth - 16;
  if (room < 24) return;
  const words = oneLine(node.text).slice(0, Math.ceil(room / 3));
  context.fillStyle = colours.ink;
  context.fillText(shorten(context, words, room), rect.x + signWidth + 11, middle);
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

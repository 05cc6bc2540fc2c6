// The icicle: a canvas that scrolls over a picture as tall as the tree needs. What is out of sight is not drawn.
// Knows boxes and marks; selection and time are given to it.

import { h } from "./dom";
import { ago, oneLine } from "./format";
import { shownCount } from "./tree_label";
import { type Box, fit, layout, rectOf, type Scale } from "./tree_layout";
import { Motion, type Moving } from "./tree_motion";
import { type Marks, stateOf, type Tree, type TreeNode } from "./tree_model";
import { COLOURS, Painter, type Palette, type Tint } from "./tree_paint";

const VIEWPORT = 420; // pixels; taller trees scroll
const STYLE_AGE = 1000; // milliseconds until colours and fonts are looked up again

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
  /** Pixels of the tallest tree so far, as far as it was not scrolled. */
  tallest = 0;
  private _nodes: Tree | null = null; // with the evicted ones that are still shown, once somebody asks
  selected: number | null = null;
  private _hovered: number | null = null;
  private readonly _canvas = h("canvas", { role: "img" });
  private readonly _sizer = h("div", { class: "lmnb-tree-sizer" }, this._canvas);
  private readonly _probes = new Map<keyof Palette, HTMLElement>();
  private readonly _context: CanvasRenderingContext2D | null;
  private readonly _painter: Painter | null;
  private readonly _motion = new Motion();
  private _style: { palette: Palette; font: string; at: number } | null = null;
  private readonly _abort = new AbortController();
  private readonly _resize: ResizeObserver | undefined;
  private _scene: Scene = { tree: new Map(), marks: { fresh: new Set(), hit: new Set(), evicted: new Map() }, tint: "state", found: null, held: new Set(), now: 0 };
  private readonly _owners = new Map<string, string>(); // and their colours, in the order of appearance
  private _scale: Scale = { base: 0, perToken: 0, rowHeight: 20, height: 20 };
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
    this._context = this._canvas.getContext("2d");
    this._painter = this._context && new Painter(this._context);
    const { signal } = this._abort;
    this._canvas.addEventListener("pointermove", (event) => this._hover(this._hit(event)), { signal });
    this._canvas.addEventListener("pointerleave", () => this._hover(null), { signal });
    this._canvas.addEventListener("click", (event) => this._onSelect(this._hit(event)), { signal });
    this.el.addEventListener("scroll", () => this._request(), { signal });
    if (typeof ResizeObserver !== "undefined") {
      this._resize = new ResizeObserver(([entry]) => {
        const width = Math.round(entry?.contentRect.width ?? 0);
        if (width === this._width) return;
        this._width = width;
        this._place(false);
      });
      this._resize.observe(this.el);
    }
  }

  show(scene: Scene, label: string): void {
    this._scene = scene;
    this._nodes = null;
    this.boxes = layout(scene.tree, scene.marks.evicted);
    this._canvas.setAttribute("aria-label", label);
    this._place(true);
  }

  /** All that is shown. */
  get nodes(): Tree {
    return (this._nodes ??= new Map([...this._scene.tree, ...this._scene.marks.evicted]));
  }

  node(id: number): TreeNode | undefined {
    return this._scene.tree.get(id) ?? this._scene.marks.evicted.get(id);
  }

  select(node: number | null): void {
    this.selected = node;
    const rect = node === null ? undefined : this._motion.target(node);
    if (rect && (rect.y < this.el.scrollTop || rect.y > this.el.scrollTop + this.el.clientHeight - 20)) {
      this.el.scrollTop = rect.y - 40;
    }
    this._request();
  }

  /** Colours or fonts have changed. */
  restyle(): void {
    this._style = null;
    this._request();
  }

  close(): void {
    this._abort.abort();
    this._resize?.disconnect();
    cancelAnimationFrame(this._frame);
  }

  private _place(moving: boolean): void {
    if (!this._resize || this._width === 0) this._width = this.el.clientWidth; // else no layout is forced
    this._scale = fit(this.boxes, Math.max(40, this._width - 2), VIEWPORT);
    this._motion.retarget(this.boxes, this._scale, performance.now(), !moving || this._reducedMotion);
    this._sizer.style.height = `${Math.max(this._scale.height, 30) + 2}px`;
    this.tallest = Math.max(this.tallest, Math.min(this._scale.height + 2, VIEWPORT));
    this._request();
  }

  private _request(): void {
    if (this._frame === 0) this._frame = requestAnimationFrame((now) => this._draw(now));
  }

  private _draw(now: number): void {
    this._frame = 0;
    const [context, painter] = [this._context, this._painter];
    if (!context || !painter) return;
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
    const { palette, font } = this._styled(now);
    painter.begin(palette, font);
    const { marks, found, held } = this._scene;
    let selected: Moving | null = null;
    const moves = this._motion.each(now, top, top + height, (id, rect) => {
      const seen = [Math.max(rect.y, top), Math.min(rect.y + rect.height, top + height)] as const;
      const node = this.node(id);
      painter.box(rect, (seen[0] + seen[1]) / 2, {
        state: stateOf(id, marks),
        node,
        hovered: id === this._hovered,
        held: held.has(id),
        faded: found?.has(id) === false,
        ...this._tintOf(node, palette),
      });
      if (id === this.selected) selected = { ...rect };
    });
    painter.end();
    if (selected) painter.outline(selected);
    if (moves) this._request();
  }

  /** Colour and strength that stand for a node's owner or age, and the words that say the same. */
  private _tintOf(node: TreeNode | undefined, palette: Palette): Tint | null {
    if (!node || this._scene.tint === "state") return null;
    if (this._scene.tint === "age") {
      const age = Math.max(0, this._scene.now - node.last);
      return { colour: palette.generated, strength: Math.max(0.04, 0.4 - 0.06 * Math.log2(1 + age)), words: ago(age) };
    }
    const owner = node.owner.split(/ · (?=branch |line )/)[0] ?? "";
    let colour = this._owners.get(owner);
    if (!colour) this._owners.set(owner, (colour = OWNERS[this._owners.size % OWNERS.length] as string));
    return { colour, strength: 0.3, words: owner };
  }

  /** Looking at computed styles makes the browser compute them: not in every frame. */
  private _styled(now: number): { palette: Palette; font: string } {
    if (!this._style || now - this._style.at > STYLE_AGE) {
      const entries = COLOURS.map((name) => [name, getComputedStyle(this._probes.get(name) as Element).color]);
      this._style = { palette: Object.fromEntries(entries) as Palette, font: getComputedStyle(this.el).fontFamily, at: now };
    }
    return this._style;
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
    const entry = node === null ? undefined : this.node(node);
    this._canvas.title = entry ? `${entry.pinned ? "pinned · " : ""}${shownCount(entry.num_tokens)} ${entry.num_tokens === 1 ? "token" : "tokens"} · ${oneLine(entry.text).slice(0, 160)}` : "";
    this._request();
  }
}

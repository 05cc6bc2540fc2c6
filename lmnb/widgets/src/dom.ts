// Small helpers for building elements. Text is always set as text, never parsed as HTML, and as what it is: orders to
// turn its direction are shown by name, for nobody would know what the model has read.

const ORDERS = /[\u202a-\u202e\u2066-\u2069]/g;

/** The text as readers see it: `⟨U+202E⟩` in place of an order to turn. */
export function readable(text: string): string {
  return text.replace(ORDERS, (order) => `⟨U+${order.charCodeAt(0).toString(16).toUpperCase()}⟩`);
}

/** For elements with keys of their own: JupyterLab looks for shortcuts before any element gets to see a key. */
export const OWN_KEYS = { "data-lm-suppress-shortcuts": "true" };

type Attributes = Record<string, string | number | boolean | null | undefined>;

/** An element with attributes and children. Strings become text nodes. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: (Node | string | null | undefined)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  setAttributes(element, attributes);
  for (const child of children) if (child !== null && child !== undefined) element.append(typeof child === "string" ? readable(child) : child);
  return element;
}

export function setAttributes(element: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Set text only if it differs, so that selections and live regions are left alone. */
export function setText(element: Element, text: string): void {
  const shown = readable(text);
  if (element.textContent !== shown) element.textContent = shown;
}

/** Runs `draw` once in the next animation frame however often it is asked for; `cancel` ends that. */
export function frameScheduler(draw: () => void): { request: () => void; cancel: () => void } {
  let pending = 0;
  return {
    request() {
      if (pending === 0) {
        pending = requestAnimationFrame(() => {
          pending = 0;
          draw();
        });
      }
    },
    cancel() {
      if (pending !== 0) cancelAnimationFrame(pending);
      pending = 0;
    },
  };
}

/** Runs `draw` at once, but then not again before `interval` milliseconds have passed: the last request is not lost. */
export function paced(draw: () => void, interval: number): { request: () => void; cancel: () => void } {
  let drawnAt = -Infinity; // by the page's clock
  let timer: ReturnType<typeof setTimeout> | undefined;
  const run = () => {
    timer = undefined;
    drawnAt = performance.now();
    draw();
  };
  return {
    request() {
      if (timer !== undefined) return;
      const wait = drawnAt + interval - performance.now();
      if (wait <= 0) run();
      else timer = setTimeout(run, wait);
    },
    cancel() {
      clearTimeout(timer);
      timer = undefined;
      drawnAt = -Infinity;
    },
  };
}

/** Follows the end of a scrolling element, but only while its reader is there. What `keep` gives, if it is the last
 * thing there, is followed no further than to its beginning. */
export function stickToEnd(element: HTMLElement, keep?: () => Element | null): { before: () => void; after: () => void } {
  let atEnd = true;
  let kept = NaN; // where following has stopped
  return {
    before() {
      atEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 24 || Math.abs(element.scrollTop - kept) < 2;
    },
    after() {
      kept = NaN;
      if (!atEnd) return;
      const last = keep?.();
      const top = last ? element.scrollTop + last.getBoundingClientRect().top - element.getBoundingClientRect().top : Infinity;
      if (top < element.scrollHeight - element.clientHeight) {
        element.scrollTop = top;
        kept = element.scrollTop;
      } else element.scrollTop = element.scrollHeight;
    },
  };
}

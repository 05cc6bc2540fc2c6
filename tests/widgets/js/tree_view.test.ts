// @vitest-environment jsdom
import { beforeEach, describe, expect, it, vi } from "vitest";
import create from "../../../lmnb/widgets/src/tree";
import type { CacheEvent } from "../../../lmnb/widgets/src/protocol";
import recorded from "../fixtures/tree.json";
import { FakeHost, frames, snapshot } from "./fake_host";

const events = recorded.events as CacheEvent[];
const pool = { pool_tokens: 400, free_tokens: 300, cached_tokens: 100, running: 1, waiting: 2 };

function open(shown = events) {
  const host = new FakeHost({ snapshot: snapshot("cache", 1, { base: [], base_seq: -1, events: shown }, pool), _esm: "…" });
  const widget = create();
  const end = widget.initialize({ model: host });
  const el = document.createElement("div");
  document.body.append(el);
  const cleanup = widget.render({ model: host, el });
  const find = <T extends HTMLElement>(selector: string) => el.querySelector(selector) as T;
  return { host, el, find, cleanup, end };
}

const press = (el: Element, key: string) => el.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const label = (el: Element) => el.querySelector("canvas")?.getAttribute("aria-label");

beforeEach(() => {
  document.body.replaceChildren();
  // jsdom has no canvas: the drawing itself is looked at in a browser.
  vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockReturnValue(null);
});

describe("the cache view", () => {
  it("summarises the tree for those who do not see the canvas", () => {
    const { el, find } = open();
    expect(find("canvas").getAttribute("role")).toBe("img");
    expect(label(el)).toMatch(/^Cache tree: \d+ nodes; just now/);
    expect(find(".lmnb-model").textContent).toContain("of 400 tokens cached · 1 running, 2 waiting");
  });

  it("grows with deltas", async () => {
    const { host, el, find } = open(events.slice(0, 4));
    const before = label(el);
    host.receive({ type: "events", seq: 2, events: events.slice(4), pool });
    await frames();
    expect(label(el)).not.toBe(before);
    expect(find<HTMLInputElement>("input[type=range]").max).toBe(String(events.length));
  });

  it("walks the tree by arrow keys and shows the node's details", () => {
    const { find } = open();
    const frame = find(".lmnb-tree-frame");
    expect(find(".lmnb-details dl").hidden).toBe(true);
    press(frame, "ArrowDown");
    expect(find(".lmnb-details dl").hidden).toBe(false);
    const first = find(".lmnb-node-text").textContent;
    press(frame, "ArrowRight");
    const second = find(".lmnb-node-text").textContent;
    expect(second).not.toBe(first);
    expect(find(".lmnb-details").textContent).toContain("depth 2");
    press(frame, "ArrowLeft");
    expect(find(".lmnb-node-text").textContent).toBe(first);
    press(frame, "Escape");
    expect(find(".lmnb-details dl").hidden).toBe(true);
  });

  it("keeps the notebook from acting on the keys it uses, and no others", () => {
    const { find } = open();
    const seen: string[] = [];
    document.body.addEventListener("keydown", (event) => seen.push(event.key));
    press(find(".lmnb-tree-frame"), "ArrowDown");
    press(find(".lmnb-tree-frame"), "b");
    expect(seen).toEqual(["b"]);
  });

  it("scrubs back and forth and returns to live", () => {
    const { el, find } = open();
    const live = label(el);
    const slider = find<HTMLInputElement>("input[type=range]");
    slider.value = "1";
    slider.dispatchEvent(new Event("input"));
    expect(label(el)).toBe("Cache tree: 1 node; just now 0 reused, 1 new, 0 evicted");
    expect(find(".lmnb-caption").textContent).toBe(`1 / ${events.length} · new 19 tokens · cell 1`);
    press(find(".lmnb-tree-frame"), ".");
    expect(slider.value).toBe("2");
    press(find(".lmnb-tree-frame"), ",");
    press(find(".lmnb-tree-frame"), ",");
    expect(label(el)).toContain("0 nodes");
    expect(find(".lmnb-live").getAttribute("aria-pressed")).toBe("false");
    find(".lmnb-live").click();
    expect(label(el)).toBe(live);
  });

  it("does not leave the chosen moment when new events come", async () => {
    const { host, el, find } = open(events.slice(0, 8));
    const slider = find<HTMLInputElement>("input[type=range]");
    slider.value = "3";
    slider.dispatchEvent(new Event("input"));
    const before = label(el);
    host.receive({ type: "events", seq: 2, events: events.slice(8), pool });
    await frames();
    expect(label(el)).toBe(before);
    expect(slider.value).toBe("3");
  });

  it("plays through all events and stops at the end", () => {
    vi.useFakeTimers();
    const { find } = open();
    const play = find<HTMLButtonElement>(".lmnb-play");
    play.click();
    expect(play.textContent).toBe("Pause");
    vi.advanceTimersByTime(400 * (events.length + 2));
    expect(find<HTMLInputElement>("input[type=range]").value).toBe(String(events.length));
    expect(play.textContent).toBe("Play");
    vi.useRealTimers();
  });

  it("offers the same tree as a list with levels and one tab stop", () => {
    const { el, find } = open();
    const list = find<HTMLDetailsElement>(".lmnb-list");
    list.open = true;
    list.dispatchEvent(new Event("toggle"));
    const items = [...el.querySelectorAll<HTMLElement>("[role=treeitem]")];
    expect(items.length).toBeGreaterThan(3);
    expect(items.filter((item) => item.tabIndex === 0)).toHaveLength(1);
    expect(items.map((item) => item.getAttribute("aria-level"))).toContain("2");
    items[0]?.focus();
    press(items[0] as HTMLElement, "ArrowDown");
    const selected = el.querySelector<HTMLElement>("[aria-selected=true]");
    expect(selected?.dataset["node"]).toBe(items[1]?.dataset["node"]);
    expect(document.activeElement).toBe(selected);
    expect(find(".lmnb-details dl").hidden).toBe(false);
  });

  it("leaves no element or listener behind", () => {
    const { host, el, find, cleanup, end } = open();
    find<HTMLButtonElement>(".lmnb-play").click();
    cleanup();
    expect(el.childElementCount).toBe(0);
    expect(host.sent.at(-1)).toEqual({ type: "views", count: 0 });
    end();
    expect(host.numListeners).toBe(0);
  });

  it("searches text across splits, and Enter walks through what it found", () => {
    const { el, find } = open();
    const search = find<HTMLInputElement>("input[type=search]");
    search.value = "KIND. WHAT";
    search.dispatchEvent(new Event("input"));
    expect(find(".lmnb-model").textContent).toContain("1 found");
    press(search, "Enter");
    expect(find(".lmnb-node-text").textContent).toContain("What is");
    search.value = "no such text";
    search.dispatchEvent(new Event("input"));
    expect(find(".lmnb-model").textContent).toContain("0 found");
    press(search, "Enter");
    expect(el.querySelector<HTMLElement>(".lmnb-details dl")?.hidden).toBe(true);
  });

  it("compares two moments until it is told not to", () => {
    const { el, find } = open();
    const slider = find<HTMLInputElement>("input[type=range]");
    const compare = [...el.querySelectorAll("button")].find((button) => button.textContent === "Compare");
    slider.value = "2";
    slider.dispatchEvent(new Event("input"));
    compare?.click();
    find(".lmnb-live").click();
    expect(compare?.textContent).toBe("Since 2");
    expect(find(".lmnb-model").textContent).toMatch(/since event 2: \d+ reused, [1-9]\d* new, [1-9]\d* evicted/);
    compare?.click();
    expect(find(".lmnb-model").textContent).not.toContain("since event");
  });

  it("says why a node was evicted, who used one, and how large it is", () => {
    const at = events.findIndex((event) => event.kind === "evict");
    const { find, host } = open(events);
    host.receive({ type: "events", seq: 2, events: [], pool: { ...pool, token_bytes: 46080 } });
    const slider = find<HTMLInputElement>("input[type=range]");
    slider.value = String(at + 1);
    slider.dispatchEvent(new Event("input"));
    const frame = find(".lmnb-tree-frame");
    const facts = () => find(".lmnb-details dl").textContent ?? "";
    press(frame, "Home");
    expect(facts()).toContain("Used by");
    expect(facts()).toMatch(/Tokens\d+ · [\d.]+ kB|MB/);
    const list = find<HTMLDetailsElement>(".lmnb-list");
    list.open = true;
    list.dispatchEvent(new Event("toggle"));
    [...list.querySelectorAll("li")].find((item) => item.textContent?.startsWith("✕"))?.click();
    expect(facts()).toContain("Whyleast recently used, unused for");
    expect(facts()).toContain("made room for cell 5");
  });

  it("counts what comes faster than an eye can follow", async () => {
    const { host, find } = open(events.slice(0, 2));
    host.receive({ type: "events", seq: 2, events: events.slice(2), pool });
    await frames();
    expect(find(".lmnb-badge").textContent).toBe(`+${events.length - 2} events`);
    const slow = open(events.slice(0, -2));
    slow.host.receive({ type: "events", seq: 2, events: events.slice(-2), pool });
    await frames();
    expect(slow.find(".lmnb-badge").textContent).toBe("");
  });

  it("draws the hit rate over time and says the newest", () => {
    const { find } = open();
    const curve = find(".lmnb-curve");
    expect(curve.getAttribute("aria-label")).toMatch(/^Hit rate [1-9]\d % over the last 64 events$/);
  });

  it("says that the model was unloaded", async () => {
    const { host, find, el } = open();
    host.receive({ type: "snapshot", snapshot: snapshot("cache", 3, { base: [], base_seq: -1, events }, { ...pool, closed: 1 }) });
    await frames();
    expect(find(".lmnb-model").textContent).toContain("the model was unloaded");
    expect(el.querySelector(".lmnb-closed")).not.toBeNull();
  });
});

// @vitest-environment jsdom
import { beforeEach, describe, expect, it, vi } from "vitest";
import { SILENT } from "../../../lmnb/widgets/src/connection";
import create from "../../../lmnb/widgets/src/tree";
import type { CacheEvent } from "../../../lmnb/widgets/src/protocol";
import recorded from "../fixtures/tree.json";
import { curves } from "../../../lmnb/widgets/src/tree_timeline";
import { FakeHost, frames, snapshot } from "./fake_host";

const events = recorded.events as CacheEvent[];
const pool = { pool_tokens: 400, free_tokens: 300, cached_tokens: 100, running: 1, waiting: 2 };

function open(shown = events) {
  const host = new FakeHost({ snapshot: snapshot("cache", 1, { base: [], base_seq: -1, events: shown }, pool) });
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
    expect(label(el)).toMatch(/^Cache tree: \d+ nodes; last change:/);
    expect(find(".lmnb-model").textContent).toMatch(/of 400 tokens cached · \d+ pinned · 1 running, 2 waiting$/);
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
    expect(label(el)).toBe("Cache tree: 1 node; last change: 0 reused, 1 new, 0 evicted");
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

  it("counts nothing as evicted that came after the moment it compares with", async () => {
    const { host, el, find } = open();
    const slider = find<HTMLInputElement>("input[type=range]");
    const compare = [...el.querySelectorAll("button")].find((button) => button.textContent === "Compare");
    slider.value = "0";
    slider.dispatchEvent(new Event("input"));
    compare?.click();
    find(".lmnb-live").click();
    const last = events.at(-1) as CacheEvent;
    host.receive({ type: "events", seq: 2, events: [{ ...last, kind: "reset", seq: last.seq + 1, node: 0 } as CacheEvent] });
    await frames();
    expect(find(".lmnb-model").textContent).toMatch(/since event 0: 0 reused, 0 new, 0 evicted/);
  });

  it("says what is to come where the moment that it is compared with has not come yet", () => {
    const { el, find } = open();
    const compare = [...el.querySelectorAll("button")].find((button) => button.textContent === "Compare");
    compare?.click();
    expect(find(".lmnb-model").textContent).toContain("since event 19: 0 reused, 0 new");
    const slider = find<HTMLInputElement>("input[type=range]");
    slider.value = "2";
    slider.dispatchEvent(new Event("input"));
    expect(find(".lmnb-model").textContent).toMatch(/until event 19: \d+ reused, [1-9]\d* new/);
    expect(find(".lmnb-model").textContent).not.toContain("since");
  });

  it("counts the same nodes in its head and its list, and keeps its height when they go", async () => {
    const { host, find } = open();
    const height = () => Number.parseFloat(find(".lmnb-tree-frame").style.minHeight);
    const before = height();
    expect(before).toBeGreaterThan(40);
    const nodes = Number(find(".lmnb-model").textContent?.match(/(\d+) nodes/)?.[1]);
    const gone = events.at(-1) as CacheEvent;
    host.receive({ type: "events", seq: 2, events: [{ ...gone, kind: "reset", seq: gone.seq + 1, node: 0 } as CacheEvent] });
    await frames();
    expect(find(".lmnb-model").textContent).toContain("0 nodes");
    expect(find(".lmnb-list summary").textContent).toBe(`As a list: 0 nodes, ${nodes} evicted`);
    expect(height()).toBe(before);
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
    expect(facts()).toMatch(/Whyleast recently used, unused for \d+ s; made room for cell 5/);
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

  it("knows how full the cache was at each moment", () => {
    const of = (kind: string, num_tokens: number) => ({ kind, num_tokens }) as CacheEvent;
    const story = [of("insert", 6), of("hit", 6), of("extend", 4), of("split", 2), of("evict", 5), of("reset", 0), of("insert", 1)];
    const { tokens, rates } = curves(story, 10);
    expect([0, 1, 3, 5, 6, 7].map((place) => tokens[Math.round((place * 100) / 7)])).toEqual([10, 16, 20, 15, 0, 1]);
    expect(rates[100]).toBeCloseTo(6 / 13);
    expect(curves([], 3)).toEqual({ tokens: Array(101).fill(3), rates: Array(101).fill(0) });
  });

  it("draws the hit rate over time and says the newest", () => {
    const { find } = open();
    const curve = find(".lmnb-curve");
    expect(curve.getAttribute("aria-label")).toMatch(/^Hit rate [1-9]\d % over the last 64 events; pool [1-9]\d? % full$/);
  });

  it("pins, unpins and evicts the selected node by button and by key, and says what became of it", async () => {
    const { host, find } = open();
    const frame = find(".lmnb-tree-frame");
    const [pin, evict] = [...find(".lmnb-node-acts").querySelectorAll("button")] as [HTMLButtonElement, HTMLButtonElement];
    expect(find(".lmnb-node-acts").hidden).toBe(true);
    press(frame, "Home");
    expect(pin.textContent).toBe("Pin");
    const acts = () => host.sent.filter((message) => message.type === "act");
    pin.click();
    press(frame, "p");
    evict.click();
    press(frame, "Delete");
    const node = (acts()[0] as { node: number }).node;
    expect(acts()).toEqual(["pin", "pin", "evict", "evict"].map((act) => ({ type: "act", act, node })));

    host.receive({ type: "notice", text: "Not done: a running request uses node 1 (cell 3)." });
    await frames();
    const notice = find(".lmnb-notice");
    expect(notice.getAttribute("role")).toBe("status");
    expect(notice.textContent).toContain("uses node 1 (cell 3)");
    press(frame, "ArrowRight");
    expect(notice.textContent).toBe("");
    press(frame, "ArrowLeft");

    const event = { seq: events.length, time: 6000, kind: "pin", node, num_tokens: 19, owner: "" } as CacheEvent;
    host.receive({ type: "events", seq: 2, events: [event], pool });
    await frames();
    expect(pin.textContent).toBe("Unpin");
    expect(pin.getAttribute("aria-pressed")).toBe("true");
    expect(find(".lmnb-details dl").textContent).toContain("⚑ pinned");
    pin.click();
    expect(acts().at(-1)).toEqual({ type: "act", act: "unpin", node });
    expect(find(".lmnb-model").textContent).toMatch(/ · [1-9]\d* pinned/);
    expect(find(".lmnb-gauge").getAttribute("aria-label")).toMatch(/^KV pool: \d+ % cached \([1-9]\d* % pinned\)$/);
  });

  it("takes a notice back once it is untrue, and not because of what was done", async () => {
    const clock = vi.spyOn(performance, "now").mockReturnValue(0);
    const { find, host } = open(events.slice(0, 4));
    const frame = find(".lmnb-tree-frame");
    const said = () => find(".lmnb-notice").textContent;
    let seq = 1;
    const tell = async (list: object[], more: object = {}) => {
      host.receive({ type: "events", seq: ++seq, events: list as CacheEvent[], pool: { ...pool, ...more } });
      await frames();
    };
    const notice = async (text: string) => {
      host.receive({ type: "notice", text });
      await frames();
    };
    press(frame, "Home");
    press(frame, "p");
    const { node } = host.sent.at(-1) as { node: number };
    const act = (kind: string, number: number) => ({ seq: number, time: 6000, kind, node, num_tokens: 1, owner: "" });
    await notice("Pinned: it stays, with all above it.");
    clock.mockReturnValue(100);
    await tell([act("pin", 4)]);
    expect(said()).toContain("it stays"); // that is what was done
    clock.mockReturnValue(5000);
    await tell([{ ...act("hit", 5) }]);
    expect(said()).toContain("it stays");
    await tell([act("unpin", 6)]); // by somebody else
    expect(said()).toBe("");

    await tell([], { held: [[node, 1, "cell 7"]] });
    await notice("Not done: a running request uses node 1 (cell 7).");
    clock.mockReturnValue(9000);
    await tell([], { held: [[node, 2, "cell 7", "cell 8"]] });
    expect(said()).toContain("uses node 1");
    await tell([], { held: [] });
    expect(said()).toBe("");

    find("button[aria-label='Step back']").click();
    press(frame, "p");
    expect(said()).toContain("go back to Live");
    find(".lmnb-live").click();
    expect(said()).toBe("");

    await notice(SILENT);
    await tell([], { now: 7 });
    expect(said()).toBe(""); // it has answered
    clock.mockRestore();
  });

  it("tells of a node above a pinned one that the pin holds it", () => {
    const { find, el } = open();
    const list = find<HTMLDetailsElement>(".lmnb-list");
    list.open = true;
    list.dispatchEvent(new Event("toggle"));
    const pinned = [...el.querySelectorAll<HTMLElement>("[role=treeitem]")].filter((item) => item.textContent?.startsWith("⚑"));
    expect(pinned).toHaveLength(1);
    pinned[0]?.click();
    expect(find(".lmnb-details dl").textContent).toContain("Source line4: s += user('What is 👩‍🚀?') + gen('x')");
    press(find(".lmnb-tree-frame"), "ArrowLeft");
    expect(find(".lmnb-details dl").textContent).toContain("held by a pin below");
  });

  it("says who uses a node just now", () => {
    const { find, host } = open();
    press(find(".lmnb-tree-frame"), "Home");
    const id = events.find((event) => event.kind === "split")?.node as number; // the first chats' common beginning
    host.receive({ type: "events", seq: 2, events: [], pool: { ...pool, held: [[id, 2, "cell 7", "cell 8"]] } });
    press(find(".lmnb-tree-frame"), "Home");
    expect(find(".lmnb-details dl").textContent).toContain("In use2 requests: cell 7, cell 8");
  });

  it("flushes only when it is told to, and acts on no past", () => {
    const { host, el, find } = open();
    const flush = [...el.querySelectorAll("button")].find((button) => button.textContent === "Flush") as HTMLButtonElement;
    flush.click();
    expect(host.sent.at(-1)).toEqual({ type: "act", act: "flush" });
    const slider = find<HTMLInputElement>("input[type=range]");
    slider.value = "4";
    slider.dispatchEvent(new Event("input"));
    expect(flush.disabled).toBe(true);
    press(find(".lmnb-tree-frame"), "Home");
    press(find(".lmnb-tree-frame"), "Delete");
    expect(host.sent.at(-1)).toEqual({ type: "act", act: "flush" });
    expect(find(".lmnb-notice").textContent).toContain("go back to Live");
    expect([...find(".lmnb-node-acts").querySelectorAll("button")].every((button) => button.disabled)).toBe(true);
  });

  it("offers no acts where there is no kernel", () => {
    const host = new FakeHost({ snapshot: snapshot("cache", 1, { base: [], base_seq: -1, events }, pool), alone: true });
    const el = document.createElement("div");
    document.body.append(el);
    create().render({ model: host, el });
    expect([...el.querySelectorAll("button")].map((button) => button.textContent)).not.toContain("Flush");
    press(el.querySelector(".lmnb-tree-frame") as Element, "Home");
    press(el.querySelector(".lmnb-tree-frame") as Element, "p");
    expect(host.sent.filter((message) => message.type === "act")).toEqual([]);
    expect(el.textContent).not.toContain("Evict");
  });

  it("keeps a chosen moment and a comparison while the oldest events go", async () => {
    const many: CacheEvent[] = Array.from({ length: 6200 }, (_, seq) => ({
      seq, time: seq, kind: "insert", node: seq + 1, parent: 0, num_tokens: 1, text: "x", owner: "", source: "",
    }));
    const { host, find } = open(many);
    const slider = find<HTMLInputElement>("input[type=range]");
    slider.value = "6000";
    slider.dispatchEvent(new Event("input"));
    const before = find("canvas").getAttribute("aria-label");
    const more = Array.from({ length: 200 }, (_, i) => ({ ...(many[0] as CacheEvent), seq: 6200 + i, node: 6201 + i }));
    host.receive({ type: "events", seq: 2, events: more as CacheEvent[], pool });
    await frames();
    expect(Number(slider.max)).toBeLessThan(6200);
    expect(find("canvas").getAttribute("aria-label")).toBe(before);
    expect(find(".lmnb-caption").textContent).toMatch(/^6,000 \/ 6,400 · /); // the numbers of events stay theirs
    find(".lmnb-live").click();
    host.receive({ type: "events", seq: 3, events: [0, 1].map((i) => ({ ...(more[0] as CacheEvent), seq: 6400 + i, node: 6401 + i })), pool });
    await frames();
    expect(find(".lmnb-badge").textContent).toBe("+200 events"); // since it was live last, whatever was forgotten
    const crowd = Array.from({ length: 30 }, (_, i) => ({ ...(more[0] as CacheEvent), seq: 6402 + i, node: 6403 + i }));
    host.receive({ type: "events", seq: 4, events: crowd, pool });
    await frames();
    expect(find(".lmnb-badge").textContent).toBe("+30 events");
  });

  it("counts ages to the kernel's time, which goes on while nothing happens", () => {
    vi.useFakeTimers();
    const last = events.at(-1)?.time as number;
    const { host, find, cleanup } = open();
    host.receive({ type: "events", seq: 2, events: [], pool: { ...pool, now: last + 61 } });
    vi.advanceTimersByTime(20);
    press(find(".lmnb-tree-frame"), "Home");
    const used = () => find(".lmnb-details dl").textContent?.match(/Last use(.*? ago|now)/)?.[1];
    expect(used()).toBe("1 min ago");
    vi.advanceTimersByTime(65_000);
    expect(used()).toBe("2 min ago");
    const slider = find<HTMLInputElement>("input[type=range]");
    slider.value = String(events.length);
    slider.dispatchEvent(new Event("input"));
    expect(used()).toBe("now"); // at that moment
    cleanup();
    expect(vi.getTimerCount()).toBe(0);
    vi.useRealTimers();
  });

  it("says that the model was unloaded", async () => {
    const { host, find, el } = open();
    host.receive({ type: "snapshot", snapshot: snapshot("cache", 3, { base: [], base_seq: -1, events }, { ...pool, closed: 1 }) });
    await frames();
    expect(find(".lmnb-model").textContent).toContain("the model was unloaded");
    expect(el.querySelector(".lmnb-closed")).not.toBeNull();
  });
});

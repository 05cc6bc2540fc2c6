// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { GONE, SILENT } from "../../../lmnb/widgets/src/connection";
import type { CacheEvent, RunEvent } from "../../../lmnb/widgets/src/protocol";
import createRun from "../../../lmnb/widgets/src/run";
import { RunModel } from "../../../lmnb/widgets/src/run_model";
import createTree from "../../../lmnb/widgets/src/tree";
import { FakeHost, snapshot } from "./fake_host";

const events: RunEvent[] = [
  { type: "run", run: "r", program: "p", model: "m", time: 0, cell: null },
  { type: "gen", branch: 0, var: "x", kind: "gen", constraint: null, line: null },
  { type: "tokens", branch: 0, text: "one two", num_tokens: 2, parts: [[3, 1, 0.1], [4, 1, 0.2]] },
];
const cached: CacheEvent[] = [{ kind: "insert", seq: 0, time: 0, node: 1, parent: 0, num_tokens: 3, text: "abc", owner: "", source: "" }];
const pool = { pool_tokens: 100, free_tokens: 97, cached_tokens: 3, running: 1, waiting: 0, held: [[1, 1, "cell 3"]] };

function openRun() {
  const model = new RunModel();
  for (const event of structuredClone(events)) model.apply(event);
  return draw(createRun(), new FakeHost({ snapshot: snapshot("run", 1, model.state) }));
}

const openTree = () => draw(createTree(), new FakeHost({ snapshot: snapshot("cache", 1, { base: [], base_seq: -1, events: cached }, pool) }));

function draw(widget: ReturnType<typeof createRun | typeof createTree>, host: FakeHost, manager?: object) {
  if (manager) Object.assign(host, { widget_manager: manager });
  widget.initialize({ model: host as never });
  const el = document.createElement("div");
  document.body.append(el);
  const cleanup = widget.render({ model: host as never, el });
  return { host, el, cleanup, find: <T extends HTMLElement>(selector: string) => el.querySelector<T>(selector) as T };
}

const button = (el: Element, name: string) => [...el.querySelectorAll("button")].find((one) => one.textContent === name) as HTMLButtonElement;

describe("when the kernel is gone", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => {
    vi.useRealTimers();
    document.body.replaceChildren();
  });

  it("a run that was going on is stopped and says why", () => {
    const { host, el, find } = openRun();
    expect(find(".lmnb-lost").hidden).toBe(true);
    host.emit("comm_live_update");
    vi.advanceTimersByTime(100);
    expect(find(".lmnb-status").textContent).toContain("stopped");
    expect(el.querySelector('[data-status="running"]')).toBeNull(); // neither caret nor spinner
    expect([find(".lmnb-lost").hidden, find(".lmnb-lost").textContent]).toEqual([false, GONE]);
    expect(find(".lmnb-cancel").hidden).toBe(true);
  });

  it("acts are refused with the reason, Close works, and nothing is thrown", () => {
    const { host, find, el, cleanup } = openRun();
    host.dead = true; // no word of it from the host
    find(".lmnb-gen").dispatchEvent(new MouseEvent("click", { bubbles: true }));
    find(".lmnb-gen").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
    find(".lmnb-gen").dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
    expect(find(".lmnb-refused").textContent).toBe(`✕ ${GONE}`);
    button(el, "Draw again").click();
    expect(find(".lmnb-refused").textContent).toBe(`✕ ${GONE}`);
    expect(button(el, "Close").disabled).toBe(false);
    button(el, "Close").click();
    expect(find(".lmnb-part").hidden).toBe(true);
    cleanup();
  });

  it("an act under way is refused, too, and one that is never answered says so", () => {
    const { host, find, el } = openRun();
    find(".lmnb-gen").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
    find(".lmnb-gen").dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
    host.receive({ type: "likely", branch: 0, gen: 0, token: 0, detail: null, ids: [] });
    button(el, "Draw again").click();
    expect([button(el, "Draw again").disabled, button(el, "Close").disabled]).toEqual([true, false]);
    vi.advanceTimersByTime(60_000);
    expect([find(".lmnb-refused").textContent, button(el, "Draw again").disabled]).toEqual([`✕ ${SILENT}`, false]);
    button(el, "Draw again").click();
    host.emit("comm:close");
    expect([find(".lmnb-refused").textContent, button(el, "Draw again").disabled]).toEqual([`✕ ${GONE}`, false]);
  });

  it("a cancel that nobody takes can be tried again", () => {
    const { find } = openRun();
    const cancel = find<HTMLButtonElement>(".lmnb-cancel");
    cancel.click();
    expect([cancel.disabled, cancel.textContent]).toEqual([true, "Stopping…"]);
    vi.advanceTimersByTime(60_000);
    expect([cancel.disabled, cancel.textContent]).toEqual([false, "Cancel"]);
  });

  it("JupyterLab's kernel tells of a restart by itself, and is left alone afterwards", () => {
    const slots = new Set<(...args: unknown[]) => unknown>();
    const signal = { connect: (slot: never) => slots.add(slot), disconnect: (slot: never) => slots.delete(slot) };
    const host = new FakeHost({ snapshot: openRun().host.get("snapshot") });
    Object.assign(host, { widget_manager: { kernel: { statusChanged: signal } } });
    const widget = createRun();
    const end = widget.initialize({ model: host as never });
    const el = document.createElement("div");
    widget.render({ model: host as never, el });
    for (const slot of slots) slot(null, "busy");
    vi.advanceTimersByTime(100);
    expect(el.querySelector(".lmnb-status")?.textContent).toContain("running");
    for (const slot of slots) slot(null, "autorestarting");
    vi.advanceTimersByTime(100);
    expect(el.querySelector(".lmnb-status")?.textContent).toContain("stopped");
    end();
    expect(slots.size).toBe(0);
  });

  it("a kernel that speaks after all is asked for a snapshot", () => {
    const { host, find } = openRun();
    const before = String(host.get("snapshot"));
    host.emit("comm_live_update");
    host.receive({ type: "events", seq: 2, events: [{ type: "tokens", branch: 0, text: " three", num_tokens: 1 }] });
    expect(host.sent.at(-1)).toEqual({ type: "resync" });
    host.receive({ type: "snapshot", snapshot: before });
    vi.advanceTimersByTime(100);
    expect([find(".lmnb-status").textContent?.includes("running"), find(".lmnb-lost").hidden]).toEqual([true, true]);
  });

  it("a tree runs nothing, and says why it refuses", () => {
    const { host, find, el } = openTree();
    expect(find(".lmnb-model").textContent).toContain("1 running");
    host.dead = true;
    button(el, "Flush").click();
    vi.advanceTimersByTime(100);
    expect(find(".lmnb-notice").textContent).toBe(GONE);
    expect(find(".lmnb-model").textContent).toContain(GONE);
    expect(find(".lmnb-model").textContent).not.toContain("1 running");
    expect(button(el, "Flush").disabled).toBe(true);
    find(".lmnb-tree-frame").dispatchEvent(new KeyboardEvent("keydown", { key: "Home", bubbles: true }));
    find(".lmnb-tree-frame").dispatchEvent(new KeyboardEvent("keydown", { key: "p", bubbles: true }));
    expect(find(".lmnb-notice").textContent).toBe(GONE);
  });

  it("a tree's act that is never answered says so", () => {
    const { find, el } = openTree();
    button(el, "Flush").click();
    vi.advanceTimersByTime(60_000);
    expect(find(".lmnb-notice").textContent).toBe(SILENT);
  });
});

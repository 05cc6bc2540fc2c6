// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { RunEvent } from "../../../lmnb/widgets/src/protocol";
import create from "../../../lmnb/widgets/src/run";
import { emptyRun, RunModel } from "../../../lmnb/widgets/src/run_model";
import branched from "../fixtures/run_branched.json";
import { FakeHost, frames, snapshot } from "./fake_host";

const events = structuredClone(branched.events) as RunEvent[];

function folded(list: RunEvent[]) {
  const model = new RunModel();
  for (const event of structuredClone(list)) model.apply(event);
  return model.state;
}

function open(state = emptyRun(), seq = 0, live = true) {
  const host = new FakeHost({ snapshot: snapshot("run", seq, state), alone: !live });
  const widget = create();
  widget.initialize({ model: host as never });
  const el = document.createElement("div");
  document.body.append(el);
  widget.render({ model: host as never, el });
  return { host, el };
}

const text = (el: Element, selector: string) => [...el.querySelectorAll(selector)].map((found) => found.textContent);
const click = (el: Element | null | undefined) => el?.dispatchEvent(new MouseEvent("click", { bubbles: true }));
const asked = (host: FakeHost) => host.sent.filter((message) => message.type === "ask" || message.type === "part");

describe("branches that part from inside a generation", () => {
  beforeEach(() => {
    vi.stubGlobal("requestAnimationFrame", (draw: FrameRequestCallback) => setTimeout(() => draw(0), 1) as unknown as number);
    vi.stubGlobal("cancelAnimationFrame", (id: number) => clearTimeout(id));
  });
  afterEach(() => {
    vi.unstubAllGlobals();
    document.body.replaceChildren();
  });

  it("are drawn inside a fork's lane after the run has ended", async () => {
    const gen = { type: "gen", branch: 1, var: "x", kind: "gen", constraint: null, line: null };
    const told = { type: "tokens", branch: 1, text: "ab", num_tokens: 2 };
    const ended = { type: "gen_end", branch: 1, finish_reason: "stop", matched: null, reused: 0, computed: 1, generated: 2, first_token_seconds: 0, seconds: 1 };
    const first = [
      { type: "run", run: "r", program: "p", model: "m", time: 0, cell: null },
      { type: "branch", branch: 1, parent: 0, label: "0.0", fork: 0, index: 0, time: 0, program: null, row: null, line: null },
      gen, told, ended,
      { type: "run_end", status: "done", seconds: 1, error: null },
    ];
    const { host, el } = open();
    let seq = 0;
    const tell = (...list: object[]) => host.receive({ type: "events", seq: ++seq, events: structuredClone(list) as RunEvent[] });
    tell(...first);
    await frames();
    expect(text(el, ".lmnb-lane-name")).toEqual(["branch 0.0"]);
    tell(
      { type: "resume", time: 1 },
      { type: "branch", branch: 2, parent: 1, label: "0.0~1", fork: 1, index: 0, time: 1, program: null, row: null, line: null, at: [0, 1] },
    );
    await frames();
    tell({ ...gen, branch: 2 }, { ...told, branch: 2, text: "c" }, { ...ended, branch: 2 }, { type: "run_end", status: "done", seconds: 2, error: null });
    await frames();
    expect(text(el, ".lmnb-lane-name")).toContain("branch 0.0~1");
    expect(text(el, '[data-branch="2"] .lmnb-gen')[0]).toContain("c");
  });

  it("stand beside their origin, with a mark where they part, streamed or whole", async () => {
    const whole = open(folded(events), 1).el;
    const { host, el } = open();
    for (const [place, event] of events.entries()) {
      host.receive({ type: "events", seq: place + 1, events: [structuredClone(event)] });
      if (place % 5 === 0) await frames();
    }
    await frames();
    for (const view of [whole, el]) {
      expect(text(view, ".lmnb-lane-name")).toEqual(["branch 0~1", "branch 0~2", "branch 0~2~1"]);
      expect(text(view, ".lmnb-body > .lmnb-branch > .lmnb-block .lmnb-gen")).toEqual(["↳2Oslo↳1 it is"]);
      const lane = view.querySelector('[data-branch="1"]') as HTMLElement;
      expect([...lane.querySelectorAll<HTMLElement>(".lmnb-tok")].map((tok) => [tok.textContent, tok.dataset["o"]])).toEqual([
        ["Oslo", "kept"],
        [" was", "given"],
        [" it", undefined],
      ]);
      expect(text(lane, ".lmnb-cost")).toEqual(["9 reused · 1 computed · 1 generated"]);
      expect(text(view, '[data-branch="2"] > .lmnb-lane-body > .lmnb-branch > .lmnb-hint')).toEqual(["The program had read a value before its next steps."]);
      expect(view.querySelector("script, img")).toBeNull();
    }
  });

  it("show the name of the variable that has their state, and the run as going on", async () => {
    const end = events.findIndex((event) => event.type === "run_end") + 1;
    const { host, el } = open(folded(events.slice(0, end)), 1);
    expect(el.querySelector<HTMLElement>(".lmnb-cancel")?.hidden).toBe(true);
    host.receive({ type: "events", seq: 2, events: structuredClone(events.slice(end, end + 3)) });
    host.receive({ type: "events", seq: 3, events: [{ type: "named", branch: 2, name: "s_1" }] });
    await frames();
    expect(text(el, ".lmnb-lane-name")).toEqual(["branch 0~1", "branch 0~2 = s_1"]);
    expect(el.querySelector(".lmnb-status")?.textContent).toContain("running");
    const cancel = el.querySelector<HTMLButtonElement>(".lmnb-cancel");
    expect([cancel?.hidden, cancel?.disabled, cancel?.textContent]).toEqual([false, false, "Cancel"]);
  });

  it("are asked for by a click: what else was likely, by token id, or typed text", async () => {
    const { host, el } = open(folded(events), 1);
    const place = { branch: 0, gen: 0, token: 1 };
    const token = el.querySelectorAll<HTMLElement>(".lmnb-block .lmnb-gen .lmnb-tok")[1];
    click(token);
    expect(asked(host)).toEqual([{ type: "ask", ...place }]);
    const panel = el.querySelector<HTMLElement>(".lmnb-part") as HTMLElement;
    expect(panel.hidden).toBe(false);
    host.receive({ type: "likely", ...place, token: 0, detail: ["x", -1, [["x", -1]]], ids: [9] }); // of another token
    expect(panel.querySelector(".lmnb-token")).toBeNull();
    host.receive({ type: "likely", ...place, detail: [" it", -3, [[" was", -0.1], [" <b>", -2, 1]]], ids: [7, 8] });
    expect(text(panel, ".lmnb-token")).toEqual(["✓ ␣it5.0 %", "␣was90 %", "✕ ␣<b>14 %"]);
    expect(panel.querySelectorAll("button.lmnb-token")).toHaveLength(2); // what was said is no other way
    expect([...panel.querySelectorAll<HTMLButtonElement>("button.lmnb-token")].map((one) => one.disabled)).toEqual([false, true]);
    click(panel.querySelector("button.lmnb-token"));
    expect(asked(host).at(-1)).toEqual({ type: "part", ...place, id: 7 });
    host.receive({ type: "refused", ...place, why: "the constraint does not allow it" });
    expect(text(panel, ".lmnb-refused")).toEqual(["✕ the constraint does not allow it"]);
    expect([...panel.querySelectorAll<HTMLButtonElement>("button.lmnb-token")].map((one) => one.disabled)).toEqual([false, true]);
    const input = panel.querySelector("input") as HTMLInputElement;
    const go = panel.querySelector(".lmnb-part-form button") as HTMLButtonElement;
    expect([go.textContent, go.disabled]).toEqual(["Draw again", false]);
    click(go);
    expect(asked(host).at(-1)).toEqual({ type: "part", ...place });
    host.receive({ type: "refused", ...place, why: "no" });
    input.value = " maybe";
    input.dispatchEvent(new Event("input", { bubbles: true }));
    expect(go.textContent).toBe("Branch here");
    input.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
    expect(asked(host).at(-1)).toEqual({ type: "part", ...place, text: " maybe" });
    host.receive({ type: "parted", ...place, opened: 3 });
    expect(panel.hidden).toBe(true);
    await frames();
    expect(document.activeElement?.textContent).toBe("branch 0~2~1");
  });

  it("are not offered in place of a token that a constraint forced", () => {
    const { host, el } = open(
      folded([
        { type: "run", run: "r", program: "p", model: "m", time: 0, cell: null },
        { type: "gen", branch: 0, var: "x", kind: "gen", constraint: "json_schema", line: null },
        { type: "tokens", branch: 0, text: '{"a', num_tokens: 1, parts: [[3, 1, 0.1, "forced"]] },
      ]),
      1,
    );
    const gen = el.querySelector(".lmnb-gen") as HTMLElement;
    for (const key of ["ArrowRight", "Enter"]) gen.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    expect(el.querySelector(".lmnb-strip-token")?.textContent).toContain("nothing else was possible here");
    host.receive({ type: "likely", branch: 0, gen: 0, token: 0, detail: ['{"a', -9, [["A", -1], ["I", -2]]], ids: [7, 8] });
    expect(text(el, ".lmnb-part .lmnb-token")).toEqual(['✓ {"a<0.1 %', "✕ A37 %", "✕ I14 %"]);
    expect([...el.querySelectorAll<HTMLButtonElement>("button.lmnb-token")].map((one) => one.disabled)).toEqual([true, true]);
  });

  it("are reached by keys alone, in text that was in one piece", () => {
    const end = events.findIndex((event) => event.type === "branch");
    const { host, el } = open(folded(events.slice(0, end)), 1);
    const gen = el.querySelector<HTMLElement>(".lmnb-gen") as HTMLElement;
    expect([gen.tabIndex, gen.getAttribute("aria-label")]).toEqual([0, "generated answer"]);
    expect(gen.querySelector(".lmnb-tok")).toBeNull();
    const press = (key: string, at: Element = gen) => at.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    press("ArrowRight");
    expect(asked(host)).toEqual([]);
    press("ArrowRight");
    press("Enter");
    expect(asked(host)).toEqual([{ type: "ask", branch: 0, gen: 0, token: 1 }]);
    const input = el.querySelector(".lmnb-part input") as HTMLElement;
    expect(document.activeElement).toBe(input);
    press("Escape", input);
    expect(el.querySelector<HTMLElement>(".lmnb-strip")?.hidden).toBe(true);
    expect(document.activeElement).toBe(gen);
  });

  const variant = (id: number, label: string, more: object = {}) => ({ type: "branch", branch: id, parent: 0, index: 2, fork: 3, label, program: null, row: null, at: [0, 4], ...more }) as RunEvent;
  const begun = (id: number) => ({ type: "gen", branch: id, var: "x", kind: "gen", constraint: null, line: null }) as RunEvent;

  it("fold a long text that their origin has, too, up to where they part, and never show it unfolded", async () => {
    const { host, el } = open(folded(events), 1);
    const kept = Array.from({ length: 150 }, (): [number, number, number, "kept"] => [5, 1, 0, "kept"]);
    const told = { type: "tokens", branch: 7, text: "kept ".repeat(150), num_tokens: 150, parts: kept } as RunEvent;
    host.receive({ type: "events", seq: 2, events: [{ type: "resume", time: 1 }, variant(7, "0~3"), begun(7), told] });
    await frames();
    const gen = el.querySelector('[data-branch="7"] .lmnb-gen') as HTMLElement;
    const shown = () => [...gen.querySelectorAll<HTMLElement>(".lmnb-tok")].filter((tok) => !tok.hidden).length;
    expect([gen.querySelector("button.lmnb-cut")?.textContent, shown()]).toEqual(["… 550 characters as before …", 40]);
    host.receive({ type: "events", seq: 3, events: [told, { type: "tokens", branch: 7, text: "now", num_tokens: 1, parts: [[3, 1, 0, "given"]] }] });
    await frames();
    expect([gen.querySelector("button.lmnb-cut")?.textContent, shown()]).toEqual(["… 1,300 characters as before …", 41]);
    for (const key of ["Home", "Enter"]) gen.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    expect(asked(host).at(-1)).toEqual({ type: "ask", branch: 7, gen: 0, token: 260 }); // the first that can be seen
    gen.querySelector<HTMLElement>("button.lmnb-cut")?.click();
    expect([gen.querySelector("button.lmnb-cut"), shown()]).toEqual([null, 301]);
    host.receive({ type: "events", seq: 4, events: [{ type: "tokens", branch: 7, text: "!", num_tokens: 1 }] });
    await frames();
    expect([gen.querySelector("button.lmnb-cut"), asked(host).length]).toEqual([null, 1]);
  });

  it("say what became of what, also where they failed before they said a word", async () => {
    const { host, el } = open(folded(events), 1);
    const says = (branch: number) => el.querySelector(`[data-branch="${branch}"] .lmnb-parted`)?.textContent;
    expect([says(1), says(2), says(3)]).toEqual(["␣it → ␣was", "Oslo → Bergen", expect.stringContaining("␣it → ")]);
    host.receive({
      type: "events",
      seq: 2,
      events: [
        { type: "resume", time: 1 },
        variant(7, "0~3", { given: " under the moon" }),
        variant(8, "0~4"),
        variant(9, "0~5", { at: [0, 10], given: ".\n" }),
        { type: "branch_end", branch: 7, status: "failed", error: "GrammarError: no" },
      ],
    });
    await frames();
    expect([says(7), says(8), says(9)]).toEqual(["␣it → ␣under␣the␣moon", "␣it → drawn anew", "end → .⏎"]);
    expect(el.querySelector('[data-branch="7"]')?.textContent).toContain("GrammarError: no");
  });

  it("inside a lane leave the lane's text, and the lanes beside it, where they are", async () => {
    const list = [
      { type: "run", run: "r", program: "p", model: "m", time: 0, cell: null },
      ...[1, 2].flatMap((id) => [{ type: "branch", branch: id, parent: 0, index: id - 1, fork: 0, label: `0.${id - 1}`, program: null, row: null }, begun(id), { type: "tokens", branch: id, text: "ab", num_tokens: 2, parts: [[1, 1], [1, 1]] }]),
    ] as RunEvent[];
    const { host, el } = open(folded(list), 1);
    const lane = el.querySelector('[data-branch="1"]') as HTMLElement;
    const before = lane.querySelector(".lmnb-segment")?.innerHTML.replaceAll(/<span.*?>|<\/span>/g, "");
    const room = () => [...el.querySelectorAll<HTMLElement>(".lmnb-lanes")].map((lanes) => lanes.style.getPropertyValue("--lanes"));
    host.receive({ type: "events", seq: 2, events: [variant(3, "0.0~1", { parent: 1, at: [0, 1], given: "x" }), { type: "role", branch: 1, role: "user", prefix: "" }, { type: "text", branch: 1, text: "more" }] });
    await frames();
    const branch = lane.querySelector(".lmnb-branch") as HTMLElement;
    expect([...branch.children].map((child) => child.className.split(" ")[0])).toEqual(["lmnb-segment", "lmnb-fork"]);
    expect(branch.querySelector(".lmnb-segment")?.textContent).toBe("xa↳1busermore");
    expect(before).toContain("ab");
    expect(room()).toEqual(["2", "1"]);
  });

  it("are not offered where the run is a saved one", () => {
    const host = new FakeHost({ snapshot: snapshot("run", 1, folded(events)), saved: true });
    const el = document.createElement("div");
    document.body.append(el);
    create().render({ model: host as never, el });
    const token = el.querySelector<HTMLElement>(".lmnb-gen .lmnb-tok");
    click(token);
    expect([el.querySelector<HTMLElement>(".lmnb-part")?.hidden, asked(host)]).toEqual([true, []]);
    expect(el.querySelector(".lmnb-tok-name")?.textContent).toBe("Oslo"); // and its story is told
    expect(el.querySelector(".lmnb-parts")).toBeNull();
  });

  it("that fail bring their reason into view, as long as their reader is there", async () => {
    const seen: (string | null)[] = [];
    Element.prototype.scrollIntoView = function (this: Element) {
      seen.push(this.textContent);
    };
    try {
      const { host, el } = open(folded(events), 1);
      click(el.querySelectorAll(".lmnb-block .lmnb-gen .lmnb-tok")[1]);
      host.receive({ type: "parted", branch: 0, gen: 0, token: 1, opened: 7 });
      host.receive({ type: "events", seq: 2, events: [{ type: "resume", time: 1 }, { type: "branch", branch: 7, parent: 0, index: 2, fork: 3, label: "0~3", program: null, row: null, at: [0, 4] }] });
      await frames();
      expect([document.activeElement?.textContent, seen]).toEqual(["branch 0~3", []]);
      host.receive({ type: "events", seq: 3, events: [{ type: "branch_end", branch: 7, status: "failed", error: "GrammarError: no" }] });
      await frames();
      expect(new Set(seen)).toEqual(new Set(["✕ GrammarError: no"]));
    } finally {
      Reflect.deleteProperty(Element.prototype, "scrollIntoView");
    }
  });

  it("are not offered where there is no kernel", () => {
    const { host, el } = open(folded(events), 1, false);
    click(el.querySelector(".lmnb-gen .lmnb-tok"));
    expect(el.querySelector<HTMLElement>(".lmnb-part")?.hidden).toBe(true);
    expect(el.querySelector(".lmnb-tok-name")?.textContent).toBe("Oslo");
    expect(asked(host)).toEqual([]);
  });
});

// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import create from "../../../lmnb/widgets/src/run";
import type { RunEvent } from "../../../lmnb/widgets/src/protocol";
import { emptyRun, RunModel } from "../../../lmnb/widgets/src/run_model";
import images from "../fixtures/run_images.json";
import judge from "../fixtures/run_judge.json";
import stopped from "../fixtures/run_stopped.json";
import { FakeHost, frames, snapshot } from "./fake_host";

const events = judge.events as RunEvent[];

function open(state = emptyRun(), seq = 0) {
  const host = new FakeHost({ snapshot: snapshot("run", seq, state) });
  const widget = create();
  const end = widget.initialize({ model: host });
  const el = document.createElement("div");
  document.body.append(el);
  const cleanup = widget.render({ model: host, el });
  return { host, widget, el, cleanup, end };
}

function folded(list: RunEvent[]) {
  const model = new RunModel();
  for (const event of list) model.apply(event);
  return model.state;
}

const text = (el: Element, selector: string) => [...el.querySelectorAll(selector)].map((found) => found.textContent);

function manyBranches(number: number): RunEvent[] {
  const start: RunEvent = { type: "run", run: "r", program: "p", model: "m", time: 0, cell: null };
  const opened = Array.from({ length: number }, (_, index): RunEvent => {
    return { type: "branch", branch: index + 1, parent: 0, index, fork: 0, label: `0.${index}`, program: null, row: null };
  });
  return [start, ...opened];
}

beforeEach(() => {
  document.body.replaceChildren();
});

afterEach(() => {
  vi.restoreAllMocks();
});

describe("the run view", () => {
  it("names images and videos in their places", () => {
    const { el } = open(folded(images.events as RunEvent[]), images.events.length);
    expect(text(el, ".lmnb-text")[0]).toContain("What is image 1×1 png · 0.1 kB and [video 640×480 png, 8 frames]?");
  });

  it("draws streamed deltas as it draws the finished run", async () => {
    const streamed = open();
    for (const [index, event] of events.entries()) {
      streamed.host.receive({ type: "events", seq: index + 1, events: [event] });
      if (index % 5 === 0) await frames();
    }
    await frames();
    const finished = open(folded(events), events.length);
    const transcript = (el: Element) => el.querySelector(".lmnb-body")?.innerHTML;
    expect(transcript(streamed.el)).toBe(transcript(finished.el));
    expect(text(streamed.el, ".lmnb-role")).toEqual(["system", "user", "assistant", "user", "user", "user", "assistant"]);
    expect(text(streamed.el, ".lmnb-value")).toEqual(text(finished.el, ".lmnb-value"));
    expect(streamed.host.sent).toEqual([{ type: "views", count: 1, seq: 0 }]);
  });

  it("tells a token's probability before and after the mask", async () => {
    const { el, host } = open(
      folded([
        { type: "run", run: "r", program: "p", model: "m", time: 0, cell: null },
        { type: "gen", branch: 0, var: "x", kind: "gen", constraint: "regex", line: null },
        { type: "tokens", branch: 0, text: "7", num_tokens: 1, parts: [[1, 1, 0.1, "masked", [["7", -2.3026, [], -0.1054]]]] },
      ]),
      3,
    );
    host.receive({ type: "events", seq: 4, events: [{ type: "gen_end", branch: 0, finish_reason: "stop", matched: null, reused: 0, computed: 1, generated: 1, first_token_seconds: 0.1, seconds: 0.1 }] });
    await frames();
    const colour = el.querySelector("select");
    if (!colour) throw new Error("there is no menu of colours");
    colour.value = "origin";
    colour.dispatchEvent(new Event("change"));
    await frames();
    el.querySelector(".lmnb-body .lmnb-tok")?.dispatchEvent(new MouseEvent("pointermove", { bubbles: true }));
    expect(el.querySelector(".lmnb-strip-token")?.textContent).toContain("10 % before the mask, 90 % after it");
  });

  it("says in words which constrained values are incomplete, until they are set anew", async () => {
    const list = stopped.events as RunEvent[];
    const streamed = open();
    for (const [index, event] of list.entries()) streamed.host.receive({ type: "events", seq: index + 1, events: [event] });
    await frames();
    for (const { el } of [streamed, open(folded(list), list.length)]) {
      expect(text(el, ".lmnb-note").filter((note) => note?.includes("limit"))).toEqual([" incomplete: token limit", " incomplete: token limit"]);
      expect(text(el, ".lmnb-vars th")).toEqual(["code0.0incomplete", "year0.0int"]);
    }
    const titles = [...streamed.el.querySelectorAll<HTMLElement>("ins.lmnb-gen")].map((gen) => gen.title);
    expect(titles.filter((title) => title.includes("constrained by regex (llguidance)"))).toHaveLength(2);
    const byStop = list.map((event) => (event.type === "gen_end" && event.finish_reason === "length" ? { ...event, finish_reason: "stop", matched: ",", cut: true } : event));
    const { el } = open(folded(byStop), byStop.length);
    expect(text(el, ".lmnb-note").filter((note) => note?.includes("incomplete"))).toEqual([" incomplete: stop string", " incomplete: stop string"]);
    expect(text(el, ".lmnb-vars th")).toEqual(["code0.0incomplete", "year0.0int"]);
    const plain = open(folded(events), events.length);
    expect(text(plain.el, ".lmnb-note")).toContain(" token limit");
    expect(plain.el.textContent).not.toContain("incomplete");
  });

  it("tells given, generated and chosen text apart by element and class", () => {
    const { el } = open(folded(events), 1);
    expect(text(el, "ins.lmnb-gen:not(.lmnb-chosen)")).toContain("Clear enough to be read twice.");
    expect(text(el, "ins.lmnb-chosen")).toEqual(["fair"]);
    expect(text(el, ".lmnb-choices .lmnb-picked .lmnb-token")).toEqual(["fa-0.25", "ir-0.25"]);
    expect(text(el, ".lmnb-choices thead th")).toEqual(["choice", "mean decides", "greedy"]);
    expect(text(el, ".lmnb-choices .lmnb-picked td")).toEqual(["✓ -0.250", "✓ -0.500"]);
    expect(el.querySelector<HTMLElement>(".lmnb-token")?.title).toBe("log-probability -1.500 · 22 % · 8.2 % without the prompt");
    expect(text(el, ".lmnb-warning")).toHaveLength(1);
    expect(text(el, ".lmnb-note").join("")).toContain("failed");
  });

  it("marks where a prompt differs from the last run's, and what each call cost", async () => {
    const base = events.slice(0, events.findIndex((event) => event.type === "branch"));
    const { host, el } = open(folded(base), 1);
    const item = folded(base).branches[0]?.items.findIndex((found) => found.type === "text") as number;
    const before = el.querySelector(".lmnb-body")?.textContent;
    host.receive({ type: "events", seq: 2, events: [{ type: "rerun" }, { type: "mark", branch: 0, item, at: 10, why: "It changed." }] });
    await frames();
    expect(el.querySelector(".lmnb-rerun")).not.toBeNull();
    const mark = el.querySelector<HTMLElement>(".lmnb-mark") as HTMLElement;
    expect(mark.querySelector("summary")?.title).toBe("It changed.");
    expect(mark.previousSibling?.textContent).toBe("You are a ");
    mark.remove();
    expect(el.querySelector(".lmnb-body")?.textContent).toBe(before);
    expect(text(open(folded(events), 1).el, ".lmnb-cost")[0]).toBe("40 reused · 8 computed · 6 generated");
  });

  it("marks long text where it is folded, and keeps the mark when it is opened", async () => {
    const long = `${"word ".repeat(2000)}END`;
    const state = folded([...manyBranches(0), { type: "text", branch: 0, text: long }, { type: "mark", branch: 0, item: 0, at: 5000, why: "?" }]);
    const { el } = open(state, 1);
    expect(el.querySelector(".lmnb-mark")?.nextSibling).toBe(el.querySelector("button.lmnb-cut"));
    el.querySelector<HTMLButtonElement>("button.lmnb-cut")?.click();
    const mark = el.querySelector(".lmnb-mark");
    expect(mark?.previousSibling?.textContent).toBe(long.slice(0, 5000));
    expect(mark?.nextSibling?.textContent).toBe(long.slice(5000));
  });

  it("shows orders to turn a text's direction by name, wherever text stands", async () => {
    const evil = "a\u202eb\u2066c";
    const list: RunEvent[] = [
      ...manyBranches(0),
      { type: "text", branch: 0, text: `${evil} | ` },
      { type: "text", branch: 0, text: `\n\n| x | y |\n|---|---|\n| ${evil} | 1 |\n` },
      { type: "gen", branch: 0, var: evil, kind: "gen", constraint: null, line: 1 },
      { type: "tokens", branch: 0, text: evil, num_tokens: 2, parts: [[2, 1], [3, 1]] },
    ];
    const { el, host } = open(folded(list), 1);
    host.receive({ type: "events", seq: 2, events: [{ type: "tokens", branch: 0, text: "\u202e!", num_tokens: 1 }, { type: "var", branch: 0, name: "v", value: evil, kind: "str" }] });
    await frames();
    const gen = el.querySelector<HTMLElement>(".lmnb-gen") as HTMLElement;
    expect(gen.textContent).toBe("a⟨U+202E⟩b⟨U+2066⟩c⟨U+202E⟩!");
    gen.dispatchEvent(new KeyboardEvent("keydown", { key: "End", bubbles: true }));
    expect(text(gen, ".lmnb-tok")).toEqual(["a⟨U+202E⟩", "b⟨U+2066⟩c", "⟨U+202E⟩!"]);
    expect(el.textContent?.match(/⟨U\+202E⟩b⟨U\+2066⟩/g)?.length).toBeGreaterThanOrEqual(4); // text, table, names, values
    expect(el.textContent).not.toMatch(/[\u202a-\u202e\u2066-\u2069]/);
  });

  it("folds long generated text that was not seen to come, with its tokens counted, also token by token", async () => {
    const words = Array.from({ length: 1000 }, (_, index) => `word${index % 10} `);
    const whole = words.join("");
    const begun: RunEvent[] = [...manyBranches(0), { type: "gen", branch: 0, var: "x", kind: "gen", constraint: null, line: 1 }];
    const tokens: RunEvent = { type: "tokens", branch: 0, text: whole, num_tokens: 1000, parts: words.map((word) => [word.length, 1]) };
    const ended: RunEvent = { type: "gen_end", branch: 0, finish_reason: "stop", matched: null, reused: 0, computed: 1, generated: 1000, first_token_seconds: null, seconds: 1 };
    const { el } = open(folded([...begun, tokens, ended]), 1);
    const gen = el.querySelector<HTMLElement>(".lmnb-gen") as HTMLElement;
    const shown = () => [...gen.querySelectorAll<HTMLElement>(".lmnb-tok:not([hidden])")].map((token) => token.textContent).join("");
    expect(gen.querySelector("button")?.textContent).toBe("… 734 more tokens · 4,404 characters …");
    expect(gen.textContent).toBe(`${whole.slice(0, 1200)}… 734 more tokens · 4,404 characters …${whole.slice(5604)}`);
    gen.dispatchEvent(new KeyboardEvent("keydown", { key: "End", bubbles: true })); // tokens have to be elements now
    expect(gen.querySelectorAll("button")).toHaveLength(1);
    expect(shown()).toBe(whole.slice(0, 1200) + whole.slice(5604));
    gen.querySelector("button")?.click();
    expect(shown()).toBe(whole);
    expect(gen.textContent).toBe(whole);

    const streamed = open(folded(begun), 1);
    for (const [index, event] of [tokens, ended].entries()) {
      streamed.host.receive({ type: "events", seq: index + 2, events: [event] });
      await frames();
    }
    expect(streamed.el.querySelector(".lmnb-gen")?.textContent).toBe(whole);
    streamed.host.receive({ type: "snapshot", snapshot: snapshot("run", 3, folded([...begun, tokens, ended])) });
    expect(streamed.el.querySelector(".lmnb-gen")?.textContent).toBe(whole); // drawn anew under its reader's eyes
  });

  it("asks for what the kernel kept back, and without a kernel does not", () => {
    const cut: RunEvent = { type: "text", branch: 0, text: `${"a".repeat(3000)}END`, cut: { at: 2500, missing: 9_000_000 } };
    const { el, host } = open(folded([...manyBranches(0), cut]), 1);
    const button = el.querySelector<HTMLButtonElement>("button.lmnb-cut");
    expect(button?.textContent).toBe("… 9,001,403 more characters …");
    button?.click();
    expect(host.sent.at(-1)).toEqual({ type: "whole", branch: 0, item: 0 });
    const whole = "a".repeat(5000);
    host.receive({ type: "snapshot", snapshot: snapshot("run", 2, folded([...manyBranches(0), { type: "text", branch: 0, text: whole }])) });
    expect(el.querySelector(".lmnb-text")?.textContent).toBe(whole);
    const alone = document.createElement("div");
    create().render({ model: new FakeHost({ snapshot: snapshot("run", 1, folded([...manyBranches(0), cut])), alone: true }), el: alone });
    expect(alone.querySelector<HTMLButtonElement>("button.lmnb-cut")?.disabled).toBe(true);
  });

  describe("coloured tokens", () => {
    const start = manyBranches(0);
    const gen: RunEvent = { type: "gen", branch: 0, var: "x", kind: "gen", constraint: "regex", line: 1 };
    const tokens: RunEvent = {
      type: "tokens",
      branch: 0,
      text: "Hi 👩 you",
      num_tokens: 6,
      parts: [[2, 1, 0.1, "free", [["Hi", -0.1, [["Hi", -0.1], ["Yo", -3]]]]], [1, 1, 0.11, "forced"], [0, 1, 0.2], [2, 1, 0.25], [4, 2, 0.9, "masked", [["you", -4, [["me", -0.1, 1], ["us", -9]]]]]],
    };

    function colour(el: Element, name: string) {
      const menu = el.querySelector("select") as HTMLSelectElement;
      menu.value = name;
      menu.dispatchEvent(new Event("change"));
    }

    it("stand for themselves, by origin, and stay when text streams on", async () => {
      const { host, el } = open(folded([...start, gen, tokens]), 1);
      expect(el.querySelector(".lmnb-body .lmnb-tok")).toBeNull();
      colour(el, "origin");
      expect(text(el, ".lmnb-body .lmnb-tok")).toEqual(["Hi", " ", "👩", " you"]);
      expect([...el.querySelectorAll<HTMLElement>(".lmnb-body .lmnb-tok")].map((tok) => tok.dataset["o"])).toEqual(["free", "forced", "free", "masked"]);
      const first = el.querySelector(".lmnb-body .lmnb-tok");
      host.receive({ type: "events", seq: 2, events: [{ type: "tokens", branch: 0, text: "!", num_tokens: 1, parts: [[1, 1, 1]] }] });
      await frames();
      expect(text(el, ".lmnb-gen")).toEqual(["Hi 👩 you!"]);
      expect(el.querySelector(".lmnb-body .lmnb-tok")).toBe(first);
    });

    it("tell their alternatives to pointer and keys", () => {
      const { el } = open(folded([...start, gen, tokens]), 1);
      colour(el, "probability");
      const spans = [...el.querySelectorAll<HTMLElement>(".lmnb-body .lmnb-tok")];
      expect(spans.map((tok) => tok.style.getPropertyValue("--p"))).toEqual(["0.10", "", "", "0.98"]);
      const strip = el.querySelector(".lmnb-strip-token");
      spans[3]?.dispatchEvent(new Event("pointerover", { bubbles: true })); // text that moves under a mouse at rest
      expect(strip?.textContent).toContain("Point at a token");
      spans[3]?.dispatchEvent(new Event("pointermove", { bubbles: true }));
      expect(strip?.textContent).toContain("sampled under the constraint · 2 tokens · 650 ms after the one before");
      expect(text(el, ".lmnb-strip .lmnb-token")).toEqual(["✓ you1.8 %", "✕ me90 %", "us<0.1 %"]);
      el.querySelector(".lmnb-gen")?.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft", bubbles: true }));
      expect(strip?.textContent).toContain("2 tokens · 140 ms"); // one of them had no text of its own
    });

    it("come into view when keys walk to them, Home and End too", () => {
      const { el } = open(folded([...start, gen, tokens]), 1);
      const seen: (string | null)[] = [];
      Element.prototype.scrollIntoView = function (this: Element, options) {
        seen.push(`${this.textContent} ${JSON.stringify(options)}`);
      };
      const walk = (key: string) => el.querySelector(".lmnb-gen")?.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
      try {
        for (const key of ["End", "ArrowLeft", "Home"]) walk(key);
      } finally {
        Reflect.deleteProperty(Element.prototype, "scrollIntoView");
      }
      const all = [...el.querySelectorAll(".lmnb-body .lmnb-tok")].map((tok) => tok.textContent);
      const nearest = JSON.stringify({ block: "nearest", inline: "nearest" });
      expect(seen).toEqual([all.at(-1), all.at(-2), all[0]].map((text) => `${text} ${nearest}`));
    });

    it("say so where probabilities were not asked for", () => {
      const { el } = open(folded([...start, gen, { type: "tokens", branch: 0, text: "a", num_tokens: 1 }]), 1);
      colour(el, "probability");
      expect(el.querySelector(".lmnb-strip-legend")?.textContent).toContain("--logprobs N");
    });
  });

  it("brings a table of choices into view when its reader opens it, and not when the view is drawn anew", async () => {
    const seen: string[] = [];
    Element.prototype.scrollIntoView = function (this: Element) {
      seen.push(this.className);
    };
    try {
      const { el, host } = open(folded(events), 1);
      (el.querySelector(".lmnb-choices") as HTMLDetailsElement).open = true;
      await new Promise((done) => setTimeout(done, 10)); // the toggle event comes later
      expect(seen).toEqual(["lmnb-choices"]);
      host.receive({ type: "snapshot", snapshot: snapshot("run", 2, folded(events)) });
      await new Promise((done) => setTimeout(done, 10));
      expect(el.querySelector<HTMLDetailsElement>(".lmnb-choices")?.open).toBe(true);
      expect(seen).toEqual(["lmnb-choices"]);
    } finally {
      Reflect.deleteProperty(Element.prototype, "scrollIntoView");
    }
  });

  it("says nothing of a prompt's tokens before they are counted", async () => {
    const known = events.findIndex((event) => event.type === "gen_end");
    const { el, host } = open(folded(events.slice(0, known)), 1);
    const metric = (name: string) => el.querySelector(`[data-metric="${name}"] b`)?.textContent;
    expect([metric("reused"), metric("computed")]).toEqual(["–", "–"]);
    host.receive({ type: "events", seq: 2, events: events.slice(known, known + 1) });
    await frames();
    expect([metric("reused"), metric("computed")]).not.toContain("–");
  });

  it("keeps a table of choices open when the view is drawn anew", async () => {
    const { el, host } = open(folded(events), 1);
    const table = el.querySelector<HTMLDetailsElement>(".lmnb-choices") as HTMLDetailsElement;
    table.open = true;
    await frames(); // the toggle event comes later
    await new Promise((done) => setTimeout(done, 10));
    host.receive({ type: "snapshot", snapshot: snapshot("run", 2, folded(events)) });
    expect(el.querySelector<HTMLDetailsElement>(".lmnb-choices")?.open).toBe(true);
    expect(el.querySelector(".lmnb-choices")).not.toBe(table);
  });

  it("shows hostile text as text", () => {
    const { el } = open(folded(events), 1);
    expect(el.querySelector("img, script")).toBeNull();
    expect(el.textContent).toContain("<img src=x onerror=alert(1)></script>");
    expect(el.textContent).toContain("<|im_start|>system");
  });

  it("keeps the elements that are on screen while text streams", async () => {
    const cut = events.findIndex((event) => event.type === "tokens");
    const { host, el } = open(folded(events.slice(0, cut)), cut);
    const before = [...el.querySelectorAll(".lmnb-lane, .lmnb-gen")];
    const firstText = el.querySelector(".lmnb-text")?.firstChild;
    host.receive({ type: "events", seq: cut + 1, events: events.slice(cut) });
    await frames();
    for (const element of before) expect(el.contains(element)).toBe(true);
    expect(el.querySelector(".lmnb-text")?.firstChild).toBe(firstText);
  });

  it("cancels once, and offers no cancel after the end or without a kernel", async () => {
    const { host, el } = open(folded(events.slice(0, 5)), 5);
    const button = el.querySelector<HTMLButtonElement>(".lmnb-cancel");
    expect(button?.hidden).toBe(false);
    button?.click();
    button?.click();
    expect(host.sent.filter((message) => message.type === "cancel")).toHaveLength(1);
    host.receive({ type: "events", seq: 6, events: [{ type: "run_end", status: "cancelled", seconds: 1, error: null }] });
    await frames();
    expect(button?.hidden).toBe(true);
    expect(el.querySelector("[role=status]")?.textContent).toContain("stopped · 1.00 s");

    const page = new FakeHost({ snapshot: snapshot("run", 1, folded(events.slice(0, 5))), alone: true });
    const alone = document.createElement("div");
    create().render({ model: page, el: alone });
    expect(alone.querySelector<HTMLButtonElement>(".lmnb-cancel")?.hidden).toBe(true);
  });

  it("shows 256 branches as lines, more of them on request, in every view", () => {
    const { el, widget, host } = open(folded(manyBranches(256)), 1);
    expect(el.querySelectorAll(".lmnb-lines > .lmnb-lane")).toHaveLength(64);
    expect(el.querySelector<HTMLElement>(".lmnb-lane-body")?.hidden).toBe(true);
    const more = el.querySelector<HTMLButtonElement>("button.lmnb-more");
    expect(more?.textContent).toBe("Show 192 more of 192");
    more?.click();
    expect(el.querySelectorAll(".lmnb-lane")).toHaveLength(256);
    const second = document.createElement("div");
    widget.render({ model: host, el: second });
    expect(second.querySelectorAll(".lmnb-lane")).toHaveLength(256);
  });

  it("draws lanes also where the host attaches the element later", () => {
    const host = new FakeHost({ snapshot: snapshot("run", 1, folded(events)) });
    const el = document.createElement("div");
    create().render({ model: host, el });
    expect(text(el, ".lmnb-lane .lmnb-gen")).toContain("Clear enough to be read twice.");
    expect(text(el, ".lmnb-lane .lmnb-sign").every((sign) => sign !== "")).toBe(true);
  });

  it("searches and sorts branches, opens one, and leaves the others where they are", async () => {
    const said = Array.from({ length: 20 }, (_, index): RunEvent[] => [
      { type: "gen", branch: index + 1, var: "x", kind: "gen", constraint: null, line: 1 },
      { type: "tokens", branch: index + 1, text: index === 7 ? "the Needle" : `hay ${index}`, num_tokens: 20 - index },
    ]).flat();
    const { el, host } = open(folded([...manyBranches(20), ...said]), 1);
    const names = () => text(el, ".lmnb-lane-name");
    expect(text(el, ".lmnb-preview")[7]).toBe("the Needle");
    const sort = el.querySelector<HTMLSelectElement>("select[aria-label='Order of branches']") as HTMLSelectElement;
    sort.value = "shortest";
    sort.dispatchEvent(new Event("change"));
    expect(names()[0]).toBe("branch 0.19");
    host.receive({ type: "events", seq: 2, events: [{ type: "tokens", branch: 20, text: " more", num_tokens: 99 }] });
    await frames();
    expect(names()[0]).toBe("branch 0.19"); // nothing jumps while text streams
    expect(text(el, ".lmnb-preview")[0]).toBe("hay 19 more");
    host.receive({ type: "events", seq: 3, events: [{ type: "run_end", status: "done", seconds: 1, error: null }] });
    await frames();
    expect(names()[0]).toBe("branch 0.18");

    const search = el.querySelector<HTMLInputElement>("input[type=search]") as HTMLInputElement;
    search.value = "needle";
    search.dispatchEvent(new Event("input"));
    expect(names()).toEqual(["branch 0.7"]);
    expect(el.querySelector(".lmnb-fork-head")?.textContent).toContain("20 branches · 1 found");
    const name = el.querySelector<HTMLButtonElement>(".lmnb-lane-name");
    name?.click();
    expect(name?.getAttribute("aria-expanded")).toBe("true");
    expect(text(el, ".lmnb-lane .lmnb-gen")).toEqual(["the Needle"]);
  });

  it("orders branches by a score that they have: likelihood, a select's, a number that they set", async () => {
    const logprobs = [-1, -0.25, -3];
    const { el, host } = open(folded(manyBranches(20)), 1);
    const sort = el.querySelector<HTMLSelectElement>("select[aria-label='Order of branches']") as HTMLSelectElement;
    const options = () => [...sort.options].map((option) => option.value);
    expect(options()).toEqual(["in order", "longest", "shortest", "unfinished first"]);
    const said = logprobs.flatMap((logprob, index): RunEvent[] => [
      { type: "gen", branch: index + 1, var: "x", kind: "gen", constraint: null, line: 1 },
      { type: "tokens", branch: index + 1, text: "ab", num_tokens: 2, parts: [[1, 1, 0, "free", [["a", logprob, []]]], [1, 1, 0, "free", [["b", logprob, []]]]] },
      { type: "gen", branch: index + 1, var: "y", kind: "select", constraint: null, line: 1 },
      { type: "choice", branch: index + 1, text: "no", choices: ["yes", "no"], scores: [-9, 2 * index], method: "m" },
      { type: "var", branch: index + 1, name: "grade", value: String(5 - index), kind: "int" },
      { type: "var", branch: index + 1, name: "why", value: "7 of 10" },
    ]);
    host.receive({ type: "events", seq: 2, events: said });
    await frames();
    expect(options().slice(4)).toEqual(["mean log-probability", "select score", "value of grade"]);
    const by = (name: string) => {
      sort.value = name;
      sort.dispatchEvent(new Event("change"));
      return text(el, ".lmnb-lane-name").slice(0, 4).map((one) => one?.replace("branch 0.", ""));
    };
    expect(by("mean log-probability")).toEqual(["1", "0", "2", "3"]); // those without a score keep their order, last
    expect(text(el, ".lmnb-score").slice(0, 4)).toEqual(["−0.25 logprob", "−1.00 logprob", "−3.00 logprob", ""]);
    expect(by("select score")).toEqual(["2", "1", "0", "3"]);
    expect(by("value of grade")).toEqual(["0", "1", "2", "3"]);
    expect(text(el, ".lmnb-score")[0]).toBe("grade 5");
    expect(by("in order")).toEqual(["0", "1", "2", "3"]);
    expect(text(el, ".lmnb-score")[0]).toBe("");
  });

  it("offers to order a few lanes by score once nothing streams", async () => {
    const graded = (branch: number): RunEvent => ({ type: "var", branch, name: "grade", value: String(branch), kind: "int" });
    const { el, host } = open(folded([...manyBranches(3), graded(1), graded(2)]), 1);
    const tools = el.querySelector<HTMLElement>(".lmnb-fork-tools") as HTMLElement;
    expect(tools.hidden).toBe(true);
    host.receive({ type: "events", seq: 2, events: [{ type: "run_end", status: "done", seconds: 1, error: null }] });
    await frames();
    expect([tools.hidden, tools.querySelector<HTMLElement>("input")?.hidden]).toEqual([false, true]);
    const sort = tools.querySelector("select") as HTMLSelectElement;
    sort.value = "value of grade";
    sort.dispatchEvent(new Event("change"));
    expect(text(el, ".lmnb-lane-name")).toEqual(["branch 0.1", "branch 0.0", "branch 0.2"]);
    host.receive({ type: "events", seq: 3, events: [{ type: "resume", time: 1 }] });
    await frames();
    expect(tools.hidden).toBe(false);
  });

  it("keeps the widths and the form of lanes while one of them streams", async () => {
    const now = vi.spyOn(performance, "now").mockReturnValue(0);
    const { el, host } = open(folded(manyBranches(2)), 1);
    const lanes = el.querySelector<HTMLElement>(".lmnb-lanes") as HTMLElement;
    const form = () => [lanes.style.getPropertyValue("--lanes"), lanes.classList.contains("lmnb-lines"), lanes.childElementCount];
    expect(form()).toEqual(["2", false, 2]);
    let seq = 1;
    const tell = async (...list: RunEvent[]) => {
      host.receive({ type: "events", seq: ++seq, events: list });
      await frames();
    };
    const more = (from: number, to: number) => manyBranches(to).filter((event) => event.type === "branch" && event.branch > from);
    await tell({ type: "text", branch: 1, text: "Once" }, ...more(2, 3)); // in the burst in which a fork opens
    expect(form()).toEqual(["3", false, 3]);
    now.mockReturnValue(1000);
    await tell(...more(3, 14));
    expect(form()).toEqual(["3", false, 12]);
    expect(el.querySelector<HTMLElement>(".lmnb-more")?.textContent).toBe("Show 2 more of 2");
    await tell({ type: "branch_end", branch: 1, status: "done", error: null }, ...more(14, 15)); // none that is shown streams
    expect(form()).toEqual(["12", true, 15]);
    now.mockRestore();
  });

  it("folds long given text and opens it on request", () => {
    const long = `${"word ".repeat(2000)}END`;
    const { el } = open(folded([...manyBranches(0), { type: "text", branch: 0, text: long }]), 1);
    const place = el.querySelector(".lmnb-text") as HTMLElement;
    expect(place.textContent?.length).toBeLessThan(2000);
    expect(place.textContent).toContain("more characters");
    place.querySelector<HTMLButtonElement>("button.lmnb-cut")?.click();
    expect(place.textContent).toBe(long);
  });

  it("shows the template's text only on request", () => {
    const { el } = open(folded(events), 1);
    const root = el.querySelector(".lmnb-run");
    const toggle = el.querySelector<HTMLButtonElement>(".lmnb-toggle");
    expect(root?.classList.contains("lmnb-show-template")).toBe(false);
    toggle?.click();
    expect(root?.classList.contains("lmnb-show-template")).toBe(true);
    expect(toggle?.getAttribute("aria-pressed")).toBe("true");
    expect(text(el, ".lmnb-template")[0]).toBe("<|im_start|>system\n");
  });

  it("follows the end only while its reader is there", async () => {
    const { host, el } = open(folded(events.slice(0, 6)), 6);
    const body = el.querySelector(".lmnb-body") as HTMLElement;
    let height = 1000;
    Object.defineProperties(body, {
      scrollHeight: { get: () => height },
      clientHeight: { get: () => 400 },
    });
    const grow = async (seq: number) => {
      host.receive({ type: "events", seq, events: [{ type: "text", branch: 0, text: "more\n" }] });
      height += 100;
      await frames();
    };
    body.scrollTop = 100; // reading further up
    await grow(7);
    expect(body.scrollTop).toBe(100);
    body.scrollTop = height - 400;
    height -= 100; // `before` measures the old height
    await grow(8);
    expect(body.scrollTop).toBe(height);
  });

  it("follows many branches no further than to their tools", async () => {
    const { host, el } = open(folded(manyBranches(64).slice(0, 1)), 1);
    const body = el.querySelector(".lmnb-body") as HTMLElement;
    let height = 400;
    Object.defineProperties(body, { scrollHeight: { get: () => height }, clientHeight: { get: () => 400 } });
    vi.spyOn(Element.prototype, "getBoundingClientRect").mockImplementation(function (this: Element) {
      return { top: this.matches(".lmnb-fork") ? 150 - body.scrollTop : 0 } as DOMRect;
    });
    const grow = async (seq: number, list: RunEvent[]) => {
      host.receive({ type: "events", seq, events: list });
      await frames();
    };
    await grow(2, manyBranches(64).slice(1));
    height = 2000;
    body.scrollTop = 1600; // at the end
    await grow(3, [{ type: "text", branch: 8, text: "more" }]);
    expect(body.scrollTop).toBe(150);
    await grow(4, [{ type: "text", branch: 9, text: "more" }]);
    expect(body.scrollTop).toBe(150);
    await grow(5, [{ type: "text", branch: 0, text: "and after them" }]);
    expect(body.scrollTop).toBe(2000); // which is the end, as far as a browser goes
  });

  it("recovers from a lost message by a snapshot", async () => {
    const { host, el } = open();
    host.receive({ type: "events", seq: 1, events: events.slice(0, 4) });
    host.receive({ type: "events", seq: 3, events: events.slice(10, 12) });
    expect(host.sent).toContainEqual({ type: "resync" });
    host.receive({ type: "snapshot", snapshot: snapshot("run", 3, folded(events)) });
    await frames();
    expect(text(el, "ins.lmnb-chosen")).toEqual(["fair"]);
  });

  it("leaves no element, listener or frame behind", async () => {
    const { host, el, cleanup, end } = open(folded(events.slice(0, 20)), 1);
    host.receive({ type: "events", seq: 2, events: events.slice(20, 22) });
    cleanup();
    expect(el.childElementCount).toBe(0);
    await frames();
    expect(host.sent.at(-1)).toEqual({ type: "views", count: 0 });
    end();
    expect(host.numListeners).toBe(0);
  });

  it("cleans up by the signal of newer hosts", () => {
    const host = new FakeHost({ snapshot: snapshot("run", 1, folded(events)) });
    const abort = new AbortController();
    const el = document.createElement("div");
    create().render({ model: host, el, signal: abort.signal });
    abort.abort();
    expect(el.childElementCount).toBe(0);
  });
});

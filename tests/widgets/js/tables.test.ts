// @vitest-environment jsdom
import { describe, expect, it } from "vitest";
import type { RunEvent } from "../../../lmnb/widgets/src/protocol";
import create from "../../../lmnb/widgets/src/run";
import { emptyRun, RunModel } from "../../../lmnb/widgets/src/run_model";
import { findTables, type Table } from "../../../lmnb/widgets/src/tables";
import fixture from "../fixtures/tables.json";
import { FakeHost, frames, snapshot } from "./fake_host";

const PNG = "data:image/png;base64,iVBORw0KGgo=";
const start: RunEvent = { type: "run", run: "r", program: "p", model: "m", time: 0, cell: null };

function open(events: RunEvent[]) {
  const model = new RunModel(emptyRun());
  for (const event of [start, ...events]) model.apply(event);
  const host = new FakeHost({ snapshot: snapshot("run", 1, model.state), _esm: "…" });
  const el = document.createElement("div");
  document.body.append(el);
  create().render({ model: host as never, el });
  return { host, el };
}

describe("tables", () => {
  for (const { text, tables } of fixture as { text: string; tables: Table[] }[]) {
    it(`are what Python finds in ${JSON.stringify(text.slice(0, 30))}`, () => expect(findTables(text)).toEqual(tables));
  }

  it("stand in given text, and in generated text once it is complete", async () => {
    const text = "City and size:\na | b\n--- | ---\n<b>x</b> | 2\nThat is all.";
    const gen: RunEvent = { type: "gen", branch: 0, var: "x", kind: "gen", constraint: null, line: null };
    const { el, host } = open([{ type: "text", branch: 0, text }, gen, { type: "tokens", branch: 0, text, num_tokens: 3 }]);
    expect(el.querySelectorAll(".lmnb-text > span > table")).toHaveLength(1);
    expect([...el.querySelectorAll("td")].map((cell) => cell.textContent)).toEqual(["<b>x</b>", "2"]);
    expect(el.querySelector(".lmnb-gen table")).toBeNull();
    host.receive({ type: "events", seq: 2, events: [{ type: "gen_end", branch: 0, finish_reason: "stop", matched: null, reused: 0, computed: 1, generated: 3, first_token_seconds: 0, seconds: 1 }] });
    await frames();
    expect(el.querySelectorAll(".lmnb-gen table")).toHaveLength(1);
    expect(el.querySelector(".lmnb-gen")?.textContent).toContain("That is all.");
    expect(el.querySelector("td b")).toBeNull();
    const tab = el.querySelector<HTMLElement>(".lmnb-gen");
    tab?.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
    expect(tab?.textContent).toBe(text); // token by token it is the text that was generated
    expect(el.querySelector(".lmnb-gen table, .lmnb-gen ~ table")).toBeNull();
  });

  it("do not hide text that is added behind them", async () => {
    const { el, host } = open([{ type: "text", branch: 0, text: "a | b\n--- | ---\n1 | 2\n" }]);
    host.receive({ type: "events", seq: 2, events: [{ type: "text", branch: 0, text: "and more" }] });
    await frames();
    expect(el.querySelectorAll("table.lmnb-table")).toHaveLength(1);
    expect(el.querySelector(".lmnb-text")?.textContent).toContain("and more");
  });
});

describe("images", () => {
  const image: RunEvent = { type: "image", branch: 0, text: "<image>", mime: "image/png", width: 640, height: 480, num_bytes: 34000, digest: "a", preview: PNG };

  it("are thumbnails with words for them", () => {
    const { el } = open([image]);
    const img = el.querySelector("img") as HTMLImageElement;
    expect([img.getAttribute("src"), img.alt]).toEqual([PNG, "image 640×480 png"]);
    expect(el.querySelector("figcaption")?.textContent).toBe("image 640×480 png · 34 kB");
  });

  for (const preview of ["https://example.org/x.png", "data:image/svg+xml;base64,PHN2Zz4=", "javascript:alert(1)", ""]) {
    it(`are words where the preview is ${preview || "missing"}`, () => {
      const { el } = open([{ ...image, preview }]);
      expect(el.querySelector("img")).toBeNull();
      expect(el.querySelector(".lmnb-text")?.textContent).toBe("[image 640×480 png]");
    });
  }
});

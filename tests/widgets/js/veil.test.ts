// @vitest-environment jsdom
import { afterEach, describe, expect, it } from "vitest";
import createRun from "../../../lmnb/widgets/src/run";
import { RunModel } from "../../../lmnb/widgets/src/run_model";
import createTree from "../../../lmnb/widgets/src/tree";
import { FakeHost, snapshot } from "./fake_host";

const run = () => snapshot("run", 1, new RunModel().state);
const tree = () => snapshot("cache", 1, { base: [], base_seq: -1, events: [] }, { pool_tokens: 1, free_tokens: 1, cached_tokens: 0, running: 0, waiting: 0, held: [] });
const views = [["run", createRun, run], ["tree", createTree, tree]] as const;

/** The pictures that something in the page hides. */
const hidden = () => [...document.querySelectorAll("style")].map((style) => style.textContent?.match(/^\.[\w-]+/)?.[0]);

function draw(create: typeof createRun | typeof createTree, state: Record<string, unknown>) {
  const widget = create();
  const host = new FakeHost(state);
  widget.initialize({ model: host as never });
  const el = document.createElement("div");
  document.body.append(el);
  return { el, cleanup: widget.render({ model: host as never, el }) };
}

describe.each(views)("the picture of a %s", (_name, create, state) => {
  afterEach(() => document.body.replaceChildren());

  it("is hidden as long as its live view is in the page, and no longer", () => {
    const { el, cleanup } = draw(create, { snapshot: state(), picture: "lmnb-still-a" });
    expect(hidden()).toEqual([".lmnb-still-a"]);
    el.remove(); // as hosts do that take a view away
    expect(hidden()).toEqual([]);
    document.body.append(el);
    cleanup();
    expect(hidden()).toEqual([]);
  });

  it("is nobody's in a page that stands alone", () => {
    draw(create, { snapshot: state(), alone: true });
    expect(hidden()).toEqual([]);
  });
});

import { describe, expect, it } from "vitest";
import type { RunEvent } from "../../../lmnb/widgets/src/protocol";
import branched from "../fixtures/run_branched.json";
import judge from "../fixtures/run_judge.json";
import images from "../fixtures/run_images.json";
import stopped from "../fixtures/run_stopped.json";
import { emptyRun, RunModel, type RunState, tokensPerSecond } from "../../../lmnb/widgets/src/run_model";

interface Fixture {
  events: RunEvent[];
  model: RunState;
}

const FIXTURES = { branched, images, judge, stopped } as unknown as Record<string, Fixture>;
// Models share arrays with the events they fold: each test gets its own.
const load = (name: string) => structuredClone(FIXTURES[name] as Fixture);

describe("the run reducer", () => {
  for (const name of Object.keys(FIXTURES)) {
    it(`makes of ${name} what the Python reducer makes`, () => {
      const { events, model } = load(name);
      const reducer = new RunModel();
      for (const event of events) reducer.apply(event);
      expect(reducer.state).toEqual(model);
    });

    it(`can start from a snapshot anywhere in ${name}`, () => {
      const { events, model } = load(name);
      for (let cut = 1; cut < events.length; cut += 3) {
        const first = new RunModel();
        for (const event of events.slice(0, cut)) first.apply(event);
        const second = new RunModel(JSON.parse(JSON.stringify(first.state)) as RunState);
        for (const event of events.slice(cut)) second.apply(event);
        expect(second.state).toEqual(model);
      }
    });
  }

  it("refuses an event of a branch that was never opened", () => {
    expect(() => new RunModel().apply({ type: "text", branch: 3, text: "x" })).toThrow("branch 3");
  });

  it("counts neither parallel time twice nor pauses into the speed", () => {
    expect(tokensPerSecond({ ...emptyRun(), generated: 100, gen_seconds: 8, seconds: 2 })).toBe(50);
    expect(tokensPerSecond({ ...emptyRun(), generated: 100, gen_seconds: 2, seconds: 60 })).toBe(50);
    expect(tokensPerSecond(emptyRun())).toBeNull();
  });
});

import { afterEach, describe, expect, it, vi } from "vitest";
import { Connection, type Reducer } from "../../../lmnb/widgets/src/connection";
import type { RunEvent } from "../../../lmnb/widgets/src/protocol";
import { FakeHost, snapshot } from "./fake_host";

class Words implements Reducer<string[], RunEvent> {
  words: string[] = [];
  reset(model: string[]): void {
    this.words = [...model];
  }
  apply(events: RunEvent[]): void {
    for (const event of events) {
      if (event.type !== "text") throw new Error("unfit");
      this.words.push(event.text);
    }
  }
}

const text = (word: string): RunEvent => ({ type: "text", branch: 0, text: word });

function connect(seq: number, words: string[]) {
  const host = new FakeHost({ snapshot: snapshot("run", seq, words) });
  const reducer = new Words();
  return { host, reducer, connection: new Connection(host, reducer) };
}

afterEach(() => {
  vi.useRealTimers();
});

describe("a connection", () => {
  it("applies deltas in order and ignores those the snapshot holds", () => {
    const { host, reducer } = connect(2, ["a", "b"]);
    host.receive({ type: "events", seq: 2, events: [text("b")] });
    host.receive({ type: "events", seq: 3, events: [text("c"), text("d")] });
    host.receive({ type: "events", seq: 4, events: [text("e")] });
    host.receive({ type: "events", seq: 4, events: [text("e")] });
    expect(reducer.words).toEqual(["a", "b", "c", "d", "e"]);
    expect(host.sent).toEqual([]);
  });

  it("asks once for a snapshot when a delta is missing, and goes on from it", () => {
    const { host, reducer } = connect(0, []);
    host.receive({ type: "events", seq: 2, events: [text("lost")] });
    host.receive({ type: "events", seq: 3, events: [text("lost")] });
    expect(host.sent).toEqual([{ type: "resync" }]);
    expect(reducer.words).toEqual([]);
    host.receive({ type: "snapshot", snapshot: snapshot("run", 3, ["a", "b", "c"]) });
    host.receive({ type: "events", seq: 4, events: [text("d")] });
    expect(reducer.words).toEqual(["a", "b", "c", "d"]);
  });

  it("asks again if no answer comes", () => {
    vi.useFakeTimers();
    const { host } = connect(0, []);
    host.receive({ type: "events", seq: 5, events: [] });
    vi.advanceTimersByTime(1500);
    host.receive({ type: "events", seq: 6, events: [] });
    expect(host.sent).toEqual([{ type: "resync" }, { type: "resync" }]);
  });

  it("asks for a snapshot when a delta does not fit", () => {
    const warn = vi.spyOn(console, "warn").mockImplementation(() => undefined);
    const { host, connection } = connect(0, []);
    host.receive({ type: "events", seq: 1, events: [{ type: "role_end", branch: 0, suffix: "" }] });
    expect(host.sent).toEqual([{ type: "resync" }]);
    expect(connection.seq).toBe(0);
    warn.mockRestore();
  });

  it("takes saved state only if it is newer", () => {
    const { host, reducer } = connect(5, ["new"]);
    host.set("snapshot", snapshot("run", 4, ["old"]));
    expect(reducer.words).toEqual(["new"]);
    host.set("snapshot", snapshot("run", 6, ["newer"]));
    expect(reducer.words).toEqual(["newer"]);
  });

  it("tells the kernel how many look, and leaves no listener behind", () => {
    const { host, connection } = connect(0, []);
    const changes: string[] = [];
    const first = connection.subscribe((change) => changes.push(change));
    const second = connection.subscribe(() => undefined);
    host.receive({ type: "events", seq: 1, events: [text("a")] });
    first();
    first();
    second();
    expect(host.sent.map((message) => (message.type === "views" ? message.count : -1))).toEqual([1, 2, 1, 0]);
    expect(changes).toEqual(["events"]);
    connection.close();
    expect(host.numListeners).toBe(0);
  });
});

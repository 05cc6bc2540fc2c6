// One widget's state in the front end: a snapshot and the numbered deltas after it. A missing number, or a delta
// that does not fit, asks the kernel for a new snapshot. Views subscribe here; it draws nothing.

import type { HostModel, KernelMessage, Pool, Snapshot, ViewMessage } from "./protocol";

/** What a connection keeps up to date: made from a snapshot, grown by events. */
export interface Reducer<S, E> {
  reset(model: S, pool: Pool | undefined): void;
  apply(events: E[], pool: Pool | undefined): void;
}

export type Change = "reset" | "events";

const RESYNC_AFTER = 1000; // milliseconds without an answer before asking again

export class Connection<S, E> {
  seq = 0;
  private listeners = new Set<(change: Change) => void>();
  private waiting = false; // for a snapshot
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly onMessage = (message: KernelMessage<E>) => this.receive(message);
  private readonly onSnapshot = () => this.load(String(this.model.get("snapshot") ?? ""), false);

  constructor(
    private readonly model: HostModel,
    private readonly reducer: Reducer<S, E>,
  ) {
    model.on("msg:custom", this.onMessage);
    model.on("change:snapshot", this.onSnapshot);
    this.load(String(model.get("snapshot") ?? ""), true);
  }

  subscribe(listener: (change: Change) => void): () => void {
    this.listeners.add(listener);
    this.post({ type: "views", count: this.listeners.size });
    return () => {
      if (this.listeners.delete(listener)) this.post({ type: "views", count: this.listeners.size });
    };
  }

  post(message: ViewMessage): void {
    this.model.send(message);
  }

  close(): void {
    this.model.off("msg:custom", this.onMessage);
    this.model.off("change:snapshot", this.onSnapshot);
    clearTimeout(this.timer);
    this.listeners.clear();
  }

  private receive(message: KernelMessage<E>): void {
    if (message.type === "snapshot") {
      this.load(message.snapshot, true);
    } else if (message.type === "events" && message.seq > this.seq) {
      if (message.seq !== this.seq + 1) return this.resync();
      try {
        this.reducer.apply(message.events, message.pool);
      } catch (error) {
        console.warn("lmnb: asking for a snapshot after", error);
        return this.resync();
      }
      this.seq = message.seq;
      this.emit("events");
    }
  }

  /** Take a snapshot. One that was asked for always counts; saved state counts only if it is newer. */
  private load(text: string, always: boolean): void {
    if (!text) return;
    const snapshot = JSON.parse(text) as Snapshot<S>;
    if (!always && snapshot.seq <= this.seq) return;
    this.waiting = false;
    clearTimeout(this.timer);
    this.seq = snapshot.seq;
    this.reducer.reset(snapshot.model, snapshot.pool);
    this.emit("reset");
  }

  private resync(): void {
    if (this.waiting) return;
    this.waiting = true;
    this.post({ type: "resync" });
    this.timer = setTimeout(() => {
      this.waiting = false;
    }, RESYNC_AFTER);
  }

  private emit(change: Change): void {
    for (const listener of [...this.listeners]) listener(change);
  }
}

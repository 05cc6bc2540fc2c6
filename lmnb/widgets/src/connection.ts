// One widget's state in the front end: a snapshot and the numbered deltas after it. A missing number, or a delta
// that does not fit, asks the kernel for a new snapshot. Views subscribe here; it draws nothing.

import type { HostModel, KernelMessage, Pool, Reply, Snapshot, ViewMessage } from "./protocol";

/** What a connection keeps up to date: made from a snapshot, grown by events. */
export interface Reducer<S, E> {
  reset(model: S, pool: Pool | undefined): void;
  apply(events: E[], pool: Pool | undefined): void;
  /** The kernel has something to say to whoever looks. */
  notice?(text: string): void;
}

export type Change = "reset" | "events";

const RESYNC_AFTER = 1000; // milliseconds without an answer before asking again

export class Connection<S, E> {
  seq = 0;
  readonly replies = new Set<(reply: Reply) => void>(); // views that asked something
  private _listeners = new Set<(change: Change) => void>();
  private _waiting = false; // for a snapshot
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private readonly _onMessage = (message: KernelMessage<E>) => this._receive(message);
  private readonly _onSnapshot = () => this._load(String(this._model.get("snapshot") ?? ""), false);

  constructor(
    private readonly _model: HostModel,
    private readonly _reducer: Reducer<S, E>,
  ) {
    _model.on("msg:custom", this._onMessage);
    _model.on("change:snapshot", this._onSnapshot);
    this._load(String(_model.get("snapshot") ?? ""), true);
  }

  subscribe(listener: (change: Change) => void): () => void {
    this._listeners.add(listener);
    this.post({ type: "views", count: this._listeners.size, seq: this.seq }); // messages may have come before there was a page
    return () => {
      if (this._listeners.delete(listener)) this.post({ type: "views", count: this._listeners.size });
    };
  }

  post(message: ViewMessage): void {
    this._model.send(message);
  }

  close(): void {
    this._model.off("msg:custom", this._onMessage);
    this._model.off("change:snapshot", this._onSnapshot);
    clearTimeout(this._timer);
    this._listeners.clear();
  }

  private _receive(message: KernelMessage<E>): void {
    if (message.type === "snapshot") {
      this._load(message.snapshot, true);
    } else if (message.type === "notice") {
      this._reducer.notice?.(message.text);
      this._emit("events");
    } else if (message.type === "likely" || message.type === "parted" || message.type === "refused") {
      for (const take of this.replies) take(message);
    } else if (message.type === "events" && message.seq > this.seq) {
      if (message.seq !== this.seq + 1) return this._resync();
      try {
        this._reducer.apply(message.events, message.pool);
      } catch (error) {
        console.warn("lmnb: asking for a snapshot after", error);
        return this._resync();
      }
      this.seq = message.seq;
      this._emit("events");
    }
  }

  /** Take a snapshot. One that was asked for always counts; saved state counts only if it is newer. */
  private _load(text: string, always: boolean): void {
    if (!text) return;
    const snapshot = JSON.parse(text) as Snapshot<S>;
    if (!always && snapshot.seq <= this.seq) return;
    this._waiting = false;
    clearTimeout(this._timer);
    this.seq = snapshot.seq;
    this._reducer.reset(snapshot.model, snapshot.pool);
    this._emit("reset");
  }

  private _resync(): void {
    if (this._waiting) return;
    this._waiting = true;
    this.post({ type: "resync" });
    this._timer = setTimeout(() => {
      this._waiting = false;
    }, RESYNC_AFTER);
  }

  private _emit(change: Change): void {
    for (const listener of [...this._listeners]) listener(change);
  }
}

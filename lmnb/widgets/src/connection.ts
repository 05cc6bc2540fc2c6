// One widget's state in the front end: a snapshot and the numbered deltas after it. A missing number, or a delta
// that does not fit, asks the kernel for a new snapshot. Views subscribe here; it draws nothing.

import { watchKernel } from "./kernel";
import type { HostModel, KernelMessage, Parting, Pool, Reply, Snapshot, ViewMessage } from "./protocol";

/** What a connection keeps up to date: made from a snapshot, grown by events. */
export interface Reducer<S, E> {
  reset(model: S, pool: Pool | undefined): void;
  apply(events: E[], pool: Pool | undefined): void;
  /** The kernel has something to say to whoever looks. */
  notice?(text: string): void;
  /** The kernel is gone: what went on in it does so no longer. */
  lost?(): void;
}

export type Change = "reset" | "events";

const RESYNC_AFTER = 1000; // milliseconds without an answer before asking again
const ANSWER_WITHIN = 20_000; // milliseconds; a kernel that computes may be slow to answer
export const GONE = "The kernel is gone (restarted or shut down): run the cell again.";
export const SILENT = "The kernel has not answered: it may be busy. Try again, or restart it.";

interface Request {
  message: ViewMessage;
  unanswered: (why: string) => void;
  timer: ReturnType<typeof setTimeout>;
}

export class Connection<S, E> {
  seq = 0;
  readonly replies = new Set<(reply: Reply) => void>(); // views that asked something
  private _listeners = new Set<(change: Change) => void>();
  private _lost = false;
  private readonly _requests = new Set<Request>();
  private readonly _unwatch: () => void;
  private _waiting = false; // for a snapshot
  private _timer: ReturnType<typeof setTimeout> | undefined;
  private readonly _onMessage = (message: KernelMessage<E>) => this._receive(message);
  private readonly _onSnapshot = () => this._load(String(this._model.get("snapshot") ?? ""), false);

  constructor(
    private readonly _model: HostModel,
    private readonly _reducer: Reducer<S, E>,
  ) {
    this._unwatch = watchKernel(_model, () => this._lose());
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

  /** Whether there is no kernel any more. */
  get lost(): boolean {
    return this._lost;
  }

  post(message: ViewMessage): void {
    if (this._lost) return;
    try {
      this._model.send(message);
    } catch {
      this._lose(); // hosts throw where the other end is closed
    }
  }

  /** Send what is to be answered; `unanswered` is told why if it is not. */
  request(message: ViewMessage, unanswered: (why: string) => void): void {
    const request: Request = { message, unanswered, timer: setTimeout(() => this._requests.delete(request) && unanswered(SILENT), ANSWER_WITHIN) };
    this._requests.add(request);
    if (this._lost) this._refuseAll();
    else this.post(message);
  }

  close(): void {
    this._model.off("msg:custom", this._onMessage);
    this._model.off("change:snapshot", this._onSnapshot);
    this._unwatch();
    clearTimeout(this._timer);
    for (const { timer } of this._requests) clearTimeout(timer);
    this._requests.clear();
    this._listeners.clear();
  }

  private _lose(): void {
    if (this._lost) return;
    this._lost = true;
    this._reducer.lost?.();
    this._refuseAll();
    this._emit("events");
  }

  private _refuseAll(): void {
    for (const request of [...this._requests]) {
      clearTimeout(request.timer);
      this._requests.delete(request);
      request.unanswered(GONE);
    }
  }

  private _answered(message: Reply | { type: "notice" }): void {
    for (const request of this._requests) {
      if (!answers(message, request.message)) continue;
      clearTimeout(request.timer);
      this._requests.delete(request);
    }
  }

  private _receive(message: KernelMessage<E>): void {
    if (this._lost && message.type !== "snapshot") {
      this._lost = false; // it is there after all
      return this._resync();
    }
    this._lost = false;
    if (message.type === "snapshot") {
      this._load(message.snapshot, true);
    } else if (message.type === "notice") {
      this._answered(message);
      this._reducer.notice?.(message.text);
      this._emit("events");
    } else if (message.type === "likely" || message.type === "parted" || message.type === "refused") {
      this._answered(message);
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

function answers(reply: Reply | { type: "notice" }, asked: ViewMessage): boolean {
  if (reply.type === "notice") return asked.type === "act";
  return (asked.type === "ask" || asked.type === "part") && samePlace(reply, asked);
}

function samePlace(a: Parting, b: Parting): boolean {
  return a.branch === b.branch && a.gen === b.gen && a.token === b.token;
}

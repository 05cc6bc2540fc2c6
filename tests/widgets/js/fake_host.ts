// A stand-in for anywidget's model: a comm of two queues, and a count of the listeners on it.

import type { CacheEvent, KernelMessage, RunEvent, ViewMessage } from "../../../lmnb/widgets/src/protocol";

type Callback = (...args: never[]) => void;

export class FakeHost {
  readonly sent: ViewMessage[] = [];
  private readonly callbacks = new Map<string, Set<Callback>>();

  dead = false; // sending then throws, as JupyterLab's comms do

  constructor(private readonly state: Record<string, unknown>) {}

  get(name: string): unknown {
    return this.state[name];
  }

  on(event: string, callback: Callback): void {
    const known = this.callbacks.get(event) ?? new Set();
    known.add(callback);
    this.callbacks.set(event, known);
  }

  off(event: string, callback: Callback): void {
    this.callbacks.get(event)?.delete(callback);
  }

  send(message: ViewMessage): void {
    if (this.dead) throw new Error("Cannot send");
    this.sent.push(message);
  }

  get numListeners(): number {
    return [...this.callbacks.values()].reduce((sum, set) => sum + set.size, 0);
  }

  receive(message: KernelMessage<RunEvent | CacheEvent>): void {
    for (const callback of this.callbacks.get("msg:custom") ?? []) (callback as (message: unknown) => void)(message);
  }

  /** Let an event of the host happen. */
  emit(event: string): void {
    for (const callback of this.callbacks.get(event) ?? []) (callback as () => void)();
  }

  set(name: string, value: unknown): void {
    this.state[name] = value;
    for (const callback of this.callbacks.get(`change:${name}`) ?? []) (callback as () => void)();
  }
}

export function snapshot(kind: "run" | "cache", seq: number, model: unknown, pool?: unknown): string {
  return JSON.stringify({ protocol: 1, kind, seq, model, pool });
}

/** Let requested frames run. */
export function frames(): Promise<void> {
  return new Promise((resolve) => {
    requestAnimationFrame(() => requestAnimationFrame(() => resolve()));
  });
}

// The messages between kernel and front end, and what anywidget hands to a module. Mirrors
// `lmnb/language/events.py` (run events), `tree_source.py` (cache events) and the sinks' messages.

export const PROTOCOL = 1;

export type Status = "running" | "done" | "failed" | "cancelled";

/** Of generated text: length, tokens, seconds since the generation began, origin, and for each token whose
 * log-probability was asked for its text, log-probability and the likeliest tokens at its place. */
export type Part = [number, number, (number | null)?, Origin?, TokenDetail[]?];
export type Origin = "free" | "masked" | "forced" | "given" | "kept";
/** Text, log-probability, what was likely, and the log-probability among what a constraint allowed. */
export type TokenDetail = [string, number | null, Alternative[], number?];
/** Text, log-probability, and 1 if it was ruled out. */
export type Alternative = [string, number, 1?];

/** Where a prompt differed from the last run's; `at` is null for a generation whose cached prompt was lost. */
export interface Mark {
  item: number;
  at: number | null;
  why: string;
}

/** Text, log-probability, and the same without the prompt. */
export type ChoiceToken = [string, number | null, number | null];

/** What one method of `select` makes of the scores; `picked` is an index of the choices. */
export interface Verdict {
  name: string;
  scores: number[];
  picked: number;
}

/** An image, or a video of several `frames`. `preview` is a data URI of a small picture, or "". */
export interface Image {
  text: string; // what stands for it in the prompt
  mime: string;
  width: number;
  height: number;
  num_bytes: number;
  digest: string; // tells one image from another
  preview: string;
  frames?: number;
}

export type RunEvent =
  | { type: "run"; run: string; program: string; model: string; time: number; cell: string | null }
  | {
      type: "branch";
      branch: number;
      parent: number;
      index: number;
      fork: number;
      label: string;
      program: string | null;
      row: number | null;
      at?: [number, number] | null; // parts from inside the parent's generation: its number, characters kept of it
      note?: string | null;
      given?: string | null; // with `at`: the text that was put there; null where the token is drawn anew
    }
  | { type: "named"; branch: number; name: string }
  | { type: "resume"; time: number }
  | { type: "role"; branch: number; role: string; prefix: string }
  | { type: "role_end"; branch: number; suffix: string }
  | { type: "text"; branch: number; text: string; cut?: { at: number; missing: number } }
  | ({ type: "image"; branch: number } & Image)
  | {
      type: "gen";
      branch: number;
      var: string | null;
      kind: "gen" | "select";
      constraint: string | null;
      line: number | null;
    }
  | { type: "tokens"; branch: number; text: string; num_tokens: number; parts?: Part[] }
  | {
      type: "gen_end";
      branch: number;
      finish_reason: string;
      matched: string | number | null;
      reused: number;
      computed: number;
      generated: number;
      first_token_seconds: number | null;
      seconds: number;
      grammar?: string | null;
      cut?: boolean;
      forced?: number;
    }
  | {
      type: "choice";
      branch: number;
      text: string;
      choices: string[];
      scores: number[];
      method: string;
      tokens?: ChoiceToken[][];
      methods?: Verdict[];
      warnings?: string[];
    }
  | { type: "var"; branch: number; name: string; value: string; kind?: string }
  | { type: "rerun" }
  | ({ type: "mark"; branch: number } & Mark)
  | { type: "join"; parent: number; branches: number[]; mode: string }
  | { type: "branch_end"; branch: number; status: Status; error: string | null }
  | { type: "run_end"; status: Status; seconds: number; error: string | null };

interface CacheEventBase {
  seq: number;
  time: number;
  node: number;
  num_tokens: number;
  owner: string;
}

export type CacheEvent = CacheEventBase &
  (
    | { kind: "insert"; parent: number; text: string; source: string }
    | { kind: "extend"; parent: number; text: string }
    | { kind: "split"; parent: number; child: number; text: string; child_text: string }
    | { kind: "evict"; reason: "room" | "asked" | "flush"; for: string }
    | { kind: "hit" | "reset" | "pin" | "unpin" }
  );

export interface Pool {
  pool_tokens: number;
  free_tokens: number;
  cached_tokens: number;
  pinned_tokens?: number;
  now?: number; // the kernel's time, seconds since 1970
  /** Node that ends what running requests hold, their number, and the first of their owners. */
  held?: [number, number, ...string[]][];
  running: number;
  waiting: number;
  token_bytes?: number;
  closed?: number; // the model was unloaded
}

/** What the kernel sends: `seq` counts deliveries, so that a missing one is noticed. */
export type KernelMessage<E> =
  | { type: "events"; seq: number; events: E[]; pool?: Pool }
  | { type: "snapshot"; snapshot: string }
  | { type: "notice"; text: string }
  | Reply;

/** Where a branch may part: before that token of that generation (selects not counted) of that branch. */
export interface Parting {
  branch: number;
  gen: number;
  token: number;
}

/** What the kernel answers to `ask` and `part`. `ids`: of the likeliest tokens in `detail`. */
export type Reply =
  | ({ type: "likely"; detail: TokenDetail | null; ids: number[] } & Parting)
  | ({ type: "parted"; opened: number } & Parting)
  | ({ type: "refused"; why: string } & Parting);

/** What people may do to the cache; all but `flush` to a node. */
export type Act = "pin" | "unpin" | "evict" | "flush";

export type ViewMessage =
  | { type: "resync" }
  | { type: "cancel" }
  | { type: "views"; count: number; seq?: number }
  | { type: "whole"; branch: number; item: number }
  | ({ type: "ask" } & Parting)
  | ({ type: "part"; text?: string; id?: number } & Parting)
  | { type: "act"; act: Act; node?: number };

export interface Snapshot<S> {
  protocol: number;
  kind: "run" | "cache";
  seq: number;
  model: S;
  pool?: Pool;
}

/** The part of anywidget's model that is used here. */
export interface HostModel {
  get(name: string): unknown;
  on(event: string, callback: (...args: never[]) => void): void;
  off(event: string, callback: (...args: never[]) => void): void;
  send(message: ViewMessage): void;
  widget_manager?: { kernel?: HostKernel | null };
}

interface Signal {
  connect(slot: (...args: never[]) => unknown): unknown;
  disconnect(slot: (...args: never[]) => unknown): unknown;
}

/** The part of JupyterLab's kernel connection that is used here; other hosts have none. */
export interface HostKernel {
  statusChanged?: Signal;
  disposed?: Signal;
}

export interface RenderProps {
  model: HostModel;
  el: HTMLElement;
  signal?: AbortSignal;
}

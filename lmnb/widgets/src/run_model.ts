// Folds a run's events into one picture of it. `run_model.py` is the same reducer; both read the same fixtures.

import type { ChoiceToken, Image, Mark, Part, RunEvent, Status, Verdict } from "./protocol";

export interface Choice {
  text: string;
  choices: string[];
  scores: number[];
  method: string;
  tokens: ChoiceToken[][];
  methods: Verdict[]; // the one in use first
  warnings: string[];
}

export interface GenItem {
  type: "gen";
  var: string | null;
  kind: "gen" | "select";
  constraint: string | null;
  grammar?: string; // the library that enforced it
  cut?: boolean; // a stop ended it before it was whole
  line: number | null;
  text: string;
  parts: Part[];
  tokens: number;
  status: Status;
  finish_reason: string | null;
  matched: string | number | null;
  reused: number;
  computed: number;
  first_token_seconds: number | null;
  seconds: number | null;
  choice: Choice | null;
  variants: number[]; // branches that part from inside it
}

export interface TextItem {
  type: "text";
  text: string;
  cut?: { at: number; missing: number } | undefined; // characters that the kernel has kept back
}

export type Item =
  | { type: "role"; role: string; prefix: string }
  | { type: "role_end"; suffix: string }
  | TextItem
  | ({ type: "image" } & Required<Image>)
  | GenItem
  | { type: "fork"; fork: number; branches: number[] }
  | { type: "join"; branches: number[]; mode: string };

export interface Branch {
  id: number;
  parent: number | null;
  index: number;
  fork: number;
  label: string;
  program: string | null;
  row: number | null;
  at: [number, number] | null; // of a branch that parts from inside a generation
  note: string | null;
  given: string | null; // what was put where it parts; null: drawn anew
  name: string | null; // the variable that has its state
  status: Status;
  error: string | null;
  reused: number;
  computed: number;
  generated: number;
  items: Item[];
  parted: number[]; // items with variants
  marks: Mark[];
  vars: { name: string; value: string; kind?: string; incomplete?: boolean }[];
}

export interface RunState {
  run: string;
  program: string;
  model: string;
  time: number;
  cell: string | null;
  rerun: boolean; // the same cell or program ran before
  status: Status;
  seconds: number | null;
  error: string | null;
  reused: number;
  computed: number;
  generated: number;
  first_token_seconds: number | null;
  gen_seconds: number;
  branches: Branch[];
}

const STATUS_OF_REASON: Record<string, Status> = { cancelled: "cancelled", error: "failed" };

/** Whether a constrained generation ended before its text was whole. */
export function isIncomplete(item: GenItem): boolean {
  return item.constraint !== null && item.finish_reason !== null && (item.finish_reason !== "stop" || item.cut === true);
}

export function emptyRun(): RunState {
  return {
    run: "",
    program: "",
    model: "",
    time: 0,
    cell: null,
    rerun: false,
    status: "running",
    seconds: null,
    error: null,
    reused: 0,
    computed: 0,
    generated: 0,
    first_token_seconds: null,
    gen_seconds: 0,
    branches: [],
  };
}

export class RunModel {
  private _byId = new Map<number, Branch>();
  private _vars = new Map<string, Branch["vars"][number]>();
  cut = false; // the kernel was gone before the run's end

  constructor(readonly state: RunState = emptyRun()) {
    for (const branch of state.branches) {
      this._byId.set(branch.id, branch);
      for (const variable of branch.vars) this._vars.set(`${branch.id}:${variable.name}`, variable);
    }
  }

  branch(id: number): Branch {
    const branch = this._byId.get(id);
    if (!branch) throw new Error(`branch ${id} was never opened`);
    return branch;
  }

  get root(): Branch | undefined {
    return this._byId.get(0);
  }

  /** Nothing more will come: what runs is stopped. */
  stop(): void {
    if (this.state.status !== "running") return;
    this.cut = true;
    this.state.status = "cancelled";
    for (const branch of this.state.branches) if (branch.status === "running") endBranch(branch, "cancelled");
  }

  /** Fold one event in. Throws for a branch that was never opened: the state then needs a snapshot. */
  apply(event: RunEvent): void {
    const state = this.state;
    switch (event.type) {
      case "run":
        state.run = event.run;
        state.program = event.program;
        state.model = event.model;
        state.time = event.time;
        state.cell = event.cell ?? null;
        this._open({ branch: 0, parent: null, index: 0, fork: 0, label: "0" });
        return;
      case "branch": {
        const { fork, at } = event;
        const parent = this.branch(event.parent);
        const items = parent.items;
        if (at) {
          const gen = items.filter((item): item is GenItem => item.type === "gen" && item.kind === "gen")[at[0]];
          if (!gen) throw new Error(`branch ${event.parent} has no generation ${at[0]}`);
          gen.variants.push(event.branch);
          if (!parent.parted.includes(items.indexOf(gen))) parent.parted.push(items.indexOf(gen));
          this._open(event);
          return;
        }
        const known = items.findLast((item) => item.type === "fork" && item.fork === fork);
        if (known?.type === "fork") known.branches.push(event.branch);
        else items.push({ type: "fork", fork, branches: [event.branch] });
        this._open(event);
        return;
      }
      case "resume":
        state.status = "running";
        state.seconds = null;
        return;
      case "rerun":
        state.rerun = true;
        return;
      case "join":
        this.branch(event.parent).items.push({ type: "join", branches: [...event.branches], mode: event.mode });
        return;
      case "run_end":
        state.status = event.status;
        state.seconds = event.seconds;
        state.error = event.error ?? null;
        for (const branch of state.branches) if (branch.status === "running") endBranch(branch, event.status);
        return;
      default:
        this._applyToBranch(this.branch(event.branch), event);
    }
  }

  private _applyToBranch(branch: Branch, event: Exclude<RunEvent, { type: "run" | "rerun" | "branch" | "join" | "resume" | "run_end" }>) {
    const items = branch.items;
    switch (event.type) {
      case "role":
        items.push({ type: "role", role: event.role, prefix: event.prefix });
        return;
      case "role_end":
        items.push({ type: "role_end", suffix: event.suffix });
        return;
      case "text": {
        let last = items[items.length - 1];
        if (last?.type !== "text") items.push((last = { type: "text", text: "" }));
        if (event.cut && !last.cut) last.cut = { at: last.text.length + event.cut.at, missing: event.cut.missing };
        else if (event.cut && last.cut) last.cut.missing += event.cut.missing;
        last.text += event.text;
        return;
      }
      case "image": {
        const { text, mime, width, height, num_bytes, digest, preview, frames = 1 } = event;
        items.push({ type: "image", text, mime, width, height, num_bytes, digest, preview, frames });
        return;
      }
      case "gen":
        items.push(newGen(event.var, event.kind, event.constraint ?? null, event.line ?? null));
        return;
      case "tokens": {
        const gen = openGen(branch);
        gen.text += event.text;
        gen.parts.push(...(event.parts?.length ? event.parts : [[event.text.length, event.num_tokens] as Part]));
        this._countGenerated(branch, gen, event.num_tokens);
        return;
      }
      case "choice": {
        const gen = openGen(branch);
        gen.text = event.text;
        const { text, choices, scores, method } = event;
        gen.choice = { text, choices, scores, method, tokens: event.tokens ?? [], methods: event.methods ?? [], warnings: event.warnings ?? [] };
        return;
      }
      case "gen_end":
        this._endGen(branch, openGen(branch), event);
        return;
      case "var": {
        const { name, value, kind = "str" } = event;
        const key = `${branch.id}:${name}`;
        const known = this._vars.get(key);
        const made = branch.items.at(-1);
        const cut = made?.type === "gen" && made.var === name && isIncomplete(made) ? { incomplete: true } : {};
        if (known) {
          delete known.incomplete;
          Object.assign(known, { value, kind, ...cut });
        } else {
          const variable = { name, value, kind, ...cut };
          this._vars.set(key, variable);
          branch.vars.push(variable);
        }
        return;
      }
      case "named":
        branch.name = event.name;
        return;
      case "mark":
        branch.marks.push({ item: event.item, at: event.at, why: event.why });
        return;
      case "branch_end":
        branch.error = event.error ?? null;
        endBranch(branch, event.status);
    }
  }

  private _endGen(branch: Branch, gen: GenItem, event: Extract<RunEvent, { type: "gen_end" }>): void {
    gen.status = STATUS_OF_REASON[event.finish_reason] ?? "done";
    gen.finish_reason = event.finish_reason;
    if (event.grammar) gen.grammar = event.grammar;
    if (event.cut) gen.cut = true;
    gen.matched = event.matched;
    gen.reused = event.reused;
    gen.computed = event.computed;
    gen.first_token_seconds = event.first_token_seconds;
    gen.seconds = event.seconds;
    this._countGenerated(branch, gen, event.generated - gen.tokens);
    for (const total of [this.state, branch]) {
      total.reused += event.reused;
      total.computed += event.computed;
    }
    this.state.gen_seconds += event.seconds;
    this.state.first_token_seconds ??= event.first_token_seconds;
  }

  private _countGenerated(branch: Branch, gen: GenItem, tokens: number): void {
    gen.tokens += tokens;
    branch.generated += tokens;
    this.state.generated += tokens;
  }

  private _open(event: Pick<Branch, "parent" | "index" | "fork" | "label"> & { branch: number } & Partial<Pick<Branch, "program" | "row" | "at" | "note" | "given">>): void {
    const { branch: id, parent, index, fork, label, program = null, row = null, at = null, note = null, given = null } = event;
    const branch: Branch = {
      ...{ id, parent, index, fork, label, program, row, at, note, given },
      name: null,
      status: "running",
      error: null,
      reused: 0,
      computed: 0,
      generated: 0,
      items: [],
      parted: [],
      marks: [],
      vars: [],
    };
    this._byId.set(id, branch);
    this.state.branches.push(branch);
  }
}

/** Tokens per second over the time spent generating; null before a generation has ended (see `run_model.py`). */
export function tokensPerSecond(state: RunState): number | null {
  const seconds = state.seconds === null ? state.gen_seconds : Math.min(state.gen_seconds, state.seconds);
  return seconds > 0 && state.generated > 0 ? state.generated / seconds : null;
}

function newGen(name: string | null, kind: "gen" | "select", constraint: string | null, line: number | null): GenItem {
  return {
    type: "gen",
    var: name,
    kind,
    constraint,
    line,
    text: "",
    parts: [],
    tokens: 0,
    status: "running",
    finish_reason: null,
    matched: null,
    reused: 0,
    computed: 0,
    first_token_seconds: null,
    seconds: null,
    choice: null,
    variants: [],
  };
}

function openGen(branch: Branch): GenItem {
  const gen = branch.items.findLast((item) => item.type === "gen");
  if (gen?.type !== "gen") throw new Error(`branch ${branch.id} has no generation`);
  return gen;
}

function endBranch(branch: Branch, status: Status): void {
  branch.status = status;
  for (const item of branch.items) if (item.type === "gen" && item.status === "running") item.status = status;
}

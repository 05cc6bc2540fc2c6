// What branches can be ordered by: how likely their text was, what a select made of it, or a number that they set.

import type { Branch, GenItem } from "./run_model";

/** `name` is the menu's entry; `of` gives null where the branch has no such number. The highest comes first. */
export interface Score {
  name: string;
  of(branch: Branch): number | null;
  show(value: number): string;
}

const LOGPROB: Score = { name: "mean log-probability", of: meanLogprob, show: (value) => `${signed(value)} logprob` };
const SELECT: Score = { name: "select score", of: selectScore, show: (value) => `${signed(value)} score` };

/** The scores that at least one of the branches has. */
export function scoresOf(branches: Branch[]): Score[] {
  const found: Score[] = [];
  if (branches.some((branch) => meanLogprob(branch) !== null)) found.push(LOGPROB);
  if (branches.some((branch) => selectScore(branch) !== null)) found.push(SELECT);
  const names = new Set(branches.flatMap(({ vars }) => vars.filter(({ value }) => numberIn(value) !== null).map(({ name }) => name)));
  return [...found, ...[...names].sort().map(variable)];
}

function variable(name: string): Score {
  const of = ({ vars }: Branch) => numberIn(vars.find((one) => one.name === name)?.value ?? "");
  return { name: `value of ${name}`, of, show: (value) => `${name} ${value}` };
}

/** A text that is a number and nothing else. */
function numberIn(text: string): number | null {
  return /^\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*$/i.test(text) ? Number(text) : null;
}

interface Sum {
  parts: number;
  sum: number;
  count: number;
}
const sums = new WeakMap<GenItem, Sum>(); // as far as a generation has come

/** Of all generated tokens whose log-probability was asked for. */
function meanLogprob({ items }: Branch): number | null {
  let [sum, count] = [0, 0];
  for (const item of items) {
    if (item.type !== "gen" || item.kind !== "gen") continue;
    const known = sums.get(item) ?? { parts: 0, sum: 0, count: 0 };
    for (; known.parts < item.parts.length; known.parts++) {
      for (const [, logprob] of item.parts[known.parts]?.[4] ?? []) {
        if (logprob === null) continue;
        known.sum += logprob;
        known.count++;
      }
    }
    sums.set(item, known);
    sum += known.sum;
    count += known.count;
  }
  return count > 0 ? sum / count : null;
}

/** What the last select's method gave to the choice that was made. */
function selectScore({ items }: Branch): number | null {
  const last = items.findLast((item) => item.type === "gen" && item.choice !== null);
  if (last?.type !== "gen" || !last.choice) return null;
  const { choices, scores, text } = last.choice;
  return scores[choices.indexOf(text)] ?? null;
}

function signed(value: number): string {
  return value.toFixed(2).replace("-", "−");
}

// Why a select chose as it did: choices and their tokens, the methods side by side, and what may mislead them.

import { h } from "./dom";
import { percent, visible } from "./format";
import type { ChoiceToken } from "./protocol";
import type { Choice } from "./run_model";

const MOST_CHOICES = 64;
const UNCONDITIONAL = "unconditional_likelihood_normalized";
const NAMES: Record<string, [string, string]> = {
  token_length_normalized: ["mean", "Mean log-probability of the choice's tokens"],
  greedy_token_selection: ["greedy", "Log-probability of the last token at which the choice was still compared, token by token"],
  [UNCONDITIONAL]: ["gain", "Mean log-probability that the prompt adds to the choice's tokens"],
  chosen_by_api: ["the API", "The API chose by its structured output, and told no scores"],
  chosen_by_model: ["tokens", "How many of the choice's tokens the model went along with"],
};

/** The table, closed; `details` so that it opens without a script of its own. */
export function choiceTable(choice: Choice): HTMLDetailsElement {
  const known = choice.methods.length > 0 ? choice.methods : [{ name: choice.method, scores: choice.scores, picked: choice.choices.indexOf(choice.text) }];
  const heads = known.map(({ name }, index) => {
    const [short, long] = NAMES[name] ?? [name.replaceAll("_", " "), name];
    return h("th", { scope: "col", class: "lmnb-number", title: long }, short, index === 0 ? h("small", {}, " decides") : null);
  });
  const rows = choice.choices.slice(0, MOST_CHOICES).map((text, row) => {
    const picked = text === choice.text;
    const tokens = choice.tokens[row] ?? [];
    const cells = known.map(({ scores, picked: best }) =>
      h("td", { class: `lmnb-number${best === row ? " lmnb-best" : ""}` }, best === row ? "✓ " : "", scores[row]?.toFixed(3) ?? ""),
    );
    const label = tokens.length > 0 ? h("span", { class: "lmnb-tokens" }, ...tokens.map(chip)) : text;
    return h("tr", { class: picked ? "lmnb-picked" : null }, h("th", { scope: "row" }, label), ...cells);
  });
  const rest = choice.choices.length - rows.length;
  const hint = !known[0]?.name.startsWith("chosen_by_") && choice.tokens.length > 0 && !known.some(({ name }) => name === UNCONDITIONAL);
  return h(
    "details",
    { class: "lmnb-choices" },
    h("summary", {}, `1 of ${choice.choices.length}${choice.warnings.length > 0 ? " ⚠" : ""}`),
    h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "choice"), ...heads)), h("tbody", {}, ...rows)),
    rest > 0 ? h("small", {}, `and ${rest} more choices`) : null,
    ...choice.warnings.map((warning) => h("p", { class: "lmnb-warning" }, `⚠ ${warning}`)),
    hint ? h("p", { class: "lmnb-hint" }, "%%lmprog --logprobs N also measures the gain over no prompt.") : null,
  );
}

function chip([text, logprob, alone]: ChoiceToken): HTMLElement {
  const parts = logprob === null ? [] : [`log-probability ${logprob.toFixed(3)}`, percent(logprob)];
  if (alone !== null) parts.push(`${percent(alone)} without the prompt`);
  const style = logprob === null ? null : `--p:${Math.exp(logprob).toFixed(3)}`;
  return h("span", { class: "lmnb-token", title: parts.join(" · "), style }, visible(text), h("small", {}, logprob === null ? "" : logprob.toFixed(2)));
}

// One branch of a fork: its head, and its transcript or, folded, the end of it. Where it parts from inside a text, the
// first line says what became of what.

import { h, setText } from "./dom";
import { count, oneLine, SIGNS, visible, WORDS } from "./format";
import { BranchView, type RunUi } from "./run_branch";
import type { Branch, GenItem, RunModel } from "./run_model";
import type { Score } from "./run_score";
import { originOf, tokens } from "./run_tokens";

const PREVIEW = 200; // characters
const WORD = 32; // characters of what stood, and stands, where a branch parts

export class LaneView {
  readonly el: HTMLElement;
  /** Whether there is text in it that somebody may be reading. */
  drawn = false;
  private readonly _sign = h("span", { class: "lmnb-sign", role: "img" });
  private readonly _name: HTMLElement;
  private readonly _preview = h("span", { class: "lmnb-preview" });
  private readonly _score = h("span", { class: "lmnb-number lmnb-score" });
  private readonly _tokens = h("span", { class: "lmnb-number" });
  private readonly _parted: HTMLButtonElement | null;
  private readonly _body = h("div", { class: "lmnb-lane-body" });
  private readonly _branch: BranchView;
  private _lines = false;
  private _by: Score | null = null;
  private _doneAt: number | null = null; // seconds of the run's end that was drawn: a run may go on, and end again

  constructor(
    private readonly _model: RunModel,
    private readonly _id: number,
    private readonly _ui: RunUi,
  ) {
    const branch = _model.branch(_id);
    const name = laneName(branch);
    this._branch = new BranchView(_model, _id, _ui, true);
    this._parted = branch.at ? h("button", { type: "button", class: "lmnb-parted", title: "Go to where it parts" }) : null;
    this._parted?.addEventListener("click", () => this._showParting());
    this._body.append(...(this._parted ? [this._parted] : []), this._branch.el);
    this._name = h("button", { type: "button", class: "lmnb-lane-name" }, name);
    const head = h("div", { class: "lmnb-lane-head" }, this._sign, this._name, this._preview, this._score, this._tokens);
    this.el = h("section", { class: "lmnb-lane", "aria-label": name, "data-branch": _id }, head, this._body);
    head.addEventListener("click", () => {
      this._ui.folded.set(this._id, this._isOpen);
      this._doneAt = null;
      this.update(this._lines, this._by);
    });
  }

  private get _isOpen(): boolean {
    return !(this._ui.folded.get(this._id) ?? this._lines);
  }

  /** `by`: the number that the lanes are ordered by. */
  update(lines: boolean, by: Score | null): void {
    const { status, seconds } = this._model.state;
    if (this._doneAt !== null && this._doneAt === seconds && lines === this._lines && by?.name === this._by?.name) return;
    this._lines = lines;
    this._by = by;
    const branch = this._model.branch(this._id);
    const open = this._isOpen;
    this._body.hidden = !open;
    this._preview.hidden = open;
    this._name.setAttribute("aria-expanded", String(open));
    if (open) this._branch.update();
    else {
      const last = branch.items.findLast((item) => item.type === "gen");
      setText(this._preview, branch.error ?? (last?.type === "gen" ? oneLine(last.text.slice(-2 * PREVIEW)).slice(-PREVIEW) : ""));
    }
    this.drawn = branch.items.length > 0;
    if (this.el.dataset["status"] !== branch.status) {
      this.el.dataset["status"] = branch.status;
      setText(this._sign, SIGNS[branch.status]);
      this._sign.setAttribute("aria-label", WORDS[branch.status]);
    }
    if (this._parted) setText(this._parted, this._changed(branch));
    setText(this._name, laneName(branch));
    const value = by?.of(branch) ?? null;
    setText(this._score, by && value !== null ? by.show(value) : "");
    setText(this._tokens, `${count(branch.generated)} tok`);
    this._doneAt = status === "running" ? null : seconds;
  }

  /** `␣is → ␣was`: what the origin says where this branch parts, and what stands there now. */
  private _changed({ parent, at, given, items }: Branch): string {
    const gens = (all: Branch["items"]) => all.filter((item): item is GenItem => item.type === "gen" && item.kind === "gen");
    const origin = gens(this._model.branch(parent ?? 0).items)[at?.[0] ?? 0];
    const own = gens(items)[0];
    const before = origin ? tokenText(origin, at?.[1] ?? 0) : "";
    const after = given ?? (own ? tokenText(own, at?.[1] ?? 0) : "");
    return `${before ? shortened(before) : "end"} → ${after ? shortened(after) : "drawn anew"}`;
  }

  private _showParting(): void {
    const all = [...this._branch.el.querySelectorAll<HTMLElement>(".lmnb-gen .lmnb-tok")];
    const token = all.find((el) => {
      const known = tokens.get(el);
      return known !== undefined && originOf(known) !== "kept";
    });
    const scroller = token?.closest<HTMLElement>(".lmnb-segment");
    if (!token || !scroller) return;
    const gap = token.getBoundingClientRect().top - scroller.getBoundingClientRect().top;
    scroller.scrollTop += gap - scroller.clientHeight / 3;
  }
}

/** The token that begins at, or first after, a place in a generation's text. */
function tokenText({ text, parts }: GenItem, at: number): string {
  let start = 0;
  for (const [length] of parts) {
    if (start >= at && length > 0) return text.slice(start, start + length);
    start += length;
  }
  return "";
}

function shortened(text: string): string {
  const shown = visible(text.length > WORD ? `${text.slice(0, WORD - 1)}…` : text);
  return shown;
}

/** `0.2`, `judge · row 3`: the same names as in the text form. */
export function laneName(branch: Branch): string {
  const parts = branch.program ? [branch.program] : [];
  parts.push(branch.row === null ? `branch ${branch.label}` : `row ${branch.row}`);
  return parts.join(" · ") + (branch.name ? ` = ${branch.name}` : "");
}

// The table of a run's variables: grows row by row, long values are clamped until they are clicked.

import { h, setText } from "./dom";
import { plural } from "./format";
import type { RunUi } from "./run_branch";
import type { RunState } from "./run_model";

const OPEN_UP_TO = 12; // variables; a longer table starts closed

export class VarsView {
  readonly el: HTMLDetailsElement;
  private readonly _summary = h("summary");
  private readonly _body = h("tbody");
  private readonly _rows = new Map<string, { row: HTMLElement; cell: HTMLElement; kind: HTMLElement }>();

  constructor(private readonly _ui: RunUi) {
    this.el = h("details", { class: "lmnb-vars" }, this._summary, h("table", {}, this._body));
    this._summary.addEventListener("click", () => {
      this._ui.vars = !this.el.open; // the click is about to change it
    });
  }

  update(state: RunState): void {
    let next = this._body.firstElementChild; // rows stand in the order of branches, whichever was set first
    for (const branch of state.branches) {
      for (const variable of branch.vars) {
        const key = `${branch.id}:${variable.name}`;
        let entry = this._rows.get(key);
        if (!entry) {
          entry = newRow(variable.name, branch.parent === null ? "" : branch.label);
          this._rows.set(key, entry);
          this._body.insertBefore(entry.row, next);
        } else {
          next = entry.row.nextElementSibling;
        }
        setText(entry.cell, variable.value);
        const kind = variable.kind === "str" ? "" : (variable.kind ?? "");
        setText(entry.kind, `${kind}${variable.incomplete ? " incomplete" : ""}`.trim());
      }
    }
    const count = this._rows.size;
    this.el.hidden = count === 0;
    this.el.open = this._ui.vars ?? count <= OPEN_UP_TO;
    setText(this._summary, plural(count, "variable"));
  }
}

function newRow(name: string, where: string): { row: HTMLElement; cell: HTMLElement; kind: HTMLElement } {
  const kind = h("span", { class: "lmnb-where" });
  const label = where ? h("span", { class: "lmnb-where" }, where) : null;
  const cell = h("div", { class: "lmnb-value" });
  cell.addEventListener("click", () => cell.classList.add("lmnb-open"));
  return { row: h("tr", {}, h("th", { scope: "row" }, name, label, kind), h("td", {}, cell)), cell, kind };
}

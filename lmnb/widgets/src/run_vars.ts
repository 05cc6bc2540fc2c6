// The table of a run's variables: grows row by row, long values are clamped until they are clicked.

import { h, setText } from "./dom";
import { plural } from "./format";
import type { RunState } from "./run_model";

const OPEN_UP_TO = 12; // variables; a longer table starts closed

export class VarsView {
  readonly el: HTMLDetailsElement;
  private readonly summary = h("summary");
  private readonly body = h("tbody");
  private readonly cells = new Map<string, HTMLElement>();
  private touched = false; // the reader opened or closed it

  constructor() {
    this.el = h("details", { class: "lmnb-vars" }, this.summary, h("table", {}, this.body));
    this.summary.addEventListener("click", () => {
      this.touched = true;
    });
  }

  update(state: RunState): void {
    for (const branch of state.branches) {
      for (const variable of branch.vars) {
        const key = `${branch.id}:${variable.name}`;
        let cell = this.cells.get(key);
        if (!cell) {
          cell = this.addRow(variable.name, branch.parent === null ? "" : branch.label);
          this.cells.set(key, cell);
        }
        setText(cell, variable.value);
      }
    }
    const count = this.cells.size;
    this.el.hidden = count === 0;
    if (!this.touched) this.el.open = count <= OPEN_UP_TO;
    setText(this.summary, plural(count, "variable"));
  }

  private addRow(name: string, where: string): HTMLElement {
    const label = where ? h("span", { class: "lmnb-where" }, where) : null;
    const value = h("div", { class: "lmnb-value" });
    value.addEventListener("click", () => value.classList.add("lmnb-open"));
    this.body.append(h("tr", {}, h("th", { scope: "row" }, name, label), h("td", {}, value)));
    return value;
  }
}

// Finds tables in text, as programs and models write them: Markdown's pipes, printed data frames, CSV and TSV.
// `tables.py` finds the same; both read one fixture.

import { h } from "./dom";

const MOST_ROWS = 500;
const MOST_COLUMNS = 40;
const RULE = /^:?-{3,}:?$/; // below a column's name
const NUMBER = /^[-+−]?[\d.,\s]*\d(?:[eE][-+]?\d+)?\s*%?$|^(?:nan|NaN|None|<NA>)?$/;
const FRAME_ROW = /^\d+\s+\S/;

export interface Table {
  start: number; // lines of the text
  stop: number;
  head: string[];
  rows: string[][];
}

export function findTables(text: string): Table[] {
  if (!text.replace(/^\n+|\n+$/g, "").includes("\n")) return [];
  const lines = text.split("\n");
  const found: Table[] = [];
  for (let at = 0; at < lines.length - 1; ) {
    const table = piped(lines, at) ?? separated(lines, at) ?? printed(lines, at);
    if (table && table.rows.length > 0) found.push(table);
    at = table ? table.stop : at + 1;
  }
  return found;
}

function piped(lines: string[], at: number): Table | null {
  const [first, second] = [line(lines, at), line(lines, at + 1)];
  if (!first.includes("|") || !second.includes("|")) return null;
  const [head, rule] = [cells(first), cells(second)];
  if (head.length !== rule.length || !rule.every((cell) => RULE.test(cell))) return null;
  let stop = at + 2;
  while (stop < lines.length && line(lines, stop).includes("|")) stop++;
  const rows = lines.slice(at + 2, stop).map((text) => {
    const row = cells(text);
    return head.map((_, column) => row[column] ?? "");
  });
  return fitting(at, stop, head, rows);
}

function separated(lines: string[], at: number): Table | null {
  const first = line(lines, at);
  for (const sign of ["\t", ","]) {
    const size = first.split(sign).length;
    if (size < (sign === "\t" ? 2 : 3) || (sign === "," && /,\s/.test(first))) continue;
    const head = trimmed(first, sign);
    if (head.some((cell) => cell === "" || isNumber(cell))) continue;
    let stop = at;
    while (stop < lines.length && line(lines, stop).split(sign).length === size && !line(lines, stop).includes('"')) stop++;
    if (stop - at >= 3) return fitting(at, stop, head, lines.slice(at + 1, stop).map((text) => trimmed(text, sign)));
  }
  return null;
}

function printed(lines: string[], at: number): Table | null {
  const first = line(lines, at);
  if (!first.startsWith(" ") || !first.trim() || !FRAME_ROW.test(line(lines, at + 1))) return null;
  let stop = at + 1;
  while (stop < lines.length && FRAME_ROW.test(line(lines, stop)) && line(lines, stop).length <= first.length + 1) stop++;
  let head = first.trim().split(/\s{2,}/);
  if (head.length === 1) head = first.trim().split(/\s+/);
  const rows = lines.slice(at + 1, stop).map((text) => text.trim().split(/\s{2,}/));
  if (stop - at < 3 || rows.some((row) => row.length !== head.length + 1)) return null;
  return fitting(at, stop, ["", ...head], rows);
}

function trimmed(text: string, sign: string): string[] {
  return text.split(sign).map((cell) => cell.trim());
}

function isNumber(cell: string): boolean {
  return cell.length <= 40 && NUMBER.test(cell);
}

function line(lines: string[], at: number): string {
  return lines[at] ?? "";
}

function cells(text: string): string[] {
  const inside = text.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inside.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

/** Without rows if there are too many to be drawn: it stays text. */
function fitting(start: number, stop: number, head: string[], rows: string[][]): Table {
  return { start, stop, head, rows: rows.length <= MOST_ROWS && head.length <= MOST_COLUMNS ? rows : [] };
}

/** The table as an element. Cells are text. */
export function tableElement({ head, rows }: Table): HTMLElement {
  const numeric = head.map((_, column) => rows.some((row) => row[column]) && rows.every((row) => isNumber(row[column] ?? "")));
  const attributes = (column: number) => ({ class: numeric[column] ? "lmnb-number" : null });
  const top = h("tr", {}, ...head.map((cell, column) => (cell ? h("th", { scope: "col", ...attributes(column) }, cell) : h("td"))));
  const body = rows.map((row) => h("tr", {}, ...row.map((cell, column) => h("td", attributes(column), cell))));
  return h("table", { class: "lmnb-table" }, h("thead", {}, top), h("tbody", {}, ...body));
}

/** The text with its tables as elements, in pieces; null if it has none. */
export function withTables(text: string): (Node | string)[] | null {
  const found = findTables(text);
  if (found.length === 0) return null;
  const lines = text.split("\n");
  const pieces: (Node | string)[] = [];
  let next = 0;
  for (const table of found) {
    const before = lines.slice(next, table.start).join("\n");
    pieces.push(before, tableElement(table));
    next = table.stop;
  }
  pieces.push(lines.slice(next).join("\n"));
  return pieces;
}

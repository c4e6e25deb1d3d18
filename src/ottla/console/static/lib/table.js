// Tables: columns are described once, rows are replaced; long ones are shown in pages.

import { h, show } from "./dom.js";
import { count } from "./format.js";

const PAGE = 100;

/**
 * A table. Each column is {title, cell(row), value(row)?, number?, tight?, name?, sort?}:
 * `cell` makes what is shown, `value` what is sorted by, `sort` the name by which the server sorts.
 *
 * With `load({sort, order, page, pageSize})` the server sorts and pages and answers {items, total};
 * without it `update(rows)` gives all rows, and the table does both.
 */
export class Table {
  constructor({
    label,
    columns,
    key,
    empty = "Nothing here.",
    sort = null,
    order = "asc",
    load = null,
    pageSize = PAGE,
    className = "",
  }) {
    this.columns = columns;
    this.key = key;
    this.empty = empty;
    this.sort = sort ?? (load ? null : -1);
    this.order = order;
    this.load = load;
    this.pageSize = pageSize;
    this.offset = 0;
    this.ticket = 0;
    this.rows = [];
    this.matched = 0;
    this.head = h("tr");
    this.body = h("tbody");
    this.pager = h("div.pager", { hidden: true });
    this.nothing = h("p.empty", { hidden: true });
    this.table = h("table", { class: className, "aria-label": label }, h("thead", {}, this.head), this.body);
    const scroll = h("div.scroll", { tabindex: "0", role: "region", "aria-label": label }, this.table);
    this.element = h("div", {}, scroll, this.nothing, this.pager);
    this.drawHead();
  }

  /** Show these rows (all of them; a table without `load`). */
  update(rows) {
    this.rows = rows;
    this.matched = rows.length;
    if (this.offset >= rows.length) this.offset = 0;
    this.draw();
  }

  /** Ask the server for the page that is shown. */
  async refresh() {
    const ticket = ++this.ticket;
    const page = this.offset / this.pageSize + 1;
    const answer = await this.load({ sort: this.sort, order: this.order, page, pageSize: this.pageSize });
    if (ticket !== this.ticket) return; // what was asked later is what is wanted
    this.rows = answer.items;
    this.matched = answer.total;
    if (this.offset >= this.matched && this.offset > 0) {
      this.offset = 0;
      await this.refresh();
      return;
    }
    this.draw();
  }

  restart() {
    this.offset = 0;
    return this.refresh();
  }

  async turnTo(offset) {
    this.offset = Math.max(0, offset);
    if (this.load) await this.refresh();
    else this.draw();
    this.element.scrollIntoView({ block: "nearest" });
  }

  async sortBy(mark) {
    this.order = this.sort === mark && this.order === "asc" ? "desc" : "asc";
    this.sort = mark;
    this.offset = 0;
    this.drawHead();
    if (this.load) await this.refresh();
    else this.draw();
  }

  drawHead() {
    show(
      this.head,
      this.columns.map((column, place) => {
        const mark = this.load ? column.sort : column.value && place;
        const sorted = mark !== undefined && mark !== null && mark === this.sort;
        const arrow = sorted ? (this.order === "asc" ? " ↑" : " ↓") : "";
        const title =
          mark === undefined || mark === null || mark === false
            ? column.title
            : h(
                "button",
                { type: "button", onclick: () => this.sortBy(mark), title: `sort by ${column.title}` },
                column.title,
                arrow,
              );
        const attributes = {
          scope: "col",
          class: classes({ ...column, className: "" }),
          "aria-sort": sorted ? `${this.order}ending` : null,
        };
        return h("th", attributes, title);
      }),
    );
  }

  draw() {
    let rows = this.rows;
    if (!this.load) {
      if (this.sort >= 0) rows = sorted(rows, this.columns[this.sort].value, this.order);
      rows = rows.slice(this.offset, this.offset + this.pageSize);
    }
    const focused = this.focusedPlace();
    this.body.replaceChildren(
      ...rows.map((row) => {
        const cells = this.columns.map((column) => h("td", { class: classes(column) }, column.cell(row)));
        return h("tr", { "data-key": this.key ? this.key(row) : null }, cells);
      }),
    );
    if (focused) this.restoreFocus(focused);
    this.nothing.hidden = rows.length > 0;
    this.table.hidden = rows.length === 0;
    show(this.nothing, typeof this.empty === "function" ? this.empty() : this.empty);
    this.drawPager(rows.length);
  }

  drawPager(shown) {
    this.pager.hidden = this.matched <= this.pageSize;
    if (this.pager.hidden) return;
    const focus = this.pager.contains(document.activeElement) ? document.activeElement.textContent : null;
    const move = (text, offset, possible) =>
      h("button", { type: "button", disabled: !possible, onclick: () => this.turnTo(offset) }, text);
    show(
      this.pager,
      move("‹ Previous", this.offset - this.pageSize, this.offset > 0),
      move("Next ›", this.offset + this.pageSize, this.offset + shown < this.matched),
      h(
        "span",
        { role: "status" },
        `${count(this.offset + 1)} to ${count(this.offset + shown)} of ${count(this.matched)}`,
      ),
    );
    if (focus) [...this.pager.querySelectorAll("button")].find((button) => button.textContent === focus)?.focus();
  }

  /** Rows are made again on each refresh; the keyboard stays in the row and control where it was. */
  focusedPlace() {
    const row = this.body.contains(document.activeElement) ? document.activeElement.closest("tr") : null;
    if (!row?.dataset.key) return null;
    return { key: row.dataset.key, place: controls(row).indexOf(document.activeElement) };
  }

  restoreFocus({ key, place }) {
    const row = [...this.body.rows].find((candidate) => candidate.dataset.key === key);
    if (row) (controls(row)[place] ?? row).focus({ preventScroll: true });
  }
}

function controls(row) {
  return [...row.querySelectorAll("a, button, input, select")];
}

function classes(column) {
  return [column.number && "number", column.tight && "tight", column.name && "name", column.className]
    .filter(Boolean)
    .join(" ");
}

function sorted(rows, value, order) {
  const sign = order === "asc" ? 1 : -1;
  return [...rows].sort((left, right) => sign * compare(value(left), value(right)));
}

function compare(left, right) {
  if (left === right) return 0;
  if (left === null || left === undefined) return -1;
  if (right === null || right === undefined) return 1;
  if (typeof left === "number" && typeof right === "number") return left - right;
  return String(left).localeCompare(String(right), "en", { numeric: true });
}

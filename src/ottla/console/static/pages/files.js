// The files of a partition, drawn: segments with their offsets, epochs and producers; then one segment with its batches
// and the indexes that point into it. docs/storage.md explains what each file is for.

import { get } from "../lib/api.js";
import { h, show } from "../lib/dom.js";
import { ago, bytes, count, plural, time } from "../lib/format.js";
import { Table } from "../lib/table.js";
import { badge, button, check, field, facts, panel, problems } from "../lib/widgets.js";
import { drawLog, drawSegment } from "./files-drawing.js";

const REFRESH_MS = 2_000;
const BATCHES = 60;
const TAIL_ENTRIES = 8;
const ENTRY_BYTES = { index: 8, timeindex: 12 };

export async function filesTab(view, topic, content) {
  await new PartitionFiles(view, topic, content).run();
}

class PartitionFiles {
  constructor(view, topic, content) {
    this.view = view;
    this.topic = topic;
    this.partition = Number(view.query.get("partition") ?? 0);
    this.chosen = view.query.get("segment"); // base offset; null: the active one
    this.file = null; // name of the file whose rows are listed; null: the segment's log
    this.at = null; // position in the segment's log; null: its tail
    this.older = 0; // segments between the last one drawn and the newest
    this.records = false;
    this.shownFrom = 0;
    this.found = null;
    this.log = h("div.body");
    this.segment = h("div.body");
    this.segmentTitle = h("span");
    this.marks = h("div.body");
    this.epochs = epochTable();
    this.producers = producerTable();
    this.files = fileTable((name) => this.showFile(name));
    this.rows = h("div");
    this.rowsTitle = h("span");
    this.partial = h("div");
    this.where = h("span.muted.small.break");
    show(
      content,
      this.controls(),
      panel("The log", this.where, this.log),
      panel(this.segmentTitle, this.moves(), this.segment),
      h(
        "div.columns",
        {},
        panel("Leader epochs", null, this.epochs.element),
        panel("Producers", null, this.producers.element),
        panel("Files", null, this.marks, this.files.element),
      ),
      panel(
        this.rowsTitle,
        check("records", {
          onchange: (event) => {
            this.records = event.target.checked;
            this.view.attempt(() => this.loadRows());
          },
        }),
        this.rows,
      ),
      this.partial,
    );
    new ResizeObserver(() => this.draw()).observe(this.log);
  }

  controls() {
    const input = h("input", {
      type: "number",
      min: 0,
      value: this.partition,
      class: "narrow",
      onchange: () => {
        this.partition = Number(input.value);
        this.choose(null);
        this.older = 0;
        this.view.attempt(() => this.refresh());
      },
    });
    return h(
      "div.row.end",
      {},
      field("Partition", input),
      button("‹ Older segments", () => this.move(1)),
      button("Newer segments ›", () => this.move(-1)),
    );
  }

  moves() {
    const go = (text, step) =>
      button(
        text,
        () =>
          this.view.attempt(async () => {
            await step();
            await this.loadSegment();
          }),
        "plain",
      );
    return [
      go("Beginning", () => {
        this.at = 0;
      }),
      go("Next batches", () => {
        this.at = this.next ?? this.at;
      }),
      go("Tail", () => {
        this.at = null;
      }),
    ];
  }

  async run() {
    await this.view.live(REFRESH_MS, () => this.refresh());
  }

  move(step) {
    const segments = this.found?.segments.length ?? 0;
    this.older = Math.max(0, Math.min(segments - 1, this.older + step * 4));
    this.draw();
  }

  choose(base) {
    this.chosen = base === null ? null : String(base);
    this.at = null;
    this.file = null;
    this.view.remember({ partition: this.partition, segment: this.chosen });
  }

  get segmentShown() {
    const segments = this.found.segments;
    return segments.find((s) => String(s.baseOffset) === this.chosen) ?? segments.at(-1) ?? null;
  }

  async refresh() {
    const partition = this.partition;
    const found = await get(["topics", this.topic, "files"], { partition }, this.view.signal);
    if (partition !== this.partition) return;
    const isFirst = this.found === null || this.found.partition !== found.partition;
    const grew = JSON.stringify(this.found?.segments) !== JSON.stringify(found.segments);
    this.found = found;
    this.where.textContent = `${found.broker === null ? "" : `broker ${found.broker}, `}${found.directory}, ${bytes(found.sizeBytes)}`;
    this.draw();
    this.epochs.update(found.epochs.toReversed());
    this.producers.update(found.producers);
    this.files.update([...found.files, ...found.segments.toReversed().flatMap((segment) => segment.files)]);
    show(this.marks, found.state && logFacts(found.state));
    show(this.partial, problems(found.problems));
    if (isFirst || (grew && this.at === null && this.segmentShown?.active)) await this.loadSegment();
  }

  draw() {
    const width = this.log.clientWidth - 28;
    if (!this.found || width < 100) return;
    const focused = this.log.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    show(
      this.log,
      drawLog(this.found, {
        width,
        older: this.older,
        chosen: this.segmentShown?.baseOffset,
        choose: (base) => {
          this.choose(base);
          this.draw();
          this.view.attempt(() => this.loadSegment());
        },
      }),
    );
    if (focused) this.log.querySelector(`[data-key="${focused}"]`)?.focus();
  }

  rowsOf(name, { position = 0, after = 0, limit, records = false }) {
    return get(
      ["topics", this.topic, "files", "rows"],
      { partition: this.partition, name, position, after, limit, records },
      this.view.signal,
    );
  }

  /** The batches of the chosen segment from `at` on, and the index entries that point to them. */
  async loadSegment() {
    const segment = this.segmentShown;
    if (!segment) return;
    const file = (kind) => segment.files.find((candidate) => candidate.kind === kind);
    const log = file("log");
    if (!log) return;
    const position = this.at ?? (await this.tail(log, file("index")));
    const batches = await this.rowsOf(log.name, { position, limit: BATCHES });
    const shown = batches.rows.filter((row) => row.kind === "batch").map((row) => row.data);
    const last = shown.at(-1);
    this.shownFrom = position;
    this.next = batches.next === null || !last ? null : last.position + last.size;
    const [offsets, times] = await Promise.all(
      ["index", "timeindex"].map((kind) => this.entries(file(kind), log, shown)),
    );
    show(this.segmentTitle, `Segment ${segment.baseOffset} `, segment.active ? badge("active", "accent") : null);
    show(this.segment, drawSegment(shown, offsets, times, this.segment.clientWidth - 28), this.caption(segment, shown));
    this.listed = batches;
    await this.loadRows();
  }

  caption(segment, shown) {
    const last = shown.at(-1);
    const text = shown.length
      ? `${plural(shown.length, "batch", "batches")} from position ${count(shown[0].position)} to ${count(last.position + last.size)} of ${count(segment.sizeBytes)}`
      : "no batches here";
    return h(
      "p.muted.small",
      {},
      text,
      ". Entries of the time index point down from above, those of the offset index up from below. Both are sparse: one entry for each index.interval.bytes. Those of the active segment may be in memory until it is flushed or rolled.",
    );
  }

  /** Where to begin so that the end of a large log is seen: at one of its last index entries. */
  async tail(log, index) {
    if (!index || log.sizeBytes < 64 * 1024) return 0;
    const entries = Math.floor(index.sizeBytes / ENTRY_BYTES.index);
    const { rows } = await this.rowsOf(index.name, { after: Math.max(0, entries - TAIL_ENTRIES), limit: TAIL_ENTRIES });
    return rows.filter((row) => row.kind === "entry").map((row) => row.data.position)[0] ?? 0;
  }

  /** Index entries near the batches that are shown; they lie where their share of the log lies. */
  async entries(index, log, shown) {
    if (!index || !shown.length || !index.sizeBytes) return [];
    const all = Math.floor(index.sizeBytes / ENTRY_BYTES[index.kind]);
    const guess = Math.max(0, Math.floor((shown[0].position / Math.max(1, log.sizeBytes)) * all) - 100);
    const { rows } = await this.rowsOf(index.name, { after: guess, limit: 200 });
    return rows.filter((row) => row.kind === "entry").map((row) => row.data);
  }

  showFile(name) {
    this.file = name;
    this.view.attempt(() => this.loadRows());
    this.rowsTitle.scrollIntoView({ block: "nearest" });
  }

  /** The content of a file as rows; without a chosen file that of the segment's log. */
  async loadRows() {
    const log = this.segmentShown?.files.find((candidate) => candidate.kind === "log");
    const name = this.file ?? log?.name;
    if (!name) return;
    const plain = this.file === null && !this.records && this.listed;
    const position = this.file === null ? this.shownFrom : 0;
    const answer = plain ? this.listed : await this.rowsOf(name, { position, limit: 200, records: this.records });
    show(this.rowsTitle, "Content of ", h("code", {}, name));
    show(this.rows, rowsTable(answer));
  }
}

function rowsTable({ rows, next }) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.data)))];
  const table = new Table({
    label: "Rows",
    pageSize: 20,
    empty: "The file is empty.",
    columns: [
      {
        title: "",
        tight: true,
        cell: (row) => badge(row.kind, row.kind === "problem" ? "bad" : row.kind === "batch" ? "accent" : ""),
      },
      ...names.map((name) => ({
        title: name,
        number: rows.every((row) => typeof (row.data[name] ?? 0) === "number"),
        className: "mono",
        value: (row) => row.data[name],
        cell: (row) => cellText(name, row.data[name]),
      })),
    ],
  });
  table.update(rows);
  return [table.element, next === null ? null : h("p.pager", {}, "The file goes on.")];
}

function cellText(name, value) {
  if (value === null || value === undefined) return "";
  if (/timestamp$/i.test(name) && typeof value === "number" && value > 0)
    return h("span", { title: String(value) }, time(value));
  if (typeof value === "object") return JSON.stringify(value);
  return String(value).slice(0, 500);
}

function epochTable() {
  return new Table({
    label: "Leader epochs",
    empty: "No leader epoch yet.",
    pageSize: 8,
    columns: [
      { title: "Epoch", number: true, value: (e) => e.epoch, cell: (e) => count(e.epoch) },
      { title: "Begins at offset", number: true, value: (e) => e.startOffset, cell: (e) => count(e.startOffset) },
    ],
  });
}

function producerTable() {
  return new Table({
    label: "Producers",
    empty: "No idempotent producer has written here.",
    pageSize: 8,
    columns: [
      {
        title: "Producer",
        number: true,
        value: (p) => p.producerId,
        cell: (p) => [String(p.producerId), h("span.muted", {}, ` epoch ${p.producerEpoch}`)],
      },
      { title: "Last sequence", number: true, value: (p) => p.lastSequence, cell: (p) => count(p.lastSequence) },
      { title: "Last offset", number: true, value: (p) => p.lastOffset, cell: (p) => count(p.lastOffset) },
      {
        title: "Transaction from",
        number: true,
        value: (p) => p.currentTxnFirstOffset,
        cell: (p) => (p.currentTxnFirstOffset === null ? "–" : badge(count(p.currentTxnFirstOffset), "warn")),
      },
      { title: "Last write", value: (p) => p.lastTimestamp, cell: (p) => ago(p.lastTimestamp) },
    ],
  });
}

function fileTable(open) {
  return new Table({
    key: (file) => file.name,
    label: "Files",
    pageSize: 8,
    empty: "No files.",
    columns: [
      { title: "File", name: true, value: (f) => f.name, cell: (f) => button(f.name, () => open(f.name), "link mono") },
      { title: "Size", number: true, value: (f) => f.sizeBytes, cell: (f) => bytes(f.sizeBytes) },
    ],
  });
}

function logFacts(state) {
  return facts([
    ["Log start offset", count(state.logStartOffset)],
    ["Recovery point", count(state.recoveryPoint)],
    ["Last stable offset", count(state.lastStableOffset)],
    ["High watermark", count(state.highWatermark)],
    ["Log end offset", count(state.endOffset)],
  ]);
}

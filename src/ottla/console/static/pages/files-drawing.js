// The two drawings of a partition's files. They take data and a width, and return an SVG; the page redraws them.

import { s } from "../lib/dom.js";
import { bytes, clock, count } from "../lib/format.js";

const SEGMENT_WIDTH = 136;
const GAP = 6;
const LABEL = 13;
const KINDS = ["log", "index", "timeindex", "txnindex", "snapshot", "checkpoint"];

/** Segments from left to right, the marks of the log above them, leader epochs and producers below. */
export function drawLog({ segments, epochs, producers, state }, { width, older, chosen, choose }) {
  const room = Math.max(1, Math.floor((width + GAP) / (SEGMENT_WIDTH + GAP)));
  const to = segments.length - Math.min(older, Math.max(0, segments.length - room));
  const shown = segments.slice(Math.max(0, to - room), to);
  if (!shown.length)
    return s(
      "svg",
      { class: "drawing", viewBox: `0 0 ${width} 30`, height: 30 },
      s("text", { x: 0, y: 18 }, "no segments"),
    );
  const each = Math.min(260, (width - GAP * (shown.length - 1)) / shown.length);
  const left = (place) => place * (each + GAP);
  const from = shown[0].baseOffset;
  const end = shown.at(-1).endOffset;
  const x = (offset) => {
    const place = Math.max(
      0,
      shown.findLastIndex((segment) => segment.baseOffset <= offset),
    );
    const { baseOffset, endOffset } = shown[place];
    const share = endOffset > baseOffset ? (offset - baseOffset) / (endOffset - baseOffset) : 0;
    return left(place) + Math.max(0, Math.min(1, share)) * each;
  };
  const marks = marksOf(state).filter((mark) => mark.offset >= from && mark.offset <= end);
  const rows = layOut(
    marks.map((mark) => ({ ...mark, x: x(mark.offset) })),
    width,
  );
  const top = rows.height + 8;
  const fileRows = Math.max(...shown.map((segment) => segment.files.length));
  const boxHeight = 40 + fileRows * LABEL + 6;
  const parts = [];
  shown.forEach((segment, place) =>
    parts.push(
      segmentBox(segment, left(place), top, each, boxHeight, String(segment.baseOffset) === String(chosen), choose),
    ),
  );
  for (const mark of rows.marks) {
    parts.push(s("line", { class: `mark ${mark.level}`, x1: mark.x, x2: mark.x, y1: mark.y + 3, y2: top + boxHeight }));
    parts.push(
      s(
        "text",
        {
          class: "label",
          x: mark.anchor === "end" ? mark.x - 3 : mark.x + 3,
          y: mark.y + 11,
          "text-anchor": mark.anchor,
        },
        mark.text,
      ),
    );
  }
  const below = top + boxHeight + 8;
  parts.push(...epochBands(epochs, from, end, x, below));
  parts.push(...producerMarks(producers, from, end, x, below + 30));
  const height = below + 46;
  const label = `${count(segments.length)} segments, ${count(shown.length)} shown, offsets ${from} to ${end}`;
  return s(
    "svg",
    { class: "drawing", viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": label },
    parts,
  );
}

function segmentBox(segment, x, y, width, height, isChosen, choose) {
  const classes = ["box", segment.active && "active", isChosen && "chosen"].filter(Boolean).join(" ");
  const text = (content, line, className = "") =>
    s("text", { x: x + 8, y: y + 17 + line * LABEL, class: className }, content);
  const ordered = segment.files.toSorted((a, b) => KINDS.indexOf(a.kind) - KINDS.indexOf(b.kind));
  const files = ordered.map((file, place) => text(`.${file.kind}  ${bytes(file.sizeBytes)}`, place + 2.2));
  const open = () => choose(segment.baseOffset);
  const label = `Segment ${segment.baseOffset}, ${bytes(segment.sizeBytes)}${segment.active ? ", active" : ""}`;
  return s(
    "g",
    {
      role: "button",
      tabindex: "0",
      "aria-label": label,
      "aria-pressed": isChosen,
      "data-key": segment.baseOffset,
      class: "segment",
      onclick: open,
      onkeydown: (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        open();
      },
    },
    s("rect", { class: classes, x: x + 0.5, y: y + 0.5, width: Math.max(1, width - 1), height, rx: 5 }),
    text(String(segment.baseOffset), 0, "strong"),
    text(segment.active ? "active" : `to ${segment.endOffset}`, 1),
    files,
  );
}

function marksOf(state) {
  if (!state) return [];
  return [
    { text: `log start ${state.logStartOffset}`, offset: state.logStartOffset, level: "" },
    { text: `recovery point ${state.recoveryPoint}`, offset: state.recoveryPoint, level: "warn" },
    { text: `last stable ${state.lastStableOffset}`, offset: state.lastStableOffset, level: "bad" },
    { text: `high watermark ${state.highWatermark}`, offset: state.highWatermark, level: "good" },
    { text: `end ${state.endOffset}`, offset: state.endOffset, level: "" },
  ].filter((mark) => mark.offset !== null && mark.offset !== undefined);
}

/** One row of labels for each mark, so that no two overlap; labels at the right edge grow to the left. */
function layOut(marks, width) {
  const placed = marks.map((mark, place) => ({
    ...mark,
    y: place * LABEL,
    anchor: mark.x + mark.text.length * 6.5 > width ? "end" : "start",
  }));
  return { marks: placed, height: marks.length * LABEL };
}

function epochBands(epochs, from, end, x, y) {
  const parts = [];
  epochs.forEach(({ epoch, startOffset }, place) => {
    const until = epochs[place + 1]?.startOffset ?? end;
    if (until < from || startOffset > end) return;
    const left = x(Math.max(startOffset, from));
    const width = Math.max(2, x(Math.min(until, end)) - left);
    parts.push(
      s(
        "g",
        { class: `series-${Math.abs(epoch) % 6}` },
        s("title", {}, `Leader epoch ${epoch} from offset ${startOffset}`),
        s("rect", { class: "band", x: left, y, width, height: 16, rx: 2 }),
        width > 56 ? s("text", { class: "label", x: left + 6, y: y + 12 }, `epoch ${epoch}`) : null,
      ),
    );
  });
  return parts;
}

/** A triangle at the last offset of each producer, and a line over its open transaction. */
function producerMarks(producers, from, end, x, y) {
  return producers
    .slice(0, 60)
    .filter((p) => p.lastOffset !== null && p.lastOffset >= from && p.lastOffset <= end)
    .map((p) => {
      const place = x(p.lastOffset);
      const open = p.currentTxnFirstOffset;
      return s(
        "g",
        {},
        s(
          "title",
          {},
          `Producer ${p.producerId} epoch ${p.producerEpoch}: last offset ${p.lastOffset}${open === null ? "" : `, open transaction from ${open}`}`,
        ),
        open === null
          ? null
          : s("line", {
              class: "mark warn",
              x1: x(Math.max(open, from)),
              x2: Math.max(place, x(Math.max(open, from)) + 3),
              y1: y,
              y2: y,
            }),
        s("path", { class: open === null ? "entry" : "entry time", d: `M${place - 4},${y + 8}h8l-4,-8z` }),
      );
    });
}

/** Batches by their size; the time index points into them from above, the offset index from below. */
export function drawSegment(batches, offsets, times, width) {
  const height = 196;
  const svg = (...parts) =>
    s(
      "svg",
      {
        class: "drawing",
        viewBox: `0 0 ${width} ${height}`,
        height,
        role: "img",
        "aria-label": `${batches.length} batches, ${offsets.length} offset index entries nearby`,
      },
      parts,
    );
  if (!batches.length || width < 60) return svg(s("text", { x: 0, y: 20 }, "No batches here."));
  const start = batches[0].position;
  const stop = batches.at(-1).position + batches.at(-1).size;
  const x = (position) => ((position - start) / (stop - start)) * width;
  const top = 84;
  const tall = 36;
  const parts = [];
  let labelEnd = -1;
  for (const batch of batches) {
    const left = x(batch.position);
    const wide = Math.max(1, x(batch.position + batch.size) - left - 1);
    const kind = batch.isControl ? "control" : batch.isTransactional ? "transactional" : "";
    parts.push(
      s(
        "g",
        {},
        s(
          "title",
          {},
          `offsets ${batch.baseOffset} to ${batch.lastOffset}, ${count(batch.count)} records, ${bytes(batch.size)} at ${batch.position}${kind ? `, ${kind}` : ""}, ${batch.compresscodec}, producer ${batch.producerId}`,
        ),
        s("rect", {
          class: `box batch ${kind}`,
          x: left,
          y: top,
          width: wide,
          height: tall,
          rx: Math.min(3, wide / 2),
        }),
      ),
    );
    const text = String(batch.baseOffset);
    if (left > labelEnd && wide > text.length * 7 + 6) {
      parts.push(s("text", { class: "label", x: left + 4, y: top + 22 }, text));
      labelEnd = left + text.length * 7 + 4;
    }
  }
  const within = offsets.filter((entry) => entry.position >= start && entry.position < stop);
  parts.push(
    ...pointers(
      within,
      width,
      (entry) => x(entry.position),
      top + tall,
      height - 4,
      (entry) => `${entry.offset} → ${entry.position}`,
      "",
      "offset index",
    ),
  );
  const timed = times.filter(
    (entry) => entry.offset >= batches[0].baseOffset && entry.offset <= batches.at(-1).lastOffset,
  );
  const batchOf = (offset) => batches.find((batch) => batch.lastOffset >= offset);
  parts.push(
    ...pointers(
      timed,
      width,
      (entry) => x(batchOf(entry.offset).position) + 2,
      top,
      4,
      (entry) => `${clock(entry.timestamp)} → ${entry.offset}`,
      "time",
      "time index",
    ),
  );
  return svg(parts);
}

/** Cells of an index in a row, each with a line to the batch that it names. Too many are thinned out evenly. */
function pointers(entries, width, target, from, to, text, kind, name) {
  const cell = Math.max(0, ...entries.map((entry) => text(entry).length)) * 6.8 + 14;
  const most = Math.max(1, Math.floor(width / cell));
  const step = Math.ceil(entries.length / most);
  const shown = entries.filter((_, place) => place % Math.max(1, step) === 0);
  const down = to < from ? 1 : -1;
  const edge = down > 0 ? to + 20 : to - 20;
  if (!shown.length)
    return [s("text", { x: 2, y: (edge + to) / 2 + 4 }, `no entry of the ${name} on disk points here`)];
  const each = width / shown.length;
  return shown.map((entry, place) => {
    const middle = (place + 0.5) * each;
    const left = middle - (cell - 4) / 2;
    return s(
      "g",
      { class: `pointer ${kind}` },
      s("title", {}, `${name}: ${text(entry)}`),
      s("path", {
        class: "wire",
        d: `M${middle},${edge}C${middle},${edge + down * 26} ${target(entry)},${from - down * 26} ${target(entry)},${from}`,
      }),
      s("rect", { class: "box cell", x: left, y: Math.min(edge, to), width: cell - 4, height: 20, rx: 3 }),
      s("circle", { class: `entry ${kind}`, cx: target(entry), cy: from, r: 2.5 }),
      s("text", { class: "label", x: middle, y: (edge + to) / 2 + 4, "text-anchor": "middle" }, text(entry)),
    );
  });
}

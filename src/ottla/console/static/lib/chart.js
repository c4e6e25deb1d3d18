// Line charts that move with the clock: a few hundred samples, drawn as SVG, without a library.

import { h, s, show } from "./dom.js";
import { clock, compact } from "./format.js";

const LEFT = 68;
const RIGHT = 6;
const TOP = 8;
const BOTTOM = 20;
const SERIES_COLOURS = 6;
const SHORTEST_MS = 60_000;
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** The charts that are on the page now; one timer moves all of them. */
const moving = new Set();
setInterval(() => {
  if (document.hidden || calm.matches) return;
  for (const chart of moving) {
    if (chart.element.isConnected) chart.draw();
    else if (chart.wasShown) moving.delete(chart);
  }
}, 500);

/**
 * A chart of named series over the last `windowMs` at most. Give it samples with `push(timeMs, {name: value})`; it keeps
 * what its window shows and no more. A missing value is a gap in that line.
 */
export class LineChart {
  constructor({ label, format = compact, windowMs = 300_000, height = 150, base = 10 }) {
    this.label = label;
    this.format = format;
    this.windowMs = windowMs;
    this.height = height;
    this.base = base; // 1024 for bytes, so that the axis has round numbers
    this.samples = [];
    this.names = [];
    this.hidden = new Set();
    this.pointer = null;
    this.width = 0;
    this.wasShown = false;
    this.legend = h("div.legend");
    this.svg = s("svg", { class: "chart", role: "img", "aria-label": label });
    this.svg.style.height = `${height}px`;
    this.element = h("div.stack", {}, this.svg, this.legend);
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(() => {
      this.width = this.svg.clientWidth;
      this.wasShown = true;
      this.draw();
    }).observe(this.svg);
    moving.add(this);
  }

  push(timeMs, values) {
    for (const name of Object.keys(values)) if (!this.names.includes(name)) this.names.push(name);
    const last = this.samples.at(-1);
    if (last && timeMs <= last.time) return;
    this.samples.push({ time: timeMs, values });
    // One sample before the window stays, so that the line enters at the edge.
    while (this.samples.length > 2 && this.samples[1].time < timeMs - this.windowMs) this.samples.shift();
    this.draw();
  }

  point(x) {
    this.pointer = x;
    this.draw();
  }

  draw() {
    if (!this.width) return;
    const shown = this.names.filter((name) => !this.hidden.has(name));
    const newest = this.samples.at(-1)?.time ?? Date.now();
    const oldest = this.samples[0]?.time ?? newest;
    // The right edge is now, except for a chart whose samples stopped coming.
    const end = calm.matches ? newest : Math.min(Math.max(newest, Date.now() - 1500), newest + 10_000);
    // A chart that has just begun is not empty for the most part.
    const spanMs = Math.min(this.windowMs, Math.max(SHORTEST_MS, end - oldest));
    const start = end - spanMs;
    const right = this.width - RIGHT;
    const bottom = this.height - BOTTOM;
    let highest = 0;
    for (const { values } of this.samples) for (const name of shown) highest = Math.max(highest, values[name] ?? 0);
    const top = niceCeiling(highest, this.base);
    const x = (time) => LEFT + ((time - start) / spanMs) * (right - LEFT);
    const y = (value) => bottom - (value / top) * (bottom - TOP);

    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const height = y(top * share);
      parts.push(s("line", { class: "grid", x1: LEFT, x2: right, y1: height, y2: height }));
      parts.push(s("text", { x: LEFT - 6, y: height + 4, "text-anchor": "end" }, this.format(top * share)));
    }
    const step = timeStep(spanMs, right - LEFT);
    for (let time = Math.ceil(start / step) * step; time <= end; time += step) {
      const place = x(time);
      if (place > LEFT + 20 && place < right - 24) {
        parts.push(s("text", { x: place, y: this.height - 5, "text-anchor": "middle" }, clock(time)));
      }
    }
    const clip = `clip-${(this.clipId ??= nextClip++)}`;
    parts.push(
      s("clipPath", { id: clip }, s("rect", { x: LEFT, y: 0, width: Math.max(0, right - LEFT), height: this.height })),
    );
    const lines = s("g", { "clip-path": `url(#${clip})` });
    for (const name of shown) {
      const index = this.names.indexOf(name) % SERIES_COLOURS;
      const { line, area } = paths(this.samples, name, x, y, bottom);
      if (shown.length <= 2) lines.append(s("path", { class: `area series-${index}`, d: area }));
      lines.append(s("path", { class: `line series-${index}`, d: line }));
      const last = this.samples.at(-1);
      if (last && (last.values[name] ?? null) !== null)
        lines.append(s("circle", { class: `dot series-${index}`, cx: x(last.time), cy: y(last.values[name]), r: 2.5 }));
    }
    parts.push(lines);

    let sample = this.samples.at(-1);
    if (this.pointer !== null && this.samples.length) {
      const wanted = start + ((this.pointer - LEFT) / (right - LEFT)) * spanMs;
      sample = this.samples.reduce((a, b) => (Math.abs(b.time - wanted) < Math.abs(a.time - wanted) ? b : a));
      const place = Math.max(LEFT, x(sample.time));
      parts.push(s("line", { class: "cursor", x1: place, x2: place, y1: TOP, y2: bottom }));
      parts.push(s("text", { x: Math.min(place + 4, right - 50), y: TOP + 8 }, clock(sample.time)));
    }
    if (!this.samples.length) parts.push(s("text", { x: LEFT + 10, y: bottom / 2 }, "no samples yet"));
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.replaceChildren(...parts);
    this.svg.setAttribute("data-samples", this.samples.length);
    this.svg.setAttribute("data-from", Math.max(oldest, start));
    this.drawLegend(sample);
  }

  drawLegend(sample) {
    const texts = this.names.map((name) => this.format(sample?.values[name] ?? null));
    const label = this.names.map((name, place) => `${name} ${texts[place]}`).join(", ");
    this.svg.setAttribute("aria-label", `${this.label}: ${label || "no samples yet"}`);
    const entries = [...this.legend.children];
    if (entries.length !== this.names.length) {
      show(
        this.legend,
        this.names.map((name, place) => this.legendEntry(name, place)),
      );
    }
    [...this.legend.children].forEach((entry, place) => {
      entry.lastChild.textContent = texts[place];
    });
  }

  legendEntry(name, place) {
    const toggle = () => {
      if (!this.hidden.delete(name)) this.hidden.add(name);
      entry.setAttribute("aria-pressed", !this.hidden.has(name));
      this.draw();
    };
    const attributes = {
      class: `series-${place % SERIES_COLOURS}`,
      "aria-pressed": "true",
      title: "show or hide",
      onclick: toggle,
    };
    const entry = h("button", { type: "button", ...attributes }, h("i"), name, h("b", {}, ""));
    return entry;
  }
}

let nextClip = 1;

function paths(samples, name, x, y, bottom) {
  let line = "";
  let area = "";
  let previous = null;
  for (const { time, values } of samples) {
    const value = values[name];
    if (value === null || value === undefined) {
      if (previous !== null) area += `L${previous},${bottom}Z`;
      previous = null;
      continue;
    }
    const place = x(time).toFixed(1);
    const height = y(value).toFixed(1);
    line += `${previous === null ? "M" : "L"}${place},${height}`;
    area += previous === null ? `M${place},${bottom}L${place},${height}` : `L${place},${height}`;
    previous = place;
  }
  if (previous !== null) area += `L${previous},${bottom}Z`;
  return { line, area };
}

/** A round number a little above the value: of 1, 2, 5 times a power of ten, or of that times a power of 1024. */
function niceCeiling(value, base) {
  if (value <= 0) return 1;
  const unit = base === 10 ? 1 : base ** Math.max(0, Math.floor(Math.log(value) / Math.log(base)));
  const power = 10 ** Math.floor(Math.log10(value / unit));
  return (
    unit *
    [1, 2, 5, 10]
      .map((factor) => factor * power)
      .find((candidate) => candidate * unit >= value * 1.05 || candidate === 10 * power)
  );
}

function timeStep(windowMs, width) {
  const wanted = windowMs / Math.max(1, width / 90);
  const steps = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400].map(
    (seconds) => seconds * 1000,
  );
  return steps.find((step) => step >= wanted) ?? steps.at(-1);
}

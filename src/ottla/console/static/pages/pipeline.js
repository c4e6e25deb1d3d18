// One pipeline: its graph with states, its flows, what they read and write, how far behind they are, the last error of
// each, how its last runs have ended, and a look at its tables.

import { get } from "../lib/api.js";
import { LineChart } from "../lib/chart.js";
import { a, h, link, s, show } from "../lib/dom.js";
import { ago, compact, count, duration, rate, time } from "../lib/format.js";
import { Table } from "../lib/table.js";
import { badge, body, button, dialog, head, notice, panel, problems, stateBadge, tile } from "../lib/widgets.js";

const REFRESH_MS = 3_000;

export async function page(view) {
  const directory = view.query.get("directory") ?? "";
  view.title("Pipeline");
  const heading = head("Pipeline", { trail: [["Pipelines", link("pipelines")]] });
  const tiles = h("div.tiles");
  const errors = h("div.stack");
  const partial = h("div");
  const chart = new LineChart({ label: "Lag of flows", format: compact, windowMs: 600_000 });
  const graph = h("div.scroll");
  const tables = h("div.row");
  const flows = flowTable();
  const runs = runTable();
  const rules = h("div.stack");
  view.show(
    heading,
    errors,
    tiles,
    panel("Graph", null, body(graph)),
    panel("Flows", null, flows.element),
    panel("Lag of flows", null, body(chart.element)),
    panel("Runs", null, runs.element),
    panel("Expectations, run by run", null, body(rules)),
    panel("Tables and topics", null, body(tables)),
    partial,
  );
  await view.live(REFRESH_MS, async () => {
    const pipeline = await get(["pipeline"], { directory }, view.signal);
    heading.querySelector("h1").textContent = pipeline.name;
    view.title(pipeline.name);
    show(tiles, [
      tile("State", stateBadge(pipeline.state), pipeline.mode ?? ""),
      tile("Rows read", count(pipeline.rows), lastRun(pipeline.runs)),
      tile("Lag", count(pipeline.lag)),
      tile("Started", ago(pipeline.startedMs), time(pipeline.startedMs)),
      tile("Updated", ago(pipeline.updatedMs)),
      tile("Directory", pipeline.directory),
    ]);
    drawErrors(errors, pipeline);
    drawOnce(graph, [pipeline.graph, pipeline.states], () => drawGraph(pipeline));
    drawOnce(tables, [pipeline.tables, pipeline.topics, pipeline.deadLetters], () => drawTables(pipeline, directory, view));
    drawOnce(rules, [pipeline.runs], () => drawExpectations(pipeline.runs));
    const topicOf = (flow) => pipeline.topics[(flow.target ?? "").toLowerCase()];
    flows.update(pipeline.flows.map((flow) => ({ ...flow, topic: topicOf(flow) })));
    runs.update(pipeline.runs);
    chart.push(
      Date.now(),
      Object.fromEntries(
        pipeline.flows
          .filter((f) => f.lag !== null)
          .slice(0, 6)
          .map((f) => [f.name, f.lag]),
      ),
    );
    show(partial, problems(pipeline.problems));
  });
}

/** Draw a part again when what it shows has changed: a focus or a selection stays otherwise. */
function drawOnce(element, shown, draw) {
  const mark = JSON.stringify(shown);
  if (element.dataset.shown === mark) return;
  element.dataset.shown = mark;
  show(element, draw());
}

function lastRun([run]) {
  return run ? `last run ${duration(run.endedMs - run.startedMs)}` : "";
}

const LEVELS = { running: "good", completed: "good", failed: "bad", restarting: "warn", skipped: "warn", stopped: "warn" };

/** What states of the flows into one dataset come to: the worst of them. */
function worst(states) {
  for (const level of ["bad", "warn", "good"]) {
    const state = states.find((each) => LEVELS[each] === level);
    if (state) return [state, level];
  }
  return [states[0] ?? "", ""];
}

function drawGraph({ graph, states }) {
  if (!graph.boxes.length) return h("p.muted", {}, "No run has found the flows yet.");
  const { width, height, box_width: boxWidth, box_height: boxHeight } = graph;
  const label = graph.boxes.map((box) => `${box.name}: ${worst(states[box.name] ?? [])[0] || box.kind}`).join(", ");
  return s(
    "svg",
    { class: "flows", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    graph.paths.map((d) => s("path", { d })),
    graph.boxes.map(({ name, kind, x, y }) => {
      const [state, level] = worst(states[name] ?? []);
      return s(
        "g",
        { class: level, transform: `translate(${x},${y})` },
        s("title", {}, `${name} (${kind})${state ? `: ${state}` : ""}`),
        s("rect", { width: boxWidth, height: boxHeight, rx: 6 }),
        s("text", { x: 10, y: 18, class: "name" }, name.length > 24 ? `${name.slice(0, 23)}…` : name),
        s("text", { x: 10, y: 34 }, name === kind ? "" : `${kind}${state ? `, ${state}` : ""}`),
      );
    }),
  );
}

function drawTables({ tables, topics, deadLetters }, directory, view) {
  if (!tables.length && !Object.keys(topics).length) return h("p.muted", {}, "There are no tables yet.");
  return [
    tables.map((table) => button(table, () => preview(directory, table, view), "", { title: "Show its newest rows" })),
    Object.entries(topics).map(([sink, topic]) =>
      h("span", {}, `${sink} writes to `, a(link("topic", topic, "messages"), topic)),
    ),
    Object.entries(deadLetters).map(([flow, letters]) =>
      letters.map((topic) => h("span", {}, `dead letters of ${flow}: `, a(link("topic", topic, "messages"), topic))),
    ),
  ];
}

/** Some rows of a table, of the file that was written last. */
async function preview(directory, table, view) {
  const content = h("div.body.scroll", {}, h("p.muted", {}, "Reading …"));
  dialog(`Table ${table}`, content, { wide: true });
  try {
    const { columns, rows, total } = await get(["pipeline", "table"], { directory, table }, view.signal);
    const cells = (row) => row.map((cell) => h("td", {}, cell === null ? h("span.muted", {}, "null") : cell));
    show(
      content,
      rows.length
        ? [
            h("p.muted.small", {}, `${count(rows.length)} of ${count(total)} rows of the newest file.`),
            h(
              "table",
              {},
              h("thead", {}, h("tr", {}, columns.map((name) => h("th", {}, name)))),
              h("tbody", {}, rows.map((row) => h("tr", {}, cells(row)))),
            ),
          ]
        : h("p.muted", {}, "It has no rows."),
    );
  } catch (error) {
    show(content, notice("bad", error.message));
  }
}

/** How many rows broke each rule, in each of the last runs. */
function drawExpectations(runs) {
  const ended = runs.slice(0, 30).reverse();
  const names = [...new Set(ended.flatMap((run) => Object.keys(run.expectations)))].sort();
  if (!names.length) return h("p.muted", {}, "No flow has expectations.");
  return names.map((name) => {
    const counts = ended.map((run) => run.expectations[name] ?? 0);
    const most = Math.max(...counts, 1);
    return h(
      "div",
      {},
      h("div.small", {}, `${name}: ${count(counts.at(-1))} in the last run, ${count(most)} at most`),
      s(
        "svg",
        { class: "bars", width: ended.length * 12, height: 36, role: "img", "aria-label": `${name}: ${counts.join(", ")}` },
        counts.map((each, index) =>
          s(
            "rect",
            { x: index * 12, y: 34 - (each / most) * 32, width: 9, height: (each / most) * 32 + 2 },
            s("title", {}, `${time(ended[index].startedMs)}: ${count(each)}`),
          ),
        ),
      ),
    );
  });
}

function runTable() {
  return new Table({
    label: "Runs",
    key: (run) => run.startedMs,
    empty: "No run has ended yet.",
    columns: [
      { title: "Started", value: (r) => r.startedMs, cell: (r) => [time(r.startedMs), h("div.small.muted", {}, r.mode)] },
      { title: "Took", number: true, value: (r) => r.endedMs - r.startedMs, cell: (r) => duration(r.endedMs - r.startedMs) },
      { title: "Outcome", value: (r) => r.state, cell: (r) => stateBadge(r.state) },
      { title: "Rows read", number: true, value: (r) => r.rows, cell: (r) => count(r.rows) },
      { title: "To sinks", number: true, value: (r) => r.rowsOut, cell: (r) => count(r.rowsOut) },
      { title: "Lag at the end", number: true, value: (r) => r.lag, cell: (r) => count(r.lag) },
      { title: "Broke a rule", number: true, value: (r) => r.broken, cell: (r) => count(r.broken) },
      { title: "Error", name: true, cell: (r) => h("span.break", {}, (r.error ?? "").split("\n", 1)[0].slice(0, 200)) },
    ],
  });
}

/** The last error of each flow, and that of the run if it is another; open ones stay open while they are the same. */
function drawErrors(element, { error, flows }) {
  const found = flows.filter((flow) => flow.error).map((flow) => [flow.name, flow.error]);
  if (error && !found.some(([, text]) => text === error)) found.unshift(["The run", error]);
  const mark = JSON.stringify(found);
  if (element.dataset.shown === mark) return;
  element.dataset.shown = mark;
  show(
    element,
    found.map(([name, text]) =>
      notice(
        "bad",
        h("details", {}, h("summary", {}, `${name}: ${text.split("\n", 1)[0].slice(0, 200)}`), h("pre.mono", {}, text)),
      ),
    ),
  );
}

function flowTable() {
  return new Table({
    label: "Flows",
    key: (flow) => flow.name,
    empty: "No flow has run yet.",
    columns: [
      {
        title: "Flow",
        name: true,
        value: (f) => f.name,
        cell: (f) => [f.name, h("div.small.muted", {}, f.kind ?? "")],
      },
      {
        title: "State",
        value: (f) => f.state,
        cell: (f) => [stateBadge(f.state), f.restarts ? [" ", badge(`${count(f.restarts)} restarts`, "warn")] : null],
      },
      { title: "From", name: true, cell: (f) => f.inputs.join(", ") },
      {
        title: "Into",
        name: true,
        cell: (f) => (f.topic ? a(link("topic", f.topic), f.target) : (f.target ?? "–")),
      },
      { title: "Batches", number: true, value: (f) => f.batches, cell: (f) => count(f.batches) },
      {
        title: "Rows read",
        number: true,
        value: (f) => f.rows,
        cell: (f) => [count(f.rows), h("div.small.muted", {}, rate(f.rowsPerSecond))],
      },
      { title: "Written", number: true, value: (f) => f.rowsOut, cell: (f) => count(f.rowsOut) },
      { title: "Lag", number: true, value: (f) => f.lag, cell: (f) => count(f.lag) },
      {
        title: "Checkpoint",
        cell: (f) =>
          f.checkpoint ? [`batch ${count(f.checkpoint.batch)}`, h("div.small.muted", {}, ago(f.checkpoint.time))] : "–",
      },
      {
        title: "Expectations",
        cell: (f) =>
          (f.expectations ?? []).map(({ name, action, failed }) =>
            h("div", {}, badge(`${name}: ${count(failed)} failed, ${action}`, failed ? "warn" : "good")),
          ),
      },
    ],
  });
}

// One pipeline: its flows, what they read and write, how far behind they are, and the last error of each.

import { get } from "../lib/api.js";
import { LineChart } from "../lib/chart.js";
import { a, h, link, show } from "../lib/dom.js";
import { ago, compact, count, rate, time } from "../lib/format.js";
import { Table } from "../lib/table.js";
import { badge, body, head, notice, panel, problems, stateBadge, tile } from "../lib/widgets.js";

const REFRESH_MS = 3_000;

export async function page(view) {
  const directory = view.query.get("directory") ?? "";
  view.title("Pipeline");
  const heading = head("Pipeline", { trail: [["Pipelines", link("pipelines")]] });
  const tiles = h("div.tiles");
  const errors = h("div.stack");
  const partial = h("div");
  const chart = new LineChart({ label: "Lag of flows", format: compact, windowMs: 600_000 });
  const flows = flowTable();
  view.show(
    heading,
    errors,
    tiles,
    panel("Lag of flows", null, body(chart.element)),
    panel("Flows", null, flows.element),
    partial,
  );
  await view.live(REFRESH_MS, async () => {
    const pipeline = await get(["pipeline"], { directory }, view.signal);
    heading.querySelector("h1").textContent = pipeline.name;
    view.title(pipeline.name);
    show(tiles, [
      tile("State", stateBadge(pipeline.state), pipeline.mode ?? ""),
      tile("Rows", count(pipeline.rows)),
      tile("Lag", count(pipeline.lag)),
      tile("Started", ago(pipeline.startedMs), time(pipeline.startedMs)),
      tile("Updated", ago(pipeline.updatedMs)),
      tile("Directory", pipeline.directory),
    ]);
    drawErrors(errors, pipeline);
    flows.update(pipeline.flows);
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
        cell: (f) => (f.intoTopic && f.target ? a(link("topic", f.target), f.target) : (f.target ?? "–")),
      },
      { title: "Batches", number: true, value: (f) => f.batches, cell: (f) => count(f.batches) },
      {
        title: "Rows",
        number: true,
        value: (f) => f.rows,
        cell: (f) => [count(f.rows), h("div.small.muted", {}, rate(f.rowsPerSecond))],
      },
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

// The pipelines that this machine has run.

import { get } from "../lib/api.js";
import { a, h, link, show } from "../lib/dom.js";
import { ago, count } from "../lib/format.js";
import { Table } from "../lib/table.js";
import { badge, head, panel, problems, stateBadge } from "../lib/widgets.js";

const REFRESH_MS = 3_000;

export async function page(view) {
  view.title("Pipelines");
  const partial = h("div");
  const table = new Table({
    label: "Pipelines",
    key: (pipeline) => pipeline.directory,
    empty: "The console was given no pipelines: see http.console.pipelines, or --pipeline of ottla console.",
    columns: [
      {
        title: "Pipeline",
        name: true,
        value: (p) => p.name,
        cell: (p) => [
          a(link("pipeline", { directory: p.directory }), p.name),
          h("div.mono.small.muted.break", {}, p.directory),
        ],
      },
      { title: "State", value: (p) => p.state, cell: (p) => stateBadge(p.state) },
      { title: "Mode", value: (p) => p.mode, cell: (p) => p.mode ?? "–" },
      {
        title: "Flows",
        number: true,
        value: (p) => p.flows,
        cell: (p) => [count(p.flows), p.failed ? [" ", badge(`${count(p.failed)} failed`, "bad")] : null],
      },
      { title: "Rows", number: true, value: (p) => p.rows, cell: (p) => count(p.rows) },
      { title: "Lag", number: true, value: (p) => p.lag, cell: (p) => count(p.lag) },
      { title: "Updated", value: (p) => p.updatedMs, cell: (p) => ago(p.updatedMs) },
      { title: "Last error", name: true, cell: (p) => h("span.break", {}, firstLine(p.error)) },
    ],
  });
  view.show(head("Pipelines"), panel("Pipelines", null, table.element), partial);
  await view.live(REFRESH_MS, async () => {
    const found = await get(["pipelines"], {}, view.signal);
    table.update(found.items);
    show(partial, problems(found.problems));
  });
}

function firstLine(error) {
  return error ? error.split("\n", 1)[0].slice(0, 300) : "";
}

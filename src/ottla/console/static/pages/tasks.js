// The background tasks of this node: what runs, what failed and why.

import { get } from "../lib/api.js";
import { h, show } from "../lib/dom.js";
import { ago, count } from "../lib/format.js";
import { Table } from "../lib/table.js";
import { head, panel, problems, stateBadge } from "../lib/widgets.js";

const REFRESH_MS = 3_000;

export async function page(view) {
  view.title("Tasks");
  const partial = h("div");
  const table = new Table({
    label: "Background tasks",
    key: (task) => task.name,
    empty: "This node has no background tasks.",
    columns: [
      { title: "Task", name: true, value: (t) => t.name, cell: (t) => t.name },
      { title: "State", value: (t) => t.state, cell: (t) => stateBadge(t.state) },
      { title: "Restarts", number: true, value: (t) => t.restarts, cell: (t) => count(t.restarts) },
      {
        title: "Last error",
        name: true,
        value: (t) => t.lastErrorMs,
        cell: (t) =>
          t.lastError ? [h("span.break", {}, t.lastError), h("div.muted.small", {}, ago(t.lastErrorMs))] : "",
      },
    ],
  });
  view.show(head("Background tasks of this node"), panel("Tasks", null, table.element), partial);
  await view.live(REFRESH_MS, async () => {
    const found = await get(["tasks"], {}, view.signal);
    table.update(found.items);
    show(partial, problems(found.problems));
  });
}

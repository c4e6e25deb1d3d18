// Groups of every protocol, by pages from the server.

import { get } from "../lib/api.js";
import { a, h, link, show } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { Table } from "../lib/table.js";
import { badge, head, panel, problems, searchField, select, stateBadge } from "../lib/widgets.js";

const REFRESH_MS = 10_000;

export async function page(view) {
  view.title("Groups");
  const filters = {
    search: view.query.get("search") ?? "",
    type: view.query.get("type") ?? "",
    state: view.query.get("state") ?? "",
  };
  const total = h("span.muted", { role: "status" });
  const partial = h("div");
  const types = select([["", "every type"]], "", {
    "aria-label": "Type",
    onchange: (event) => refilter({ type: event.target.value }),
  });
  const states = select([["", "every state"]], "", {
    "aria-label": "State",
    onchange: (event) => refilter({ state: event.target.value }),
  });
  const table = new Table({
    label: "Groups",
    sort: "id",
    key: (group) => group.id,
    empty: () => (Object.values(filters).some(Boolean) ? "No group matches." : "There are no groups yet."),
    load: async (wanted) => {
      const answer = await get(["groups"], { ...filters, ...wanted }, view.signal);
      total.textContent = `${count(answer.total)} ${answer.total === 1 ? "group" : "groups"}`;
      fillChoices(types, "every type", answer.types, filters.type);
      fillChoices(states, "every state", answer.states, filters.state);
      show(partial, problems(answer.problems));
      return answer;
    },
    columns: [
      { title: "Group", name: true, sort: "id", cell: (g) => a(link("group", { id: g.id }), g.id || "(empty id)") },
      {
        title: "Type",
        sort: "type",
        cell: (g) => [
          g.type,
          g.protocolType && g.protocolType !== "consumer" && g.protocolType !== g.type
            ? [" ", badge(g.protocolType)]
            : null,
        ],
      },
      { title: "State", sort: "state", cell: (g) => stateBadge(g.state) },
      { title: "Members", number: true, sort: "members", cell: (g) => count(g.members) },
      { title: "Topics", number: true, cell: (g) => count(g.topics) },
      { title: "Lag", number: true, sort: "lag", cell: (g) => count(g.lag) },
    ],
  });
  const refilter = (change) => {
    Object.assign(filters, change);
    view.remember(filters);
    return view.attempt(() => table.restart());
  };
  view.show(
    head("Groups", { marks: total }),
    h(
      "div.row",
      {},
      searchField("Search groups", filters.search, (search) => refilter({ search })),
      types,
      states,
    ),
    panel("All groups", null, table.element),
    partial,
  );
  await view.live(REFRESH_MS, () => table.refresh());
}

function fillChoices(element, all, choices, chosen) {
  const wanted = ["", ...choices];
  if ([...element.options].map((option) => option.value).join("\n") === wanted.join("\n")) return;
  show(
    element,
    wanted.map((value) => h("option", { value, selected: value === chosen }, value || all)),
  );
}

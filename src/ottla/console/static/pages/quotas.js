// Quotas of users, client ids and addresses.

import { canChange, get, post } from "../lib/api.js";
import { h, show } from "../lib/dom.js";
import { byteRate, compact } from "../lib/format.js";
import { Table } from "../lib/table.js";
import {
  ask,
  badge,
  button,
  field,
  head,
  panel,
  problems,
  remark,
  searchField,
  select,
  values,
} from "../lib/widgets.js";

const KEYS = [
  "producer_byte_rate",
  "consumer_byte_rate",
  "request_percentage",
  "controller_mutation_rate",
  "connection_creation_rate",
];

export async function page(view) {
  view.title("Quotas");
  let search = "";
  const partial = h("div");
  const table = new Table({
    label: "Quotas",
    key: (quota) => JSON.stringify(quota.entity),
    empty: () => (search ? "No quota matches." : "There are no quotas."),
    load: async ({ page: number, pageSize }) => {
      const answer = await get(["quotas"], { search, page: number, pageSize }, view.signal);
      show(partial, problems(answer.problems));
      return answer;
    },
    columns: [
      {
        title: "Entity",
        name: true,
        cell: (q) =>
          Object.entries(q.entity).map(([type, name]) => [
            badge(type),
            " ",
            name ?? h("span.null", {}, "default"),
            " ",
          ]),
      },
      {
        title: "Limits",
        cell: (q) => Object.entries(q.values).map(([key, value]) => h("div", {}, `${key}: ${limit(key, value)}`)),
      },
      {
        title: "",
        tight: true,
        cell: (q) => (canChange() ? button("Remove", () => removeQuota(q, () => table.refresh()), "plain") : ""),
      },
    ],
  });
  view.show(
    head("Quotas", {
      actions: canChange() ? button("Set quota", () => setQuota(() => table.refresh()), "primary") : null,
    }),
    h(
      "div.row",
      {},
      searchField("Search quotas", "", (text) => {
        search = text;
        view.attempt(() => table.restart());
      }),
    ),
    panel("Quotas", null, table.element),
    partial,
  );
  await view.attempt(() => table.refresh());
}

function limit(key, value) {
  if (key.endsWith("byte_rate")) return byteRate(value);
  return key === "request_percentage" ? `${compact(value)} %` : `${compact(value)}/s`;
}

function setQuota(changed) {
  ask({
    title: "Set quota",
    action: "Set",
    content: [
      h("p.muted.small", {}, "Leave a name empty for none; write * for the default of all."),
      h(
        "div.row.end",
        {},
        field("User", h("input", { name: "user", autocomplete: "off" })),
        field("Client id", h("input", { name: "client-id", autocomplete: "off" })),
        field("Address", h("input", { name: "ip", autocomplete: "off" })),
      ),
      h(
        "div.row.end",
        {},
        field("Limit", select(KEYS, KEYS[0], { name: "key" })),
        field(
          "Value (bytes, per cent or calls, each second)",
          h("input", { name: "value", type: "number", min: 0, step: "any", required: true }),
        ),
      ),
    ],
    run: async (form) => {
      const given = values(form);
      const entity = {};
      for (const type of ["user", "client-id", "ip"])
        if (given[type]) entity[type] = given[type] === "*" ? null : given[type];
      if (!Object.keys(entity).length) throw new Error("Name a user, a client id or an address.");
      await post(["quotas"], { entity, set: { [given.key]: Number(given.value) }, remove: [] });
      remark("The quota was set.");
      await changed();
    },
  });
}

function removeQuota(quota, changed) {
  ask({
    title: "Remove quota",
    action: "Remove",
    danger: true,
    content: h("p", {}, `Limits: ${Object.keys(quota.values).join(", ")}`),
    run: async () => {
      await post(["quotas"], { entity: quota.entity, set: {}, remove: Object.keys(quota.values) });
      remark("The quota was removed.");
      await changed();
    },
  });
}

// All topics, by pages from the server; also where one is made.

import { canChange, get, post, session } from "../lib/api.js";
import { a, h, link, show } from "../lib/dom.js";
import { bytes, count, rate } from "../lib/format.js";
import { Table } from "../lib/table.js";
import {
  ask,
  badge,
  button,
  check,
  field,
  head,
  panel,
  problems,
  remark,
  searchField,
  select,
  values,
} from "../lib/widgets.js";

const REFRESH_MS = 10_000;

export async function page(view) {
  view.title("Topics");
  const filters = {
    search: view.query.get("search") ?? "",
    health: view.query.get("health") ?? "",
    internal: view.query.get("internal") === "true",
  };
  const total = h("span.muted", { role: "status" });
  const partial = h("div");
  const table = new Table({
    label: "Topics",
    sort: "name",
    key: (topic) => topic.name,
    empty: () => (filters.search || filters.health ? "No topic matches." : "There are no topics yet."),
    load: async (wanted) => {
      const answer = await get(["topics"], { ...filters, ...wanted }, view.signal);
      total.textContent = `${count(answer.total)} ${answer.total === 1 ? "topic" : "topics"}`;
      show(partial, problems(answer.problems));
      return answer;
    },
    columns: [
      {
        title: "Topic",
        name: true,
        sort: "name",
        cell: (t) => [a(link("topic", t.name), t.name), " ", t.internal && badge("internal")],
      },
      { title: "Partitions", number: true, sort: "partitions", cell: (t) => count(t.partitions) },
      { title: "Replicas", number: true, sort: "replicationFactor", cell: (t) => count(t.replicationFactor) },
      { title: "Health", sort: "underReplicated", cell: health },
      { title: "Messages", number: true, sort: "messages", cell: (t) => count(t.messages) },
      { title: "Rate", number: true, cell: (t) => rate(t.messagesPerSecond) },
      { title: "Size", number: true, sort: "size", cell: (t) => bytes(t.sizeBytes) },
      { title: "", tight: true, cell: (t) => a(link("topic", t.name, "messages"), "Messages") },
    ],
  });
  const refilter = (change) => {
    Object.assign(filters, change);
    view.remember({ ...filters, internal: filters.internal || "" });
    return view.attempt(() => table.restart());
  };
  view.show(
    head("Topics", {
      marks: total,
      actions: canChange() ? button("Create topic", () => createTopic(), "primary") : null,
    }),
    h(
      "div.row",
      {},
      searchField("Search topics", filters.search, (search) => refilter({ search })),
      select(
        [
          ["", "any health"],
          ["underReplicated", "under-replicated"],
          ["offline", "offline"],
        ],
        filters.health,
        {
          "aria-label": "Health",
          onchange: (event) => refilter({ health: event.target.value }),
        },
      ),
      session.features.metadataLog ? a(link("topic", "__cluster_metadata", "messages"), "Metadata log") : null,
      check("internal topics", {
        checked: filters.internal,
        onchange: (event) => refilter({ internal: event.target.checked }),
      }),
    ),
    panel("All topics", null, table.element),
    partial,
  );
  await view.live(REFRESH_MS, () => table.refresh());
}

export function health(topic) {
  if (topic.error) return badge(topic.error, "bad");
  if (topic.offline) return badge(`${count(topic.offline)} offline`, "bad");
  if (topic.underReplicated) return badge(`${count(topic.underReplicated)} under-replicated`, "warn");
  return badge("in sync", "good");
}

function createTopic() {
  ask({
    title: "Create topic",
    action: "Create",
    content: [
      field(
        "Name",
        h("input", {
          name: "name",
          required: true,
          maxlength: 249,
          pattern: "[a-zA-Z0-9._\\-]+",
          autocomplete: "off",
          spellcheck: "false",
        }),
        "Letters, digits, dot, underscore and dash",
      ),
      h(
        "div.row",
        {},
        field(
          "Partitions (empty: the broker's default)",
          h("input", { name: "partitions", type: "number", min: 1, max: 100000 }),
        ),
        field(
          "Replication factor (empty: default)",
          h("input", { name: "replicationFactor", type: "number", min: 1, max: 100 }),
        ),
      ),
      field(
        "Configuration, one name=value per line",
        h("textarea", {
          name: "configs",
          spellcheck: "false",
          placeholder: "retention.ms=86400000\ncleanup.policy=compact",
        }),
      ),
    ],
    run: async (form) => {
      const { name, partitions, replicationFactor, configs } = values(form);
      await post(["topics"], {
        name,
        partitions: Number(partitions || -1),
        replicationFactor: Number(replicationFactor || -1),
        configs: parseConfigs(configs),
        validateOnly: false,
      });
      remark(`Topic ${name} was created.`);
      location.hash = link("topic", name);
    },
  });
}

export function parseConfigs(text) {
  const lines = text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
  return Object.fromEntries(
    lines.map((line) => {
      const place = line.indexOf("=");
      if (place < 1) throw new Error(`"${line}" is not of the form name=value.`);
      return [line.slice(0, place).trim(), line.slice(place + 1).trim()];
    }),
  );
}

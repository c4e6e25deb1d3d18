// One group: how far behind it is over time, its members, its offsets; and a reset that shows before and after.

import { canChange, get, post, remove, watch } from "../lib/api.js";
import { LineChart } from "../lib/chart.js";
import { a, h, link, show } from "../lib/dom.js";
import { compact, count, duration } from "../lib/format.js";
import { Table } from "../lib/table.js";
import {
  KEEP_OPEN,
  ask,
  badge,
  body,
  button,
  field,
  head,
  meter,
  notice,
  panel,
  partitionLink,
  problems,
  remark,
  select,
  stateBadge,
  tabs,
  tile,
  truncatedTo,
} from "../lib/widgets.js";
import { configPanel } from "./config.js";

const REFRESH_MS = 5_000;
const WINDOW_MS = 900_000;

export async function page(view) {
  const id = view.query.get("id") ?? "";
  const tab = view.query.get("tab") ?? "offsets";
  const name = id || "(empty id)";
  view.title(name);
  const marks = h("span.row");
  const content = h("div.stack");
  const address = (chosen) => link("group", { id, tab: chosen });
  view.show(
    head(name, { trail: [["Groups", link("groups")]], marks, actions: canChange() ? groupActions(id) : null }),
    tabs(
      "Group",
      [
        ["offsets", "Offsets", address("offsets")],
        ["members", "Members", address("members")],
        ["config", "Configuration", address("config")],
      ],
      tab,
    ),
    content,
  );
  if (tab === "config") await configPanel(view, content, ["group", "config"], "Configuration of the group", { id });
  else await groupTab(view, id, tab, content, marks);
}

async function groupTab(view, id, tab, content, marks) {
  const tiles = h("div.tiles");
  const partial = h("div");
  const rowsPanel = h("div");
  const queue = h("div.stack");
  let records = null;
  let table = null;
  const chart = new LineChart({ label: "Lag", format: compact, windowMs: WINDOW_MS });
  show(
    content,
    tiles,
    tab === "members" ? null : panel("Lag over time", null, body(chart.element)),
    queue,
    rowsPanel,
    partial,
  );
  if (tab !== "members") {
    watch(
      ["group", "stream"],
      { id },
      { lag: (point) => chart.push(point.time, { lag: point.lag }), error: (error) => view.problem(error) },
      view.signal,
    );
  }
  await view.live(REFRESH_MS, async () => {
    const group = await get(["group"], { id }, view.signal);
    show(marks, stateBadge(group.state), badge(group.type));
    show(tiles, groupTiles(group));
    if (table === null) {
      const isShare = group.type === "share";
      table = tab === "members" ? memberTable(id, isShare) : offsetTable(isShare);
      show(rowsPanel, panel(tab === "members" ? "Members" : "Offsets", null, table.element));
    }
    if (group.type === "share" && tab === "offsets") {
      records ??= recordsPanel(id, queue);
      records(await get(["group", "records"], { id }, view.signal));
    }
    const rows = tab === "members" ? group.members : group.partitions;
    table.update(rows);
    show(
      partial,
      problems(group.problems),
      truncatedTo(
        rows.length,
        tab === "members" ? group.memberCount : group.partitionCount,
        tab === "members" ? "members" : "partitions",
      ),
    );
  });
}

function groupTiles(group) {
  return [
    tile("Lag", count(group.lag), "messages behind"),
    tile("Members", count(group.memberCount)),
    tile("Partitions", count(group.partitionCount), "with offsets"),
    tile("Assignor", group.assignor || "–"),
    tile("Epoch", count(group.epoch)),
    tile(
      "Coordinator",
      group.coordinator === null ? "–" : a(link("broker", group.coordinator), `broker ${group.coordinator}`),
    ),
  ];
}

/** Of a share group: all records before START are done, and DONE counts those from there on that are. */
function offsetTable(isShare) {
  const at = (title) => ({ title, number: true, value: (p) => p.committed, cell: (p) => count(p.committed) });
  return new Table({
    label: "Offsets",
    key: (p) => `${p.topic}-${p.partition}`,
    empty: isShare ? "The group has no offsets." : "The group has no committed offsets.",
    columns: [
      {
        title: "Partition",
        name: true,
        value: (p) => `${p.topic}-${p.partition}`,
        cell: (p) => partitionLink(p.topic, p.partition),
      },
      ...(isShare
        ? [at("Start"), { title: "Done", number: true, value: (p) => p.done, cell: (p) => count(p.done) }]
        : [at("Committed")]),
      { title: "End", number: true, value: (p) => p.end, cell: (p) => count(p.end) },
      { title: "Lag", number: true, value: (p) => p.lag, cell: (p) => count(p.lag) },
      { title: "Read", value: readShare, cell: (p) => (readShare(p) === null ? "" : meter(readShare(p))) },
      ...(isShare
        ? []
        : [
            {
              title: "Member",
              name: true,
              value: (p) => p.memberId,
              cell: (p) => h("span.mono.small", {}, p.memberId ?? "–"),
            },
            { title: "Metadata", name: true, value: (p) => p.metadata, cell: (p) => p.metadata ?? "" },
          ]),
    ],
  });
}

/** What a share group has in delivery; returns what draws it again. */
function recordsPanel(id, place) {
  const tiles = h("div.tiles");
  const below = h("div");
  const table = new Table({
    label: "Records in delivery",
    key: (r) => `${r.topic}-${r.partition}-${r.first}-${r.state}`,
    empty: "No record is in delivery.",
    columns: [
      {
        title: "Partition",
        name: true,
        value: (r) => `${r.topic}-${r.partition}`,
        cell: (r) => partitionLink(r.topic, r.partition),
      },
      {
        title: "Offsets",
        number: true,
        value: (r) => r.first,
        cell: (r) => (r.first === r.last ? count(r.first) : `${count(r.first)} – ${count(r.last)}`),
      },
      { title: "Records", number: true, value: (r) => r.count, cell: (r) => count(r.count) },
      { title: "State", value: (r) => r.state, cell: (r) => badge(r.state, LEVELS[r.state] ?? "") },
      { title: "Deliveries", number: true, value: (r) => r.deliveries, cell: (r) => count(r.deliveries) },
      { title: "For", number: true, value: (r) => r.ageMs, cell: (r) => (r.ageMs === null ? "–" : duration(r.ageMs)) },
      {
        title: "Ends in",
        number: true,
        value: (r) => r.leftMs,
        cell: (r) => (r.leftMs === null ? "–" : duration(r.leftMs)),
      },
      {
        title: "Member",
        name: true,
        value: (r) => r.memberId,
        cell: (r) => h("span.mono.small", {}, r.memberId ?? "–"),
      },
      { title: "", tight: true, cell: (r) => (canChange() && r.state !== "dead" ? recordActions(id, r) : "") },
    ],
  });
  return (found) => {
    if (!found.isSupported) return;
    if (!place.firstChild) show(place, tiles, panel("Records in delivery", null, table.element), below);
    const letters = found.deadLetters;
    show(
      tiles,
      tile("Held", count(found.held), "by members"),
      tile("Waiting", count(found.waiting), "for a retry"),
      tile("Dead", count(found.dead), "letters to be written"),
      letters &&
        tile("Dead letters", count(letters.count), a(link("topic", letters.topic, "messages"), letters.topic)),
    );
    table.update(found.records);
    show(
      below,
      problems(found.problems),
      found.hasMore ? notice("", "There are more: `ottla share-groups records` lists all of them.") : null,
    );
  };
}

const LEVELS = { held: "good", waiting: "warn", dead: "bad" };
const ACTIONS = {
  release: ["Release", "They are available to any member now. A member that holds them cannot acknowledge them."],
  reject: ["Reject", "They are not delivered again, and become dead letters if the group has a topic for them."],
  skip: ["Skip", "They are not delivered again, and get no dead letter."],
};

function recordActions(id, records) {
  const { topic, partition, first, last } = records;
  const where = `${topic}-${partition}, ${first === last ? `offset ${first}` : `offsets ${first} to ${last}`}`;
  return Object.entries(ACTIONS)
    .filter(([action]) => action !== "release" || records.state !== "available")
    .map(([action, [title, effect]]) =>
      button(
        title,
        () =>
          ask({
            title: `${title} ${where}`,
            action: title,
            danger: action !== "release",
            content: h("p", {}, effect),
            run: async () => {
              const body = { action, records: [{ topic, partition, first, last, deliveries: records.deliveries }] };
              const { changed, problems: left } = await post(["group", "records"], body, { id });
              if (left.length) throw new Error(left.join("\n"));
              remark(changed ? `${count(changed)} records changed.` : "Nothing changed: they were done meanwhile.");
            },
          }),
        "plain",
      ),
    );
}

function readShare({ committed, done, start, end }) {
  if (committed === null || start === null || end === null || end <= start) return null;
  return Math.max(0, committed + (done ?? 0) - start) / (end - start);
}

function memberTable(id, isShare) {
  return new Table({
    label: "Members",
    key: (member) => member.id,
    empty: "No member is connected.",
    columns: [
      {
        title: "Client",
        name: true,
        value: (m) => m.clientId,
        cell: (m) => [
          m.clientId,
          m.instanceId && [" ", badge(`static: ${m.instanceId}`)],
          h("div.mono.small.muted.break", {}, m.id),
        ],
      },
      { title: "Host", value: (m) => m.host, cell: (m) => m.host },
      { title: "Epoch", number: true, value: (m) => m.epoch, cell: (m) => count(m.epoch) },
      { title: "Partitions", number: true, value: (m) => m.partitions.length, cell: (m) => count(m.partitions.length) },
      { title: "Assigned", name: true, cell: assignment },
      {
        title: "",
        tight: true,
        cell: (m) => (canChange() && !isShare ? button("Remove", () => removeMember(id, m), "plain") : ""),
      },
    ],
  });
}

const SHOWN_PARTITIONS = 20;

function assignment({ partitions, subscription, tasks }) {
  const shown = partitions
    .slice(0, SHOWN_PARTITIONS)
    .map(({ topic, partition }, place) => [place ? ", " : "", partitionLink(topic, partition)]);
  const more = partitions.length - SHOWN_PARTITIONS;
  return [
    shown,
    more > 0 && h("span.muted", {}, ` and ${count(more)} more`),
    subscription?.length ? h("div.small.muted", {}, `subscribed to ${subscription.join(", ")}`) : null,
    tasks &&
      h(
        "div.small.muted",
        {},
        `active ${tasks.active.join(" ") || "–"}; standby ${tasks.standby.join(" ") || "–"}; warmup ${tasks.warmup.join(" ") || "–"}`,
      ),
  ];
}

function removeMember(id, member) {
  ask({
    title: `Remove ${member.clientId}`,
    action: "Remove member",
    danger: true,
    content: h(
      "p",
      {},
      `Member ${member.id} leaves the group; its partitions go to the others. A running client joins again.`,
    ),
    run: async () => {
      const { problems: left } = await post(["group", "remove-members"], { members: [member.id] }, { id });
      if (left.length) throw new Error(left.join("\n"));
      remark("The member was removed.");
    },
  });
}

function groupActions(id) {
  return [
    button("Reset offsets", () => resetDialog(id)),
    button("Delete offsets", () =>
      ask({
        title: `Delete offsets of ${id}`,
        action: "Delete offsets",
        danger: true,
        content: [
          h(
            "p",
            {},
            "The group then begins in this topic as auto.offset.reset says; of a share group, its setting " +
              "share.auto.offset.reset.",
          ),
          field("Topic", h("input", { name: "topic", required: true, autocomplete: "off" })),
        ],
        run: async (form) => {
          const { problems: left } = await post(
            ["group", "delete-offsets"],
            { topic: form.elements.topic.value, partitions: null },
            { id },
          );
          if (left.length) throw new Error(left.join("\n"));
          remark("The offsets were deleted.");
        },
      }),
    ),
    button(
      "Delete group",
      () =>
        ask({
          title: `Delete ${id}`,
          action: "Delete group",
          danger: true,
          confirm: id,
          content: h("p", {}, "Its offsets are deleted too. This cannot be undone."),
          run: async () => {
            await remove(["group"], { id });
            remark("The group was deleted.");
            location.hash = link("groups");
          },
        }),
      "danger",
    ),
  ];
}

/** Reset in two steps: the first shows what would change, the second does exactly that. */
function resetDialog(id) {
  const result = h("div.stack");
  const to = select(
    [
      ["beginning", "the beginning"],
      ["end", "the end"],
      ["offset", "an offset"],
      ["time", "a time"],
      ["shift", "forward or back by"],
      ["current", "the committed offset, moved into the log"],
    ],
    "beginning",
    { name: "to" },
  );
  const offset = field("Offset", h("input", { name: "offset", type: "number", min: 0 }));
  const start = field("Time", h("input", { name: "time", type: "datetime-local", step: "0.001" }));
  const shift = field("Messages (negative: back)", h("input", { name: "shift", type: "number" }));
  const topics = h("input", { name: "topics", placeholder: "all topics", autocomplete: "off", spellcheck: "false" });
  const showFields = () => {
    offset.hidden = to.value !== "offset";
    start.hidden = to.value !== "time";
    shift.hidden = to.value !== "shift";
    preview = null;
    submit.textContent = "Show what would change";
    show(result);
  };
  let preview = null;
  const { form } = ask({
    title: `Reset offsets of ${id}`,
    action: "Show what would change",
    wide: true,
    content: [
      h("div.row.end", {}, field("Go to", to), offset, start, shift, field("Topics, by commas", topics)),
      result,
    ],
    run: async () => {
      if (preview && !preview.refused) {
        await post(["group", "reset"], { ...request(form), ...exactly(preview.items), dryRun: false }, { id });
        remark("The offsets were reset.");
        return null;
      }
      preview = await post(["group", "reset"], { ...request(form), dryRun: true }, { id });
      show(result, resetTable(preview));
      submit.textContent = preview.refused || !preview.items.length ? "Try again" : "Reset offsets";
      return KEEP_OPEN;
    },
  });
  const submit = form.querySelector("button[type=submit]");
  form.addEventListener("input", showFields);
  showFields();
}

function request(form) {
  const { to, offset, time, shift, topics } = form.elements;
  return {
    to: to.value,
    offset: to.value === "offset" ? Number(offset.value) : null,
    time: to.value === "time" ? new Date(time.value).getTime() : null,
    shift: to.value === "shift" ? Number(shift.value) : null,
    offsets: null,
    topics: topics.value.trim()
      ? topics.value
          .split(",")
          .map((topic) => topic.trim())
          .filter(Boolean)
      : null,
    partitions: null,
  };
}

/** The offsets that were shown, even if the log has moved since. */
function exactly(items) {
  const offsets = {};
  for (const { topic, partition, after, error } of items) {
    if (error === null && after !== null) (offsets[topic] ??= {})[partition] = after;
  }
  return { to: "offsets", offsets, offset: null, time: null, shift: null, topics: null };
}

function resetTable(preview) {
  const table = new Table({
    label: "What would change",
    pageSize: 50,
    empty: "No partition would change.",
    columns: [
      {
        title: "Partition",
        name: true,
        value: (p) => `${p.topic}-${p.partition}`,
        cell: (p) => `${p.topic}-${p.partition}`,
      },
      { title: "Now at", number: true, value: (p) => p.before, cell: (p) => count(p.before) },
      { title: "Then at", number: true, value: (p) => p.after, cell: (p) => h("b", {}, count(p.after)) },
      { title: "Lag now", number: true, value: (p) => p.lagBefore, cell: (p) => count(p.lagBefore) },
      { title: "Lag then", number: true, value: (p) => p.lagAfter, cell: (p) => count(p.lagAfter) },
      { title: "", cell: (p) => (p.error ? badge(p.error, "bad") : "") },
    ],
  });
  table.update(preview.items);
  return [
    preview.refused
      ? notice("bad", preview.refused)
      : notice("", `Nothing has changed yet. Lag now ${count(preview.lagBefore)}, then ${count(preview.lagAfter)}.`),
    table.element,
  ];
}

// One topic: its partitions, messages, configuration, readers and files. Each tab is a function or a module.

import { canChange, get, post, remove, session } from "../lib/api.js";
import { a, h, link, show } from "../lib/dom.js";
import { bytes, count, duration, plural, rate } from "../lib/format.js";
import { Table } from "../lib/table.js";
import {
  ask,
  badge,
  brokerList,
  button,
  check,
  field,
  head,
  notice,
  panel,
  problems,
  remark,
  stateBadge,
  tabs,
  tile,
  values,
} from "../lib/widgets.js";
import { configPanel } from "./config.js";
import { filesTab } from "./files.js";
import { isMetadataLog } from "./message.js";
import { messagesTab } from "./messages.js";

const REFRESH_MS = 5_000;

export async function page(view) {
  const [topic] = view.params;
  const isTopic = !isMetadataLog(topic);
  const [, tab = isTopic ? "partitions" : "messages"] = view.params;
  view.title(topic);
  const entries = [["messages", "Messages"]];
  if (isTopic) {
    entries.unshift(["partitions", "Partitions"]);
    entries.push(["config", "Configuration"], ["readers", "Readers"]);
  }
  if (session.features.files) entries.push(["files", "Files"]);
  const content = h("div.stack");
  const marks = h("span.row");
  view.show(
    head(topic, {
      trail: [["Topics", link("topics")]],
      marks,
      actions: canChange() && isTopic ? topicActions(topic) : null,
    }),
    tabs(
      "Topic",
      entries.map(([name, title]) => [name, title, link("topic", topic, name)]),
      tab,
    ),
    content,
  );
  const shownTab = {
    partitions: partitionsTab,
    messages: messagesTab,
    config: configTab,
    readers: readersTab,
    files: filesTab,
  }[tab];
  if (!shownTab) show(content, notice("warn", "There is no such tab."));
  else await shownTab(view, topic, content, marks);
}

async function partitionsTab(view, topic, content, marks) {
  const tiles = h("div.tiles");
  const partial = h("div");
  const more = h("div.pager", { hidden: true });
  const table = partitionTable(topic);
  let from = Number(view.query.get("from") ?? 0);
  show(content, tiles, panel("Partitions", null, table.element, more), partial);
  await view.live(REFRESH_MS, async () => {
    const found = await get(["topics", topic], { from }, view.signal);
    show(
      marks,
      found.internal && badge("internal"),
      found.schema?.value && badge(`${found.schema.value.format}: ${found.schema.value.name}`, "accent"),
    );
    show(tiles, topicTiles(found));
    table.update(found.partitions);
    drawMore(more, found, (next) => {
      from = next;
      view.remember({ from });
      window.dispatchEvent(new Event("ottla-changed")); // at once, not at the next turn of the page
    });
    const held = found.partitions.filter((p) => p.lastStableOffset !== null && p.lastStableOffset < p.endOffset);
    show(
      partial,
      problems(found.problems),
      held.length
        ? notice(
            "warn",
            `Open transactions hold back readers of committed messages in ${plural(held.length, "partition")}. `,
            a(link("transactions", { topic }), "Show them"),
          )
        : null,
    );
  });
}

/** Topics with more partitions than one answer holds. */
function drawMore(more, { partitions, partitionsFrom, partitionCount }, turnTo) {
  more.hidden = partitions.length >= partitionCount;
  if (more.hidden) return;
  const size = 500;
  show(
    more,
    button("Partitions before", () => turnTo(Math.max(0, partitionsFrom - size)), "", {
      disabled: partitionsFrom === 0,
    }),
    button("Partitions after", () => turnTo(partitionsFrom + size), "", {
      disabled: partitionsFrom + partitions.length >= partitionCount,
    }),
    `partitions ${count(partitionsFrom)} to ${count(partitionsFrom + partitions.length - 1)} of ${count(partitionCount)}`,
  );
}

function topicTiles(topic) {
  return [
    tile("Messages", count(topic.messages), "end minus start offsets"),
    tile("Rate", rate(topic.messagesPerSecond)),
    tile("Size", bytes(topic.sizeBytes), "of the leaders"),
    tile("Partitions", count(topic.partitionCount), `${count(topic.replicationFactor)} replicas each`),
    tile("Cleanup", topic.cleanupPolicy ?? "–"),
    tile(
      "Kept for",
      duration(topic.retentionMs),
      topic.retentionBytes >= 0 ? `at most ${bytes(topic.retentionBytes)} a partition` : "",
    ),
    tile("Min ISR", count(topic.minInSyncReplicas)),
    tile("Topic id", topic.topicId ?? "–"),
  ];
}

function partitionTable(topic) {
  return new Table({
    label: "Partitions",
    key: (p) => p.partition,
    columns: [
      {
        title: "Partition",
        number: true,
        tight: true,
        value: (p) => p.partition,
        cell: (p) => a(link("topic", topic, "messages", { partitions: p.partition }), String(p.partition)),
      },
      {
        title: "Leader",
        value: (p) => p.leader,
        cell: (p) =>
          p.leader === null || p.leader < 0
            ? badge("none", "bad")
            : [String(p.leader), h("span.muted", {}, ` epoch ${p.leaderEpoch ?? "–"}`)],
      },
      {
        title: "Replicas",
        cell: (p) => [brokerList(p.replicas, p), p.reassigning && [" ", badge(reassigning(p.reassigning), "accent")]],
      },
      { title: "Start", number: true, value: (p) => p.startOffset, cell: (p) => count(p.startOffset) },
      { title: "End", number: true, value: (p) => p.endOffset, cell: (p) => count(p.endOffset) },
      {
        title: "Last stable",
        number: true,
        value: (p) => p.lastStableOffset,
        cell: (p) =>
          p.lastStableOffset < p.endOffset ? badge(count(p.lastStableOffset), "warn") : count(p.lastStableOffset),
      },
      { title: "Size", number: true, value: (p) => p.sizeBytes, cell: (p) => bytes(p.sizeBytes) },
      {
        title: "",
        tight: true,
        cell: (p) =>
          p.error
            ? badge(p.error, "bad")
            : session.features.files
              ? a(link("topic", topic, "files", { partition: p.partition }), "Files")
              : "",
      },
    ],
  });
}

function reassigning({ adding, removing }) {
  return [adding.length && `adding ${adding.join(", ")}`, removing.length && `removing ${removing.join(", ")}`]
    .filter(Boolean)
    .join("; ");
}

async function configTab(view, topic, content) {
  await configPanel(view, content, ["topics", topic, "config"], "Configuration of the topic");
}

async function readersTab(view, topic, content) {
  const partial = h("div");
  const table = new Table({
    label: "Readers",
    key: (group) => group.id,
    empty: "No group has read this topic.",
    columns: [
      {
        title: "Group",
        name: true,
        value: (g) => g.id,
        cell: (g) => a(link("group", { id: g.id }), g.id || "(empty id)"),
      },
      { title: "Type", value: (g) => g.type, cell: (g) => g.type },
      { title: "State", value: (g) => g.state, cell: (g) => stateBadge(g.state) },
      { title: "Members", number: true, value: (g) => g.members, cell: (g) => count(g.members) },
      { title: "Behind by", number: true, value: (g) => g.lag, cell: (g) => count(g.lag) },
    ],
  });
  show(content, panel("Groups that read this topic", null, table.element), partial);
  await view.live(REFRESH_MS, async () => {
    const found = await get(["topics", topic, "groups"], {}, view.signal);
    table.update(found.items);
    show(
      partial,
      problems(found.problems),
      found.looked < found.total
        ? notice("warn", `Only ${count(found.looked)} of ${count(found.total)} groups could be asked in time.`)
        : null,
    );
  });
}

function topicActions(topic) {
  const path = ["topics", topic];
  return [
    button("Add partitions", () =>
      ask({
        title: `Add partitions to ${topic}`,
        action: "Add",
        content: [
          h(
            "p",
            {},
            "Messages with keys go to other partitions afterwards: the order of a key is kept only within a partition.",
          ),
          field("Number of partitions in all", h("input", { name: "total", type: "number", min: 1, required: true })),
        ],
        run: async (form) => {
          await post([...path, "partitions"], { total: Number(values(form).total), validateOnly: false });
          remark("The partitions were added.");
        },
      }),
    ),
    button("Delete records", () => deleteRecords(topic)),
    button("Elect leaders", () =>
      ask({
        title: `Elect preferred leaders of ${topic}`,
        action: "Elect",
        content: h("p", {}, "The first replica of each partition becomes its leader, where it is in sync."),
        run: async () => {
          const { problems: left } = await post([...path, "elect-leaders"]);
          remark(left.length ? left.join("\n") : "Preferred leaders were elected.", left.length ? "warn" : "good");
        },
      }),
    ),
    button(
      "Delete topic",
      () =>
        ask({
          title: `Delete ${topic}`,
          action: "Delete topic",
          danger: true,
          confirm: topic,
          content: h("p", {}, "All messages of the topic are deleted. This cannot be undone."),
          run: async () => {
            await remove(path);
            remark(`Topic ${topic} was deleted.`);
            location.hash = link("topics");
          },
        }),
      "danger",
    ),
  ];
}

function deleteRecords(topic) {
  const all = check("all of them", { name: "all" });
  ask({
    title: `Delete records of ${topic}`,
    action: "Delete records",
    danger: true,
    confirm: topic,
    content: [
      h("p", {}, "Records before an offset are deleted. This cannot be undone."),
      h(
        "div.row.end",
        {},
        field("Partition (empty: every partition)", h("input", { name: "partition", type: "number", min: 0 })),
        field("Before offset", h("input", { name: "offset", type: "number", min: 0 })),
        all,
      ),
    ],
    run: async (form) => {
      const { partition, offset, all: everything } = values(form);
      if (!everything && offset === "") throw new Error("Give the offset, or choose all of them.");
      const before = everything ? -1 : Number(offset);
      const { partitions, partitionCount } = await get(["topics", topic]);
      const known =
        partitionCount > partitions.length
          ? Array.from({ length: partitionCount }, (_, place) => place)
          : partitions.map((p) => p.partition);
      const chosen = partition === "" ? known : [Number(partition)];
      const { problems: left } = await post(["topics", topic, "delete-records"], {
        offsets: Object.fromEntries(chosen.map((id) => [id, before])),
      });
      if (left?.length) throw new Error(left.join("\n"));
      remark("The records were deleted.");
    },
  });
}

// Where the brokers keep their logs, how full it is there, and what takes the room.

import { get, session } from "../lib/api.js";
import { a, h, link, show } from "../lib/dom.js";
import { bytes, count, time } from "../lib/format.js";
import { Table } from "../lib/table.js";
import { badge, body, head, meter, notice, panel, partitionLink, problems, tile } from "../lib/widgets.js";

const REFRESH_MS = 10_000;

export async function page(view) {
  view.title("Log directories");
  const content = h("div.stack");
  view.show(head("Log directories"), content);
  await view.live(REFRESH_MS, async () => {
    const found = await get(["log-dirs"], {}, view.signal);
    show(content, problems(found.problems), found.items.map(directory), found.scrub && scrub(found.scrub));
  });
}

// What the scrubber of this node has read at rest, and what has rotted there.
function scrub(state) {
  const table = new Table({
    label: "What has rotted",
    key: (f) => `${f.foundMs} ${f.path} ${f.detail}`,
    empty: "Nothing has rotted.",
    columns: [
      { title: "Found", value: (f) => f.foundMs, cell: (f) => time(f.foundMs) },
      { title: "Partition", value: (f) => `${f.topic}-${f.partition}`, cell: (f) => partitionLink(f.topic, f.partition) },
      { title: "File", cell: (f) => [f.kind, " ", h("code", {}, f.path)] },
      { title: "Damage", cell: (f) => f.detail },
      {
        title: "",
        tight: true,
        cell: (f) =>
          f.mended ? badge("mended", "good") : f.kind === "segment" ? badge("reported", "warn") : badge("damaged", "bad"),
      },
    ],
  });
  table.update(state.findings);
  return panel(
    "Scrubber of this node",
    state.partition === null ? null : badge(`at ${state.partition}`, "accent"),
    h(
      "div.body.stack",
      {},
      h(
        "div.tiles",
        {},
        tile("Passes", count(state.passes)),
        tile("Read", bytes(state.bytesRead)),
        tile("Last pass", state.lastPassMs === null ? "none yet" : time(state.lastPassMs)),
      ),
      h("div.small.muted", {}, "This pass", meter(state.progress)),
    ),
    table.element,
  );
}

function directory(dir) {
  const used = dir.totalBytes === null || dir.usableBytes === null ? null : 1 - dir.usableBytes / dir.totalBytes;
  const table = new Table({
    label: `Largest replicas in ${dir.path}`,
    key: (r) => `${r.topic}-${r.partition}`,
    empty: "No replicas.",
    columns: [
      {
        title: "Partition",
        name: true,
        value: (r) => `${r.topic}-${r.partition}`,
        cell: (r) => [partitionLink(r.topic, r.partition), " ", r.future && badge("moving here", "accent")],
      },
      { title: "Size", number: true, value: (r) => r.sizeBytes, cell: (r) => bytes(r.sizeBytes) },
      { title: "Share", cell: (r) => meter(dir.sizeBytes ? r.sizeBytes / dir.sizeBytes : 0) },
      { title: "Behind", number: true, value: (r) => r.offsetLag, cell: (r) => count(r.offsetLag) },
      {
        title: "",
        tight: true,
        cell: (r) =>
          session.features.files ? a(link("topic", r.topic, "files", { partition: r.partition }), "Files") : "",
      },
    ],
  });
  table.update(dir.largest);
  return panel(
    [`Broker ${dir.broker} `, h("code", {}, dir.path)],
    dir.error ? badge(dir.error, "bad") : badge("online", "good"),
    dir.error ? body(notice("bad", `This directory is offline: ${dir.error}`)) : null,
    h(
      "div.body.stack",
      {},
      h(
        "div.tiles",
        {},
        tile("Replicas", count(dir.replicas)),
        tile("Stored", bytes(dir.sizeBytes)),
        tile("Free", bytes(dir.usableBytes), `of ${bytes(dir.totalBytes)}`),
      ),
      used === null
        ? null
        : h("div.small.muted", {}, "Disk in use", meter(used, used > 0.95 ? "bad" : used > 0.85 ? "warn" : "")),
    ),
    table.element,
  );
}

// What the cluster is, what is wrong with it now, and how it moves.

import { get, watch } from "../lib/api.js";
import { LineChart } from "../lib/chart.js";
import { a, h, link, show } from "../lib/dom.js";
import { ago, byteRate, bytes, compact, count, duration, isKnown, milliseconds, plural, rate } from "../lib/format.js";
import { Table } from "../lib/table.js";
import { badge, body, head, meter, notice, panel, problems, tile } from "../lib/widgets.js";

const REFRESH_MS = 5_000;
const WINDOW_MS = 300_000;

export async function page(view) {
  view.title("Overview");
  const tiles = h("div.tiles");
  const warnings = h("div.stack");
  const partial = h("div");
  const brokers = brokerTable();
  const quorum = h("div");
  const features = h("div.body.row");
  const charts = chartPanels();
  const cluster = h("span.muted.break");
  view.show(
    head("Overview", { marks: cluster }),
    warnings,
    tiles,
    charts.element,
    panel("Brokers", null, brokers.element),
    h("div.columns", {}, panel("Quorum", null, quorum), panel("Features", null, features)),
    partial,
  );
  watch(["overview", "stream"], {}, { sample: charts.push, error: (error) => view.problem(error) }, view.signal);
  await view.live(REFRESH_MS, async () => {
    const overview = await get(["overview"], {}, view.signal);
    show(
      warnings,
      overview.warnings.length
        ? overview.warnings.map(warning)
        : notice("good", "Nothing is wrong: all partitions have a leader and all replicas are in sync."),
    );
    show(tiles, overviewTiles(overview));
    cluster.textContent = `cluster ${overview.clusterId ?? "–"}`;
    brokers.update(overview.brokers);
    show(quorum, quorumTable(overview));
    show(
      features,
      overview.features.map(({ name, finalized, max }) =>
        badge(`${name} ${finalized ?? "–"}${max && finalized < max ? ` (up to ${max})` : ""}`),
      ),
    );
    show(partial, problems(overview.problems));
  });
}

function warning({ severity, text, link: target }) {
  const href = target && warningLink(target);
  return notice(severity === "error" ? "bad" : "warn", text, href ? [" ", a(href, "Show")] : null);
}

function warningLink({ page: name, topic, health, broker, group, id }) {
  switch (name) {
    case "topic":
      return link("topic", topic);
    case "topics":
      return link("topics", { health });
    case "broker":
      return link("broker", broker ?? id);
    case "group":
      return link("group", { id: group ?? id });
    default:
      return link(name);
  }
}

function overviewTiles(overview) {
  const bad = (value) => (value ? "bad" : "");
  const node = overview.node;
  return [
    tile("Brokers", count(overview.brokers.length), `controller ${overview.controllerId ?? "–"}`),
    tile("Topics", count(overview.topics), `${count(overview.internalTopics)} internal`),
    tile("Partitions", count(overview.partitions)),
    tile("Groups", count(overview.groups)),
    tile("Offline", count(overview.offlinePartitions), "partitions", bad(overview.offlinePartitions)),
    tile(
      "Under-replicated",
      count(overview.underReplicatedPartitions),
      "partitions",
      overview.underReplicatedPartitions ? "warn" : "",
    ),
    overview.underMinIsrPartitions === null
      ? null
      : tile("Under min ISR", count(overview.underMinIsrPartitions), "partitions", bad(overview.underMinIsrPartitions)),
    node && tile("This node is up", duration(node.uptimeMs), `id ${node.id}, ${node.version}`),
    node?.tasks &&
      tile("Tasks", count(node.tasks.running), plural(node.tasks.failed, "failed", "failed"), bad(node.tasks.failed)),
  ];
}

/** Charts of what the console can see: beside a node only messages and the time of its own requests are known. */
function chartPanels() {
  const charts = [
    [
      new LineChart({ label: "Messages in", format: rate, windowMs: WINDOW_MS }),
      "Messages in",
      (sample) => ({ "messages in": sample.messagesInPerSecond }),
    ],
    [
      new LineChart({ label: "Bytes", format: byteRate, windowMs: WINDOW_MS, base: 1024 }),
      "Bytes, this node",
      (sample) => ({ in: sample.bytesInPerSecond, out: sample.bytesOutPerSecond }),
    ],
    [
      new LineChart({ label: "Request time", format: milliseconds, windowMs: WINDOW_MS }),
      "Time of requests, this node",
      (sample) => ({ mean: sample.requestLatencyMs?.mean, "99 %": sample.requestLatencyMs?.p99 }),
    ],
    [
      new LineChart({ label: "Requests", format: rate, windowMs: WINDOW_MS }),
      "Requests, this node",
      (sample) => ({ requests: sample.requestsPerSecond }),
    ],
    [
      new LineChart({ label: "Round trip", format: milliseconds, windowMs: WINDOW_MS }),
      "Time of one small request of the console",
      (sample) => (isKnown(sample.requestLatencyMs?.mean) ? {} : { "round trip": sample.roundTripMs }),
    ],
  ].map(([chart, title, values], place) => ({
    chart,
    values,
    panel: panel(title, null, body(chart.element)),
    isFirst: place === 0,
  }));
  for (const { panel: element, isFirst } of charts) element.hidden = !isFirst;
  return {
    element: h(
      "div.columns",
      {},
      charts.map((chart) => chart.panel),
    ),
    push: (sample) => {
      for (const { chart, values, panel: element } of charts) {
        const known = values(sample);
        if (Object.values(known).some(isKnown)) element.hidden = false;
        chart.push(sample.time, known);
      }
    },
  };
}

export function brokerTable() {
  return new Table({
    label: "Brokers",
    key: (broker) => broker.id,
    columns: [
      {
        title: "Broker",
        name: true,
        value: (b) => b.id,
        cell: (b) => [a(link("broker", b.id), String(b.id)), " ", b.isController && badge("controller", "accent")],
      },
      { title: "Address", value: (b) => b.host, cell: (b) => h("span.mono", {}, `${b.host}:${b.port}`) },
      { title: "Rack", value: (b) => b.rack, cell: (b) => b.rack ?? "–" },
      { title: "Leads", number: true, value: (b) => b.leaders, cell: (b) => count(b.leaders) },
      { title: "Replicas", number: true, value: (b) => b.replicas, cell: (b) => count(b.replicas) },
      {
        title: "Behind",
        number: true,
        value: (b) => b.underReplicated,
        cell: (b) => (b.underReplicated ? badge(count(b.underReplicated), "warn") : count(b.underReplicated)),
      },
      { title: "Disk", value: (b) => b.usableBytes, cell: diskCell },
    ],
  });
}

function diskCell(broker) {
  if (broker.totalBytes === null || broker.usableBytes === null) return "–";
  const share = 1 - broker.usableBytes / broker.totalBytes;
  return [
    h("span.small", {}, `${bytes(broker.usableBytes)} free of ${bytes(broker.totalBytes)}`),
    meter(share, share > 0.95 ? "bad" : share > 0.85 ? "warn" : ""),
  ];
}

function quorumTable({ quorum }) {
  if (!quorum) return h("p.empty", {}, "Not readable here.");
  const row = (kind) => (replica) =>
    h(
      "tr",
      {},
      h("td", {}, String(replica.id), " ", replica.id === quorum.leaderId ? badge("leader", "accent") : badge(kind)),
      h("td.number", {}, count(replica.logEndOffset)),
      h("td.number", {}, compact(replica.lag)),
      h("td", {}, replica.id === quorum.leaderId ? "–" : ago(replica.lastCaughtUpMs)),
    );
  const title = (text, className = "") => h("th", { scope: "col", class: className }, text);
  return [
    h("p.body.muted", {}, `Epoch ${count(quorum.leaderEpoch)}, high watermark ${count(quorum.highWatermark)}`),
    h(
      "table",
      { "aria-label": "Quorum" },
      h(
        "thead",
        {},
        h("tr", {}, title("Replica"), title("End offset", "number"), title("Lag", "number"), title("Caught up")),
      ),
      h("tbody", {}, quorum.voters.map(row("voter")), quorum.observers.map(row("observer"))),
    ),
  ];
}

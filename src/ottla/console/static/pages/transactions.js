// Transactions: all that coordinators know, and those that hold back readers of committed messages.

import { canChange, get, post } from "../lib/api.js";
import { a, h, link, show } from "../lib/dom.js";
import { ago, count, duration, time } from "../lib/format.js";
import { Table } from "../lib/table.js";
import {
  ask,
  badge,
  button,
  dialog,
  facts,
  head,
  notice,
  panel,
  partitionLink,
  problems,
  remark,
  searchField,
  select,
  stateBadge,
} from "../lib/widgets.js";

const REFRESH_MS = 5_000;

export async function page(view) {
  view.title("Transactions");
  const topic = view.query.get("topic") ?? "";
  const filters = { search: view.query.get("search") ?? "", state: view.query.get("state") ?? "" };
  const partial = h("div");
  const open = openTable();
  const looked = h("span.muted.small");
  const states = select([["", "every state"]], filters.state, {
    "aria-label": "State",
    onchange: (event) => refilter({ state: event.target.value }),
  });
  const all = new Table({
    label: "Transactions",
    sort: "id",
    key: (transaction) => transaction.id,
    empty: () => (filters.search || filters.state ? "No transaction matches." : "No producer has used transactions."),
    load: async (wanted) => {
      const answer = await get(["transactions"], { ...filters, ...wanted }, view.signal);
      const choices = ["", ...answer.states];
      if (states.options.length !== choices.length)
        show(
          states,
          choices.map((value) => h("option", { value, selected: value === filters.state }, value || "every state")),
        );
      show(partial, problems(answer.problems));
      return answer;
    },
    columns: [
      {
        title: "Transactional id",
        name: true,
        sort: "id",
        cell: (t) => button(t.id || "(empty id)", () => showTransaction(t.id), "link"),
      },
      { title: "State", sort: "state", cell: (t) => stateBadge(t.state) },
      { title: "Producer", number: true, sort: "producerId", cell: (t) => `${t.producerId} epoch ${t.producerEpoch}` },
      { title: "Open for", number: true, sort: "duration", cell: openFor },
      { title: "Timeout", number: true, cell: (t) => duration(t.timeoutMs) },
      { title: "Partitions", number: true, cell: (t) => count(t.partitions) },
      {
        title: "",
        tight: true,
        cell: (t) => (canChange() && t.state === "Ongoing" ? button("Abort", () => abort(t.id), "danger") : ""),
      },
    ],
  });
  const refilter = (change) => {
    Object.assign(filters, change);
    view.remember({ ...filters, topic });
    return view.attempt(() => all.restart());
  };
  const refreshOpen = async () => {
    const found = await get(["transactions", "open"], { topic }, view.signal);
    open.update(
      found.items.flatMap((partition) => partition.producers.map((producer) => ({ ...partition, ...producer }))),
    );
    looked.textContent = `${count(found.looked)} of ${count(found.total)} partitions looked at`;
  };
  view.show(
    head("Transactions"),
    panel(
      topic ? `Open in partitions of ${topic}` : "Open in partitions",
      [looked, topic ? a(link("transactions"), "All topics") : null],
      open.element,
    ),
    h(
      "div.row",
      {},
      searchField("Search transactional ids", filters.search, (search) => refilter({ search })),
      states,
    ),
    panel("All transactions", null, all.element),
    partial,
  );
  await view.live(REFRESH_MS, () => Promise.all([refreshOpen(), all.refresh()]));
}

function openFor({ durationMs, timeoutMs }) {
  if (durationMs === null) return "–";
  return durationMs > timeoutMs ? badge(duration(durationMs), "warn") : duration(durationMs);
}

function openTable() {
  return new Table({
    label: "Open transactions",
    key: (row) => `${row.topic}-${row.partition}-${row.producerId}`,
    empty: "No open transaction holds back a reader.",
    columns: [
      {
        title: "Partition",
        name: true,
        value: (r) => `${r.topic}-${r.partition}`,
        cell: (r) => partitionLink(r.topic, r.partition),
      },
      {
        title: "Transactional id",
        name: true,
        value: (r) => r.transactionalId,
        cell: (r) => r.transactionalId ?? h("span.null", {}, "not known"),
      },
      {
        title: "",
        cell: (r) => [r.holdsBack && badge("holds back", "warn"), " ", r.hanging && badge("hanging", "bad")],
      },
      {
        title: "Producer",
        number: true,
        value: (r) => r.producerId,
        cell: (r) => `${r.producerId} epoch ${r.producerEpoch}`,
      },
      { title: "From offset", number: true, value: (r) => r.startOffset, cell: (r) => count(r.startOffset) },
      { title: "Held back", number: true, value: (r) => r.heldBack, cell: (r) => count(r.heldBack) },
      {
        title: "Last write",
        number: true,
        value: (r) => r.lastTimestamp,
        cell: (r) =>
          h(
            "span",
            { title: time(r.lastTimestamp) },
            r.idleMs === null ? ago(r.lastTimestamp) : `${duration(r.idleMs)} ago`,
          ),
      },
      { title: "", tight: true, cell: (r) => (canChange() ? button("Abort", () => abortOpen(r), "danger") : "") },
    ],
  });
}

function abortOpen(row) {
  if (row.transactionalId !== null && !row.hanging) {
    abort(row.transactionalId);
    return;
  }
  ask({
    title: `Abort the hanging transaction in ${row.topic}-${row.partition}`,
    action: "Write the abort marker",
    danger: true,
    content: h(
      "p",
      {},
      `No coordinator will end the transaction of producer ${row.producerId} that began at offset ${row.startOffset}. An abort marker ends it in this partition.`,
    ),
    run: async () => {
      await post(["transactions", "abort"], {
        topic: row.topic,
        partition: row.partition,
        startOffset: row.startOffset,
      });
      remark("The abort marker was written.");
    },
  });
}

function abort(id) {
  ask({
    title: `Abort ${id}`,
    action: "Abort transaction",
    danger: true,
    content: h(
      "p",
      {},
      "The coordinator aborts the transaction and fences its producer: a running one gets an error at its next request.",
    ),
    run: async () => {
      await post(["transaction", "abort"], {}, { id });
      remark("The transaction was aborted.");
    },
  });
}

async function showTransaction(id) {
  const content = h("div.body.stack", {}, "Reading…");
  dialog(id, content);
  try {
    const found = await get(["transaction"], { id });
    show(
      content,
      facts([
        ["State", stateBadge(found.state)],
        ["Producer", `${found.producerId} epoch ${found.producerEpoch}`],
        ["Began", time(found.startedMs)],
        ["Open for", duration(found.durationMs)],
        ["Timeout", duration(found.timeoutMs)],
      ]),
      h("h3", {}, "Partitions"),
      found.partitions.length
        ? h(
            "ul",
            {},
            found.partitions.map((p) => h("li", {}, partitionLink(p.topic, p.partition))),
          )
        : h("p.muted", {}, "None now."),
    );
  } catch (error) {
    show(content, notice("bad", error.message));
  }
}

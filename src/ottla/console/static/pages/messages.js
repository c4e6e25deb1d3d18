// The messages of a topic: browse by offset or time, follow as they arrive, search within a budget.

import { address, canChange, get, session, stream } from "../lib/api.js";
import { h, show } from "../lib/dom.js";
import { bytes, count, milliseconds, plural, time } from "../lib/format.js";
import { badge, button, field, meter, notice, panel, problems, select } from "../lib/widgets.js";
import { isMetadataLog, messageDetail, payloadPreview, produceDialog } from "./message.js";

// A page that stays open does not grow: of a search the first rows stay, of a live tail the newest.
const MOST_ROWS = 1000;
const MOST_LIVE_ROWS = 300;
const FILTERS = ["key", "value", "header", "path", "pathValue"];
const FORMATS = ["auto", "json", "text", "hex", "avro", "protobuf", "json-schema", "int32", "int64", "float64"];
const REASONS = {
  end: "everything was looked at",
  limit: "enough was found",
  scan: "the budget of messages is used up",
  bytes: "the budget of bytes is used up",
  time: "10 seconds are over",
};
const DEFAULTS = {
  from: "newest",
  limit: "50",
  keyFormat: "auto",
  valueFormat: "auto",
  isolation: "read_uncommitted",
  scan: "10000",
};

export async function messagesTab(view, topic, content) {
  if (!session.payloads) {
    const produce = canChange() && !isMetadataLog(topic) ? button("Produce", () => produceDialog(topic)) : null;
    show(content, notice("", "This console does not show what messages hold."), h("div.row", {}, produce));
    return;
  }
  await new MessageBrowser(view, topic, content).run();
}

class MessageBrowser {
  constructor(view, topic, content) {
    this.view = view;
    this.topic = topic;
    this.running = null;
    this.cursors = { next: null, previous: null };
    this.form = this.makeForm(view.query);
    this.status = h("div.row", { role: "status" });
    this.body = h("tbody");
    this.empty = h("p.empty");
    this.partial = h("div");
    const title = (text, className = "") => h("th", { scope: "col", class: className }, text);
    const columns = h(
      "tr",
      {},
      title("", "tight"),
      title("Partition", "number"),
      title("Offset", "number"),
      title("Time", "optional"),
      title("Key"),
      title("Value"),
      title("Size", "number optional"),
    );
    const table = h("table.messages", { "aria-label": "Messages" }, h("thead", {}, columns), this.body);
    const produce = canChange() && !isMetadataLog(topic) ? button("Produce", () => produceDialog(topic)) : null;
    show(
      content,
      this.form,
      panel(
        "Messages",
        [isMetadataLog(topic) ? null : this.exportLink(), produce],
        h("div.body", {}, this.status),
        h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Messages" }, table),
        this.empty,
      ),
      this.partial,
    );
    view.signal.addEventListener("abort", () => this.stop());
  }

  makeForm(query) {
    const given = (name) => query.get(name) ?? DEFAULTS[name] ?? "";
    const text = (name, label, attributes = {}) =>
      field(label, h("input", { name, value: given(name), autocomplete: "off", spellcheck: "false", ...attributes }));
    const offset = text("offset", "Offset", { type: "number", min: 0, class: "narrow" });
    const start = field(
      "Time",
      h("input", { name: "time", type: "datetime-local", step: "0.001", value: localTime(query.get("time")) }),
    );
    const from = select(
      [
        ["newest", "newest"],
        ["beginning", "the beginning"],
        ["offset", "an offset"],
        ["time", "a time"],
        ["live", "live, as they arrive"],
      ],
      given("from"),
      { name: "from" },
    );
    const showFields = () => {
      offset.hidden = from.value !== "offset";
      start.hidden = from.value !== "time";
    };
    from.addEventListener("change", showFields);
    showFields();
    const isSearch = FILTERS.some((name) => query.get(name));
    this.stopButton = button("Stop", () => this.stop(), "", { hidden: true });
    return h(
      "form.panel",
      {
        onsubmit: (event) => {
          event.preventDefault();
          this.run();
        },
      },
      h(
        "div.body.stack",
        {},
        h(
          "div.row.end",
          {},
          field("From", from),
          offset,
          start,
          text("partitions", "Partitions", { placeholder: "all, or 0,2-4", class: "narrow" }),
          field("Show", select(["25", "50", "100", "500"], given("limit"), { name: "limit" })),
          field(
            "Isolation",
            select(
              [
                ["read_uncommitted", "all messages"],
                ["read_committed", "committed only"],
              ],
              given("isolation"),
              { name: "isolation" },
            ),
          ),
          field("Key as", select(FORMATS, given("keyFormat"), { name: "keyFormat" })),
          field("Value as", select(FORMATS, given("valueFormat"), { name: "valueFormat" })),
          h("button.primary", { type: "submit" }, "Read"),
          this.stopButton,
        ),
        h(
          "details",
          { open: isSearch },
          h("summary", {}, "Search in messages"),
          h(
            "div.row.end",
            {},
            text("key", "Key contains", { "data-search": true }),
            text("value", "Value contains"),
            text("header", "Header (name or name=text)"),
            text("path", "JSON path", { placeholder: "$.user.id" }),
            text("pathValue", "equals"),
            field(
              "Look at no more than",
              select(
                [
                  ["10000", "10,000 messages"],
                  ["100000", "100,000 messages"],
                  ["1000000", "1,000,000 messages"],
                ],
                given("scan"),
                { name: "scan" },
              ),
            ),
          ),
        ),
      ),
    );
  }

  /** The parameters of the form, in the names of the API; those at their default are left out. */
  parameters() {
    const entries = Object.fromEntries(new FormData(this.form).entries());
    if (entries.from !== "offset") delete entries.offset;
    entries.time = entries.from === "time" && entries.time ? String(new Date(entries.time).getTime()) : "";
    if (!entries.path) delete entries.pathValue;
    return Object.fromEntries(
      Object.entries(entries).filter(([name, value]) => value !== "" && value !== DEFAULTS[name]),
    );
  }

  exportLink() {
    const element = h(
      "a.button",
      { href: "#", download: "", title: "The same messages, with whole payloads, as JSON lines" },
      "Export",
    );
    element.addEventListener("click", () => {
      const { from, ...rest } = this.parameters();
      element.href = address(["topics", this.topic, "messages", "export"], {
        ...rest,
        from: from === "live" ? "" : from,
      });
    });
    return element;
  }

  async run(cursor = null) {
    this.stop();
    const parameters = this.parameters();
    this.view.remember(parameters);
    const isSearch = FILTERS.some((name) => parameters[name]);
    const isLive = parameters.from === "live";
    if (!(cursor && isSearch)) this.clear();
    show(this.partial);
    this.running = new AbortController();
    if (isLive || isSearch) this.follow({ ...parameters, cursor }, isLive);
    else await this.read({ ...parameters, cursor });
  }

  clear() {
    this.body.replaceChildren();
    show(this.empty);
  }

  stop() {
    this.running?.abort();
    this.running = null;
    this.stopButton.hidden = true;
    if (this.liveLine) show(this.status, this.liveLine("Stopped."));
    this.liveLine = null;
  }

  async read(parameters) {
    const { signal } = this.running;
    show(this.status, "Reading…");
    const answer = await this.view.attempt(() => get(["topics", this.topic, "messages"], parameters, signal));
    if (signal.aborted) return;
    if (!answer) return show(this.status);
    this.clear();
    this.add(answer.items);
    this.finish(answer.looked, answer, this.body.rows.length);
    show(this.partial, problems(answer.problems));
  }

  /** A search or a live tail: messages come as events, and are added once per frame. */
  follow(parameters, isLive) {
    const { signal } = this.running;
    this.stopButton.hidden = false;
    let waiting = [];
    let progress = { messages: 0, bytes: 0, matched: 0, dropped: 0 };
    const flush = () => {
      if (!waiting.length) return;
      this.add(waiting, isLive);
      waiting = [];
    };
    const line = (state) =>
      isLive
        ? [
            badge(state === "Stopped." ? "stopped" : "live", state === "Stopped." ? "" : "good"),
            `${plural(progress.messages, "message")}`,
            progress.dropped ? badge(`${count(progress.dropped)} not shown: more than 50 a second`, "warn") : null,
          ]
        : [h("span", {}, state), budget(progress)];
    if (isLive) this.liveLine = line;
    show(this.status, line("Searching…"));
    const path = ["topics", this.topic, "messages", "stream"];
    stream(
      path,
      parameters,
      {
        message: (message) => {
          if (!waiting.length) requestAnimationFrame(flush);
          waiting.push(message);
        },
        progress: (data) => {
          progress = data;
          show(this.status, line("Searching…"));
        },
        end: (data) => {
          flush();
          this.stopButton.hidden = true;
          this.finish({ ...progress, ...data }, data, this.body.rows.length);
          show(this.partial, problems(data.problems));
        },
        error: (error) => {
          this.stop();
          this.view.problem(error);
        },
      },
      signal,
      { again: isLive },
    );
  }

  /** Say what was looked at, and where to go on. */
  finish(looked, { next, previous, remaining }, found) {
    const isSearch = looked.matched !== undefined || FILTERS.some((name) => this.parameters()[name]);
    const text = `Looked at ${plural(looked.messages, "message")}, ${bytes(looked.bytes)} in ${milliseconds(looked.ms)}: ${REASONS[looked.reason] ?? looked.reason}.`;
    const left = remaining ?? looked.remaining;
    show(
      this.status,
      h("span", { "data-looked": looked.messages }, text),
      left ? h("span.muted", {}, `${count(left)} not looked at.`) : null,
      h("span.space"),
      previous ? button("‹ Back", () => this.run(previous)) : null,
      next ? button(isSearch ? "Search on ›" : "Go on ›", () => this.run(next)) : null,
    );
    show(
      this.empty,
      found ? null : isSearch ? "No message matches among those that were looked at." : "There are no messages here.",
    );
  }

  add(messages, onTop = false) {
    const most = onTop ? MOST_LIVE_ROWS : MOST_ROWS;
    for (const message of messages) {
      const row = this.row(message);
      if (onTop) {
        row.classList.add("fresh");
        this.body.prepend(row);
      } else if (this.body.rows.length < most) this.body.append(row);
    }
    while (this.body.rows.length > most) this.body.lastElementChild.remove();
    show(this.empty);
  }

  row(message) {
    const toggle = button("▸", null, "plain", {
      "aria-expanded": "false",
      "aria-label": `message ${message.partition}-${message.offset}`,
    });
    const row = h(
      "tr",
      { "data-key": `${message.partition}-${message.offset}` },
      h("td.tight", {}, toggle),
      h("td.number", {}, String(message.partition)),
      h("td.number", {}, String(message.offset)),
      h("td.nowrap.optional", {}, time(message.timestamp)),
      h("td.key", {}, payloadPreview(message.key)),
      h("td.payload", {}, payloadPreview(message.value)),
      h("td.number.optional", {}, bytes(message.size)),
    );
    let detail = null;
    const change = () => {
      if (detail) {
        detail.remove();
        detail = null;
      } else {
        const { keyFormat, valueFormat } = this.parameters();
        detail = h(
          "tr.detail",
          {},
          h("td", { colspan: 7 }, messageDetail(this.topic, message, { keyFormat, valueFormat })),
        );
        row.after(detail);
      }
      toggle.setAttribute("aria-expanded", detail !== null);
      toggle.textContent = detail ? "▾" : "▸";
      row.classList.toggle("open", detail !== null);
    };
    row.addEventListener("click", (event) => {
      if (!event.target.closest("a") && !String(getSelection())) change();
    });
    return row;
  }
}

function budget({ messages, matched, limit, bytes: size }) {
  return [
    `${count(messages)} of ${count(limit)} looked at, ${bytes(size)}, ${plural(matched, "match", "matches")}`,
    limit ? h("span.wide", {}, meter(messages / limit)) : null,
  ];
}

function localTime(ms) {
  if (!ms) return "";
  const date = new Date(Number(ms));
  return Number.isNaN(date.getTime())
    ? ""
    : new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 23);
}

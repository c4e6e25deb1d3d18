// One message: shown in full, copied, downloaded, produced again.

import { address, canChange, get, post } from "../lib/api.js";
import { h, link, show } from "../lib/dom.js";
import { bytes, count, time } from "../lib/format.js";
import { ask, badge, button, copy, field, notice, remark, select, values } from "../lib/widgets.js";

const PREVIEW = 300;
// Longer texts are shown without colours, and what is copied into the form of a new message is bounded.
const MOST_COLOURED = 100_000;
const MOST_COPIED = 4 * 1024 * 1024;
const MOST_HEADERS = 100;

/** The log of the controllers: read as a topic, but written by them alone. */
export function isMetadataLog(topic) {
  return topic === "__cluster_metadata";
}

/** The beginning of a payload on one line. */
export function payloadPreview(payload) {
  if (payload === null) return h("span.null", {}, "null");
  if (payload.format === "empty") return h("span.null", {}, "empty");
  return payload.text
    .slice(0, PREVIEW * 4)
    .replace(/\s+/g, " ")
    .slice(0, PREVIEW);
}

export function messageDetail(topic, message, formats) {
  const element = h("div.stack");
  const at = { partition: message.partition, offset: message.offset };
  const path = ["topics", topic, "messages"];
  const reload = async (change) => {
    try {
      const answer = await get([...path, "one"], { ...at, ...formats, ...change });
      draw(answer.message, { ...formats, ...change });
    } catch (error) {
      show(element, notice("bad", error.message));
    }
  };
  const download = (text, query) =>
    h("a.button", { href: address([...path, "download"], { ...at, ...query }), download: "" }, text);

  const draw = (shown, chosen) => {
    show(
      element,
      h(
        "div.row",
        {},
        button("Copy value", () => copy(shown.value?.text ?? "")),
        shown.value && download(`Download value (${bytes(shown.value.size)})`, { part: "value" }),
        shown.key && download("Download key", { part: "key" }),
        download("Download message", { part: "message" }),
        canChange() && !isMetadataLog(topic) ? button("Produce a copy", () => produceCopy(topic, shown)) : null,
      ),
      h(
        "p.muted",
        {},
        h(
          "a",
          { href: link("topic", topic, "messages", { from: "offset", offset: at.offset, partitions: at.partition }) },
          `Partition ${at.partition}, offset ${at.offset}`,
        ),
        ` · ${time(shown.timestamp)} (${shown.timestampType}) · leader epoch ${shown.leaderEpoch ?? "–"} · ${count(shown.size)} bytes`,
      ),
      payloadBlock("Value", shown.value, chosen.valueFormat, (valueFormat) => reload({ valueFormat })),
      payloadBlock("Key", shown.key, chosen.keyFormat, (keyFormat) => reload({ keyFormat })),
      headersBlock(shown, download),
    );
  };
  draw(message, formats);
  if (message.key?.truncated || message.value?.truncated) reload({});
  return element;
}

function payloadBlock(title, payload, format, choose) {
  const formats = ["auto", "json", "text", "hex", "avro", "protobuf", "json-schema", "int32", "int64", "float64"];
  const chooser = select(formats, format ?? "auto", {
    "aria-label": `${title} as`,
    onchange: (event) => choose(event.target.value),
  });
  const marks = payload && [
    badge(payload.format),
    payload.schema && badge(payload.schema, "accent"),
    h("span.muted.small", {}, bytes(payload.size)),
  ];
  return h(
    "div.stack",
    {},
    h("div.row", {}, h("h3", {}, title), marks, h("span.space"), payload && chooser),
    payload?.note && notice("warn", payload.note),
    payloadText(payload),
    payload?.truncated &&
      h("p.muted.small", {}, `Only the beginning is shown; the download has all ${bytes(payload.size)}.`),
  );
}

function payloadText(payload) {
  if (payload === null) return h("p.null", {}, "null");
  if (payload.format === "empty") return h("p.null", {}, "no bytes");
  const isJson = ["json", "avro", "protobuf", "json-schema", "internal"].includes(payload.format);
  const attributes = { class: payload.format === "hex" ? "hex" : "", tabindex: "0" };
  return h(
    "pre.payload",
    attributes,
    isJson && payload.text.length < MOST_COLOURED ? colouredJson(payload.text) : payload.text,
  );
}

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)/g;

/** JSON with colours; every piece is a text node. */
function colouredJson(text) {
  const pieces = [];
  let end = 0;
  for (const match of text.matchAll(TOKEN)) {
    pieces.push(text.slice(end, match.index));
    const [whole, string, colon, literal] = match;
    const kind = string ? (colon ? "name" : "string") : literal ? "literal" : "number";
    pieces.push(h(`span.json-${kind}`, {}, string ?? whole), colon ?? "");
    end = match.index + whole.length;
  }
  return [...pieces, text.slice(end)];
}

function headersBlock(message, download) {
  if (!message.headers.length) return h("p.muted.small", {}, "No headers.");
  const rows = message.headers.map(({ name, value }, index) =>
    h(
      "tr",
      {},
      h("td.mono.name", {}, name),
      h("td.mono.break", {}, payloadPreview(value)),
      h("td.tight", {}, value && download("Download", { part: "header", index })),
    ),
  );
  const left = (message.headersTotal ?? 0) - message.headers.length;
  return h(
    "div.stack",
    {},
    h("h3", {}, "Headers"),
    h("table", { "aria-label": "Headers" }, h("tbody", {}, rows)),
    left > 0 && h("p.muted.small", {}, `${count(left)} more headers.`),
  );
}

/**
 * One payload in a form: its kind, and its text. `read` returns what the server takes. What was copied and not edited
 * goes out as it came: a text area would change the ends of lines.
 */
function payloadControls(name, label, given, kinds, rows = null) {
  const mode = given === null ? "null" : given.base64 !== undefined ? "base64" : "text";
  const kind = select(kinds, mode, { name: `${name}Kind`, "aria-label": `${label} is` });
  const area = h("textarea", {
    name,
    "aria-label": label,
    spellcheck: "false",
    rows,
    value: given?.text ?? given?.base64 ?? "",
    oninput: () => {
      if (kind.value === "null") kind.value = "text"; // what is typed is meant
    },
  });
  const shown = area.value;
  const read = () => {
    if (kind.value === mode && area.value === shown) return given;
    if (kind.value === "null") return null;
    if (kind.value === "base64") return { base64: area.value.replace(/\s/g, "") };
    return kind.value === "json" ? { json: area.value, encode: true } : { text: area.value };
  };
  return { kind, area, read };
}

/** The headers of a form, each with its name, kind and value. */
function headerRows(given) {
  const rows = [];
  const list = h("div.stack");
  const add = (header) => {
    const name = h("input", {
      type: "text",
      name: "headerName",
      "aria-label": "Header name",
      spellcheck: "false",
      value: header.name,
    });
    const shown = name.value;
    const kinds = ["text", ["base64", "bytes as base64"], "null"];
    const { kind, area, read } = payloadControls("header", "Header value", header.value, kinds, 1);
    const row = { read: () => ({ name: name.value === shown ? header.name : name.value, value: read() }) };
    const drop = button(
      "Remove",
      () => {
        rows.splice(rows.indexOf(row), 1);
        element.remove();
      },
      "",
      { "aria-label": "Remove this header" },
    );
    const element = h("div.row.header-row", {}, name, kind, area, drop);
    rows.push(row);
    list.append(element);
    return name;
  };
  given.slice(0, MOST_HEADERS).forEach(add);
  const others = given.slice(MOST_HEADERS);
  const element = h(
    "fieldset.stack",
    {},
    h("legend", {}, "Headers"),
    list,
    others.length > 0 && h("p.muted.small", {}, `${count(others.length)} more headers are copied as they are.`),
    h("div.row", {}, button("Add a header", () => add({ name: "", value: { text: "" } }).focus())),
  );
  return { element, read: () => [...rows.map((row) => row.read()), ...others] };
}

/** Open the form of a new message. `copyOf` is {key, value, headers}, with payloads as the server takes them. */
export function produceDialog(topic, copyOf = {}) {
  const kinds = (name) => [
    ["text", "text"],
    ["json", "JSON, encoded by the topic's schema"],
    ["base64", "bytes as base64"],
    ["null", name === "value" ? "null (a tombstone)" : "null"],
  ];
  const key = payloadControls("key", "Key", copyOf.key ?? null, kinds("key"));
  const value = payloadControls(
    "value",
    "Value",
    copyOf.value === undefined ? { text: "" } : copyOf.value,
    kinds("value"),
  );
  const headers = headerRows(copyOf.headers ?? []);
  ask({
    title: `Produce a message to ${topic}`,
    action: "Produce",
    wide: true,
    content: [
      field(
        "Partition (empty: by the key)",
        h("input", { name: "partition", type: "number", min: 0, class: "narrow" }),
      ),
      field("Key is", key.kind),
      field("Key", key.area),
      field("Value is", value.kind),
      field("Value", value.area),
      headers.element,
    ],
    run: async (form) => {
      const given = values(form);
      const body = {
        partition: given.partition === "" ? null : Number(given.partition),
        key: key.read(),
        value: value.read(),
        headers: headers.read(),
        timestamp: null,
      };
      const { partition, offset } = await post(["topics", topic, "messages"], body);
      remark(`Written to partition ${partition} at offset ${offset}.`);
    },
  });
}

/** The bytes of a message, as they are, in the form of a new one: as text where they are UTF-8. */
async function produceCopy(topic, message) {
  try {
    if (message.size > MOST_COPIED)
      throw new Error(`${bytes(message.size)} are too much for a form; download it and use ottla produce.`);
    const at = { partition: message.partition, offset: message.offset, part: "message" };
    const whole = await get(["topics", topic, "messages", "download"], at);
    produceDialog(topic, {
      key: exported(whole, "key"),
      value: exported(whole, "value"),
      headers: whole.headers.map((header) => ({ name: header.name, value: exported(header, "value") })),
    });
  } catch (error) {
    remark(error.message, "bad");
  }
}

/** A payload of a downloaded message as the server takes it. */
function exported(document, name) {
  if (document[`${name}_base64`] !== undefined) return { base64: document[`${name}_base64`] };
  return document[name] === null ? null : { text: document[name] };
}

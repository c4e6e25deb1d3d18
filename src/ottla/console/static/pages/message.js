// One message: shown in full, copied, downloaded, produced again.

import { address, canChange, get, post } from "../lib/api.js";
import { h, link, show } from "../lib/dom.js";
import { bytes, count, time } from "../lib/format.js";
import { ask, badge, button, copy, field, notice, remark, select, values } from "../lib/widgets.js";

const PREVIEW = 300;
// Longer texts are shown without colours, and what is copied into the form of a new message is bounded.
const MOST_COLOURED = 100_000;
const MOST_COPIED = 4 * 1024 * 1024;

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

/** Open the form of a new message. `copyOf` is {key, value, headers} of text payloads. */
export function produceDialog(topic, copyOf = {}) {
  const payload = (name, label, given) => {
    const mode = given?.base64 !== undefined ? "base64" : given === null ? "null" : "text";
    const kinds = [
      ["text", "text"],
      ["json", "JSON, encoded by the topic's schema"],
      ["base64", "bytes as base64"],
      ["null", name === "value" ? "null (a tombstone)" : "null"],
    ];
    return [
      field(`${label} is`, select(kinds, mode, { name: `${name}Kind` })),
      field(label, h("textarea", { name, spellcheck: "false", value: given?.text ?? given?.base64 ?? "" })),
    ];
  };
  const headers = (copyOf.headers ?? []).map(({ name, text }) => `${name}=${text}`).join("\n");
  ask({
    title: `Produce a message to ${topic}`,
    action: "Produce",
    wide: true,
    content: [
      field(
        "Partition (empty: by the key)",
        h("input", { name: "partition", type: "number", min: 0, class: "narrow" }),
      ),
      ...payload("key", "Key", copyOf.key === undefined ? null : copyOf.key),
      ...payload("value", "Value", copyOf.value === undefined ? { text: "" } : copyOf.value),
      field(
        "Headers, one name=value per line",
        h("textarea", { name: "headers", spellcheck: "false", value: headers }),
      ),
    ],
    run: async (form) => {
      const given = values(form);
      const body = {
        partition: given.partition === "" ? null : Number(given.partition),
        key: payloadBody(given.keyKind, given.key),
        value: payloadBody(given.valueKind, given.value),
        headers: given.headers
          .split("\n")
          .filter(Boolean)
          .map((line) => {
            const place = line.indexOf("=");
            return place < 0
              ? { name: line, value: null }
              : { name: line.slice(0, place), value: { text: line.slice(place + 1) } };
          }),
        timestamp: null,
      };
      const { partition, offset } = await post(["topics", topic, "messages"], body);
      remark(`Written to partition ${partition} at offset ${offset}.`);
    },
  });
}

function payloadBody(kind, text) {
  if (kind === "null") return null;
  if (kind === "base64") return { base64: text.replace(/\s/g, "") };
  return kind === "json" ? { json: text, encode: true } : { text };
}

/** The bytes of a message, as they are, in the form of a new one: as text where they are UTF-8. */
async function produceCopy(topic, message) {
  try {
    const at = { partition: message.partition, offset: message.offset };
    const part = async (name) =>
      message[name] === null ? null : editable(await download(topic, { ...at, part: name }, message[name].size));
    const headers = message.headers.map(({ name, value }) => ({ name, text: value?.text ?? "" }));
    produceDialog(topic, { key: await part("key"), value: await part("value"), headers });
  } catch (error) {
    remark(error.message, "bad");
  }
}

async function download(topic, query, size) {
  if (size > MOST_COPIED) throw new Error(`${bytes(size)} are too much for a form; download it and use ottla produce.`);
  const response = await fetch(address(["topics", topic, "messages", "download"], query));
  if (!response.ok) throw new Error("The message could not be read again.");
  return new Uint8Array(await response.arrayBuffer());
}

function editable(data) {
  try {
    return { text: new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data) };
  } catch {
    let binary = "";
    for (let place = 0; place < data.length; place += 8192)
      binary += String.fromCharCode(...data.subarray(place, place + 8192));
    return { base64: btoa(binary) };
  }
}

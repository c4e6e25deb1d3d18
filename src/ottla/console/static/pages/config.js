// A table of settings: value, where it comes from, what it would be without; and a change that is checked first.

import { canChange, get, post } from "../lib/api.js";
import { h, show } from "../lib/dom.js";
import { bytes, count, duration } from "../lib/format.js";
import { Table } from "../lib/table.js";
import { ask, badge, button, check, field, panel, remark, searchField } from "../lib/widgets.js";

const SOURCES = {
  TOPIC: "topic",
  DYNAMIC_BROKER: "this broker, dynamic",
  DYNAMIC_DEFAULT_BROKER: "all brokers, dynamic",
  STATIC_BROKER: "server.properties",
  DEFAULT: "default",
  GROUP: "group",
  UNKNOWN: "unknown",
};

/** Show the settings at `path` inside of `content`; they can be changed there. */
export async function configPanel(view, content, path, title, query = {}) {
  let settings = [];
  let search = "";
  let onlySet = false;
  const table = new Table({
    label: title,
    key: (setting) => setting.name,
    sort: 0,
    pageSize: 100,
    empty: () => (settings.length ? "No setting matches." : "Nothing is set here."),
    columns: [
      { title: "Setting", name: true, value: (c) => c.name, cell: nameCell },
      {
        title: "Value",
        name: true,
        className: "mono",
        value: (c) => c.value,
        cell: (c) => [valueText(c), readable(c)],
      },
      {
        title: "Source",
        value: (c) => c.source,
        cell: (c) => badge(SOURCES[c.source] ?? c.source, isSet(c) ? "accent" : ""),
      },
      {
        title: "Otherwise",
        name: true,
        className: "mono muted",
        value: (c) => c.default,
        cell: (c) => (isSet(c) ? (c.default ?? "–") : ""),
      },
      {
        title: "",
        tight: true,
        cell: (c) => (canChange() && !c.readOnly ? button("Change", () => change(c, path, query, load), "plain") : ""),
      },
    ],
  });
  const draw = () => {
    const wanted = search.toLowerCase();
    table.update(
      settings.filter(
        (c) => (!onlySet || isSet(c)) && (c.name.includes(wanted) || (c.value ?? "").toLowerCase().includes(wanted)),
      ),
    );
  };
  const load = () =>
    view.attempt(async () => {
      settings = (await get(path, query, view.signal)).items;
      draw();
    });
  const filters = h(
    "div.row",
    {},
    searchField("Search settings", "", (text) => {
      search = text;
      draw();
    }),
    check("only what was set", {
      onchange: (event) => {
        onlySet = event.target.checked;
        draw();
      },
    }),
    canChange() ? button("Set another", () => change(null, path, query, load)) : null,
  );
  show(content, filters, panel(title, null, table.element));
  await load();
}

function isSet(setting) {
  return setting.source !== "DEFAULT" && setting.source !== "UNKNOWN";
}

function nameCell(setting) {
  if (!setting.documentation && !setting.synonyms?.length) return setting.name;
  const lines = (setting.synonyms ?? []).map((s) =>
    h("li", {}, h("code", {}, `${s.name} = ${s.value ?? "…"}`), ` (${SOURCES[s.source] ?? s.source})`),
  );
  return h(
    "details",
    {},
    h("summary", {}, setting.name),
    setting.documentation && h("p.muted.small", {}, setting.documentation),
    lines.length ? h("ul.small", {}, lines) : null,
  );
}

function valueText(setting) {
  if (setting.sensitive) return h("span.null", {}, "hidden");
  if (setting.value === null) return h("span.null", {}, "none");
  return setting.value === "" ? h("span.null", {}, "empty") : setting.value;
}

/** A large number also as people say it: 604800000 is "7 d". */
function readable({ name, value }) {
  const number = Number(value);
  if (!value || !Number.isFinite(number) || number < 1000 || number > 1e15) return null;
  if (name.endsWith(".ms")) return h("span.muted", {}, ` (${duration(number)})`);
  if (name.endsWith(".bytes")) return h("span.muted", {}, ` (${bytes(number)})`);
  return number >= 10_000 ? h("span.muted", {}, ` (${count(number)})`) : null;
}

function change(setting, path, query, changed) {
  const name = h("input", {
    name: "name",
    required: true,
    value: setting?.name ?? "",
    readonly: setting !== null,
    autocomplete: "off",
    spellcheck: "false",
  });
  const value = h("input", {
    name: "value",
    type: setting?.sensitive ? "password" : "text",
    value: setting?.value ?? "",
    autocomplete: "off",
    spellcheck: "false",
  });
  const clear = h("input", {
    type: "checkbox",
    name: "clear",
    onchange: () => {
      value.disabled = clear.checked;
    },
  });
  ask({
    title: setting ? `Change ${setting.name}` : "Set a configuration",
    action: "Apply",
    content: [
      setting?.documentation && h("p.muted.small", {}, setting.documentation),
      field("Setting", name),
      field("Value", value, setting?.default ? `Otherwise: ${setting.default}` : null),
      h("label.check", {}, clear, "remove it, so that the next source counts"),
    ],
    run: async () => {
      const body = clear.checked
        ? { set: {}, delete: [name.value] }
        : { set: { [name.value]: value.value }, delete: [] };
      await post(path, { ...body, validateOnly: true }, query);
      await post(path, { ...body, validateOnly: false }, query);
      remark(`${name.value} was ${clear.checked ? "removed" : "set"}.`);
      await changed();
    },
  });
}

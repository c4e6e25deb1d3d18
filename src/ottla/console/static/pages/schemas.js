// The subjects of the schema registry.

import { canChange, get, post } from "../lib/api.js";
import { a, h, show } from "../lib/dom.js";
import { Table } from "../lib/table.js";
import {
  ask,
  badge,
  button,
  field,
  head,
  KEEP_OPEN,
  notice,
  panel,
  remark,
  searchField,
  select,
  values,
} from "../lib/widgets.js";

export const subjectLink = (name) => `#/schema?${new URLSearchParams({ name })}`;

export async function page(view) {
  view.title("Schemas");
  let search = "";
  const table = new Table({
    label: "Subjects",
    key: (row) => row.subject,
    sort: "subject",
    empty: () => (search ? "No subject matches." : "The registry has no schemas."),
    load: (asked) => get(["schemas"], { search, ...asked }, view.signal),
    columns: [
      { title: "Subject", name: true, sort: "subject", cell: (row) => a(subjectLink(row.subject), row.subject) },
      { title: "Latest version", number: true, cell: (row) => row.version },
      { title: "Id", number: true, cell: (row) => row.id },
      { title: "Type", cell: (row) => badge(row.type) },
    ],
  });
  view.show(
    head("Schemas", {
      actions: canChange() ? button("Register schema", () => register({}, () => table.refresh()), "primary") : null,
    }),
    h(
      "div.row",
      {},
      searchField("Search subjects", "", (text) => {
        search = text;
        view.attempt(() => table.restart());
      }),
    ),
    panel("Subjects", null, table.element),
  );
  await view.attempt(() => table.refresh());
}

/** Ask for a schema; it is checked first, and registered when that is confirmed. */
export function register({ subject = "", type = "AVRO", text = "", references = [] }, changed) {
  const outcome = h("div");
  let checked = null;
  ask({
    title: subject ? `A new version of ${subject}` : "Register a schema",
    action: "Check, then register",
    wide: true,
    content: [
      h(
        "div.row",
        {},
        field(
          "Subject",
          h("input", { name: "subject", value: subject, required: true, autocomplete: "off", placeholder: "orders-value" }),
        ),
        field("Type", select(["AVRO", "JSON", "PROTOBUF"], type, { name: "type" })),
      ),
      field("Schema", h("textarea", { name: "schema", rows: 16, required: true, spellcheck: "false" }, text)),
      outcome,
    ],
    run: async (form) => {
      const given = { ...values(form), references };
      const wanted = JSON.stringify(given);
      show(outcome);
      if (checked !== wanted) {
        const { compatible, messages } = await post(["schemas", "check"], given);
        if (!compatible) throw new Error(messages.join("\n") || "The subject does not take this schema.");
        checked = wanted;
        show(outcome, notice("good", "The subject takes this schema. Submit once more to register it."));
        return KEEP_OPEN;
      }
      const { id, version } = await post(["schemas"], given);
      remark(`${given.subject} has it as version ${version} with the id ${id}.`);
      await changed();
      return undefined;
    },
  });
}

// Access control lists.

import { canChange, get, post } from "../lib/api.js";
import { h, show } from "../lib/dom.js";
import { Table } from "../lib/table.js";
import {
  ask,
  badge,
  button,
  field,
  head,
  notice,
  panel,
  problems,
  remark,
  searchField,
  select,
  values,
} from "../lib/widgets.js";

export async function page(view) {
  view.title("ACLs");
  const filters = { search: "", resourceType: "" };
  const partial = h("div");
  const content = h("div.stack");
  const table = new Table({
    label: "ACLs",
    key: (acl) => Object.values(acl).join("\n"),
    empty: () => (filters.search || filters.resourceType ? "No ACL matches." : "There are no ACLs."),
    load: async ({ page: number, pageSize }) => {
      const answer = await get(["acls"], { ...filters, page: number, pageSize }, view.signal);
      show(partial, problems(answer.problems));
      return answer;
    },
    columns: [
      { title: "Principal", name: true, cell: (acl) => acl.principal },
      {
        title: "",
        tight: true,
        cell: (acl) =>
          badge(acl.permission === "ALLOW" ? "may" : "may not", acl.permission === "ALLOW" ? "good" : "bad"),
      },
      { title: "Operation", cell: (acl) => acl.operation },
      { title: "Resource", cell: (acl) => acl.resourceType },
      {
        title: "Name",
        name: true,
        cell: (acl) => [acl.resourceName, acl.patternType === "PREFIXED" ? [" ", badge("prefix", "accent")] : null],
      },
      { title: "From host", cell: (acl) => (acl.host === "*" ? "any" : acl.host) },
      {
        title: "",
        tight: true,
        cell: (acl) => (canChange() ? button("Delete", () => deleteAcl(acl, () => table.refresh()), "plain") : ""),
      },
    ],
  });
  view.show(
    head("ACLs", { actions: canChange() ? button("Add ACL", () => addAcl(() => table.refresh()), "primary") : null }),
    content,
    partial,
  );
  try {
    const { resourceTypes } = await get(["acls", "choices"], {}, view.signal);
    show(
      content,
      h(
        "div.row",
        {},
        searchField("Search principals and names", "", (search) => {
          filters.search = search;
          view.attempt(() => table.restart());
        }),
        select([["", "every resource"], ...resourceTypes.map((type) => [type, type])], "", {
          "aria-label": "Resource",
          onchange: (event) => {
            filters.resourceType = event.target.value;
            view.attempt(() => table.restart());
          },
        }),
      ),
      panel("ACLs", null, table.element),
    );
    await table.refresh();
  } catch (error) {
    if (error.code !== "SECURITY_DISABLED") throw error;
    show(
      content,
      notice(
        "",
        "This cluster has no authorizer, so that there are no ACLs: every client may do everything. ",
        error.message,
      ),
    );
  }
}

async function addAcl(changed) {
  const choices = await get(["acls", "choices"]).catch((error) => remark(error.message, "bad"));
  if (!choices) return;
  ask({
    title: "Add ACL",
    action: "Add",
    content: [
      h(
        "div.row.end",
        {},
        field("Principal", h("input", { name: "principal", required: true, value: "User:", autocomplete: "off" })),
        field("From host", h("input", { name: "host", required: true, value: "*", autocomplete: "off" })),
        field("Permission", select(choices.permissions, "ALLOW", { name: "permission" })),
        field("Operation", select(choices.operations, "READ", { name: "operation" })),
      ),
      h(
        "div.row.end",
        {},
        field("Resource", select(choices.resourceTypes, "TOPIC", { name: "resourceType" })),
        field("Name", h("input", { name: "resourceName", required: true, autocomplete: "off" })),
        field("Pattern", select(choices.patternTypes, "LITERAL", { name: "patternType" })),
      ),
    ],
    run: async (form) => {
      await post(["acls"], values(form));
      remark("The ACL was added.");
      await changed();
    },
  });
}

function deleteAcl(acl, changed) {
  ask({
    title: "Delete ACL",
    action: "Delete",
    danger: true,
    content: h(
      "p.break",
      {},
      `${acl.principal} ${acl.permission} ${acl.operation} on ${acl.resourceType} ${acl.resourceName} (${acl.patternType}) from ${acl.host}`,
    ),
    run: async () => {
      const { deleted } = await post(["acls", "delete"], acl);
      remark(deleted ? "The ACL was deleted." : "There was no such ACL any more.", deleted ? "good" : "warn");
      await changed();
    },
  });
}

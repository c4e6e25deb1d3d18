// Users with SCRAM credentials. Passwords go to the server once, and never come back.

import { canChange, get, post, remove } from "../lib/api.js";
import { h, show } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { Table } from "../lib/table.js";
import {
  ask,
  badge,
  button,
  field,
  head,
  panel,
  problems,
  remark,
  searchField,
  select,
  values,
} from "../lib/widgets.js";

export async function page(view) {
  view.title("Users");
  let search = "";
  const partial = h("div");
  const table = new Table({
    label: "Users",
    key: (user) => user.name,
    empty: () => (search ? "No user matches." : "No user has SCRAM credentials."),
    load: async ({ page: number, pageSize }) => {
      const answer = await get(["users"], { search, page: number, pageSize }, view.signal);
      show(partial, problems(answer.problems));
      return answer;
    },
    columns: [
      { title: "User", name: true, cell: (u) => u.name },
      { title: "Credentials", cell: (u) => u.mechanisms.map((m) => [credential(u, m), " "]) },
    ],
  });
  const credential = (user, { name, iterations }) =>
    h(
      "span.row",
      {},
      badge(`${name}, ${count(iterations)} iterations`),
      canChange()
        ? button("Delete", () => deleteUser(user.name, name, () => table.refresh()), "plain", {
            "aria-label": `Delete ${name} of ${user.name}`,
          })
        : null,
    );
  view.show(
    head("Users", {
      actions: canChange() ? button("Add user", () => addUser(() => table.refresh()), "primary") : null,
    }),
    h(
      "div.row",
      {},
      searchField("Search users", "", (text) => {
        search = text;
        view.attempt(() => table.restart());
      }),
    ),
    panel("Users", null, table.element),
    partial,
  );
  await view.attempt(() => table.refresh());
}

function addUser(changed) {
  ask({
    title: "Add a user, or change a password",
    action: "Save",
    content: [
      field("Name", h("input", { name: "name", required: true, autocomplete: "off" })),
      field(
        "Password",
        h("input", { name: "password", type: "password", required: true, autocomplete: "new-password" }),
      ),
      h(
        "div.row",
        {},
        field("Mechanism", select(["SCRAM-SHA-512", "SCRAM-SHA-256"], "SCRAM-SHA-512", { name: "mechanism" })),
        field(
          "Iterations",
          h("input", { name: "iterations", type: "number", min: 4096, max: 16384, value: 4096, class: "narrow" }),
        ),
      ),
    ],
    run: async (form) => {
      const given = values(form);
      await post(["users"], { ...given, iterations: Number(given.iterations) });
      remark(`User ${given.name} was saved.`);
      await changed();
    },
  });
}

function deleteUser(name, mechanism, changed) {
  ask({
    title: `Delete ${mechanism} of ${name}`,
    action: "Delete",
    danger: true,
    content: h("p", {}, `${name} can then no longer log in by ${mechanism}.`),
    run: async () => {
      await remove(["users"], { name, mechanism });
      remark("The credential was deleted.");
      await changed();
    },
  });
}

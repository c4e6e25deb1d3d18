// A subject of the schema registry: its versions, their text, and what differs between two.

import { canChange, get, remove } from "../lib/api.js";
import { h, link, show } from "../lib/dom.js";
import { ask, badge, button, facts, field, head, panel, remark, select } from "../lib/widgets.js";
import { register, subjectLink } from "./schemas.js";

export async function page(view) {
  const name = view.query.get("name") ?? "";
  view.title(name);
  const chosen = { version: view.query.get("version") ?? "latest", against: view.query.get("against") ?? "" };
  const content = h("div.stack");
  let shown = null;

  const load = async () => {
    shown = await get(["schemas", "subject"], { name, ...chosen }, view.signal);
    view.remember({ name, version: chosen.version === "latest" ? "" : chosen.version, against: chosen.against });
    draw();
  };
  const choose = (change) => {
    Object.assign(chosen, change);
    view.attempt(load);
  };
  const draw = () => {
    const numbers = shown.versions.map(String);
    show(
      content,
      h(
        "div.row",
        {},
        field(
          "Version",
          select(numbers, String(shown.version), { onchange: (event) => choose({ version: event.target.value }) }),
        ),
        field(
          "Compared with",
          select([["", "nothing"], ...numbers.filter((each) => each !== String(shown.version))], chosen.against, {
            onchange: (event) => choose({ against: event.target.value }),
          }),
        ),
      ),
      facts([
        ["Id", shown.id],
        ["Type", badge(shown.type)],
        ["Compatibility", shown.compatibility],
        ...shown.references.map((each) => [
          "Refers to",
          h("a", { href: subjectLink(each.subject) }, `${each.name} = ${each.subject}, version ${each.version}`),
        ]),
      ]),
      shown.difference === null
        ? panel(`Version ${shown.version}`, null, h("pre.payload", {}, shown.text))
        : panel(
            `From version ${chosen.against} to ${shown.version}`,
            null,
            h("pre.payload.difference", {}, shown.difference.length ? shown.difference.map(line) : "Nothing differs."),
          ),
    );
  };
  const reload = () => choose({ version: "latest", against: "" });
  view.show(
    head(name, {
      trail: [["Schemas", link("schemas")]],
      actions: canChange()
        ? [
            button("New version", () => register({ subject: name, ...(shown ?? {}) }, reload), "primary"),
            button("Delete version", () => shown && deleteVersion(name, shown.version, reload)),
          ]
        : null,
    }),
    content,
  );
  await view.attempt(load);
}

const KINDS = { "+": "added", "-": "gone", "@": "place" };

function line(text) {
  return h("span", { class: KINDS[text[0]] ?? "" }, `${text}\n`);
}

function deleteVersion(name, version, changed) {
  ask({
    title: `Delete version ${version} of ${name}`,
    action: "Delete",
    danger: true,
    content: h("p", {}, "It is deleted softly: records with its id can still be read."),
    run: async () => {
      await remove(["schemas"], { name, version });
      remark("The version was deleted.");
      await changed();
    },
  });
}

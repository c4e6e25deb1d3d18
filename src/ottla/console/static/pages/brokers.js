// The brokers, and the settings that hold for all of them.

import { get } from "../lib/api.js";
import { a, h, link, show } from "../lib/dom.js";
import { head, panel, problems } from "../lib/widgets.js";
import { brokerTable } from "./overview.js";

const REFRESH_MS = 5_000;

export async function page(view) {
  view.title("Brokers");
  const table = brokerTable();
  const partial = h("div");
  view.show(
    head("Brokers", { actions: h("a.button", { href: link("broker", "default") }, "Dynamic defaults of all brokers") }),
    panel("Brokers", null, table.element),
    h(
      "p.muted",
      {},
      "Open a broker for its configuration. Where its data lies: ",
      a(link("log-dirs"), "log directories"),
      ".",
    ),
    partial,
  );
  await view.live(REFRESH_MS, async () => {
    const overview = await get(["overview"], {}, view.signal);
    table.update(overview.brokers);
    show(partial, problems(overview.problems));
  });
}

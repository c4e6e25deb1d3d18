// The configuration of one broker, or the dynamic defaults of all.

import { h, link } from "../lib/dom.js";
import { head } from "../lib/widgets.js";
import { configPanel } from "./config.js";

export async function page(view) {
  const [id] = view.params;
  const title = id === "default" ? "Defaults of all brokers" : `Broker ${id}`;
  const content = h("div.stack");
  view.title(title);
  view.show(head(title, { trail: [["Brokers", link("brokers")]] }), content);
  await configPanel(view, content, ["brokers", id, "config"], "Configuration");
}

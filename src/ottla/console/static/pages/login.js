// The login, by the cluster's own users. What they may do here is what their ACLs say. Where the address is the key,
// there is nothing to type.

import { login, session } from "../lib/api.js";
import { h, show } from "../lib/dom.js";
import { field, notice, select } from "../lib/widgets.js";

export async function page(view, { loggedIn }) {
  view.title("Log in");
  if (session.login === "address") {
    view.show(
      h("h1", { tabindex: "-1" }, "This console opens by its address"),
      notice("warn", "Open the address that `ottla console` printed last. Each opens the console once, in one browser."),
    );
    return;
  }
  const failure = h("div");
  const name = h("input", {
    name: "username",
    required: true,
    autocomplete: "username",
    autocapitalize: "none",
    spellcheck: "false",
  });
  const password = h("input", { name: "password", type: "password", required: true, autocomplete: "current-password" });
  const mechanism = select([["", "automatic"], ...(session.mechanisms ?? []).map((text) => [text, text])], "", {
    name: "mechanism",
  });
  const submit = h("button.primary", { type: "submit" }, "Log in");
  const form = h(
    "form.panel.login",
    {
      onsubmit: async (event) => {
        event.preventDefault();
        submit.disabled = true;
        try {
          await login({
            username: name.value,
            password: password.value,
            ...(mechanism.value ? { mechanism: mechanism.value } : {}),
          });
          await loggedIn();
        } catch (error) {
          show(failure, notice("bad", error.message));
          password.value = "";
          password.focus();
        } finally {
          submit.disabled = false;
        }
      },
    },
    h("header", {}, h("h1", { tabindex: "-1" }, "Log in")),
    h(
      "div.body.stack",
      {},
      h("p.muted", {}, "Users of the cluster log in here as they do with any client."),
      field("User", name),
      field("Password", password),
      session.mechanisms?.length > 1 ? field("Mechanism", mechanism) : null,
      failure,
      submit,
    ),
  );
  view.show(form);
  name.focus();
}

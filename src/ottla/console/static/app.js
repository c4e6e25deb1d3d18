// The shell: which page is shown, the list of pages, the keys. A page is a module with `page(view)`; see View below.

import { h, link, show } from "./lib/dom.js";
import { loadSession, logout, session } from "./lib/api.js";
import { dialog, notice, remark } from "./lib/widgets.js";

// The list of pages: name in the address and of the module, title, key after "g", and the feature of the server
// without which the page is left out.
const PAGES = [
  ["overview", "Overview", "o"],
  ["topics", "Topics", "t"],
  ["groups", "Groups", "g"],
  ["transactions", "Transactions", "x"],
  ["brokers", "Brokers", "b"],
  ["log-dirs", "Log directories", "l"],
  ["users", "Users", "u"],
  ["acls", "ACLs", "a"],
  ["quotas", "Quotas", "q"],
  ["schemas", "Schemas", "s", "schemas"],
  ["pipelines", "Pipelines", "p", "pipelines"],
  ["tasks", "Tasks", "k", "metrics"],
];
// Pages of one thing, and the list to which each belongs. Topics and brokers are named in the path (#/topic/orders);
// ids that may be any text are parameters (#/group?id=..%2F).
const DETAILS = { topic: "topics", group: "groups", broker: "brokers", pipeline: "pipelines", schema: "schemas" };

const main = document.getElementById("main");
const navigation = document.getElementById("pages");
const menu = document.getElementById("menu");

/** What a page gets. Everything that it starts ends with `signal`, when another page is opened. */
class View {
  constructor(params, query) {
    this.params = params;
    this.query = query;
    this.controller = new AbortController();
    this.signal = this.controller.signal;
    this.trouble = h("div");
  }

  /** Replace the page; the place for problems stays on top. */
  show(...children) {
    show(main, h("div.stack", {}, this.trouble, ...children));
  }

  title(text) {
    document.title = `${text} · Ottla`;
  }

  /** Run `step` now and again `ms` after it ended, while the page is open and the window can be seen. */
  async live(ms, step) {
    while (!this.signal.aborted) {
      await this.attempt(step);
      await sleep(ms, this.signal);
      while (document.hidden && !this.signal.aborted) await sleep(500, this.signal);
    }
  }

  /** Run `step`; if it fails, the page shows why and keeps what it had. */
  async attempt(step) {
    try {
      const result = await step();
      if (!this.signal.aborted) show(this.trouble);
      return result;
    } catch (error) {
      if (!this.signal.aborted && error.name !== "AbortError") this.problem(error);
      return undefined;
    }
  }

  problem(error) {
    if (!error.code) console.error(error);
    show(this.trouble, notice("bad", error.message));
  }

  /** Change the query of the address without opening the page again. */
  remember(query) {
    const [path] = location.hash.split("?");
    const known = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
    history.replaceState(null, "", known.length ? `${path}?${new URLSearchParams(known)}` : path);
  }
}

/** Wait for a time, or until the page is left or something was changed from it. */
function sleep(ms, signal) {
  return new Promise((resolve) => {
    const wake = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", wake);
      window.removeEventListener("ottla-changed", wake);
      resolve();
    };
    const timer = setTimeout(wake, ms);
    signal.addEventListener("abort", wake);
    window.addEventListener("ottla-changed", wake);
  });
}

let current = null;

async function openPage() {
  current?.controller.abort();
  document.querySelectorAll("dialog").forEach((element) => element.close());
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name = "overview", ...params] = path
    .split("/")
    .filter((part) => part !== "")
    .map(decode);
  const needsLogin = !session.loggedIn;
  const known = name in DETAILS || PAGES.some(([address]) => address === name);
  const view = new View(params, new URLSearchParams(query));
  current = view;
  drawShell(needsLogin ? null : (DETAILS[name] ?? name));
  if (!known && !needsLogin) {
    view.title("Not found");
    view.show(
      notice("warn", "There is no such page."),
      h("p", {}, h("a", { href: link("overview") }, "Go to the overview")),
    );
    return;
  }
  try {
    const module = await import(`./pages/${needsLogin ? "login" : name}.js`);
    if (view.signal.aborted) return;
    const running = module.page(view, { loggedIn: start });
    focusHeading();
    await running;
  } catch (error) {
    if (view.signal.aborted || error.name === "AbortError") return;
    if (!main.contains(view.trouble)) view.show();
    view.problem(error);
  }
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Screen readers and the keyboard begin at the heading of a page that was opened. */
function focusHeading() {
  if (!main.querySelector(":focus")) main.querySelector("h1")?.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

function drawShell(name) {
  document.getElementById("where").textContent = session.bootstrapServers ?? "";
  document.getElementById("who").textContent = [session.loggedIn && session.principal, session.readOnly && "read-only"]
    .filter(Boolean)
    .join(" · ");
  document.getElementById("logout").hidden = !(session.login !== "none" && session.loggedIn);
  const shown = name === null ? [] : PAGES.filter(([, , , feature]) => !feature || session.features[feature]);
  const entries = shown.map(([address, title, key]) => {
    const attributes = { href: link(address), "aria-current": address === name ? "page" : null };
    return h("li", {}, h("a", attributes, title, h("kbd", { "aria-hidden": "true" }, `g ${key}`)));
  });
  show(navigation, h("ul", {}, entries));
  document.body.classList.toggle("without-pages", entries.length === 0);
  openMenu(false);
}

function openMenu(open) {
  navigation.classList.toggle("open", open);
  menu.setAttribute("aria-expanded", open);
}

// Keys.

const KEYS = [
  ["/", "go to the search field"],
  ["j  k", "next and previous row of a table"],
  ["Enter", "open the row or press the button"],
  ["n  p", "next and previous page of a table"],
  ["[  ]", "previous and next tab of a page"],
  ["Escape", "leave a field, close a dialog"],
  ["?", "this list"],
];

function showKeys() {
  const pages = PAGES.filter(([, , , feature]) => !feature || session.features[feature]).map(([, title, key]) => [
    `g ${key}`,
    title,
  ]);
  const rows = [...KEYS, ...pages].map(([key, text]) =>
    h("tr", {}, h("td.tight", {}, h("kbd", {}, key)), h("td", {}, text)),
  );
  dialog("Keys", h("div.body", {}, h("table", {}, h("tbody", {}, rows))));
}

let leader = 0;

function onKey(event) {
  const target = event.target;
  const typing = target.matches?.("input, textarea, select");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && typing) target.blur();
  if (typing || document.querySelector("dialog[open]")) return;
  if (Date.now() - leader < 1500) {
    leader = 0;
    const page = PAGES.find(([, , key]) => key === event.key);
    if (page) {
      location.hash = link(page[0]);
      event.preventDefault();
      return;
    }
  }
  const action = {
    g: () => {
      leader = Date.now();
    },
    "/": () => main.querySelector("[data-search]")?.focus(),
    "?": showKeys,
    j: () => moveRow(1),
    k: () => moveRow(-1),
    n: () => turnPage("Next ›"),
    p: () => turnPage("‹ Previous"),
    "[": () => moveTab(-1),
    "]": () => moveTab(1),
  }[event.key];
  if (action) {
    event.preventDefault();
    action();
  }
}

function moveRow(step) {
  const rows = [...main.querySelectorAll("tbody tr")].filter((row) => row.offsetParent !== null && rowControl(row));
  const place = rows.findIndex((row) => row.contains(document.activeElement));
  const next = place < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, place + step));
  if (rows[next]) rowControl(rows[next]).focus();
}

function rowControl(row) {
  return row.querySelector("a, button");
}

function turnPage(text) {
  const found = [...main.querySelectorAll(".pager button")].find(
    (button) => button.textContent === text && !button.disabled,
  );
  found?.click();
}

function moveTab(step) {
  const links = [...main.querySelectorAll(".tabs a")];
  const place = links.findIndex((element) => element.hasAttribute("aria-current"));
  const next = links[place + step];
  if (place >= 0 && next) next.click();
}

const THEMES = ["system", "light", "dark"];

function nextTheme() {
  const next = THEMES[(THEMES.indexOf(window.ottlaTheme.current()) + 1) % THEMES.length];
  window.ottlaTheme.set(next);
  remark(`Theme: ${next}`);
}

document.addEventListener("keydown", onKey);
document.getElementById("theme").addEventListener("click", nextTheme);
document.getElementById("help").addEventListener("click", showKeys);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address after # is the page's
  main.focus();
});
menu.addEventListener("click", () => openMenu(!navigation.classList.contains("open")));
document.getElementById("logout").addEventListener("click", async () => {
  await logout().catch((error) => remark(error.message, "bad"));
  openPage();
});
window.addEventListener("hashchange", openPage);
window.addEventListener("ottla-login", async () => {
  if (!session.loggedIn) return;
  session.loggedIn = false;
  await start();
});

async function start() {
  try {
    await loadSession();
    await openPage();
  } catch (error) {
    show(main, notice("bad", error.message));
  }
}

start();

// The parts that pages are made of.

import { a, h, link, show } from "./dom.js";
import { count } from "./format.js";

export function panel(title, actions, ...body) {
  return h("section.panel", {}, h("header", {}, h("h2", {}, title), h("span.space"), actions), ...body);
}

export function body(...children) {
  return h("div.body", {}, ...children);
}

export function tile(name, figure, note = "", level = "") {
  const long = typeof figure === "string" && figure.length > 14;
  return h(
    "div.tile",
    { class: level },
    h("div.name", {}, name),
    h("div.figure", { class: long ? "text" : "" }, figure),
    note && h("div.note", {}, note),
  );
}

export function badge(text, level = "") {
  return h("span.badge", { class: level }, text);
}

export function notice(level, ...children) {
  return h("div.notice", { class: level, role: level === "bad" ? "alert" : "status" }, ...children);
}

/** What could not be read; null if nothing. */
export function problems(list) {
  if (!list?.length) return null;
  return notice(
    "warn",
    list.length === 1
      ? list[0]
      : [
          "Some of this could not be read:",
          h(
            "ul",
            {},
            list.map((text) => h("li", {}, text)),
          ),
        ],
  );
}

export function facts(pairs) {
  return h(
    "dl.facts",
    {},
    pairs.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

export function meter(share, level = "") {
  const fill = h("i");
  fill.style.width = `${Math.max(0, Math.min(1, share || 0)) * 100}%`;
  return h("span.meter", { class: level }, fill);
}

export function button(text, onclick, kind = "", attributes = {}) {
  return h("button", { type: "button", class: kind, onclick, ...attributes }, text);
}

export function field(label, control, hint = null) {
  return h("label.field", {}, h("span", {}, label), control, hint && h("span.small", {}, hint));
}

export function check(label, attributes = {}) {
  return h("label.check", {}, h("input", { type: "checkbox", ...attributes }), label);
}

/** options: texts, or pairs of value and text. */
export function select(options, chosen, attributes = {}) {
  const pairs = options.map((option) => (Array.isArray(option) ? option : [option, option]));
  return h(
    "select",
    attributes,
    pairs.map(([value, text]) => h("option", { value, selected: value === chosen }, text)),
  );
}

/** A search field that answers a short while after the last key. */
export function searchField(label, value, onchange) {
  let timer = 0;
  const input = h("input", {
    type: "search",
    value,
    placeholder: label,
    "aria-label": label,
    autocomplete: "off",
    spellcheck: "false",
    "data-search": true,
    oninput: () => {
      clearTimeout(timer);
      timer = setTimeout(() => onchange(input.value), 250);
    },
  });
  return input;
}

export function tabs(label, entries, current) {
  const links = entries.map(([name, title, href]) =>
    h("a", { href, "aria-current": name === current ? "page" : null }, title),
  );
  return h("nav.tabs", { "aria-label": label }, links);
}

/** The head of a page: where it is, its name, and what can be done there. */
export function head(title, { trail = [], marks = [], actions = [] } = {}) {
  const steps = trail.flatMap(([text, href]) => [a(href, text), " / "]);
  return h(
    "div.head",
    {},
    steps.length ? h("div.trail", {}, steps) : null,
    h("h1", { tabindex: "-1" }, title),
    marks,
    h("span.space"),
    actions,
  );
}

export function stateBadge(state) {
  const levels = {
    Stable: "good",
    running: "good",
    completed: "good",
    CompleteCommit: "good",
    Ongoing: "accent",
    Empty: "",
    Dead: "bad",
    failed: "bad",
    PreparingRebalance: "warn",
    CompletingRebalance: "warn",
    Assigning: "warn",
    Reconciling: "warn",
    PrepareAbort: "warn",
    PrepareCommit: "warn",
    NotReady: "warn",
    restarting: "warn",
  };
  return state ? badge(state, levels[state] ?? "") : badge("unknown");
}

export function partitionLink(topic, partition) {
  return a(link("topic", topic, "messages", { partitions: partition }), `${topic}-${partition}`);
}

export function brokerList(ids, { offline = [], isr = null } = {}) {
  return ids.map((id, place) => {
    const lost = offline.includes(id);
    const behind = isr && !isr.includes(id);
    const mark = lost ? badge(`${id} offline`, "bad") : behind ? badge(`${id} behind`, "warn") : String(id);
    return [place ? ", " : "", mark];
  });
}

/** A short remark at the edge of the window, read aloud by screen readers. */
export function remark(text, level = "good") {
  const element = notice(level, text);
  document.getElementById("remarks").append(element);
  setTimeout(() => element.remove(), level === "bad" ? 12_000 : 5_000);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    remark("Copied.");
  } catch {
    remark("The browser did not allow to copy.", "bad");
  }
}

/** A modal dialog; Escape closes it, and the keyboard returns to where it was. */
export function dialog(title, content, { wide = false, onclose = null } = {}) {
  const before = document.activeElement;
  const element = h(
    "dialog",
    {
      class: wide ? "wide" : "",
      "aria-label": title,
      onclose: () => {
        element.remove();
        onclose?.();
        before?.focus?.();
      },
    },
    h(
      "header",
      {},
      h("h2", {}, title),
      h("span.space"),
      button("Close", () => element.close(), "plain"),
    ),
    content,
  );
  document.body.append(element);
  element.showModal();
  return element;
}

export const KEEP_OPEN = Symbol("keep open");

/**
 * Ask for something and do it: `run` gets the dialog's form when it is submitted. If it throws, the dialog stays and
 * shows why; if it returns KEEP_OPEN, the dialog stays for a next step. `confirm` is a text that must be typed first,
 * for what cannot be undone.
 */
export function ask({ title, content = [], action, danger = false, confirm = null, wide = false, run }) {
  const failure = h("div");
  const typed =
    confirm === null
      ? null
      : h("input", { type: "text", name: "confirmation", autocomplete: "off", spellcheck: "false", required: true });
  const submit = h("button", { type: "submit", class: danger ? "danger" : "primary" }, action);
  const form = h(
    "form.stack.body",
    {
      onsubmit: async (event) => {
        event.preventDefault();
        if (typed && typed.value !== confirm) {
          show(failure, notice("bad", `Type ${confirm} to go on.`));
          return;
        }
        submit.disabled = true;
        const place = location.hash;
        try {
          show(failure);
          if ((await run(form)) !== KEEP_OPEN) {
            element.close();
            // The page shows what is true now, unless it is left: what it shows may have been deleted.
            if (location.hash === place) window.dispatchEvent(new Event("ottla-changed"));
          }
        } catch (error) {
          show(failure, notice("bad", error.message));
        } finally {
          submit.disabled = false;
        }
      },
    },
    content,
    typed && field(`Type ${confirm} to confirm`, typed),
    failure,
    h(
      "div.row",
      {},
      submit,
      button("Cancel", () => element.close()),
    ),
  );
  const element = dialog(title, form, { wide });
  return { element, form };
}

/** The values of a form's named controls. */
export function values(form) {
  return Object.fromEntries(new FormData(form).entries());
}

export function truncatedTo(shown, total, what) {
  return shown < total ? h("p.muted.small", {}, `The first ${count(shown)} of ${count(total)} ${what}.`) : null;
}

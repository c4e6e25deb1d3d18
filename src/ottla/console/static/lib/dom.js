// Build elements. Text from the server only ever becomes text nodes or attribute values: no page uses innerHTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element: h("td.number", {title: "bytes"}, "12", otherElement).
 * Attributes that begin with "on" are event listeners; null, undefined and false leave an attribute out, but
 * those of ARIA have "false" for a value.
 */
export function h(tagAndClasses, attributes = {}, ...children) {
  const [tag, ...classes] = tagAndClasses.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  return fill(element, attributes, children);
}

/** Make an element of a drawing: s("rect", {x: 1, y: 2}). */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("aria-"))
      element.setAttribute(name, String(value)); // "false" is a value of these
    else if (value === false) continue;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.classList.add(...String(value).split(" ").filter(Boolean));
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

/** Append nodes and texts; lists are flattened, null and false left out. */
export function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return parent;
}

/** Replace everything inside an element. */
export function show(parent, ...children) {
  parent.replaceChildren();
  return append(parent, children);
}

/** The address of a page, every part encoded: link("topics", "a.b") is "#/topics/a.b". */
export function link(page, ...parts) {
  const query = typeof parts.at(-1) === "object" && parts.at(-1) !== null ? parts.pop() : {};
  const known = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const path = [page, ...parts].map((part) => encodeURIComponent(part)).join("/");
  return `#/${path}${known.length ? "?" + new URLSearchParams(known) : ""}`;
}

export function a(href, ...children) {
  return h("a", { href }, ...children);
}

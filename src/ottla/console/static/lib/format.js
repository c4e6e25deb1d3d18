// Numbers, sizes and times as people read them. Everything here takes null for "not known" and shows a dash.

const DASH = "–";
const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1, notation: "compact" });

export function isKnown(value) {
  return value !== null && value !== undefined && value !== "" && !Number.isNaN(value);
}

/** A whole number with its thousands apart. A text (a number above 2^53) is shown as it was sent. */
export function count(value) {
  if (!isKnown(value)) return DASH;
  return typeof value === "string" ? value : grouped.format(value);
}

export function compact(value) {
  if (!isKnown(value)) return DASH;
  if (Math.abs(value) < 10 && value % 1) return value.toFixed(1);
  return Math.abs(value) < 10000 ? grouped.format(value) : short.format(value);
}

export function bytes(value) {
  if (!isKnown(value)) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  let rest = Number(value);
  while (rest >= 1024 && unit < units.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${unit && rest < 100 ? rest.toFixed(1) : Math.round(rest)} ${units[unit]}`;
}

export function byteRate(value) {
  return isKnown(value) ? `${bytes(value)}/s` : DASH;
}

export function rate(value) {
  return isKnown(value) ? `${compact(value)}/s` : DASH;
}

export function milliseconds(value) {
  if (!isKnown(value)) return DASH;
  if (value < 1) return `${value.toFixed(2)} ms`;
  if (value < 1000) return `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
  return duration(value);
}

/** A span of time in its two largest units: 93784000 is "1 d 2 h". */
export function duration(ms) {
  if (!isKnown(ms)) return DASH;
  if (ms < 0) return "not limited";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const parts = [];
  let rest = Math.floor(ms / 1000);
  for (const [unit, size] of [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
    ["s", 1],
  ]) {
    if (rest >= size) parts.push(`${Math.floor(rest / size)} ${unit}`);
    rest %= size;
  }
  return parts.slice(0, 2).join(" ");
}

const two = (value) => String(value).padStart(2, "0");

/** Local time with milliseconds, in an order that sorts: 2026-11-16 18:04:05.123. */
export function time(ms) {
  if (!isKnown(ms) || ms < 0) return DASH;
  const date = new Date(Number(ms));
  if (Number.isNaN(date.getTime())) return String(ms);
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${clock(ms)}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

export function clock(ms) {
  const date = new Date(Number(ms));
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function ago(ms, now = Date.now()) {
  if (!isKnown(ms) || ms < 0) return DASH;
  return now - ms < 1000 ? "now" : `${duration(now - ms)} ago`;
}

export function plural(number, word, words = `${word}s`) {
  return `${count(number)} ${number === 1 ? word : words}`;
}

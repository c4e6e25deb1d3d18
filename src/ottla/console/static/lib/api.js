// Requests to the console's server. docs/console-api.md describes every one of them.

const API = new URL("../../api/", import.meta.url);

/** What the server said about this session; filled by `loadSession` before the first page is shown. */
export const session = { features: {} };

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The address of an endpoint. Parts of the path are encoded; empty parameters are left out. */
export function address(parts, query = {}) {
  const path = parts.map((part) => encodeURIComponent(part)).join("/");
  const url = new URL(path, API);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

async function request(method, parts, { query, body, signal, again = false } = {}) {
  const headers = {};
  if (method !== "GET") headers["X-Ottla-Csrf"] = session.csrfToken ?? "";
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(address(parts, query), {
      method,
      headers,
      signal,
      credentials: "same-origin",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "UNREACHABLE", "The console's server does not answer. Is it still running?");
  }
  const answer = await response.json().catch(() => null);
  if (response.ok) return answer;
  const problem = problemOf(response, answer);
  if (problem.code === "LOGIN_REQUIRED") window.dispatchEvent(new Event("ottla-login"));
  if (problem.code === "CSRF" && !again) {
    await loadSession(); // a server that was started again has given out other tokens
    return request(method, parts, { query, body, signal, again: true });
  }
  throw new ApiError(response.status, problem.code, problem.message);
}

/** The error of the console, or of the HTTP server in front of it, which has a text only. */
function problemOf(response, answer) {
  const given = answer?.error;
  if (given?.message) return given;
  const text = typeof given === "string" ? given : "";
  return { code: `HTTP_${response.status}`, message: text || response.statusText || `HTTP status ${response.status}` };
}

/** get(["topics", "orders"], {query}, signal) */
export const get = (parts, query, signal) => request("GET", parts, { query, signal });
export const post = (parts, body = {}, query) => request("POST", parts, { query, body });
export const remove = (parts, query) => request("DELETE", parts, { query });

export async function loadSession() {
  Object.assign(session, await get(["session"]));
  return session;
}

export async function login(credentials) {
  Object.assign(session, await post(["login"], credentials));
}

export async function logout() {
  await post(["logout"]);
  await loadSession();
}

/** Whether this session may change anything; pages leave out the buttons otherwise. */
export function canChange() {
  return !session.readOnly;
}

/**
 * Listen to server-sent events: stream(["overview", "stream"], {}, {sample: (data) => …}, signal).
 * `end` and `error` from the server close it; a connection that is lost is made again by the browser, unless `again`
 * is false: what was sent before would come twice.
 */
export function stream(parts, query, handlers, signal, { again = true } = {}) {
  if (signal?.aborted) return;
  const source = new EventSource(address(parts, query));
  const close = () => source.close();
  signal?.addEventListener("abort", close, { once: true });
  for (const [name, handle] of Object.entries(handlers)) {
    if (name === "error" || name === "end") continue;
    source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
  }
  source.addEventListener("end", (event) => {
    close();
    handlers.end?.(JSON.parse(event.data));
  });
  source.addEventListener("error", (event) => {
    if (event.data) {
      close();
      const { code, message } = JSON.parse(event.data);
      handlers.error?.(new ApiError(0, code, message));
    } else if (!again && source.readyState === EventSource.CONNECTING) {
      close();
      handlers.error?.(new ApiError(0, "UNREACHABLE", "The connection to the console was lost; read again."));
    } else if (source.readyState === EventSource.CLOSED) {
      handlers.error?.(new ApiError(0, "UNREACHABLE", "The stream of events was refused."));
    }
  });
}

/**
 * Listen to events that begin with their history, and only while the window can be seen: a browser has six
 * connections to a server, and each hidden tab would hold one of them.
 */
export function watch(parts, query, handlers, signal) {
  let shown = null;
  const change = () => {
    shown?.abort();
    shown = null;
    if (document.hidden || signal.aborted) return;
    shown = new AbortController();
    stream(parts, query, handlers, shown.signal);
  };
  document.addEventListener("visibilitychange", change, { signal });
  signal.addEventListener("abort", () => shown?.abort(), { once: true });
  change();
}

// Talks to the server: one function per kind of call, errors as values that people can read.

export class Problem extends Error {
  constructor(status, { code, message, hint, similar } = {}) {
    super(message ?? "the server did not answer");
    this.status = status;
    this.code = code ?? "unreachable";
    this.hint = hint ?? "";
    this.similar = similar ?? []; // what may be meant by a name that does not exist
  }
}

const base = new URL("api/v1/", document.baseURI);

export function url(path, query = {}) {
  const target = new URL(path, base);
  for (const [name, value] of Object.entries(query)) {
    if (value == null || value === "" || value === false) continue;
    for (const one of Array.isArray(value) ? value : [value]) target.searchParams.append(name, one);
  }
  return target;
}

export const get = (path, query, signal) => ask(url(path, query), { signal });

export const post = (path, body, signal) =>
  ask(url(path), {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Everstep": "1" },
    body: JSON.stringify(body),
    signal,
  });

const NO_ANSWER = {
  message: "The server does not answer.",
  hint: "Is `everstep ui` still running? The page goes on by itself when it is back.",
};

// Sends a file, and tells how much of it has gone: `fetch` does not say.
export function upload(path, file, onSent) {
  const request = new XMLHttpRequest();
  const done = new Promise((resolve, reject) => {
    request.open("POST", url(path));
    request.responseType = "json";
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.setRequestHeader("X-Everstep", "1");
    request.upload.onprogress = ({ loaded }) => onSent(loaded);
    request.upload.onload = () => onSent(file.size);
    request.onerror = () => reject(new Problem(0, NO_ANSWER));
    request.onload = () => {
      const { status, response } = request;
      if (status === 200 && response) resolve(response);
      else reject(new Problem(status, response?.error ?? { code: "bad_answer", message: `The server answered with ${status}.` }));
    };
    request.send(file);
  });
  return { done, stop: () => request.abort() };
}

async function ask(target, options) {
  let answer;
  try {
    answer = await fetch(target, { ...options, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, NO_ANSWER);
  }
  let document;
  try {
    document = await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(answer.status, { code: "bad_answer", message: `The server answered with ${answer.status}.` });
  }
  if (!answer.ok) throw new Problem(answer.status, document.error);
  return document;
}

// One request at a time: a new one ends the one before, whose answer nobody wants any more.
export function latest() {
  let running = null;
  return async (work) => {
    running?.abort();
    const own = new AbortController();
    running = own;
    try {
      const result = await work(own.signal);
      return running === own ? result : undefined;
    } catch (error) {
      if (error.name === "AbortError" || running !== own) return undefined;
      throw error;
    }
  };
}

// Live updates. `onChange` is called for every change, `onState` with whether they come, and if not, why: "" where the
// server itself does not answer. Browsers have six connections to a server for all their tabs, and then let the next one
// wait: a tab that nobody looks at gives its own back.
export function listen(thread, onChange, onState) {
  let source = null;
  const open = () => {
    source = new EventSource(url("events", { thread }));
    source.addEventListener("hello", () => onState(true));
    source.addEventListener("change", () => {
      onState(true);
      onChange();
    });
    source.addEventListener("trouble", ({ data }) => onState(false, JSON.parse(data).error.message));
    source.onerror = () => onState(false, "");
  };
  const close = () => {
    source?.close();
    source = null;
  };
  const onVisible = () => {
    if (document.hidden) close();
    else if (!source) {
      open();
      onChange();
    }
  };
  if (!document.hidden) open();
  document.addEventListener("visibilitychange", onVisible);
  return () => {
    document.removeEventListener("visibilitychange", onVisible);
    close();
  };
}

// Talks to the server: one function per kind of call, errors as values that people can read.

export class Problem extends Error {
  constructor(status, { code, message, hint } = {}) {
    super(message ?? "the server did not answer");
    this.status = status;
    this.code = code ?? "unreachable";
    this.hint = hint ?? "";
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

async function ask(target, options) {
  let answer;
  try {
    answer = await fetch(target, { ...options, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, {
      message: "The server does not answer.",
      hint: "Is `everstep ui` still running? The page goes on by itself when it is back.",
    });
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

// Live updates. `onChange` is called for every change, `onState` with whether there is a connection.
export function listen(thread, onChange, onState) {
  const source = new EventSource(url("events", { thread }));
  source.addEventListener("hello", () => onState(true));
  source.addEventListener("change", () => {
    onState(true);
    onChange();
  });
  source.addEventListener("trouble", () => onState(false));
  source.onerror = () => onState(false);
  return () => source.close();
}

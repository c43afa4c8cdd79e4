// What the page knows and where it is: signals, the address bar, and the things that can be done.
import { batch, computed, effect, signal } from "./vendor/ui.js";
import { get, latest, listen, post } from "./api.js";
import { branchName, plural } from "./format.js";
import { Rows } from "./rows.js";

export const TABS = ["changes", "messages", "state", "step", "run"]; // the last one for durable runs only
export const info = signal(null);
export const problem = signal(null); // the server cannot be reached at all
export const live = signal(null); // null: not yet, true, false
export const storeTrouble = signal(""); // why the store cannot be read, where the server itself answers
export const dialog = signal(null); // { name, ...what it needs }
export const toast = signal(null); // { text, undo, tone }
export const canWrite = computed(() => info.value !== null && !info.value.read_only);

// -- the address bar

const root = new URL(document.baseURI).pathname;

const VIEWS = { "": "threads", t: "threads", storage: "storage", runs: "runs" }; // those that name no thread

function readRoute() {
  const path = location.pathname.startsWith(root) ? location.pathname.slice(root.length) : "";
  const parts = path.split("/").map(decode);
  const query = new URLSearchParams(location.search);
  const tab = TABS.includes(query.get("tab")) ? query.get("tab") : "changes";
  const thread = parts[0] === "t" ? parts[1] || query.get("thread") : null;
  if (!thread) return { view: VIEWS[parts[0]] ?? "nowhere", thread: null, id: null, tab, vs: null };
  const id = parts[1] ? parts[2] === "c" && parts[3] : query.get("c");
  return { view: "thread", thread, id: id || null, tab, vs: query.get("vs") };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// Browsers take dots, however they are written, for the way through folders, and a route ends with its line: such names
// stand behind the question mark.
const isPlace = (name) => name !== "." && name !== ".." && !name.includes("\n");

// Behind an address `.json` means the same as JSON: a name that ends so is not to be taken for that.
const encode = (name) => encodeURIComponent(name).replace(/\.json$/, "%2Ejson");

export function address({ view, thread, id, tab, vs }) {
  if (view === "storage" || view === "runs") return `${root}${view}`;
  if (!thread) return root;
  const query = new URLSearchParams();
  const isInPath = isPlace(thread) && (!id || isPlace(id));
  if (!isInPath) query.set("thread", thread);
  if (!isInPath && id) query.set("c", id);
  if (tab && tab !== "changes") query.set("tab", tab);
  if (vs) query.set("vs", vs);
  const place = isInPath ? `${root}t/${encode(thread)}${id ? `/c/${encode(id)}` : ""}` : `${root}t/`;
  return place + (query.size ? `?${query}` : "");
}

export const route = signal(readRoute());

export function go(change, { replace = false } = {}) {
  const next = { ...route.value, ...change };
  if (next.thread && !("view" in change)) next.view = "thread";
  const target = address(next);
  if (target !== location.pathname + location.search) {
    history[replace ? "replaceState" : "pushState"](null, "", target);
  }
  route.value = next;
}

addEventListener("popstate", () => {
  route.value = readRoute();
});

export const openStart = () => go({ view: "threads", thread: null, id: null, vs: null });
export const openThread = (thread) => go({ view: "thread", thread, id: null, vs: null, tab: route.value.tab });
export const openRuns = () => go({ view: "runs", thread: null, id: null, vs: null });
export const openStorage = () => go({ view: "storage", thread: null, id: null, vs: null });

// A click on a link that should stay inside the page; with a key held it is left to the browser.
export const follow = (act) => (event) => {
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.button > 0) return;
  event.preventDefault();
  act();
};

// -- threads

export const threads = signal({ items: [], cursor: null, isReady: false, more: false, error: null });
export const search = signal({ text: "", status: "" });
const threadCall = latest();

export async function loadThreads({ more = false } = {}) {
  const { text, status } = search.value;
  const before = threads.value;
  const limit = more ? 50 : Math.min(200, Math.max(50, before.items.length));
  try {
    const isWithArchived = status === "archived";
    const query = { text, status: isWithArchived ? "" : status, archived: isWithArchived, limit, cursor: more ? before.cursor : null };
    const page = await threadCall((stop) => get("threads", query, stop));
    if (!page) return;
    const items = more ? [...before.items, ...page.threads] : page.threads;
    threads.value = { items, cursor: page.cursor, isReady: true, more: Boolean(page.more), error: null };
  } catch (error) {
    threads.value = { ...before, isReady: true, error };
  }
}

// By activity as the server lists them; in other orders only those that are loaded.
export const order = signal("activity");

export const sortedThreads = computed(() => {
  const { items } = threads.value;
  if (order.value === "steps") return items.toSorted((a, b) => b.steps - a.steps);
  if (order.value === "name") return items.toSorted((a, b) => a.thread_id.localeCompare(b.thread_id, "en", { numeric: true }));
  return items;
});

// A size is the sum of all that a thread is made of: it is asked for where somebody looks, one after the other, once
// the rest of the page is there, and not again with each step of an agent that works.
const SIZED_STEPS_MAX = 5000;
const SIZED_AGAIN_MS = 30_000;
const SIZED_AFTER_MS = 400;
export const sizes = signal({}); // by thread: { head, bytes, full, at }
const unsized = new Map(); // threads in view whose size is not known yet -> who looks at them
let isSizing = false;

export const isTooLongToSize = ({ steps }) => steps > SIZED_STEPS_MAX;

export function wantSize(item, by, { isAsked = false } = {}) {
  const { thread_id: name, head } = item;
  const known = sizes.peek()[name];
  if ((isTooLongToSize(item) && !isAsked) || known?.head === head || (known && Date.now() - known.at < SIZED_AGAIN_MS)) return;
  const lookers = unsized.get(name)?.lookers ?? new Set();
  unsized.set(name, { head, lookers: lookers.add(by) });
  if (isSizing) return;
  isSizing = true;
  setTimeout(measure, SIZED_AFTER_MS);
}

export function leaveSize(name, by) {
  const lookers = unsized.get(name)?.lookers;
  lookers?.delete(by);
  if (!lookers?.size) unsized.delete(name);
}

async function measure() {
  while (unsized.size) {
    const [name, { head }] = unsized.entries().next().value;
    unsized.delete(name);
    let found = {};
    try {
      found = await get("storage", { thread: name });
    } catch {
      // It is gone or damaged: whoever opens it is told.
    }
    const { total_bytes: size = null, full_bytes: full = null } = found;
    sizes.value = { ...sizes.peek(), [name]: { head, bytes: size, full, at: Date.now() } };
  }
  isSizing = false;
}

// What a person calls a thread: a branch by its own name, which may have changed.
export const labelOf = (name) => (branchOf(name) ?? threadOf(name))?.name ?? (branchName(name).trim() ? branchName(name) : JSON.stringify(name));

export const threadOf = (name) => threads.value.items.find((item) => item.thread_id === name);

// -- the family of the open thread

const NO_FAMILY = { thread: null, items: [] };
export const family = signal(NO_FAMILY);
const familyCall = latest();

const branchOf = (name) => family.value.items.find((item) => item.thread_id === name);

// The branch of the open family that has a name; two of one name could not be told apart.
export const branchCalled = (name) => family.value.items.find((item) => item.is_branch && item.name === name);
export const TAKEN = "A branch is called so already. Choose another name.";

async function loadFamily(thread) {
  try {
    const found = await familyCall((stop) => get("branches", { thread }, stop));
    if (found) family.value = { thread, items: found.branches };
  } catch {
    family.value = { thread, items: [] }; // whoever opens it is told why
  }
}

// -- rows of the open thread

export const NO_FILTER = { kind: [], errors: false, user_turns: false, path: "", text: "", hidden: false };
export const filter = signal(NO_FILTER);
export const rows = signal(null);
export const automatic = signal(null); // what is shown where the address names no checkpoint
export const fresh = signal(0); // rows that came in above what is in view

export const isFiltered = computed(() => JSON.stringify(filter.value) !== JSON.stringify(NO_FILTER));

function openRows(thread, wanted) {
  rows.peek()?.stop();
  const made = new Rows(thread, wanted);
  rows.value = made;
  made.load(0).then(() => {
    if (rows.peek() !== made) return;
    // Where only a filter changed, what was shown stays shown.
    if (automatic.peek() === null) automatic.value = headOf(made)?.id ?? null;
  });
}

function headOf(made) {
  for (let place = 0; place < Math.min(made.count, 200); place++) {
    if (made.row(place)?.active) return made.row(place);
  }
  return made.row(0);
}

const openName = computed(() => route.value.thread);

effect(() => {
  const thread = openName.value;
  batch(() => {
    automatic.value = null;
    filter.value = NO_FILTER;
    fresh.value = 0;
    if (!thread) rows.value = null;
  });
});

effect(() => {
  const thread = openName.value;
  if (thread) loadFamily(thread);
  else family.value = NO_FAMILY;
});

effect(() => {
  const thread = openName.value;
  const wanted = filter.value;
  if (thread) openRows(thread, wanted);
});

// Whether the open thread was deleted while somebody looked at it.
export const isGone = computed(() => {
  rows.value?.version.value;
  return Boolean(rows.value?.isGone);
});

export const selectedId = computed(() => {
  const isAny = route.value.view === "thread" && !isGone.value;
  return isAny ? route.value.id ?? automatic.value : null;
});

export function select(id, { replace = false } = {}) {
  if (id) go({ id }, { replace });
}

// How to name a checkpoint: in full where its row is known, else by its id in the open thread.
export function named(id) {
  const ref = rows.peek()?.rowOf(id)?.ref;
  return ref ? { ref } : { ref: id, thread: route.peek().thread };
}

// -- the selected checkpoint

let waiting = null; // a window that was asked for before its checkpoint had come

// Opens a window about the selected checkpoint, and never about the one that was selected before.
export function openFor(name) {
  const id = selectedId.peek();
  const { id: shown, data, error } = detail.peek();
  if (!id) return;
  if (shown === id && data) dialog.value = { name, data };
  else if (shown !== id || !error) waiting = { id, name };
}

// Whether a window is about to open: what is typed meanwhile is meant for it, and for nothing else.
export const isOpening = () => waiting !== null && waiting.id === selectedId.peek();

export const stopOpening = () => (waiting = null);

export const detail = signal({ id: null, data: null, error: null });
const detailCall = latest();

effect(() => {
  const id = selectedId.value;
  if (!id) {
    detail.value = { id: null, data: null, error: null };
    return;
  }
  loadDetail(id);
});

async function loadDetail(id) {
  const row = rows.peek()?.rowOf(id);
  if (row?.kind === "damaged") {
    waiting = null;
    detailCall(async () => undefined); // what was asked for before is not wanted any more
    detail.value = { id, data: null, error: { message: row.title, hint: row.damage.hint } };
    return;
  }
  try {
    const data = await detailCall((stop) => get("checkpoint", named(id), stop));
    if (!data) return;
    detail.value = { id, data, error: null };
    if (waiting && waiting.id === id) dialog.value = { name: waiting.name, data };
    waiting = null;
  } catch (error) {
    waiting = null; // a window that opens by itself, when the store answers again, would surprise
    const before = detail.peek();
    const isShown = before.id === id && before.data && error.status !== 404;
    if (!isShown) detail.value = { id, data: null, error }; // what is shown stays while the store does not answer
  }
}

// -- durable runs

const NO_RUN = { thread: null, data: null, error: null };
export const run = signal(NO_RUN); // that of the open thread
export const isRun = computed(() => {
  const listed = threadOf(openName.value);
  return listed ? listed.kind === "run" : typeof detail.value.data?.metadata?.run === "string";
});
export const tabs = computed(() => (isRun.value ? TABS : TABS.slice(0, -1)));
export const openTab = computed(() => (tabs.value.includes(route.value.tab) ? route.value.tab : "changes"));
const runCall = latest();

async function loadRun(thread) {
  try {
    const data = await runCall((stop) => get("run", { thread }, stop));
    if (data) run.value = { thread, data, error: null };
  } catch (error) {
    run.value = { thread, data: null, error };
  }
}

effect(() => {
  const thread = openName.value;
  if (thread && isRun.value) loadRun(thread);
  else run.value = NO_RUN;
});

export const runs = signal({ items: [], cursor: null, isReady: false, error: null });
export const runStatus = signal("");
const runsCall = latest();

export async function loadRuns({ more = false } = {}) {
  const before = runs.peek();
  try {
    const query = { status: runStatus.peek(), limit: 50, cursor: more ? before.cursor : null };
    const page = await runsCall((stop) => get("runs", query, stop));
    if (!page) return;
    runs.value = { items: more ? [...before.items, ...page.runs] : page.runs, cursor: page.cursor, isReady: true, error: null };
  } catch (error) {
    runs.value = { ...before, isReady: true, error };
  }
}

export const answer = (thread, body) =>
  act(async () => {
    const done = await post("answer", { thread, ...body });
    say(done.status === "ready" ? "Answered. The run goes on when a worker takes it up." : `Answered. The run is ${done.status}.`);
    await renew();
    return done;
  });

// -- live updates

let isRenewing = false;
let isStale = false;

// Everything that is in view is asked for again; whoever calls meanwhile is served by one more round.
export async function renew() {
  if (isRenewing) {
    isStale = true;
    return;
  }
  isRenewing = true;
  do {
    isStale = false;
    const open = run.peek().thread;
    const isOnRuns = route.peek().view === "runs";
    const thread = openName.peek();
    await Promise.all([loadThreads(), thread && loadFamily(thread), rows.peek()?.renew(), open && loadRun(open), isOnRuns && loadRuns()]);
    const shown = selectedId.peek();
    if (shown) await loadDetail(shown);
  } while (isStale);
  isRenewing = false;
}

effect(() => {
  const thread = openName.value;
  return listen(thread, renew, (isOn, reason = "") => {
    const wasOff = live.peek() === false;
    live.value = isOn;
    storeTrouble.value = reason;
    if (isOn && wasOff) renew();
  });
});

// -- doing

let toastTimer;

export function say(text, { undo = null, tone = "plain" } = {}) {
  clearTimeout(toastTimer);
  toast.value = { text, undo, tone };
  toastTimer = setTimeout(() => (toast.value = null), undo ? 12000 : 6000);
}

export const complain = (error) => say(error.hint ? `${error.message} ${error.hint}` : error.message, { tone: "error" });

async function act(work) {
  try {
    return await work();
  } catch (error) {
    complain(error);
    return null;
  }
}

export async function rewindTo(row, plan) {
  return act(async () => {
    const done = await post("rewind", { ref: row.ref });
    const hidden = done.left_behind ?? plan?.hidden ?? 0;
    say(`Rewound to step ${done.step}. ${hidden ? `${plural(hidden, "later step")} ${hidden === 1 ? "is" : "are"} hidden, nothing is deleted.` : ""}`, {
      undo: () => undo(done.thread_id),
    });
    await renew();
    select(done.id);
    return done;
  });
}

export const undo = (thread = route.value.thread) =>
  act(async () => {
    const { operation } = await post("undo", { thread });
    say(`Undone: ${describe(operation)}.`, { undo: () => redo(thread), undoText: "Redo" });
    toast.value = { ...toast.value, undoText: "Redo" };
    await renew();
    return operation;
  });

export const redo = (thread = route.value.thread) =>
  act(async () => {
    const { operation } = await post("redo", { thread });
    say(`Done again: ${describe(operation)}.`, { undo: () => undo(thread) });
    await renew();
    return operation;
  });

export const describe = (operation) => operation.text || operation.kind;

export const pin = (row, pinned) =>
  act(async () => {
    await post("pin", { ref: row.ref, pinned });
    say(pinned ? "Pinned: retention keeps this checkpoint." : "Unpinned: retention decides about it again.", {
      undo: () => undo(row.thread_id),
    });
    await renew();
  });

export const tag = (row, name, given) =>
  act(async () => {
    await post("tag", { ref: row.ref, tag: name, given });
    say(given ? `Tagged: ${labelOf(row.thread_id)}@${name} now means this checkpoint.` : `The tag ${name} is taken away.`, {
      undo: () => undo(row.thread_id),
    });
    await renew();
    return true;
  });

export const note = (row, text) =>
  act(async () => {
    await post("note", { ref: row.ref, note: text });
    say(text ? "Noted." : "The note is taken away.", { undo: () => undo(row.thread_id) });
    await renew();
    return true;
  });

// One leaves first: what is deleted is not to be asked for.
export const remove = (thread) =>
  act(async () => {
    const label = labelOf(thread);
    openStart();
    const done = await post("delete", { thread });
    say(`${label} is deleted, with ${plural(done.checkpoints, "checkpoint")}.`);
    await renew();
    return true;
  });

export const rename = (thread, name) =>
  act(async () => {
    const done = await post("rename", { thread, name });
    say(`The branch is called ${done.name} now.`, { undo: () => undo(thread) });
    await renew();
    return true;
  });

export const archive = (thread, archived) =>
  act(async () => {
    const done = await post("archive", { thread, archived });
    say(archived ? `${done.name} is archived: lists leave it out.` : `${done.name} is back in the lists.`, { undo: () => undo(thread) });
    await renew();
    return true;
  });

export async function copy(text, what = "Copied") {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what}.`);
  } catch {
    say("The browser does not let this page copy. Select the text and copy it yourself.", { tone: "error" });
  }
}

// -- comparing

export const comparing = signal(false); // the next row that is chosen is compared with `vs`

export function compareWith(id) {
  const shown = selectedId.peek();
  if (!shown || id === shown) return;
  go({ id: shown, vs: id, tab: "changes" });
}

export function toggleCompare() {
  const shown = selectedId.peek();
  if (!shown) return;
  if (route.peek().vs) go({ vs: null });
  else go({ id: shown, vs: shown, tab: "changes" });
}

// -- beginning

export async function begin() {
  try {
    info.value = await get("info");
    problem.value = null;
  } catch (error) {
    problem.value = error;
    setTimeout(begin, 1500);
    return;
  }
  await loadThreads();
}

// -- colours

export const theme = signal(document.documentElement.dataset.theme ?? "system");

export function setTheme(next) {
  theme.value = next;
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("everstep.theme", next);
  } catch {
    // It is forgotten when the page is closed.
  }
}

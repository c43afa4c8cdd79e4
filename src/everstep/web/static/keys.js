// The keyboard: one key for each thing that is done often. None of them works while somebody types.
import {
  canWrite, detail, dialog, go, isOpening, openFor, redo, route, rows, select, selectedId, stopOpening, toggleCompare, undo,
} from "./model.js";
import { move, moveToBranch, moveToEnd, moveToStart, openPointed, perPage, pointedRun, selectPlace, toggleFolds } from "./graph.js";

export const KEYS = [
  ["Rows", [["j k", "next, previous (also the arrow keys)"], ["Home End", "newest, oldest"], ["PageUp PageDown", "a page"], ["Ctrl ↑ ↓", "child, parent"], ["[ ]", "branch above, below"], ["z", "fold runs of steps, open all"], ["Enter", "open a folded run"]]],
  ["Tabs", [["d", "changes"], ["m", "messages"], ["s", "state"], ["i", "step: input and output"]]],
  ["Compare", [["c", "keep this one, then choose another"], ["Ctrl click", "compare a row with the selected one"], ["x", "the other way round"]]],
  ["Change", [["f", "fork"], ["e", "edit the state and fork"], ["r", "rewind"], ["M", "merge a branch"], ["p", "pin"], ["t", "tags"], ["n", "note"], ["u", "undo"], ["U", "redo"]]],
  ["Page", [["/", "find a thread"], ["g", "find in this history"], ["o", "operations"], ["b", "branches"], ["T", "time that steps took"], ["y", "copy as Python, command, curl"], ["?", "this list"], ["Esc", "close, end comparing"]]],
];

const TAB_OF = { d: "changes", m: "messages", s: "state", i: "step" };

function step(toChild) {
  const id = selectedId.peek();
  const made = rows.peek();
  const row = made?.rowOf(id);
  const data = detail.peek().id === id ? detail.peek().data : null;
  const known = toChild ? childOf(made, row) : row?.parents?.[0];
  const next = known ?? (toChild ? data?.children?.[0]?.id : data?.parents?.[0]?.id);
  if (!next) return;
  const place = made?.placeOf(next);
  if (place !== undefined) selectPlace(place);
  else select(next, { replace: true });
}

// The row that follows: in the same thread where there is one, else a branch that begins here.
function childOf(made, row) {
  if (!row) return undefined;
  let found;
  for (const [, other] of made.items) {
    if (other.parents?.[0] !== row.id) continue;
    if (other.thread_id === row.thread_id) return other.id;
    found ??= other.id;
  }
  return found;
}

function isTyping(target) {
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
}

const open = openFor;

const MOVES = {
  j: () => move(1),
  k: () => move(-1),
  ArrowDown: () => move(1),
  ArrowUp: () => move(-1),
  PageDown: () => move(perPage()),
  PageUp: () => move(-perPage()),
  Home: moveToStart,
  End: moveToEnd,
  "[": () => moveToBranch(-1),
  "]": () => moveToBranch(1),
};

const WRITES = {
  f: () => open("fork"),
  e: () => open("edit"),
  r: () => open("rewind"),
  M: () => (dialog.value = { name: "merge" }),
  p: () => open("pin"),
  t: () => open("tags"),
  n: () => open("note"),
  u: () => undo(),
  U: () => redo(),
};

const OTHERS = {
  z: toggleFolds,
  Enter: openPointed,
  c: toggleCompare,
  x: () => route.peek().vs && selectedId.peek() && go({ id: route.peek().vs, vs: selectedId.peek() }),
  y: () => open("copy"),
  b: () => (dialog.value = { name: "branches" }),
  o: () => (dialog.value = { name: "operations", thread: route.peek().thread }),
  T: () => (dialog.value = { name: "time", thread: route.peek().thread }),
};

function onKey(event) {
  if (event.defaultPrevented || dialog.peek()) return;
  if (isOpening()) {
    if (event.key === "Escape") stopOpening();
    return;
  }
  if (event.key === "Escape") {
    if (isTyping(event.target)) event.target.blur();
    else if (route.peek().vs) go({ vs: null });
    return;
  }
  if (isTyping(event.target)) return;
  const isInMenu = event.target.closest?.(".menu, .threads-list");
  if (event.ctrlKey || event.metaKey) {
    if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      event.preventDefault();
      step(event.key === "ArrowUp");
    }
    return;
  }
  if (event.altKey) return;
  if (event.key === "/" || event.key === "g") {
    event.preventDefault();
    document.getElementById(event.key === "/" ? "find-thread" : "find-row")?.focus();
    return;
  }
  if (event.key === "?") {
    dialog.value = { name: "help" };
    return;
  }
  if (!route.peek().thread) return;
  const isPlain = !event.target.closest?.("button, a, [role=tab], .body");
  const isArrow = event.key.startsWith("Arrow") || /^(Home|End|Page)/.test(event.key);
  if ((isArrow || event.key === "Enter") && (isInMenu || !isPlain)) return;
  if (event.key === "Enter" && !pointedRun()) return;
  const act = MOVES[event.key] ?? (TAB_OF[event.key] && (() => go({ tab: TAB_OF[event.key] }, { replace: true }))) ??
    (canWrite.peek() ? WRITES[event.key] : null) ?? OTHERS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

export const listenToKeys = () => addEventListener("keydown", onKey);

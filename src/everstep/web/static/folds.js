// Runs of plain steps, each folded into one line: which rows are in one, and which line of the list a place has. Pure.

export const LEAST = 4; // a run of fewer rows is not worth a line of its own
const KINDS = new Set(["input", "llm", "tool", "state"]);

// Nothing is to be seen in it but a step: no head, no tag, no pin, and no line that begins, ends or bends there.
function isPlain(row) {
  const ordinary = Number(Boolean(row.hidden)) + Number(Boolean(row.namespace)); // chips that whole runs have
  if (!KINDS.has(row.kind) || row.head || row.pinned || (row.chips?.length ?? 0) > ordinary) return false;
  return row.edges.every(({ from, to, kind }) => from === to && (kind === "pass" || from === row.lane));
}

const has = (row, kind) => row.edges.some((edge) => edge.kind === kind);

const passing = (row) => row.edges.filter(({ kind }) => kind === "pass").map(({ from }) => from).join();

// Whether a row goes on with the line of the one above it, beside the same other lines.
const follows = (row, above) =>
  row.lane === above.lane && row.thread_id === above.thread_id && row.namespace === above.namespace &&
  Boolean(row.hidden) === Boolean(above.hidden) && has(above, "out") && has(row, "in") && passing(row) === passing(above);

// The runs among the rows that are known by their place; `groupOf` says which rows may be in one together: those of the
// same group, and none without a group.
export function runsOf(items, least, groupOf) {
  const runs = [];
  let run = null;
  for (const place of [...items.keys()].sort((a, b) => a - b)) {
    const row = items.get(place);
    const group = isPlain(row) ? groupOf(row) : undefined;
    if (group === undefined) run = null;
    else if (run?.group === group && place === run.last + 1 && follows(row, items.get(run.last))) run.last = place;
    else runs.push((run = { first: place, last: place, group }));
  }
  return runs.filter(({ first, last }) => last - first + 1 >= least);
}

export class Folds {
  constructor(runs = []) {
    this.runs = runs;
    this.left = 0; // rows that have no line of their own
    for (const run of runs) {
      run.line = run.first - this.left;
      this.left += run.last - run.first;
      run.left = this.left; // up to the end of this run
    }
  }

  // The last run of which something is true that is true of all before it.
  lastOf(isTrue) {
    let low = 0;
    let high = this.runs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (isTrue(this.runs[middle])) low = middle + 1;
      else high = middle;
    }
    return this.runs[low - 1];
  }

  runAt(place) {
    const run = this.lastOf(({ first }) => first <= place);
    return run && place <= run.last ? run : undefined;
  }

  lineOf(place) {
    const run = this.lastOf(({ first }) => first <= place);
    if (!run) return place;
    return place <= run.last ? run.line : place - run.left;
  }

  // What a line shows: a run, or the row at a place.
  at(line) {
    const before = this.lastOf((run) => run.line <= line);
    const run = before?.line === line ? before : undefined;
    return { run, place: run ? run.first : line + (before?.left ?? 0) };
  }
}

// One row for a run: what passes by it passes, and its own line goes through.
export function summed(items, { first, last }) {
  const rows = [];
  for (let place = first; place <= last; place++) rows.push(items.get(place));
  const [newest, oldest] = [rows[0], rows.at(-1)];
  const sizes = rows.map((row) => row.added_bytes).filter((size) => size != null);
  const kinds = new Map();
  for (const { kind } of rows) kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
  return {
    newest,
    oldest,
    kinds,
    count: rows.length,
    added_bytes: sizes.length ? sizes.reduce((sum, size) => sum + size, 0) : null,
    lane: newest.lane,
    edges: [...newest.edges.filter(({ kind }) => kind !== "out"), ...oldest.edges.filter(({ kind }) => kind === "out")],
  };
}

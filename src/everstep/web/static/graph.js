// The history as a graph: rows of one height, of which only those in view exist, with their lanes drawn beside them.
import { html, signal, useEffect, useLayoutEffect, useRef, useState } from "./vendor/ui.js";
import { get } from "./api.js";
import { summed } from "./folds.js";
import { PAGE } from "./rows.js";
import { bytes, clock, count, dollars, duration, oneLine, plural, shortId, threadIn, visible, whole } from "./format.js";
import {
  NO_FILTER, address, canWrite, compareWith, dialog, family, filter, follow, fresh, go, isFiltered, labelOf, openStart, openThread, route, rows, say,
  select, selectedId, sizes, undo,
} from "./model.js";
import { Chip, Damage, Empty, Icon, IconButton, Loading, Menu, NAMES, Trouble, laneOf } from "./parts.js";
import { RunPanel } from "./runs.js";

export const ROW = 28;
const AHEAD = 12; // rows above and below those in view
const LANE_ROOM = 132; // how wide the lanes may get before they move closer together
const ASKED_HEADS_MAX = 40;
const HEIGHT_MAX = 15_000_000; // browsers end elements near 33 million pixels: longer lists have a scaled scroll bar
const view = signal({ top: 0, height: 600 });
const pointed = signal(null); // the id of a row in the run that the keyboard has come to
let box = null; // the scrolling element
let anchor = null; // a place, and how far from the top of the view it has to stay

// -- moving

const scale = (made) => Math.max(1, (made.lines * ROW) / HEIGHT_MAX);

export function show(place) {
  const made = rows.peek();
  if (!box || !made) return;
  const by = scale(made);
  const top = (made.folds.lineOf(place) * ROW) / by;
  const room = box.clientHeight;
  if (by > 1) box.scrollTop = top - room / 2;
  else if (top < box.scrollTop) box.scrollTop = top;
  else if (top + ROW > box.scrollTop + room) box.scrollTop = top + ROW - room;
}

export const perPage = () => Math.max(1, Math.floor((box?.clientHeight ?? 600) / ROW) - 1);

let walking = 0;

export async function selectPlace(place) {
  const made = rows.peek();
  if (!made?.count) return;
  const wanted = Math.max(0, Math.min(place, made.count - 1));
  const number = ++walking;
  pointed.value = null;
  show(wanted);
  const row = made.row(wanted) ?? (await made.at(wanted));
  if (!row || number !== walking || rows.peek() !== made) return;
  select(row.id, { replace: Boolean(route.peek().id) });
  show(made.placeOf(row.id) ?? wanted);
}

export const selectedPlace = () => rows.peek()?.placeOf(selectedId.peek());

// The run that the keyboard has come to, if it is still there.
export function pointedRun(made = rows.peek()) {
  const place = pointed.value === null ? undefined : made?.placeOf(pointed.value);
  return place === undefined ? undefined : made.folds.runAt(place);
}

const currentPlace = () => pointedRun()?.first ?? selectedPlace();

async function moveToLine(line) {
  const made = rows.peek();
  const { run, place } = made.folds.at(Math.max(0, Math.min(line, made.lines - 1)));
  if (!run) {
    await selectPlace(place);
    return;
  }
  walking++;
  pointed.value = made.row(place).id;
  box?.focus({ preventScroll: true }); // so that Enter is for the run, and not for a button that was used before
  show(place);
}

export async function move(by) {
  const made = rows.peek();
  if (!made) return;
  const place = currentPlace();
  if (place === undefined) {
    await moveToLine(Math.floor((view.peek().top * scale(made)) / ROW));
    return;
  }
  const line = made.folds.lineOf(place) + by;
  if (made.isFiltered && line >= made.lines && made.cursor) await made.loadNext();
  await moveToLine(line);
}

export const moveToStart = () => rows.peek() && moveToLine(0);

export async function moveToEnd() {
  const made = rows.peek();
  if (!made) return;
  while (made.isFiltered && made.cursor) await made.loadNext();
  await moveToLine(made.lines - 1);
}

// To the next head of another branch, above or below.
export async function moveToBranch(step) {
  const made = rows.peek();
  if (!made) return;
  const from = currentPlace() ?? 0;
  const heads = await placesOfHeads(made);
  const next = step > 0 ? heads.find((place) => place > from) : heads.findLast((place) => place < from);
  if (next !== undefined && rows.peek() === made) selectPlace(next);
}

// Where the heads are: those whose rows are here, and those further down.
async function placesOfHeads(made) {
  const places = [...made.items].filter(([, row]) => row.head && !row.hidden).map(([place]) => place);
  if (!made.isFiltered && made.items.size < made.count) {
    const others = family.peek().items.filter(({ id }) => made.placeOf(id) === undefined).slice(0, ASKED_HEADS_MAX);
    const found = await Promise.all(others.map(({ id }) => get("place", { thread: made.thread, id }).catch(() => ({ place: null }))));
    places.push(...found.map(({ place }) => place).filter((place) => place !== null));
  }
  return places.sort((a, b) => a - b);
}

// -- folding

// Changes which rows are folded, while a place stays where it is in the view.
function refold(made, place, change) {
  const by = scale(made);
  const top = box?.scrollTop ?? 0;
  anchor = { place, top: (made.folds.lineOf(place) * ROW) / by - top };
  return change();
}

export function toggleFolds() {
  const made = rows.peek();
  if (!made) return;
  const { top, height } = view.peek();
  const first = Math.ceil((top * scale(made)) / ROW);
  const selected = selectedPlace();
  const line = selected === undefined ? -1 : made.folds.lineOf(selected);
  const isInView = line >= first && line < first + Math.floor(height / ROW);
  const place = isInView ? selected : made.folds.at(first).place;
  pointed.value = null;
  if (made.folds.runs.length) refold(made, place, () => made.unfoldAll());
  else if (!refold(made, place, () => made.fold(new Set([selectedId.peek(), route.peek().vs])))) {
    say("There is nothing to fold: no four plain steps follow each other.");
  }
}

const unfold = (made, run) => refold(made, run.first, () => made.unfold(run));

// Opens the run that the keyboard has come to, and goes on from its newest row.
export function openPointed() {
  const made = rows.peek();
  const run = pointedRun(made);
  if (!run) return;
  unfold(made, run);
  selectPlace(run.first);
}

// -- lanes

const SIZE = { dot: 4, head: 5 };

export function Lanes({ row, lanes, isSelected }) {
  const gap = Math.min(16, LANE_ROOM / Math.max(1, lanes));
  const x = (lane) => 14 + Math.min(lane, lanes) * gap;
  const middle = ROW / 2;
  const dot = x(row.lane);
  return html`<svg class="lanes" width=${width(lanes)} height=${ROW} aria-hidden="true">
    ${row.edges.map((edge, number) => {
      const paths = lines(edge, x, dot, middle);
      const lane = Math.max(edge.from ?? row.lane, edge.to ?? row.lane);
      return html`<path key=${number} class=${`edge ${laneOf(lane)} ${edge.gap ? "gap" : ""}`} d=${paths} />`;
    })}
    ${row.count && html`<rect class=${`dot run ${laneOf(row.lane)}`} x=${dot - 4} y=${middle - 8} width="8" height="16" rx="4" />`}
    ${!row.count && (row.hidden
      ? html`<circle class=${`dot hollow ${laneOf(row.lane)}`} cx=${dot} cy=${middle} r=${SIZE.dot - 0.6} />`
      : html`<circle
          class=${`dot ${laneOf(row.lane)} ${row.active || isSelected ? "ring" : ""}`}
          cx=${dot}
          cy=${middle}
          r=${row.active || isSelected ? SIZE.head : SIZE.dot}
        />`)}
  </svg>`;
}

export const width = (lanes) => 26 + Math.max(0, lanes - 1) * Math.min(16, LANE_ROOM / Math.max(1, lanes));

// Room for the longest number of a step among the newest rows, which have the highest.
const stepWidth = (made) => 24 + 7.5 * Math.max(2, String(made.row(0)?.step ?? made.total ?? 0).length);

// An edge within one row: through it, into its dot, out of it, or both.
function lines({ from, to, kind }, x, dot, middle) {
  if (kind === "pass") return curve(x(from), 0, x(to), ROW);
  const into = kind === "in" || kind === "both" ? curve(x(from), 0, dot, middle) : "";
  const out = kind === "out" || kind === "both" ? curve(dot, middle, x(to), ROW) : "";
  return into + out;
}

function curve(x1, y1, x2, y2) {
  if (x1 === x2) return `M${x1} ${y1}V${y2}`;
  const bend = (y2 - y1) * 0.85;
  return `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
}

// -- rows

function Row({ row, place, top, made, isSelected, isCompared }) {
  const changed = made.changed.get(row.id)?.text ?? "";
  const chips = row.chips ?? [];
  const took = row.duration_ms != null && duration(row.duration_ms);
  const facts = [took, row.tokens != null && `${count(row.tokens)} tokens`, row.cost != null && dollars(row.cost)]
    .filter(Boolean);
  const choose = (event) => {
    pointed.value = null;
    if (event.ctrlKey || event.metaKey) compareWith(row.id);
    else select(row.id);
  };
  return html`<div
    id=${`row-${place}`}
    class=${`row ${isSelected ? "selected" : ""} ${isCompared ? "compared" : ""} ${row.hidden ? "hidden-row" : ""} kind-${row.kind}`}
    role="option"
    aria-selected=${isSelected}
    aria-posinset=${place + 1}
    aria-setsize=${made.count}
    aria-label=${`${row.step == null ? "a step" : `step ${row.step}`}, ${NAMES[row.kind] ?? row.kind}, ${oneLine(row.title).slice(0, 200)}${changed ? `, ${changed}` : ""}`}
    title=${row.damage ? visible(`${row.damage.reason}. ${row.damage.hint}`) : facts.join(" · ") || null}
    style=${{ transform: `translateY(${top}px)` }}
    onClick=${choose}
  >
    <${Lanes} row=${row} lanes=${made.lanes} isSelected=${isSelected} />
    <span class="row-step">#${row.step ?? "?"}</span>
    <span class="row-what">
      <span class=${`row-kind ${row.kind}`} title=${NAMES[row.kind] ?? row.kind}><${Icon} name=${row.kind} /></span>
      <span class="row-text">
        <span class="row-title" dir="auto">${oneLine(row.title).slice(0, 300)}</span>
        ${changed && html`<span class="row-changed">${visible(changed)}</span>`}
      </span>
    </span>
    <span class="row-chips">
      ${isCompared && html`<${Chip} text="compared" />`}
      ${chips.map((chip) => html`<${Chip} key=${chip.text} text=${chip.text} tone=${chip.tone} lane=${chip.lane} />`)}
    </span>
    <span class="row-facts">${facts.map((fact) => html`<span key=${fact} class=${fact === took ? "row-duration" : null}>${fact}</span>`)}</span>
    <time class="row-time" datetime=${row.created_at} title=${whole(row.created_at)}>${clock(row.created_at)}</time>
    <span class="row-bytes">${row.added_bytes == null ? "" : `+${bytes(row.added_bytes)}`}</span>
  </div>`;
}

function Run({ run, top, made, isPointed }) {
  const row = summed(made.items, run);
  const kinds = [...row.kinds].map(([kind, number]) => plural(number, NAMES[kind])).join(", ");
  return html`<div
    id=${`row-${run.first}`}
    class=${`row run ${isPointed ? "pointed" : ""}`}
    role="option"
    aria-selected="false"
    aria-posinset=${run.first + 1}
    aria-setsize=${made.count}
    aria-label=${`${plural(row.count, "step")}, ${row.oldest.step} to ${row.newest.step}, folded; Enter opens them`}
    title="Open these steps"
    style=${{ transform: `translateY(${top}px)` }}
    onClick=${() => unfold(made, run)}
  >
    <${Lanes} row=${row} lanes=${made.lanes} />
    <span class="row-step"></span>
    <span class="row-what">
      <span class="row-kind"><${Icon} name="right" /></span>
      <span class="row-text">
        <span class="row-title">${plural(row.count, "step")}</span>
        <span class="row-changed">#${row.oldest.step} to #${row.newest.step} · ${kinds}</span>
      </span>
    </span>
    <span class="row-chips"></span>
    <span class="row-facts"></span>
    <time class="row-time" datetime=${row.newest.created_at} title=${whole(row.newest.created_at)}>${clock(row.newest.created_at)}</time>
    <span class="row-bytes">${row.added_bytes == null ? "" : `+${bytes(row.added_bytes)}`}</span>
  </div>`;
}

function List({ made }) {
  const element = useRef(null);
  made.version.value;
  const { top, height } = view.value;
  const by = scale(made);
  const first = Math.max(0, Math.floor((top * by) / ROW) - AHEAD);
  const last = Math.min(made.lines - 1, Math.ceil((top * by + height) / ROW) + AHEAD);
  const shown = selectedId.value;
  const other = route.value.vs;

  useLayoutEffect(() => {
    box = element.current;
    const measure = () => (view.value = { top: box.scrollTop, height: box.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(box);
    let isWaiting = false;
    const onScroll = () => {
      if (isWaiting) return;
      isWaiting = true;
      requestAnimationFrame(() => {
        isWaiting = false;
        if (element.current) measure();
        if (element.current?.scrollTop < ROW) fresh.value = 0;
      });
    };
    element.current.addEventListener("scroll", onScroll, { passive: true });
    measure();
    return () => {
      observer.disconnect();
      element.current?.removeEventListener("scroll", onScroll);
      box = null;
    };
  }, []);

  // What came in above must not move what is in view, unless the top itself is in view.
  useLayoutEffect(() => {
    made.onShift = (rowsAbove, linesAbove) => {
      if (!element.current || element.current.scrollTop < ROW) return;
      pending.by += linesAbove;
      if (rowsAbove > 0) fresh.value += rowsAbove;
    };
    return () => (made.onShift = null);
  }, [made]);
  const pending = useRef({ by: 0 }).current;
  useLayoutEffect(() => {
    if (!pending.by) return;
    element.current.scrollTop += (pending.by * ROW) / by;
    pending.by = 0;
  });
  useLayoutEffect(() => {
    if (!anchor) return;
    element.current.scrollTop = (made.folds.lineOf(anchor.place) * ROW) / by - anchor.top;
    anchor = null;
    view.value = { top: element.current.scrollTop, height: element.current.clientHeight };
  });

  // At once: after the paint a quick hand has pointed at something else already.
  useLayoutEffect(() => {
    pointed.value = null;
  }, [made, shown]);
  // What is selected by a link or the back button comes into view, wherever in the history it is.
  useEffect(() => {
    if (!shown) return undefined;
    const known = made.placeOf(shown);
    const run = known === undefined ? undefined : made.folds.runAt(known);
    if (run) unfold(made, run); // what is selected can be seen
    if (made.isFiltered) return undefined;
    if (known !== undefined) {
      show(known);
      return undefined;
    }
    const stop = new AbortController();
    get("place", { thread: made.thread, id: shown }, stop.signal)
      .then(async ({ place }) => {
        if (place === null || stop.signal.aborted) return;
        show(place);
        await made.at(place);
      })
      .catch(() => {}); // it is shown beside the history all the same
    return () => stop.abort();
  }, [made, shown]);
  const places = [];
  for (let line = first; line <= last; line++) {
    const { run, place } = made.folds.at(line);
    if (!run) places.push(place); // what is in a run need not be fetched again, nor told what it changed
  }
  const end = made.folds.at(last + 1).place - 1;
  useEffect(() => made.want(places, end), [made, first, last, made.version.value]);
  useEffect(() => {
    const timer = setTimeout(() => {
      made.describe(places.map((place) => made.row(place)?.id).filter(Boolean));
    }, 60);
    return () => clearTimeout(timer);
  }, [made, first, last, made.version.value]);

  const items = [];
  const pointedAt = pointedRun(made);
  for (let line = first; line <= last; line++) {
    const { run, place } = made.folds.at(line);
    const row = made.row(place);
    const offset = by > 1 ? top + (line - (top * by) / ROW) * ROW : line * ROW;
    if (run) {
      items.push(html`<${Run} key=${`run ${row.id}`} run=${run} top=${offset} made=${made} isPointed=${run === pointedAt} />`);
      continue;
    }
    items.push(
      row
        ? html`<${Row}
            key=${row.id}
            row=${row}
            place=${place}
            top=${offset}
            made=${made}
            isSelected=${row.id === shown}
            isCompared=${row.id === other && other !== shown}
          />`
        : html`<div key=${place} class="row waiting" role="presentation" style=${{ transform: `translateY(${offset}px)` }}>
            <span class="bone w0"></span>
          </div>`,
    );
  }
  const active = pointedAt?.first ?? made.placeOf(shown);
  const activeLine = active === undefined ? -1 : made.folds.lineOf(active);
  const isInView = activeLine >= first && activeLine <= last;
  return html`<div
    class="rows"
    id="rows"
    ref=${element}
    role="listbox"
    aria-label="Checkpoints, the newest first"
    tabindex="0"
    aria-activedescendant=${isInView ? `row-${active}` : null}
    data-count=${made.count}
    style=${{ "--lanes": `${width(made.lanes)}px`, "--step": `${stepWidth(made)}px` }}
  >
    <div class="rows-all" role="presentation" style=${{ height: `${Math.min(HEIGHT_MAX, made.lines * ROW)}px` }}>${items}</div>
  </div>`;
}

// -- filters

const FILTERS = [["input", "turns"], ["llm", "models"], ["tool", "tools"], ["state", "state"], ["fork", "forks"], ["merge", "merges"], ["interrupt", "waits"], ["damaged", "damaged"]];

const set = (change) => (filter.value = { ...filter.value, ...change });

function Filters({ made }) {
  made.version.value;
  const { kind, errors, hidden } = filter.value;
  const counts = useRef({});
  if (!made.isFiltered && made.isReady) counts.current = made.counts;
  const known = counts.current;
  const isPart = !made.isFiltered && made.total > PAGE; // the newest are counted, and there are more
  const wasPart = useRef(false);
  if (!made.isFiltered) wasPart.current = isPart;
  const counted = (number) => `${count(number)}${number && wasPart.current ? "+" : ""}`;
  const note = wasPart.current ? `Among the newest ${PAGE}; the filter looks at all` : null;
  const toggle = (name) => set({ kind: kind.includes(name) ? kind.filter((other) => other !== name) : [...kind, name] });
  return html`<div class="filters" role="group" aria-label="Filters">
    <button type="button" class="filter" aria-pressed=${!isFiltered.value} onClick=${() => (filter.value = NO_FILTER)}>
      all ${made.isFiltered ? "" : count(made.total)}
    </button>
    ${FILTERS.filter(([name]) => known[name] || kind.includes(name)).map(
      ([name, text]) => html`<button type="button" key=${name} class="filter" title=${note} aria-pressed=${kind.includes(name)} onClick=${() => toggle(name)}>
        ${text} <span>${counted(known[name])}</span>
      </button>`,
    )}
    ${(known.error > 0 || errors || wasPart.current) &&
    html`<button type="button" class="filter" title=${note} aria-pressed=${errors} onClick=${() => set({ errors: !errors })}>
      errors <span>${counted(known.error)}</span>
    </button>`}
    <button type="button" class="filter" title="Also what a rewind has hidden" aria-pressed=${hidden} onClick=${() => set({ hidden: !hidden })}>
      <${Icon} name="eye" /> hidden
    </button>
    <button type="button" class="filter" title="Fold runs of plain steps into one row each (z)" aria-pressed=${made.folds.runs.length > 0} onClick=${toggleFolds}>
      <${Icon} name="fold" /> fold
    </button>
  </div>`;
}

// One field for both: what begins like a path asks for changes of it, everything else for words.
function PathFilter() {
  const { path, text } = filter.value;
  const given = path || text;
  const [typed, setTyped] = useState(given);
  useEffect(() => setTyped(given), [given]);
  const use = () => {
    const isPath = /^(state|messages|tools_result)([.[]|$)|^\//.test(typed.trim());
    set({ path: isPath ? typed.trim() : "", text: isPath ? "" : typed.trim() });
  };
  return html`<form
    class="path-filter"
    onSubmit=${(event) => {
      event.preventDefault();
      use();
    }}
  >
    <input
      id="find-row"
      type="search"
      placeholder="state.key or words"
      aria-label="Only checkpoints that changed this path, or contain these words"
      value=${typed}
      spellcheck="false"
      autocomplete="off"
      onInput=${(event) => {
        setTyped(event.target.value);
        if (!event.target.value) set({ path: "", text: "" });
      }}
      onBlur=${() => typed.trim() !== given && use()}
    />
  </form>`;
}

const LABELS = { kind: "the kind", errors: "errors only", user_turns: "turns only", path: "the path", text: "the words" };

function NothingLeft({ made }) {
  const active = Object.entries(filter.value).filter(([name, value]) => name !== "hidden" && (Array.isArray(value) ? value.length : value));
  return html`<${Empty} title="No checkpoint passes the filter">
    <p>
      ${made.hiddenByFilter ? `${plural(made.hiddenByFilter, "checkpoint")} of this thread ${made.hiddenByFilter === 1 ? "is" : "are"} left out by ` : "Left out by "}
      ${active.map(([name, value], number) => html`${number ? " and " : ""}${LABELS[name]}${value !== true && html` <b dir="auto">${visible(value)}</b>`}`)}.
    </p>
    <p><button type="button" onClick=${() => (filter.value = NO_FILTER)}>Show all</button></p>
  <//>`;
}

// None of those that were looked at passes the filter. If there are more they are looked at, too.
function NothingYet({ made }) {
  made.version.value;
  const [isStopped, setStopped] = useState(false);
  const looked = made.hiddenByFilter;
  useEffect(() => {
    if (made.cursor && !isStopped) made.loadNext();
  }, [made, looked, isStopped]);
  if (!made.cursor) return html`<${NothingLeft} made=${made} />`;
  return html`<${Empty} title=${isStopped ? "None found so far" : "Searching…"}>
    <p role="status">${count(looked)} of ${plural(made.total, "checkpoint")} looked at.</p>
    <p><button type="button" onClick=${() => setStopped(!isStopped)}>${isStopped ? "Go on" : "Stop"}</button></p>
  <//>`;
}

const Gone = ({ name }) => html`<${Empty} title="This thread is gone">
  <p><b dir="auto">${visible(labelOf(name))}</b> was deleted while you looked at it. Its branches are threads of their own, and stay.</p>
  <p><button type="button" onClick=${openStart}>Show all threads</button></p>
<//>`;

// A history that cannot be shown: why, and what may be meant instead.
function NoHistory({ made }) {
  const { error } = made;
  const similar = error.status === 404 ? error.similar : [];
  return html`<div class="no-history">
    <${Trouble} error=${similar.length ? { message: error.message } : error} retry=${error.status === 404 ? null : () => made.load(0)} />
    ${similar.length > 0 && html`<ul>${similar.slice(0, 5).map((name) => html`<li key=${name}><a href=${address({ thread: name })} dir="auto" onClick=${follow(() => openThread(name))}>${visible(name)}</a></li>`)}</ul>`}
    ${error.status === 404 && html`<button type="button" onClick=${openStart}>Show all threads</button>`}
  </div>`;
}

// What the thread takes, and which part of what full copies would take, as soon as that is known.
function Size({ name }) {
  const { bytes: size, full } = sizes.value[name] ?? {};
  if (size == null) return null;
  const times = Math.round(full / size);
  return html`<span class="bar-size" title="What this thread takes; the menu tells more">${bytes(size)}${times > 1 && `, 1/${count(times)} of copies`}</span>`;
}

// Where the history is all that one sees: what the next row is compared with.
function Comparing() {
  const { vs } = route.value;
  const row = rows.value.rowOf(vs);
  if (!vs) return null;
  return html`<p class="comparing narrow-only">Choose a row to compare <b>${row ? `#${row.step}` : shortId(vs)}</b> with.
    <${IconButton} icon="close" label="End comparing" className="quiet" onClick=${() => go({ vs: null })} /></p>`;
}

// -- the pane

export function Graph() {
  const made = rows.value;
  const name = route.value.thread;
  if (!made) return html`<main class="graph"></main>`;
  made.version.value;
  const branch = family.value.items.find((item) => item.thread_id === name && item.is_branch);
  const from = threadIn(branch?.origin);
  const isFamily = family.value.items.length > 1;
  const isShown = !made.isGone && !(made.error && !made.isReady);
  return html`<main class="graph" aria-label="History">
    <div class="bar">
      <div class="bar-title">
        <a class="back narrow-only" href=${address({})} aria-label="All threads" onClick=${follow(openStart)}><${Icon} name="back" /></a>
        <h1 dir="auto" title=${visible(name)}>${visible(labelOf(name))}</h1>
        ${from && html`<span class="bar-from">branch of <a href=${address({ thread: from })} dir="auto" title=${visible(from)} onClick=${follow(() => openThread(from))}>${visible(labelOf(from))}</a></span>`}
        <span class="spacer"></span>
        <${Size} name=${name} />
        <${PathFilter} key=${name} />
        ${isFamily && html`<button type="button" class="small" onClick=${() => (dialog.value = { name: "branches" })}>${plural(family.value.items.length, "branch", "branches")}</button>`}
        <${Menu} label="More about this thread">
          <button type="button" onClick=${() => (dialog.value = { name: "operations", thread: name })}><${Icon} name="history" />Operations and undo<kbd>o</kbd></button>
          <button type="button" onClick=${() => (dialog.value = { name: "time", thread: name })}><${Icon} name="clock" />Time that steps took<kbd>T</kbd></button>
          ${canWrite.value && html`<button type="button" onClick=${() => undo(name)}><${Icon} name="undo" />Undo the last operation<kbd>u</kbd></button>`}
          ${canWrite.value && html`<button type="button" disabled=${!isFamily} onClick=${() => (dialog.value = { name: "merge" })}><${Icon} name="merge" />Merge a branch…<kbd>M</kbd></button>`}
          <button type="button" disabled=${!isFamily} onClick=${() => (dialog.value = { name: "branches" })}><${Icon} name="swap" />Compare branches…<kbd>b</kbd></button>
          ${canWrite.value && branch && html`<button type="button" onClick=${() => (dialog.value = { name: "branch", thread: name })}><${Icon} name="edit" />Rename or archive…</button>`}
          <button type="button" onClick=${() => (dialog.value = { name: "sizes", thread: name })}><${Icon} name="disk" />Storage of this thread</button>
          <${Exports} thread=${name} />
          ${canWrite.value && html`<button type="button" onClick=${() => (dialog.value = { name: "import" })}><${Icon} name="upload" />Import a file…</button>`}
          ${canWrite.value && html`<button type="button" class="danger" onClick=${() => (dialog.value = { name: "delete", thread: name })}><${Icon} name="close" />Delete for good…</button>`}
        <//>
      </div>
      ${isShown && html`<${Filters} key=${name} made=${made} />`}
    </div>
    ${isShown && html`<${Comparing} /><${RunPanel} key=${`run ${name}`} />`}
    ${made.isGone && html`<${Gone} name=${name} />`}
    ${made.error && !made.isReady && html`<${NoHistory} made=${made} />`}
    ${made.error && isShown && html`<div class="no-rows"><${Trouble} error=${made.error} retry=${() => made.renew()} /></div>`}
    ${made.damage && isShown && html`<div class="no-rows"><${Damage} title="Something of this history cannot be read" damage=${made.damage} /></div>`}
    ${!made.isReady && !made.error && html`<div class="rows-loading"><${Loading} lines=${12} /></div>`}
    ${isShown && made.isReady && made.count === 0 && (made.isFiltered ? html`<${NothingYet} key=${name} made=${made} />` : html`<${Empty} title="No checkpoints">
      <p>This thread has none, or they are all hidden by a rewind.</p>
      <p><button type="button" onClick=${() => set({ hidden: true })}>Show hidden ones</button></p><//>`)}
    ${made.isReady && made.count > 0 && html`<${List} key=${name} made=${made} />`}
    ${fresh.value > 0 && html`<button type="button" class="fresh" onClick=${() => { fresh.value = 0; if (box) box.scrollTop = 0; }}>
      ${plural(fresh.value, "new checkpoint")} above
    </button>`}
  </main>`;
}

const Exports = ({ thread }) => html`<a href=${new URL(`api/v1/export?thread=${encodeURIComponent(thread)}`, document.baseURI)} download><${Icon} name="download" />Export as a file</a>`;

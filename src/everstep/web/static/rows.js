// The rows of one history: fetched in pages where somebody looks, kept by their place, renewed without a jump.
import { signal } from "./vendor/ui.js";
import { get } from "./api.js";
import { Folds, LEAST, runsOf } from "./folds.js";

export const PAGE = 200;
const CHANGED_AT_ONCE = 60;

export class Rows {
  constructor(thread, filter = {}) {
    this.thread = thread;
    this.filter = filter;
    // What is hidden is no filter: those rows have their place among the others.
    this.isFiltered = Object.entries(filter).some(([name, value]) => name !== "hidden" && (Array.isArray(value) ? value.length : value));
    this.version = signal(0); // counts up whenever there is something new to draw
    this.items = new Map(); // place -> row
    this.places = new Map(); // id -> place
    this.fresh = new Set(); // numbers of pages that are as the server has them
    this.failed = new Set(); // numbers of pages that could not be had: not asked for again before something has changed
    this.cursors = new Map(); // number of a page -> where the next one begins
    this.loading = new Map(); // number of a page -> how to stop it
    this.held = new Set(); // numbers of pages that somebody waits for, whatever is in view
    this.changed = new Map(); // id -> what it changed, in words
    this.asked = new Set();
    this.folded = new Map(); // id of a row that is folded into a run -> the group that was folded together
    this.foldings = 0; // how many groups there were
    this.kept = null; // while runs are folded: the ids of rows that stay as they are
    this.layout = null; // the runs and their lines, as long as they are right
    this.total = null;
    this.lanes = 1;
    this.counts = {};
    this.hiddenByFilter = 0;
    this.cursor = null;
    this.error = null;
    this.damage = null; // why something of the history cannot be read, beside its rows
    this.onShift = null; // called with how many rows came in above
  }

  get count() {
    return this.isFiltered ? this.items.size : (this.total ?? 0);
  }

  get isReady() {
    return this.total !== null;
  }

  // Whether the thread was there, and is not any more.
  get isGone() {
    return this.isReady && this.error?.status === 404;
  }

  row(place) {
    return this.items.get(place);
  }

  placeOf(id) {
    return this.places.get(id);
  }

  rowOf(id) {
    const place = this.places.get(id);
    return place === undefined ? undefined : this.items.get(place);
  }

  // -- folding

  get folds() {
    this.layout ??= new Folds(this.folded.size ? runsOf(this.items, 2, (row) => this.folded.get(row.id)) : []);
    return this.layout;
  }

  get lines() {
    return this.count - this.folds.left;
  }

  // Folds the runs among the rows that are here, and later those of each page that is loaded below them; says how many
  // there are. Rows that `kept` names stay as they are.
  fold(kept) {
    const found = this.foldAmong(this.items, kept);
    this.kept = found ? kept : null;
    this.changeLines();
    return found;
  }

  // What is folded at once is one group: else the whole of a long history would have to be loaded to fill one screen.
  foldAmong(items, kept) {
    const runs = runsOf(items, LEAST, (row) => (kept.has(row.id) ? undefined : 0));
    const group = ++this.foldings;
    for (const { first, last } of runs) {
      for (let place = first; place <= last; place++) this.folded.set(items.get(place).id, group);
    }
    return runs.length;
  }

  unfold({ first, last }) {
    for (let place = first; place <= last; place++) this.folded.delete(this.items.get(place)?.id);
    this.changeLines();
  }

  unfoldAll() {
    this.folded.clear();
    this.kept = null;
    this.changeLines();
  }

  changeLines() {
    this.layout = null;
    this.version.value++;
  }

  // -- loading

  // Loads the pages of these places (the last is where the view ends), and gives up on what nobody looks at any more.
  want(places, end) {
    if (this.isFiltered) {
      if (this.cursor && end >= this.items.size - 20) this.loadNext();
      return;
    }
    const pages = new Set(places.map((place) => Math.floor(place / PAGE)));
    for (const [number, stop] of this.loading) {
      if (number !== 0 && !this.held.has(number) && !pages.has(number)) stop.abort();
    }
    for (const number of pages) {
      if (!this.fresh.has(number) && !this.failed.has(number)) this.load(number);
    }
  }

  async at(place) {
    if (this.isFiltered) {
      while (place >= this.items.size && this.cursor) await this.loadNext();
      return this.items.get(Math.min(place, this.items.size - 1));
    }
    const number = Math.floor(place / PAGE);
    this.held.add(number);
    for (let tries = 0; tries < 3 && !this.items.has(place); tries++) await this.load(number);
    this.held.delete(number);
    return this.items.get(place);
  }

  load(number = 0) {
    const running = this.loading.get(number);
    if (running) return running.done;
    const stop = new AbortController();
    stop.done = this.fetchPage(number, stop.signal).finally(() => {
      if (this.loading.get(number) === stop) this.loading.delete(number);
    });
    this.loading.set(number, stop);
    return stop.done;
  }

  async fetchPage(number, signal) {
    const query = { thread: this.thread, limit: PAGE, ...this.filter };
    if (!this.isFiltered && number > 0) {
      // Whoever scrolls on goes on where the page before ended; only a jump has to find its place.
      const before = this.fresh.has(number - 1) ? this.cursors.get(number - 1) : null;
      if (before) query.cursor = before;
      else query.offset = number * PAGE;
    }
    try {
      const page = await get("history", query, signal);
      this.take(page, number * PAGE);
      if (this.isFiltered) this.cursor = page.cursor;
      else {
        this.fresh.add(number);
        this.cursors.set(number, page.cursor);
      }
      this.failed.delete(number);
      this.error = null;
    } catch (error) {
      if (error.name === "AbortError") return;
      this.failed.add(number);
      this.error = error;
      if (this.isGone) this.empty();
    }
    this.version.value++;
  }

  // Nothing is left of what was here.
  empty() {
    this.total = 0;
    this.items.clear();
    this.places.clear();
    this.folded.clear();
    this.kept = null;
    this.fresh.clear();
    this.cursors.clear();
    this.layout = null;
  }

  loadNext() {
    if (this.next) return this.next;
    const query = { thread: this.thread, limit: PAGE, cursor: this.cursor, ...this.filter };
    this.next = get("history", query)
      .then((page) => {
        const looked = this.hiddenByFilter;
        this.take(page, this.items.size);
        this.hiddenByFilter += looked;
        this.cursor = page.cursor;
      })
      .catch((error) => {
        this.error = error;
        this.cursor = null;
      })
      .finally(() => {
        this.next = null;
        this.version.value++;
      });
    return this.next;
  }

  take(page, offset) {
    if (offset === 0) {
      this.shift(page);
      this.counts = page.counts ?? {};
      this.damage = page.damage ?? null;
    }
    this.total = page.total;
    this.hiddenByFilter = page.hidden_by_filter ?? 0;
    this.lanes = Math.max(offset === 0 ? 1 : this.lanes, page.lanes ?? 1);
    const unseen = new Map();
    page.rows.forEach((row, number) => {
      if (!this.places.has(row.id)) unseen.set(offset + number, row);
      this.put(offset + number, row);
    });
    if (this.kept && offset > 0) this.foldAmong(unseen, this.kept);
    this.layout = null;
  }

  put(place, row) {
    const before = this.items.get(place);
    if (before && this.places.get(before.id) === place) this.places.delete(before.id);
    this.items.set(place, row);
    this.places.set(row.id, place);
  }

  // A newer first page moves everything below it by as many rows as came in; other pages are asked for again.
  shift(page) {
    if (this.total === null || this.isFiltered) {
      if (this.isFiltered) {
        this.items.clear();
        this.places.clear();
      }
      return;
    }
    const by = this.movedBy(page);
    const isSame = page.total === this.total && page.rows.every((row, place) => this.items.get(place)?.id === row.id);
    if (isSame) return;
    const folded = this.folds.left;
    if (!this.hasGrown(page, by)) {
      this.folded.clear();
      this.kept = null;
    }
    const old = [...this.items].filter(([place]) => place + by >= 0 && place + by < page.total);
    this.items = new Map();
    this.places = new Map();
    for (const [place, row] of old) {
      this.items.set(place + by, row);
      this.places.set(row.id, place + by);
    }
    this.fresh.clear();
    this.cursors.clear();
    this.layout = null;
    this.onShift?.(by, by - (this.folds.left - folded));
  }

  // How far rows have moved, by the first one that was here before. The totals do not tell: retention lets old rows go
  // while new ones come.
  movedBy(page) {
    for (let place = 0; place < page.rows.length; place++) {
      const before = this.places.get(page.rows[place].id);
      if (before !== undefined) return place - before;
    }
    return page.total - this.total;
  }

  // Whether rows came in above and all else is as it was: the last row of the page is the same, beside the same lines.
  // Only then are rows below it right that nobody looks at, such as those in runs.
  hasGrown(page, by) {
    const before = this.items.get(page.rows.length - 1 - by);
    const last = page.rows.at(-1);
    const isLike = (row) => row && last && row.id === last.id && JSON.stringify(row.edges) === JSON.stringify(last.edges);
    return page.rows.length === page.total || (by >= 0 && isLike(before));
  }

  // Something has changed: the first page shows what.
  async renew() {
    this.fresh.delete(0);
    this.failed.clear();
    this.loading.get(0)?.abort();
    this.loading.delete(0);
    await this.load(0);
  }

  // Asks what the rows in view have changed, for those that were not asked about yet.
  async describe(ids) {
    const wanted = ids.filter((id) => !this.asked.has(id)).slice(0, CHANGED_AT_ONCE);
    if (!wanted.length) return;
    for (const id of wanted) this.asked.add(id);
    try {
      const found = await get("changed", { thread: this.thread, id: wanted });
      for (const [id, change] of Object.entries(found.changed)) this.changed.set(id, change);
      this.version.value++;
    } catch (error) {
      for (const id of wanted) this.asked.delete(id);
    }
  }

  stop() {
    for (const stop of this.loading.values()) stop.abort();
  }
}

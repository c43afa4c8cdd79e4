// The list of threads: searched, filtered, and read on where one scrolls.
import { html, useEffect, useRef } from "./vendor/ui.js";
import { ago, branchName, bytes, count, oneLine, plural, visible, whole } from "./format.js";
import {
  address, follow, info, leaveSize, loadThreads, openThread, order, route, search, sizes, sortedThreads, threads, wantSize,
} from "./model.js";
import { Chip, Empty, Icon, IconButton, Key, Loading, Trouble } from "./parts.js";

const STATUS = { failed: "error", waiting: "warn", interrupted: "warn", ready: "added", damaged: "error" };
const STATES = [["", "all"], ["failed", "failed"], ["waiting", "waiting"], ["interrupted", "interrupted"], ["damaged", "damaged"]];

let typing;

function look(change) {
  search.value = { ...search.value, ...change };
  clearTimeout(typing);
  typing = setTimeout(loadThreads, "text" in change ? 120 : 0);
}

export function ThreadList() {
  const { cursor, isReady, more, error } = threads.value;
  const items = sortedThreads.value;
  const { text, status } = search.value;
  const isByName = order.value === "name";
  const isAsked = Boolean(text || status);
  return html`<nav class="threads" aria-label="Threads">
    <div class="threads-top">
      <label class="search">
        <${Icon} name="search" />
        <input
          id="find-thread"
          type="search"
          placeholder="Find a thread"
          aria-label="Find a thread"
          autocomplete="off"
          spellcheck="false"
          value=${text}
          onInput=${(event) => look({ text: event.target.value })}
          onKeyDown=${(event) => {
            if (event.key === "Escape") event.target.blur();
            if (event.key === "ArrowDown") document.querySelector(".thread")?.focus();
            if (event.key === "Enter" && items.length) openThread(items[0].thread_id);
          }}
        />
        <${Key}>/<//>
      </label>
      <div class="states" role="group" aria-label="State of the thread">
        ${STATES.map(
          ([name, label]) => html`<button type="button" key=${name} aria-pressed=${status === name} onClick=${() => look({ status: name })}>
            ${label}
          </button>`,
        )}
        <span class="spacer"></span>
        <${IconButton}
          icon="sort"
          className="quiet"
          label=${cursor ? "Sort by name, those that are loaded" : "Sort by name"}
          pressed=${isByName}
          onClick=${() => (order.value = isByName ? "activity" : "name")}
        />
      </div>
    </div>
    <div class="threads-list" onKeyDown=${walk}>
      ${!isReady && html`<${Loading} lines=${6} />`}
      ${error && html`<${Trouble} error=${error} retry=${() => loadThreads()} />`}
      ${items.map((item) => html`<${Thread} key=${item.thread_id} item=${item} />`)}
      ${isReady && !error && !items.length && (isAsked ? html`<${NothingFound} />` : html`<p class="hint">No threads yet.</p>`)}
      ${cursor && html`<${Sentinel} key=${cursor} />`}
      ${more && html`<p class="hint">Not every thread was looked at. A longer text, or the beginning of the name, finds more.</p>`}
    </div>
  </nav>`;
}

function Thread({ item }) {
  const element = useRef(null);
  useEffect(() => {
    const observer = new IntersectionObserver((seen) => {
      if (seen.at(-1).isIntersecting) wantSize(item);
      else leaveSize(item.thread_id);
    });
    observer.observe(element.current);
    return () => {
      observer.disconnect();
      leaveSize(item.thread_id);
    };
  }, [item.thread_id, item.head]);
  const size = sizes.value[item.thread_id]?.bytes;
  const isOpen = route.value.thread === item.thread_id;
  const { name, from } = branchName(item.thread_id, item.origin);
  const label = `${visible(item.thread_id)}${item.status ? `, ${item.status}` : ""}`;
  return html`<a
    ref=${element}
    class=${`thread ${isOpen ? "on" : ""}`}
    href=${address({ thread: item.thread_id })}
    aria-current=${isOpen ? "page" : null}
    aria-label=${label}
    title=${oneLine(`${from ? `${item.thread_id}: ` : ""}${item.summary ?? ""}`).slice(0, 300) || null}
    onClick=${follow(() => openThread(item.thread_id))}
  >
    <span class="thread-name">
      ${item.origin && html`<${Icon} name="fork" />`}
      <b dir="auto">${visible(name)}</b>
      ${item.status && html`<${Chip} text=${item.status} tone=${STATUS[item.status] ?? "plain"} />`}
    </span>
    <span class="thread-facts">
      <time datetime=${item.updated_at} title=${whole(item.updated_at)}>${ago(item.updated_at)}</time>
      <span>${plural(item.steps, "step")}</span>
      <span class="thread-size">${bytes(size)}</span>
      ${from && html`<span class="thread-from" dir="auto">of ${visible(from)}</span>`}
      ${item.branches > 0 && html`<span>${plural(item.branches, "branch", "branches")}</span>`}
      ${item.kind && item.kind !== "engine" && html`<span>${item.kind === "langgraph" ? "LangGraph" : item.kind}</span>`}
    </span>
  </a>`;
}

function NothingFound() {
  const { text, status } = search.value;
  return html`<${Empty} title="Nothing found">
    <p>No thread ${status && html`is <b>${status}</b>`}${status && text ? " and " : ""}${text && html`has <b>${visible(text)}</b> in its name, summary, tags or metadata`}.</p>
    <p><button type="button" onClick=${() => look({ text: "", status: "" })}>Show all threads</button></p>
  <//>`;
}

// Reads on as soon as the end of the list comes into view.
function Sentinel() {
  const element = useRef(null);
  useEffect(() => {
    const observer = new IntersectionObserver((seen) => {
      if (seen.some((entry) => entry.isIntersecting)) loadThreads({ more: true });
    });
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return html`<div ref=${element} class="sentinel"><${Loading} lines=${1} /></div>`;
}

function walk(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const links = [...event.currentTarget.querySelectorAll(".thread")];
  const place = links.indexOf(document.activeElement) + step;
  event.preventDefault();
  if (place < 0) document.getElementById("find-thread").focus();
  else links[Math.min(place, links.length - 1)]?.focus();
}

const SNIPPET = `import everstep

engine = everstep.open("agent.db").sync
engine.append("trip-to-oslo", [{"role": "user", "content": "A weekend in Oslo?"}])
engine.append("trip-to-oslo", [{"role": "assistant", "content": "With pleasure."}], {"city": "Oslo"})`;

// What a person sees who has nothing yet, or has chosen nothing.
export function Welcome() {
  const { items, isReady } = threads.value;
  if (!isReady) return html`<div class="welcome"></div>`;
  if (items.length || search.value.text || search.value.status) {
    return html`<div class="welcome"><${Empty} title="Choose a thread">
      <p><${Key}>/<//> finds one by its name, <${Key}>?<//> shows all keys.</p>
    <//></div>`;
  }
  return html`<div class="welcome"><${Empty} title="This store is empty">
    <p>Five lines make the first two checkpoints. They appear here by themselves.</p>
    <pre class="block snippet">${SNIPPET.replace('"agent.db"', JSON.stringify(storeName()))}</pre>
    <p>Or look around first: <code>everstep ui --demo</code></p>
  <//></div>`;
}

const storeName = () => (info.value?.store ?? "agent.db").replace(/^sqlite:\/\/\//, "");

export const total = () => count(threads.value.items.length);

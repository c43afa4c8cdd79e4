// The list of threads: searched, filtered, and read on where one scrolls.
import { html, useEffect, useRef } from "./vendor/ui.js";
import { bytes, oneLine, plural, threadIn, visible } from "./format.js";
import { address, follow, leaveSize, loadThreads, openThread, order, route, search, sizes, sortedThreads, threads, wantSize } from "./model.js";
import { Ago, Chip, Empty, Icon, Key, Loading, Status, Trouble } from "./parts.js";
import { Welcome } from "./start.js";

const STATES = [["", "All states"], ["failed", "Failed"], ["waiting", "Waiting"], ["interrupted", "Interrupted"], ["damaged", "Damaged"], ["archived", "With archived"]];
const ORDERS = [["activity", "Newest first"], ["name", "By name"], ["steps", "Most steps"]];

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
            if (event.key === "Enter" && items.length) {
              openThread(items[0].thread_id);
              event.target.blur(); // so that the next keys are for the history
            }
          }}
        />
        <${Key}>/<//>
      </label>
      <div class="choices">
        <${Choice} label="State of the threads" value=${status} options=${STATES} onChange=${(name) => look({ status: name })} />
        <span class="spacer"></span>
        <${Choice}
          label="Order of the threads"
          title=${cursor && order.value !== "activity" ? "Those that are loaded" : null}
          value=${order.value}
          options=${ORDERS}
          onChange=${(name) => (order.value = name)}
        />
      </div>
    </div>
    <div class="threads-list" onKeyDown=${walk}>
      ${!isReady && html`<${Loading} lines=${6} />`}
      ${error && html`<${Trouble} error=${error} retry=${() => loadThreads()} />`}
      ${items.map((item) => html`<${Thread} key=${item.thread_id} item=${item} />`)}
      ${isReady && !error && !items.length && (isAsked ? html`<${NothingFound} />` : html`<p class="hint">No threads yet.</p><${Welcome} />`)}
      ${cursor && html`<${Sentinel} key=${cursor} />`}
      ${more && html`<p class="hint">Not every thread was looked at. A longer text, or the beginning of the name, finds more.</p>`}
    </div>
  </nav>`;
}

// One of a few, chosen from a list that takes no room while it is closed.
const Choice = ({ label, title, value, options, onChange }) => html`<select class=${`choice ${value === options[0][0] ? "" : "on"}`} aria-label=${label} title=${title ?? label} value=${value} onChange=${(event) => onChange(event.target.value)}>
  ${options.map(([name, text]) => html`<option key=${name} value=${name} selected=${name === value}>${text}</option>`)}
</select>`;

function Thread({ item }) {
  const element = useRef(null);
  useEffect(() => {
    const observer = new IntersectionObserver((seen) => {
      if (seen.at(-1).isIntersecting) wantSize(item, "list");
      else leaveSize(item.thread_id, "list");
    });
    observer.observe(element.current);
    return () => {
      observer.disconnect();
      leaveSize(item.thread_id, "list");
    };
  }, [item.thread_id, item.head]);
  const size = sizes.value[item.thread_id]?.bytes;
  const isOpen = route.value.thread === item.thread_id;
  const from = item.name === item.thread_id ? "" : threadIn(item.origin);
  const label = `${visible(item.thread_id.trim() ? item.thread_id : item.name)}${item.status ? `, ${item.status}` : ""}`;
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
      <b dir="auto">${visible(item.name)}</b>
      ${item.archived && html`<${Chip} text="archived" />`}
      <${Status} status=${item.status} />
    </span>
    <span class="thread-facts">
      <${Ago} at=${item.updated_at} />
      <span>${plural(item.steps, "step")}</span>
      <span class="thread-size">${bytes(size)}</span>
      ${from && html`<span class="thread-from" dir="auto">of ${visible(from)}</span>`}
      ${item.branches > 0 && html`<span>${plural(item.branches, "branch", "branches")}</span>`}
      ${item.kind && item.kind !== "engine" && html`<span>${item.kind === "langgraph" ? "LangGraph" : item.kind}</span>`}
    </span>
  </a>`;
}

function NothingFound() {
  const { text } = search.value;
  const status = search.value.status === "archived" ? "" : search.value.status;
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

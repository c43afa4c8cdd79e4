// The checkpoint that is selected: what it is, what can be done with it, and its four tabs.
import { html, useRef } from "./vendor/ui.js";
import { bytes, count, dollars, duration, oneLine, plural, shortId, visible, when, whole } from "./format.js";
import {
  address, canWrite, copy, detail, dialog, follow, go, labelOf, openTab, pin, route, select, selectedId, tabs, toggleCompare,
} from "./model.js";
import { Chip, Damage, Icon, Loading, LongText, Menu, NAMES, Trouble } from "./parts.js";
import { Changes } from "./changes.js";
import { Messages } from "./messages.js";
import { RunTab } from "./runs.js";
import { State } from "./state.js";
import { Step } from "./step.js";

const TITLES = { changes: "Changes", messages: "Messages", state: "State", step: "Step", run: "Run" };
const VIEWS = { changes: Changes, messages: Messages, state: State, step: Step, run: RunTab };

// A checkpoint by its step, and by its thread where that is another one.
export function CheckpointLink({ to: { id, step, thread_id: thread } }) {
  const from = thread === route.value.thread ? "" : `${labelOf(thread)} `;
  return html`<a href=${address({ ...route.value, id, vs: null })} dir="auto" onClick=${follow(() => select(id))}>${visible(from)}${step != null ? `#${step}` : shortId(id)}</a>`;
}

function Facts({ data }) {
  return html`<div class="facts">
    <span class="mono" title=${data.id}>#${data.step} · ${shortId(data.id)}</span>
    ${data.parents?.length > 1 && html`<span>${plural(data.parents.length, "parent")}</span>`}
    <time datetime=${data.created_at} title=${whole(data.created_at)}>${when(data.created_at)}</time>
    ${data.duration_ms != null && html`<span>${duration(data.duration_ms)}</span>`}
    ${data.tokens != null && html`<span>${count(data.tokens)} tokens</span>`}
    ${data.cost != null && html`<span>${dollars(data.cost)}</span>`}
    ${data.added_bytes != null && html`<span>+${bytes(data.added_bytes)}</span>`}
    ${data.thread_id !== route.value.thread && html`<span dir="auto" title=${data.thread_id}>in ${visible(labelOf(data.thread_id))}</span>`}
    ${(data.chips ?? []).filter(({ tone }) => tone !== "note").slice(0, 8).map((chip) => html`<${Chip} key=${chip.text} text=${chip.text} tone=${chip.tone} lane=${chip.lane} />`)}
  </div>`;
}

// The same address, with `.json` before the question mark.
function asJson(data) {
  const [place, query] = address({ ...route.value, tab: null, id: data.id }).split("?");
  const asked = new URLSearchParams(query);
  asked.set("tab", openTab.value);
  return `${place}.json?${asked}`;
}

function Actions({ data }) {
  const isHead = data.head && !data.hidden;
  const vs = route.value.vs;
  return html`<div class="actions">
    ${canWrite.value && html`<button type="button" class="primary" onClick=${() => (dialog.value = { name: "fork", data })}><span>Fork<span class="wide-only"> from here</span></span></button>`}
    ${canWrite.value &&
    html`<button
      type="button"
      disabled=${isHead}
      title=${isHead ? "This is the head already" : "Make this the head; later ones are hidden, not deleted"}
      onClick=${() => (dialog.value = { name: "rewind", data })}
    >
      <span>Rewind<span class="wide-only"> to here</span></span>
    </button>`}
    <button type="button" aria-pressed=${Boolean(vs)} onClick=${toggleCompare}>Compare</button>
    <button type="button" onClick=${() => (dialog.value = { name: "copy", data })}>Copy as…</button>
    <${Menu} label="More with this checkpoint">
      ${canWrite.value && html`<button type="button" onClick=${() => (dialog.value = { name: "edit", data })}><${Icon} name="state" />Edit the state and fork<kbd>e</kbd></button>`}
      ${canWrite.value && html`<button type="button" onClick=${() => pin(data, !data.pinned)}><${Icon} name="pin" />${data.pinned ? "Unpin" : "Pin: retention keeps it"}<kbd>p</kbd></button>`}
      ${canWrite.value && html`<button type="button" onClick=${() => (dialog.value = { name: "tags", data })}><${Icon} name="tag" />Tags…<kbd>t</kbd></button>`}
      ${canWrite.value && html`<button type="button" onClick=${() => (dialog.value = { name: "note", data })}><${Icon} name="note" />${data.note ? "Change the note…" : "Note…"}<kbd>n</kbd></button>`}
      <button type="button" onClick=${() => copy(data.id, "The id is copied")}><${Icon} name="copy" />Copy the id</button>
      <button type="button" onClick=${() => copy(new URL(address({ ...route.value, id: data.id }), location.href).href, "The link is copied")}><${Icon} name="copy" />Copy a link to this view</button>
      <a href=${asJson(data)} target="_blank" rel="noopener"><${Icon} name="right" />Open as JSON</a>
    <//>
  </div>`;
}

function Tabs({ data }) {
  const bar = useRef(null);
  const open = openTab.value;
  const walk = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = tabs.value;
    const next = all[(all.indexOf(open) + step + all.length) % all.length];
    go({ tab: next }, { replace: true });
    bar.current.querySelector(`#tab-${next}`)?.focus();
  };
  return html`<div class="tabs" role="tablist" aria-label="Parts of the checkpoint" ref=${bar} onKeyDown=${walk}>
    ${tabs.value.map(
      (name) => html`<button
        type="button"
        key=${name}
        id=${`tab-${name}`}
        role="tab"
        aria-selected=${open === name}
        aria-controls="tab-body"
        tabindex=${open === name ? 0 : -1}
        onClick=${() => go({ tab: name }, { replace: true })}
      >
        ${TITLES[name]}${name === "messages" && data?.messages != null && html` <span class="tab-count">${count(data.messages)}</span>`}
      </button>`,
    )}
  </div>`;
}

export function Detail() {
  const shown = selectedId.value;
  const { data, error } = detail.value;
  if (!shown) return html`<aside class="detail" aria-label="Checkpoint"></aside>`;
  const View = VIEWS[openTab.value];
  return html`<aside class="detail" aria-label="Checkpoint">
    <div class="detail-top">
      <a class="back narrow-only" href=${address({ ...route.value, id: null })} aria-label="Back to the history" onClick=${follow(() => go({ id: null }))}><${Icon} name="back" /> History</a>
      ${error && html`<${Trouble} error=${error} />`}
      ${error?.status === 404 && html`<p class="wide-only"><button type="button" onClick=${() => go({ id: null, vs: null })}>Show the newest checkpoint</button></p>`}
      ${!data && !error && html`<${Loading} lines=${3} />`}
      ${data &&
      html`<h2 dir="auto"><span class=${`row-kind ${data.kind}`} title=${NAMES[data.kind]}><${Icon} name=${data.kind} /></span>
          <span class="detail-title">${oneLine(data.title).slice(0, 400)}</span></h2>
        <${Facts} data=${data} />
        ${data.damage && html`<${Damage} title="Not all of this can be read" damage=${data.damage} />`}
        ${data.note && html`<p class="note" dir="auto"><${Icon} name="note" label="Note" /><${LongText} text=${data.note} /></p>`}
        <${Actions} data=${data} />`}
    </div>
    ${data && html`<${Tabs} data=${data} />`}
    <div class="body" id="tab-body" role="tabpanel" aria-labelledby=${data ? `tab-${openTab.value}` : null} tabindex="0">
      ${data && html`<${View} key=${openTab.value} data=${data} />`}
    </div>
  </aside>`;
}

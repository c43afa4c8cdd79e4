// What one sees first: what waits for somebody, what failed, what was done last; in an empty store how to begin.
import { html } from "./vendor/ui.js";
import { oneLine, plural, visible } from "./format.js";
import { address, canWrite, dialog, follow, info, loadThreads, openStart, openThread, search, threads } from "./model.js";
import { Ago, Empty, Icon, Key, Status, Trouble } from "./parts.js";

const SHOWN_MAX = 12;
const WAITS = ["waiting", "interrupted"];
const FAILED = ["failed", "damaged"];

function Item({ item }) {
  const { thread_id: thread, name, origin, status, steps, summary, updated_at: when } = item;
  return html`<li>
    <a href=${address({ thread })} title=${visible(thread)} onClick=${follow(() => openThread(thread))}>
      <span class="overview-name">${origin && html`<${Icon} name="fork" />`}<b dir="auto">${visible(name)}</b><${Status} status=${status} /></span>
      <span class="overview-summary" dir="auto">${oneLine(summary)}</span>
      <span class="overview-facts">${plural(steps, "step")}</span>
      <${Ago} at=${when} />
    </a>
  </li>`;
}

const Group = ({ title, items }) => items.length > 0 && html`<section class="overview">
  <h2 class="section">${title}</h2>
  <ul>${items.slice(0, SHOWN_MAX).map((item) => html`<${Item} key=${item.thread_id} item=${item} />`)}</ul>
</section>`;

function Overview({ items }) {
  const isAsked = Boolean(search.value.text || search.value.status);
  const waiting = items.filter(({ status }) => WAITS.includes(status));
  const failed = items.filter(({ status }) => FAILED.includes(status));
  const others = items.filter(({ status }) => ![...WAITS, ...FAILED].includes(status));
  return html`<div class="runs-inner">
    <h1>Threads</h1>
    <p class="overview-keys"><${Key}>/<//> finds one, <${Key}>?<//> shows all keys.</p>
    ${isAsked
      ? html`<${Group} title="Found" items=${items} />`
      : html`<${Group} title="Waits for somebody" items=${waiting} /><${Group} title="Failed" items=${failed} /><${Group} title="Active last" items=${others} />`}
  </div>`;
}

const SNIPPET = `import everstep

engine = everstep.open("agent.db").sync
engine.append("trip-to-oslo", [{"role": "user", "content": "A weekend in Oslo?"}])
engine.append("trip-to-oslo", [{"role": "assistant", "content": "With pleasure."}], {"city": "Oslo"})`;

const storeName = () => (info.value?.store ?? "agent.db").replace(/^sqlite:\/\/\//, "");

const Begin = () => html`<${Empty} title="This store is empty">
  <p>Five lines make the first two checkpoints. They appear here by themselves.</p>
  <pre class="block snippet">${SNIPPET.replace('"agent.db"', JSON.stringify(storeName()))}</pre>
  <p>Or look around first: <code>everstep ui --demo</code></p>
  ${canWrite.value && html`<p>Or bring in a file that another store has exported: <button type="button" class="link" onClick=${() => (dialog.value = { name: "import" })}>import a file</button></p>`}
<//>`;

export const Nowhere = () => html`<div class="welcome"><${Empty} title="There is nothing here">
  <p>No page of Everstep has this address. <a href=${address({})} onClick=${follow(openStart)}>All threads</a></p>
<//></div>`;

// For who has chosen nothing, or has nothing yet.
export function Welcome() {
  const { items, isReady, error } = threads.value;
  if (!isReady) return html`<div class="welcome"></div>`;
  if (items.length) return html`<${Overview} items=${items} />`;
  // Nothing can be said about what is in a store that does not answer.
  if (error) return html`<div class="welcome"><${Trouble} error=${error} retry=${() => loadThreads()} /></div>`;
  if (search.value.text || search.value.status) return html`<div class="welcome"></div>`; // the list says that there is nothing
  return html`<div class="welcome"><${Begin} /></div>`;
}

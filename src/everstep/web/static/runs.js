// Durable runs: the list of them, and of one its steps, what it waits for, its effects and branches.
import { html, useEffect, useState } from "./vendor/ui.js";
import { clock, count, duration, json, oneLine, plural, visible, whole } from "./format.js";
import { address, answer, canWrite, follow, go, loadRuns, openThread, route, run, runs, runStatus } from "./model.js";
import { Ago, Block, Chip, Empty, Icon, Loading, Segments, Status, Trouble, Value } from "./parts.js";

const STATES = ["waiting", "ready", "running", "interrupted", "failed", "done", "paused"];
const MEANINGS = {
  running: "somebody runs it",
  interrupted: "nobody runs it, and it is not at its end; a worker takes it up",
  waiting: "for an answer, an event or a time",
  ready: "what it waited for has come; a worker takes it up",
  failed: "everstep resume takes it up again",
  paused: "a branch that nobody has taken up yet",
};

const RunStatus = ({ status }) => html`<${Status} status=${status} title=${MEANINGS[status]} />`;

function argumentsOf({ args, kwargs }) {
  const positional = (Array.isArray(args) ? args : []).map((value) => json(value));
  const named = Object.entries(kwargs ?? {}).map(([name, value]) => `${name}=${json(value)}`);
  return [...positional, ...named].join(", ");
}

// -- answers

// What was typed is JSON, or plain text where it is none.
function valueOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function AnswerForm({ thread, wait }) {
  const [text, setText] = useState("");
  const [isBusy, setBusy] = useState(false);
  const send = async (body) => {
    setBusy(true);
    await answer(thread, { key: wait.key, ...body });
    setBusy(false);
  };
  const field = html`<input
    type="text"
    aria-label=${wait.effect ? `The result of ${wait.effect}` : "Your answer"}
    placeholder=${wait.effect ? "If it happened: its result, as JSON or text" : "Your answer, as text or JSON"}
    autocomplete="off"
    spellcheck="false"
    value=${text}
    onInput=${(event) => setText(event.target.value)}
  />`;
  if (wait.effect) {
    return html`<form class="answer" onSubmit=${(event) => event.preventDefault()}>
      ${field}
      <button type="button" class="primary" disabled=${isBusy} onClick=${() => send({ outcome: "happened", result: text ? valueOf(text) : null })}>It happened</button>
      <button type="button" disabled=${isBusy} onClick=${() => send({ outcome: "did_not_happen" })}>It did not happen</button>
    </form>`;
  }
  return html`<form
    class="answer"
    onSubmit=${(event) => {
      event.preventDefault();
      if (text.trim()) send({ value: valueOf(text) });
    }}
  >
    ${field}
    <button type="submit" class="primary" disabled=${isBusy || !text.trim()}>Answer</button>
  </form>`;
}

// What came with a question; of an effect it is the call.
const Details = ({ wait }) =>
  wait.effect
    ? html`<p class="wait-call"><code dir="auto">${visible(wait.effect)}(${visible(argumentsOf(wait.details).slice(0, 300))})</code></p>`
    : html`<${Block} text=${json(wait.details, 2)} lines=${8} />`;

function Wait({ thread, wait, withDetails = true }) {
  if (wait.kind === "event") return html`<p class="wait-line"><${Icon} name="interrupt" />Waits for the event <b dir="auto">${visible(wait.event)}</b></p>`;
  if (wait.kind === "sleep") return html`<p class="wait-line"><${Icon} name="interrupt" />Sleeps until <time datetime=${wait.until}>${whole(wait.until)}</time></p>`;
  return html`<div class="wait">
    <p class="wait-question" dir="auto"><${Icon} name="interrupt" /><span>${visible(wait.question)}</span></p>
    ${withDetails && wait.details != null && html`<${Details} wait=${wait} />`}
    ${canWrite.value && html`<${AnswerForm} key=${wait.key} thread=${thread} wait=${wait} />`}
  </div>`;
}

// What the open run waits for, above its history.
export function RunPanel() {
  const { thread, data } = run.value;
  if (!data || thread !== route.value.thread) return null;
  if (data.status === "failed" && data.error) {
    return html`<section class="run-panel failed" aria-label="How the run stands">
      <p class="wait-line"><${Icon} name="error" /><span dir="auto"><b>${visible(data.error.type)}</b> ${oneLine(data.error.message)}</span></p>
    </section>`;
  }
  if (!data.waits.length) return null;
  return html`<section class="run-panel" aria-label="What the run waits for">
    ${data.waits.map((wait) => html`<${Wait} key=${wait.key} thread=${thread} wait=${wait} />`)}
  </section>`;
}

// -- one run

const ICONS = { step: "tool", ask: "interrupt", answer: "input", event: "input", start: "input", end: "state", sleep: "interrupt", wait: "interrupt", resume: "undo" };

function Entry({ entry }) {
  const isStep = entry.op === "step";
  const isBad = entry.status === "error" || entry.status === "failed";
  const thread = entry.ref.slice(0, -entry.id.length - 1);
  const isOpen = route.value.id === entry.id;
  return html`<li class=${isOpen ? "on" : ""}>
    <span class=${`row-kind ${isBad ? "error" : ""}`}><${Icon} name=${isBad ? "error" : ICONS[entry.op] ?? "state"} /></span>
    <span class="entry-what"><a class="entry-name" dir="auto" href=${address({ thread, id: entry.id, tab: "run" })} onClick=${follow(() => go({ thread, id: entry.id }))}>${visible(isStep ? entry.key : entry.text || entry.op)}</a>
    ${entry.tries > 1 && html`<${Chip} text=${plural(entry.tries, "try", "tries")} tone="warn" />`}
    ${entry.effect === "once" && html`<${Chip} text="once" title="Its intent is stored before it is called" />`}
    ${isBad && html`<${Chip} text="failed" tone="error" />`}</span>
    ${entry.seconds != null && html`<span class="entry-took">${duration(entry.seconds * 1000)}</span>`}
    <time datetime=${entry.created_at} title=${whole(entry.created_at)}>${clock(entry.created_at)}</time>
    ${isStep && entry.failures.map((text, number) => html`<p class="entry-failure" dir="auto" key=${number}>try ${number + 1}: ${visible(text)}</p>`)}
  </li>`;
}

export function RunTab() {
  const { data, error } = run.value;
  if (error) return html`<${Trouble} error=${error} />`;
  if (!data) return html`<${Loading} lines=${5} />`;
  const entries = data.entries.filter((entry) => entry.op === "step" || entry.text);
  return html`<div class="run-tab">
    <p class="run-call"><code dir="auto">${visible(data.name)}(${data.arguments ? visible(argumentsOf(data.arguments).slice(0, 300)) : "…"})</code> <${RunStatus} status=${data.status} /></p>
    <h3 class="section">Steps <span>${count(entries.filter((entry) => entry.op === "step").length)}${data.cursor ? ", the newest" : ""}</span></h3>
    <ol class="run-steps">${entries.map((entry, place) => html`<${Entry} key=${`${entry.id}/${place}`} entry=${entry} />`)}</ol>
    ${data.status === "done" && html`<h3 class="section">Result</h3><${Value} value=${data.result} />`}
    ${data.error && html`<h3 class="section">Error</h3><div class="failure" role="note"><p class="trouble-title">${visible(data.error.type)}</p><p dir="auto">${visible(data.error.message)}</p></div>`}
    ${data.effects.length > 0 && html`<h3 class="section">Effects <span>of this run and its branches</span></h3>
      <ul class="run-steps">${data.effects.map((effect) => html`<li key=${effect.key + effect.thread_id}>
        <span class="entry-name" dir="auto">${visible(effect.key)}</span><${Chip} text=${effect.status} tone=${{ begun: "warn", failed: "error" }[effect.status] ?? "plain"} />
        ${effect.thread_id !== data.thread_id && html`<span class="faint" dir="auto">in ${visible(effect.thread_id)}</span>`}
        <span class="spacer"></span><time datetime=${effect.at} title=${whole(effect.at)}>${clock(effect.at)}</time></li>`)}</ul>`}
    ${data.branches.length > 0 && html`<h3 class="section">Forks</h3>
      <ul class="run-steps">${data.branches.map((branch) => html`<li key=${branch.thread_id}>
        <span class="row-kind"><${Icon} name="fork" /></span>
        <a class="entry-name" dir="auto" href=${address({ thread: branch.thread_id })} onClick=${follow(() => openThread(branch.thread_id))}>${visible(branch.name)}</a>
        <${RunStatus} status=${branch.status} /><span class="spacer"></span><${Ago} at=${branch.updated_at} /></li>`)}</ul>`}
  </div>`;
}

// -- all runs

function RunItem({ item }) {
  return html`<li class="run-item">
    <div class="run-head">
      <a class="entry-name" dir="auto" href=${address({ thread: item.thread_id })} onClick=${follow(() => openThread(item.thread_id))}>${visible(item.thread_id)}</a>
      <${RunStatus} status=${item.status} />
      <span class="spacer"></span>
      <${Ago} at=${item.updated_at} />
    </div>
    <p class="run-facts"><code dir="auto">${visible(item.name)}</code><span>${plural(item.steps, "checkpoint")}</span>${!item.waits.length && html`<span class="run-summary" dir="auto">${oneLine(item.summary)}</span>`}</p>
    ${item.waits.map((wait) => html`<${Wait} key=${wait.key} thread=${item.thread_id} wait=${wait} withDetails=${false} />`)}
  </li>`;
}

export function RunsPage() {
  const { items, cursor, isReady, error } = runs.value;
  const status = runStatus.value;
  useEffect(() => {
    loadRuns();
  }, [status]);
  return html`<main class="runs-page" aria-label="Runs">
    <div class="runs-inner">
      <h1>Runs</h1>
      <div class="run-states"><${Segments} label="State of the run" value=${status} options=${[["", "all"], ...STATES.map((name) => [name, name])]} onChange=${(name) => (runStatus.value = name)} /></div>
      ${error && html`<${Trouble} error=${error} retry=${() => loadRuns()} />`}
      ${!isReady && html`<${Loading} lines=${5} />`}
      ${isReady && !error && !items.length && html`<${Empty} title=${status ? `No run is ${status}` : "No durable runs yet"}>
        ${!status && html`<p>Functions with <code>@engine.durable</code> appear here, with their steps and what they wait for.</p>`}
      <//>`}
      <ul class="run-list">${items.map((item) => html`<${RunItem} key=${item.thread_id} item=${item} />`)}</ul>
      ${cursor && html`<p><button type="button" onClick=${() => loadRuns({ more: true })}>Show more</button></p>`}
    </div>
  </main>`;
}

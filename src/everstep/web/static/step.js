// One step: what went in, what came out, how it ended, and everything that is known about it.
import { html } from "./vendor/ui.js";
import { bytes, count, dollars, duration, json, visible, whole } from "./format.js";
import { CheckpointLink } from "./detail.js";
import { Block, Chip, CopyButton, NAMES } from "./parts.js";

const Fact = ({ name, children }) => html`<dt>${name}</dt><dd>${children}</dd>`;

const isEmpty = (value) => value == null || (typeof value === "object" && !Object.keys(value).length);

function Part({ title, value, note }) {
  if (isEmpty(value)) return null;
  const text = typeof value === "string" ? visible(value) : json(value, 2);
  return html`<h3 class="section">${title} ${note && html`<span>${note}</span>`}<span class="spacer"></span><${CopyButton} text=${() => (typeof value === "string" ? value : JSON.stringify(value, null, 2))} label=${`Copy ${title}`} /></h3>
    <${Block} text=${text} />`;
}

// What a decorated call has noted of itself has both sides; anything else is what came out.
function inAndOut(result) {
  const isCall = result && typeof result === "object" && typeof result.name === "string" && ("args" in result || "kwargs" in result);
  if (!isCall) return { input: null, output: result };
  const { name, args, kwargs, status, result: output, ...rest } = result;
  const input = isEmpty(args) ? kwargs : isEmpty(kwargs) ? args : { args, kwargs };
  return { input: isEmpty(input) ? { arguments: "none" } : input, output: isEmpty(rest) ? output : { result: output, ...rest } };
}

export function Step({ data }) {
  const error = data.error;
  const isOwn = data.tools_result_is_own;
  const { input, output } = isOwn ? inAndOut(data.tools_result) : { input: null, output: null };
  return html`<div class="step">
    ${error &&
    html`<div class="failure" role="note">
      <p class="trouble-title">${visible(error.type ?? error.kind ?? "Error")}</p>
      ${(error.message ?? error.text) && html`<p dir="auto">${visible(error.message ?? error.text)}</p>`}
      ${error.traceback && html`<${Block} text=${visible(error.traceback)} />`}
    </div>`}
    <${Part} title="Input" value=${input} note=${input ? visible(data.tools_result.name) : ""} />
    <${Part} title="Output" value=${output} note=${input ? visible(data.tools_result.status ?? "") : "tools_result"} />
    <h3 class="section">About</h3>
    <dl class="about">
      <${Fact} name="kind">${NAMES[data.kind] ?? data.kind}<//>
      ${data.trigger && html`<${Fact} name="trigger"><code>${visible(data.trigger)}</code><//>`}
      ${data.next_node && html`<${Fact} name="goes on at"><code>${visible(data.next_node)}</code><//>`}
      <${Fact} name="made">${whole(data.created_at)}<//>
      ${data.duration_ms != null && html`<${Fact} name="took">${duration(data.duration_ms)}<//>`}
      ${data.retries != null && html`<${Fact} name="retries">${count(data.retries)}<//>`}
      ${data.tokens != null && html`<${Fact} name="tokens">${count(data.tokens)}<//>`}
      ${data.cost != null && html`<${Fact} name="cost">${dollars(data.cost)}<//>`}
      <${Fact} name="size">${bytes(data.size_bytes)} as a whole${data.added_bytes != null && html`, ${bytes(data.added_bytes)} of it new`}<//>
      <${Fact} name="id"><code class="break">${data.id}</code> <${CopyButton} text=${data.id} label="Copy the id" /><//>
      <${Fact} name="thread">${visible(data.thread_id)}${data.namespace && html` · <code>${visible(data.namespace)}</code>`}<//>
      ${data.parents?.length > 0 && html`<${Fact} name=${data.parents.length > 1 ? "parents" : "parent"}>${data.parents.map((other) => html`<${CheckpointLink} to=${other} /> `)}<//>`}
      ${data.children?.length > 0 && html`<${Fact} name=${data.children.length > 1 ? "children" : "child"}>${data.children.map((other) => html`<${CheckpointLink} to=${other} /> `)}<//>`}
      ${data.tags?.length > 0 && html`<${Fact} name="tags">${data.tags.map((tag) => html`<${Chip} key=${tag} text=${tag} /> `)}<//>`}
    </dl>
    ${!isOwn && html`<${Part} title="Result of an earlier step" value=${data.tools_result} note="tools_result, carried along" />`}
    <${Part} title="Metadata" value=${data.metadata} />
    <${Part} title="Pending writes" value=${data.writes} note="of a LangGraph thread" />
  </div>`;
}

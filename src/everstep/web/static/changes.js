// What changed: against the parent, or between any two checkpoints. The server compares, this draws.
import { html, signal, useEffect, useState } from "./vendor/ui.js";
import { get, latest } from "./api.js";
import { json, plural, shortId, visible } from "./format.js";
import { address, follow, go, labelOf, named, route, rows, select } from "./model.js";
import { Block, Chip, CopyButton, Empty, IconButton, Key, Loading, LongText, Segments, Trouble, Value, Words } from "./parts.js";

const SIGNS = { added: "+", removed: "−", changed: "~", edited: "~" };
const form = signal("list");

// Steps are counted in each branch: of another one than is open, its name belongs to the number.
const numberOf = (step, thread) => `${thread === route.value.thread ? "" : `${labelOf(thread)} `}#${step ?? "?"}`;

const nameOf = (id) => {
  const row = rows.value?.rowOf(id);
  return row ? numberOf(row.step, row.thread_id) : shortId(id);
};

// What the changes are against where nobody chose anything else. A branch begins at a checkpoint of another thread.
function Parent({ data }) {
  const [parent] = data.parents;
  if (!parent) return html`<span>the first checkpoint: everything is new</span>`;
  if (parent.damaged) return html`<span>its parent is damaged</span><span class="wide-only"><${Key}>c<//> compares with another</span>`;
  if (parent.step === null) return html`<span>its parent is gone: everything is shown as new</span>`;
  const from = parent.thread_id === data.thread_id ? "" : `${labelOf(parent.thread_id)} `;
  return html`<span>against parent <${Jump} id=${parent.id}>${visible(from)}#${parent.step}<//></span><span class="wide-only"><${Key}>c<//> another</span>`;
}

const Jump = ({ id, children }) => html`<a href=${address({ ...route.value, id, vs: null })} onClick=${follow(() => select(id))}>${children}</a>`;

const inside = (path) => String(path).replace(/^(state|tools_result)\./, "");

function StateChange({ change }) {
  const { op, path, before, after, words } = change;
  return html`<div class=${`change ${op}`}>
    <span class="sign" aria-label=${op}>${SIGNS[op]}</span>
    <span class="path" dir="auto">${visible(inside(path))}</span>
    <span class="change-value">
      ${words
        ? html`<${Words} words=${words} />`
        : html`${op !== "added" && html`<del><${Value} value=${before} /></del>`} ${op !== "removed" && html`<ins><${Value} value=${after} /></ins>`}`}
    </span>
    <${Tools} change=${change} />
  </div>`;
}

const Tools = ({ change: { op, path, before, after } }) => html`<span class="change-tools">
  <${CopyButton} text=${path} label="Copy the path" />
  <${CopyButton} icon="paste" text=${() => JSON.stringify(op === "removed" ? before : after)} label="Copy the value" />
</span>`;

function SideBySide({ changes }) {
  return html`<table class="sides">
    <thead><tr><th scope="col">path</th><th scope="col">before</th><th scope="col">after</th></tr></thead>
    <tbody>
      ${changes.map(
        ({ op, path, before, after }) => html`<tr key=${path} class=${op}>
          <th scope="row" class="mono" dir="auto"><span class="sign" aria-label=${op}>${SIGNS[op]}</span> ${visible(inside(path))}
            <${Tools} change=${{ op, path, before, after }} /></th>
          <td>${op === "added" ? html`<span class="faint">nothing</span>` : html`<del><${Value} value=${before} /></del>`}</td>
          <td>${op === "removed" ? html`<span class="faint">nothing</span>` : html`<ins><${Value} value=${after} /></ins>`}</td>
        </tr>`,
      )}
    </tbody>
  </table>`;
}

const textOf = (message) => {
  const content = message?.content ?? message?.text ?? message;
  if (typeof content === "string") return content;
  if (content && typeof content === "object" && "$cut" in content) return `${content.text}…`;
  if (Array.isArray(content)) {
    const texts = content.filter((part) => typeof part?.text === "string").map((part) => part.text);
    if (texts.length) return texts.join("\n");
  }
  return json(content);
};

// Some models write arguments as a text of JSON: they are shown as what they mean.
function argumentsOf(call) {
  let args = call.args ?? call.arguments ?? call.function?.arguments ?? call.input ?? {};
  if (typeof args === "string") {
    try {
      args = JSON.parse(args);
    } catch {
      return visible(args);
    }
  }
  return json(args).replace(/^\{|\}$/g, "");
}

const OPS = { added: "added", removed: "removed", changed: "edited", edited: "edited" };

function MessageChange({ change }) {
  const { op, role, index, before, after, words } = change;
  const message = op === "removed" ? before : after;
  const calls = message?.tool_calls ?? (message?.tool_call ? [message.tool_call] : []);
  return html`<div class=${`message ${role} ${op}`}>
    <div class="who">
      <span class="sign" aria-hidden="true">${SIGNS[op]}</span><span>${visible(role || "message")}</span>${message?.name && html`<span>${visible(message.name)}</span>`}
      ${index != null && html`<span class="faint">${index + 1}</span>`}
      <${Chip} text=${OPS[op]} tone=${op === "added" ? "added" : op === "removed" ? "removed" : "plain"} />
    </div>
    ${words ? html`<${Words} words=${words} />` : html`<${LongText} text=${textOf(message)} mono=${role === "tool"} />`}
    ${Array.isArray(calls) &&
    calls.map((call) => html`<div class="call-line mono">${visible(call.name ?? call.function?.name ?? "call")}(${argumentsOf(call)})</div>`)}
  </div>`;
}

function counted(changes) {
  const counts = {};
  for (const { op } of changes) counts[OPS[op]] = (counts[OPS[op]] ?? 0) + 1;
  return Object.entries(counts).map(([op, n]) => `${n} ${op}`).join(", ");
}

const Section = ({ title, changes, shape }) => changes.length > 0 && html`${title && html`<h3 class="section">${title} <span>${counted(changes).replace("edited", "changed")}</span></h3>`}
  ${shape === "sides" ? html`<${SideBySide} changes=${changes} />` : changes.map((change) => html`<${StateChange} key=${change.path} change=${change} />`)}`;

// `shape`: as a list, side by side or as a patch; as somebody has chosen, where there is something to choose.
export function ChangeList({ found, shape = "list" }) {
  const values = found.state ?? [];
  const messages = found.messages ?? [];
  const state = values.filter((change) => !change.path.startsWith("tools_result"));
  const results = values.filter((change) => change.path.startsWith("tools_result"));
  if (!values.length && !messages.length) return html`<${Empty} title="No difference"><p>State, messages and results are the same.</p><//>`;
  if (shape === "patch" && !found.patch) return html`<${Empty} title="Too large to show"><p>The patch has ${plural(found.patch_operations ?? 0, "operation")}. The command prints all of it: <code>everstep diff --patch</code></p><//>`;
  if (shape === "patch") return html`<div class="patch"><${CopyButton} text=${() => JSON.stringify(found.patch, null, 2)} label="Copy the patch" /><${Block} text=${json(found.patch, 2)} /></div>`;
  return html`
    <${Section} title="State" changes=${state} shape=${shape} />
    ${messages.length > 0 &&
    html`<h3 class="section">Messages <span>${counted(messages)}</span></h3>
      ${messages.map((change, number) => html`<${MessageChange} key=${number} change=${change} />`)}`}
    ${results.length > 0 && (state.length || messages.length)
      ? html`<details class="results"><summary>Results <span>${counted(results).replace("edited", "changed")}</span></summary><${Section} title="" changes=${results} shape=${shape} /></details>`
      : html`<${Section} title="Results" changes=${results} shape=${shape} />`}
    ${found.more && html`<p class="hint">More was changed than is shown here.</p>`}
  `;
}

export const FormSwitch = () => html`<${Segments}
  label="How to show changes"
  value=${form.value}
  options=${[["list", "List"], ["sides", "Side by side"], ["patch", "Patch"]]}
  onChange=${(next) => (form.value = next)}
/>`;

const call = latest();

export function Changes({ data }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const vs = route.value.vs;
  const isChoosing = vs === data.id;
  const isAgainstDamage = !vs && Boolean(data.parents[0]?.damaged);
  useEffect(() => {
    setError(null);
    if (isChoosing || isAgainstDamage) return;
    const { ref: a, thread } = vs ? named(vs) : { ref: null };
    call((stop) => get("compare", { a, b: data.ref, thread }, stop))
      .then((answer) => answer && setFound({ ...answer, of: data.id, vs }))
      .catch(setError);
  }, [data.id, vs]);
  const isCurrent = found && found.of === data.id && found.vs === vs;
  return html`<div class="changes">
    <div class="changes-top">
      ${!vs && html`<${Parent} data=${data} />`}
      ${vs && isChoosing && html`<span class="choosing">Choose another row to compare <b>${visible(nameOf(vs))}</b> with.</span><button type="button" class="small narrow-only" onClick=${() => go({ id: null })}>Show the rows</button>`}
      ${vs && !isChoosing &&
      html`<span>from <${Jump} id=${vs}>${visible(nameOf(vs))}<//> to <b dir="auto">${visible(numberOf(data.step, data.thread_id))}</b></span>
        <${IconButton} icon="swap" label="The other way round" className="quiet" onClick=${() => go({ id: vs, vs: data.id })} />`}
      ${vs && html`<${IconButton} icon="close" label="Compare with the parent again" className="quiet" onClick=${() => go({ vs: null })} />`}
      <span class="spacer"></span>
      ${!isChoosing && html`<${FormSwitch} />`}
    </div>
    ${error && html`<${Trouble} error=${error} />`}
    ${isAgainstDamage && html`<${Empty} title="Nothing to compare with"><p>Its parent cannot be read, so nobody can tell what changed. Compare it with another row.</p><//>`}
    ${!isChoosing && !isAgainstDamage && !error && !found && html`<${Loading} lines=${4} />`}
    ${!isChoosing && !isAgainstDamage && !error && found && html`<div class=${isCurrent ? "" : "old"}><${ChangeList} found=${found} shape=${form.value} /></div>`}
  </div>`;
}


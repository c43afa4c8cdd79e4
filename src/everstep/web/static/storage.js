// What the store holds and takes, and what retention would remove.
import { html, useEffect, useMemo, useState } from "./vendor/ui.js";
import { get, post } from "./api.js";
import { bytes, count, plural, python, visible } from "./format.js";
import {
  address, canWrite, complain, dialog, family, follow, info, isTooLongToSize, labelOf, leaveSize, loadThreads, openThread, say, sizes, threads, wantSize,
} from "./model.js";
import { AsCode, everstep, inPython } from "./code.js";
import { Chip, Damage, Loading, Trouble } from "./parts.js";

const Figure = ({ label, value, note }) => html`<div class="figure"><span class="figure-value">${value}</span><span class="figure-label">${label}</span>${note && html`<span class="figure-note">${note}</span>`}</div>`;

function Bar({ parts }) {
  const total = parts.reduce((sum, [, size]) => sum + size, 0);
  if (!total) return null;
  return html`<div class="size-bar" role="img" aria-label=${parts.map(([name, size]) => `${name} ${bytes(size)}`).join(", ")}>
      ${parts.map(([name, size, tone]) => html`<span key=${name} class=${tone} style=${{ flexGrow: size }}></span>`)}
    </div>
    <ul class="legend">${parts.map(([name, size, tone]) => html`<li key=${name}><span class=${`swatch ${tone}`}></span>${name} <b>${bytes(size)}</b></li>`)}</ul>`;
}

const NAMED_MAX = 4;
const POLICIES = [["keep_last_n", "the newest of each thread"], ["keep_age", "the newer ones"], ["keep_milestones", "milestones, spread over the history"], ["keep_all", "all; remove only what nothing needs"]];

export function Sizes({ thread = null }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const [plan, setPlan] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const [policy, setPolicy] = useState("keep_last_n");
  const [param, setParam] = useState(100);
  const load = () => get("storage", { thread }).then(setFound).catch(setError);
  useEffect(() => {
    load();
  }, [thread]);
  const kept = policy === "keep_all" ? {} : { param: Math.round(policy === "keep_age" ? param * 86400 : param) };
  const asked = { ...(thread ? { thread } : {}), policy, ...kept };
  const collect = async (dryRun) => {
    setBusy(true);
    try {
      const report = await post("collect", { ...asked, dry_run: dryRun });
      if (dryRun) setPlan(report);
      else {
        setPlan(null);
        say(`Removed ${plural(report.checkpoints, "checkpoint")}, about ${bytes(report.size_bytes)}.`);
        await load();
      }
    } catch (failure) {
      complain(failure);
    }
    setBusy(false);
  };
  // A store that is damaged cannot always be measured, and this is where one comes to find that out.
  if (error) return html`<div class="sizes"><${Trouble} error=${error} retry=${() => (setError(null), load())} /><${Health} thread=${thread} /></div>`;
  if (!found) return html`<${Loading} lines=${5} />`;
  const stored = found.total_bytes ?? 0;
  const full = found.full_bytes ?? found.full_copies_bytes ?? 0;
  return html`<div class="sizes">
    ${found.damage && html`<${Damage} title="Not all of this can be measured" damage=${found.damage} />`}
    <div class="figures">
      ${!thread && html`<${Figure} label=${found.threads === 1 ? "thread" : "threads"} value=${count(found.threads)} />`}
      <${Figure} label="checkpoints" value=${count(found.checkpoints)} />
      <${Figure} label="stored" value=${bytes(stored)} />
      ${full > 0 && html`<${Figure} label="as full copies" value=${bytes(full)} note=${stored ? `${(full / stored).toFixed(1)} times as much` : ""} />`}
    </div>
    <${Bar} parts=${[["checkpoints", found.record_bytes ?? 0, "t0"], ["values", found.exclusive_bytes ?? 0, "t1"], ["shared with branches", found.shared_bytes ?? 0, "t2"], ["pending writes", found.write_bytes ?? 0, "t3"]].filter(([, size]) => size)} />
    <${Threads} thread=${thread} />
    <h3 class="section">Retention</h3>
    <div class="retention">
      <label class="field">Keep
        <select value=${policy} onChange=${(event) => (setPolicy(event.target.value), setPlan(null))}>${POLICIES.map(([name, text]) => html`<option key=${name} value=${name} selected=${name === policy}>${text}</option>`)}</select></label>
      ${policy !== "keep_all" && html`<label class="field">${policy === "keep_age" ? "Days" : "How many"}
        <input type="number" min=${policy === "keep_milestones" ? 2 : 1} step=${policy === "keep_age" ? "any" : 1} value=${param} onInput=${(event) => (setParam(Number(event.target.value)), setPlan(null))} /></label>`}
      <button type="button" disabled=${isBusy || !(param > 0)} onClick=${() => collect(true)}>What would go?</button>
    </div>
    <p role="status">${plan
      ? plan.checkpoints || plan.objects
        ? html`It would remove <b>${plural(plan.checkpoints, "checkpoint")}</b>${plan.hidden ? `, ${count(plan.hidden)} of them hidden` : ""}, about <b>${bytes(plan.size_bytes)}</b>. This cannot be undone; what is pinned stays.`
        : "There is nothing to remove."
      : canWrite.value ? "Nothing is removed before you have seen what would go." : "This page removes nothing: it can only tell what would go."}</p>
    <${AsCode}
      command=${everstep(`retention ${canWrite.value ? "apply" : "plan"} --policy ${policy}${"param" in kept ? ` --keep ${kept.param}` : ""}`, ...(thread ? [thread] : []))}
      python=${inPython(`engine.collect(${[thread && python(thread), !canWrite.value && "dry_run=True"].filter(Boolean).join(", ")})`, { result: canWrite.value ? "" : "report", config: `everstep.SnapshotConfig(gc_policy=${python(policy)}${"param" in kept ? `, gc_param=${kept.param}` : ""})` })}
      path="collect"
      body=${{ ...asked, dry_run: !canWrite.value }}
    />
    ${canWrite.value && html`<div class="actions">
      ${plan && (plan.checkpoints > 0 || plan.objects > 0) && html`<button type="button" class="danger" disabled=${isBusy} onClick=${() => collect(false)}>Remove ${plural(plan.checkpoints, "checkpoint")}</button>`}</div>`}
    <${Health} thread=${thread} />
  </div>`;
}

// What each thread takes, the longest first, since sizes come later: its own bytes, and how many times as much full
// copies would take.
function Shares({ items }) {
  useEffect(() => {
    for (const item of items) wantSize(item, "shares");
    return () => items.forEach((item) => leaveSize(item.thread_id, "shares"));
  }, [items]);
  const sized = items.map((item) => ({ ...item, ...(sizes.value[item.thread_id] ?? {}) }));
  const most = Math.max(1, ...sized.map((item) => item.bytes ?? 0));
  return html`<table class="shares">
    <thead><tr><th scope="col">Thread</th><th scope="col">Steps</th><th scope="col">Stored</th><th scope="col" title="What full copies would take, against what is stored">Copies</th><th></th></tr></thead>
    <tbody>
      ${sized.toSorted((a, b) => b.steps - a.steps).map((item) => html`<tr key=${item.thread_id}>
        <th scope="row"><a href=${address({ thread: item.thread_id })} dir="auto" title=${visible(item.thread_id)} onClick=${follow(() => ((dialog.value = null), openThread(item.thread_id)))}>${visible(item.name)}</a></th>
        <td>${count(item.steps)}</td>
        <td>${item.bytes == null && isTooLongToSize(item) ? html`<button type="button" class="link" onClick=${() => wantSize(item, "shares", { isAsked: true })}>measure</button>` : bytes(item.bytes)}</td>
        <td>${item.bytes && item.full ? `${(item.full / item.bytes).toFixed(1)} ×` : ""}</td>
        <td>${item.bytes != null && html`<span class="share" style=${{ width: `${((item.bytes ?? 0) / most) * 100}%` }}></span>`}</td>
      </tr>`)}
    </tbody>
  </table>`;
}

// Of a store the threads that are loaded, of a thread its family.
function Threads({ thread = null }) {
  const { items, cursor } = threads.value;
  const list = useMemo(
    () => (thread ? family.value.items.map((item) => ({ ...item, steps: item.step, head: item.id })) : items),
    [thread, items, family.value],
  );
  if (list.length < 2) return null;
  return html`<h3 class="section">${thread ? "Branches" : "Threads"} ${!thread && cursor && html`<span>the ${count(list.length)} that were active last</span>`}</h3>
    <${Shares} items=${list} />
    ${!thread && cursor && html`<p><button type="button" class="small" onClick=${() => loadThreads({ more: true })}>Show more threads</button></p>`}`;
}

// One damage may be met by all that rests on it: what is told in the same words is told once.
function grouped(findings) {
  const groups = new Map();
  for (const { kind, what, thread_id: thread, threads: others } of findings) {
    const key = JSON.stringify([kind, what]);
    const group = groups.get(key) ?? { kind, what, count: 0, names: new Set() };
    group.count++;
    for (const name of [thread, ...others]) if (name) group.names.add(name);
    groups.set(key, group);
  }
  return [...groups.values()];
}

// Something that is wrong, how often, and the threads that it touches.
function Wrong({ one }) {
  const names = [...one.names];
  return html`<li><${Chip} text=${one.count > 1 ? `${one.kind} × ${count(one.count)}` : one.kind} tone="error" /> ${names.slice(0, NAMED_MAX).map((name) => html`<a key=${name} href=${address({ thread: name })} dir="auto" title=${visible(name)} onClick=${follow(() => ((dialog.value = null), openThread(name)))}>${visible(labelOf(name))}</a> `)}
    ${names.length > NAMED_MAX && html`<span class="faint">and ${plural(names.length - NAMED_MAX, "more thread", "more threads")} </span>`}<span dir="auto">${visible(one.what)}</span></li>`;
}

// Every byte looked at once: nothing is changed by it.
function Health({ thread = null }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const check = () => {
    setBusy(true);
    setError(null);
    get("verify", { thread }).then(setFound).catch(setError).finally(() => setBusy(false));
  };
  return html`<h3 class="section">Health</h3>
    ${error && html`<${Trouble} error=${error} />`}
    <p role="status">${found
      ? found.ok
        ? html`<b class="good">All is as it was written:</b> ${plural(found.checkpoints, "checkpoint")}, ${plural(found.objects, "object")}, ${bytes(found.bytes)} read.`
        : html`<b class="bad">${plural(found.findings.length + found.more, "thing")} wrong.</b> <code>everstep repair --dry-run</code> tells what can be saved.`
      : "Looks at every hash, checksum and reference. It reads all that is stored."}</p>
    ${found && !found.ok && html`<ul class="findings">${grouped(found.findings).map((one, number) => html`<${Wrong} key=${number} one=${one} />`)}${found.more > 0 && html`<li>and ${count(found.more)} more</li>`}</ul>`}
    <div class="actions"><button type="button" disabled=${isBusy} onClick=${check}>${isBusy ? "Looking…" : "Verify now"}</button></div>`;
}

export const StoragePage = () => html`<main class="storage-page" aria-label="Storage">
  <div class="storage-inner"><h1>Storage</h1><p class="mono store-name">${info.value?.store}</p><${Sizes} />
    ${canWrite.value && html`<h3 class="section">Files</h3>
      <p>The menu of a thread exports it, with its branches, as one file. Such a file can be brought into any store.</p>
      <div class="actions"><button type="button" onClick=${() => (dialog.value = { name: "import" })}>Import a file…</button></div>`}
  </div>
</main>`;

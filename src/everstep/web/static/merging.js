// Merges: what comes over by itself, what both sides changed, a decision for each, and the outcome before it is saved.
import { html, useEffect, useMemo, useState } from "./vendor/ui.js";
import { get, latest, post } from "./api.js";
import { piped, plural, python, quoteShell, shortId, threadIn, visible } from "./format.js";
import { complain, dialog, family, labelOf, openThread, renew, route, rows, say, select, undo } from "./model.js";
import { ChangeList } from "./changes.js";
import { AsCode, everstep, inPython } from "./code.js";
import { Chip, Dialog, Empty, Loading, Trouble, Value } from "./parts.js";

const call = latest();
const isMissing = (value) => value === undefined || (value && typeof value === "object" && value.$type === "missing");

// Both lists: ours, then what theirs has and ours does not.
function both(ours, theirs) {
  const known = new Set(ours.map((item) => JSON.stringify(item)));
  return [...ours, ...theirs.filter((item) => !known.has(JSON.stringify(item)))];
}

function decided(conflict, choice) {
  if (!choice) return undefined;
  if (choice.kind === "ours") return conflict.ours;
  if (choice.kind === "theirs") return conflict.theirs;
  if (choice.kind === "both") return both(conflict.ours, conflict.theirs);
  try {
    return JSON.parse(choice.text);
  } catch {
    return undefined;
  }
}

const Side = ({ value }) => (isMissing(value) ? html`<span class="faint">removed</span>` : html`<${Value} value=${value} />`);

function ConflictBox({ conflict, choice, onChoose, names }) {
  const { path, base, ours, theirs } = conflict;
  const isLists = Array.isArray(ours) && Array.isArray(theirs);
  const isBad = choice?.kind === "edit" && decided(conflict, choice) === undefined;
  const text = choice?.text ?? JSON.stringify(isMissing(ours) ? theirs : ours, null, 2); // another value begins as one of theirs
  const option = (kind, label, content) => html`<label class=${`side ${choice?.kind === kind ? "on" : ""}`}>
    <span class="side-head"><input type="radio" name=${`conflict-${path}`} checked=${choice?.kind === kind} onChange=${() => onChoose({ kind, text })} /> ${label}</span>
    <span class="side-value">${content}</span>
  </label>`;
  return html`<fieldset class=${`conflict ${choice && !isBad ? "settled" : ""}`}>
    <legend class="mono" dir="auto">${visible(path)}</legend>
    <div class="conflict-base"><span class="faint">was</span> ${isMissing(base) ? html`<span class="faint">not there</span>` : html`<${Side} value=${base} />`}</div>
    <div class="sides-grid">
      ${option("ours", html`ours <span class="faint">${visible(labelOf(names.into))}</span>`, html`<${Side} value=${ours} />`)}
      ${option("theirs", html`theirs <span class="faint">${visible(labelOf(names.source))}</span>`, html`<${Side} value=${theirs} />`)}
      ${isLists && option("both", "both, one after the other", html`<${Value} value=${both(ours, theirs)} />`)}
      ${option(
        "edit",
        "another value",
        choice?.kind === "edit" &&
          html`<textarea class="mono" rows="3" aria-label=${`A value for ${path}, as JSON`} aria-invalid=${isBad} spellcheck="false" value=${choice.text} onInput=${(event) => onChoose({ kind: "edit", text: event.target.value })}></textarea>
            ${isBad && html`<span class="editor-problem">not valid JSON</span>`}`,
      )}
    </div>
  </fieldset>`;
}

// What one most likely wants: from a branch that is open into where it came from, else from another into what is open.
function usual(given, names) {
  const open = route.value.thread;
  const origin = threadIn(family.value.items.find((item) => item.thread_id === open)?.origin);
  if (!given && names.includes(origin)) return { source: open, into: origin };
  const others = family.value.items.filter((item) => item.thread_id !== open);
  const [latest] = others.toSorted((a, b) => a.archived - b.archived || Date.parse(b.updated_at) - Date.parse(a.updated_at));
  return { source: given ?? latest?.thread_id ?? "", into: open };
}

export function Merge({ source: given = null }) {
  const isKnown = family.value.thread === route.value.thread;
  const names = family.value.items.map((item) => item.thread_id);
  const [chosen, setChosen] = useState(null);
  const { source, into } = chosen ?? usual(given, names); // the family may come later than this window
  const [plan, setPlan] = useState(null);
  const [error, setError] = useState(null);
  const [choices, setChoices] = useState({});
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    setPlan(null);
    setError(null);
    setChoices({});
    if (!source || !into || source === into) return;
    call((stop) => get("merge", { source, into }, stop)).then((found) => found && setPlan(found)).catch(setError);
  }, [source, into]);
  // Whoever chooses the other side for one means both the other way round.
  const choose = (change) => {
    const next = { source, into, ...change };
    setChosen(next.source === next.into ? { source: into, into: source } : next);
  };
  const conflicts = plan?.conflicts ?? [];
  const open = conflicts.filter((conflict) => decided(conflict, choices[conflict.path]) === undefined);
  const isDone = plan && !plan.up_to_date && !open.length;
  const outcome = useMemo(() => withChoices(plan, choices), [plan, choices]);
  const chooseAll = (kind) => setChoices(Object.fromEntries(conflicts.map((conflict) => [conflict.path, { kind }])));

  const settled = conflicts.filter((conflict) => !open.includes(conflict));
  const resolve = Object.fromEntries(settled.map((conflict) => {
    const choice = choices[conflict.path];
    return [conflict.path, choice.kind === "edit" ? { value: decided(conflict, choice) } : { take: choice.kind }];
  }));
  const values = Object.fromEntries(settled.map((conflict) => [conflict.path, decided(conflict, choices[conflict.path])]));
  const words = `merge --into ${quoteShell(into)}`;
  const command = settled.length ? piped(resolve, everstep(`${words} --resolve -`, source)) : everstep(words, source);
  const body = { source, into, ...(settled.length ? { resolve } : {}) };
  const send = async () => {
    setBusy(true);
    try {
      const done = await post("merge", body);
      dialog.value = null;
      if (route.peek().thread !== into) openThread(into);
      say(`Merged ${labelOf(source)} into ${labelOf(into)}${conflicts.length ? `, ${plural(conflicts.length, "conflict")} settled` : ""}.`, { undo: () => undo(into) });
      await renew();
      select(done.id);
    } catch (failure) {
      setBusy(false);
      if (failure.code === "head_moved") complain(failure);
      setError(failure);
    }
  };
  const picker = (label, value, onChange) => html`<label class="field">${label}
    <select value=${value} onChange=${(event) => onChange(event.target.value)}>${names.map((name) => html`<option key=${name} value=${name} selected=${name === value} title=${name}>${visible(labelOf(name))}</option>`)}</select></label>`;
  if (!isKnown) return html`<${Dialog} title="Merge" wide=${true}><${Loading} lines=${5} /><//>`;
  if (names.length < 2) {
    return html`<${Dialog} title="Merge"><${Empty} title="Nothing to merge"><p>This thread has no branches. Fork it first.</p><//><//>`;
  }
  return html`<${Dialog}
    title="Merge"
    wide=${true}
    footer=${html`<span class="foot-note">${plan && conflicts.length > 0 && (open.length ? `${plural(open.length, "conflict")} to decide` : "all conflicts are decided")}</span>
      <span class="spacer"></span><button type="button" onClick=${() => (dialog.value = null)}>Cancel</button>
      <button type="button" class="primary" disabled=${!isDone || isBusy} onClick=${send}>Merge</button>`}
  >
    <div class="pickers">${picker("Take what was done in", source, (name) => choose({ source: name }))}<span class="into" aria-hidden="true">→</span>${picker("and put it into", into, (name) => choose({ into: name }))}</div>
    ${error && html`<${Trouble} error=${error} />`}
    ${!plan && !error && html`<${Loading} lines=${5} />`}
    ${plan?.up_to_date && html`<${Empty} title="Nothing to merge"><p><b dir="auto">${visible(labelOf(into))}</b> has all of <b dir="auto">${visible(labelOf(source))}</b> already.</p><//>`}
    ${plan && !plan.up_to_date &&
    html`<p>${plan.base?.length > 0 && html`Both came from <code>${baseName(plan.base)}</code>. `}${plan.auto ? html`<b>${plural(plan.auto, "change")}</b> ${plan.auto === 1 ? "comes" : "come"} over by ${plan.auto === 1 ? "itself" : "themselves"}. ` : ""}${conflicts.length
      ? html`<b>${plural(conflicts.length, "path")}</b> ${conflicts.length === 1 ? "was" : "were"} changed on both sides: decide.`
      : "Nothing was changed on both sides."}</p>
      ${conflicts.length > 1 && html`<div class="actions"><button type="button" class="small" onClick=${() => chooseAll("ours")}>All ours</button><button type="button" class="small" onClick=${() => chooseAll("theirs")}>All theirs</button></div>`}
      ${conflicts.map((conflict) => html`<${ConflictBox} key=${conflict.path} conflict=${conflict} choice=${choices[conflict.path]} names=${{ source, into }} onChoose=${(choice) => setChoices({ ...choices, [conflict.path]: choice })} />`)}
      <h3 class="section">Outcome <span>against ${visible(labelOf(into))} as it is now</span></h3>
      <div><${ChangeList} found=${outcome} /></div>`}
    <${AsCode}
      command=${command}
      python=${inPython(`engine.merge_branch(${python(source)}, ${python(into)}${settled.length ? `, resolve=${python(values)}` : ""})`)}
      path="merge"
      body=${body}
    />
  <//>`;
}

const baseName = (base) => base.map((one) => {
  const row = rows.value?.rowOf(one.id);
  return row ? `#${row.step}` : shortId(one.id);
}).join(", ");

// What the merge will change, with the decisions so far.
function withChoices(plan, choices) {
  if (!plan) return { state: [], messages: [], patch: [] };
  const result = plan.result ?? {};
  const paths = new Set((plan.conflicts ?? []).map((conflict) => conflict.path));
  const state = (result.state ?? []).filter((change) => !paths.has(change.path));
  for (const conflict of plan.conflicts ?? []) {
    const value = decided(conflict, choices[conflict.path]);
    if (value === undefined || JSON.stringify(value) === JSON.stringify(conflict.ours)) continue;
    const op = isMissing(value) ? "removed" : isMissing(conflict.ours) ? "added" : "changed";
    state.push({ op, path: conflict.path, before: conflict.ours, after: value, words: null });
  }
  return { ...result, state, messages: result.messages ?? [] };
}

export { Chip };

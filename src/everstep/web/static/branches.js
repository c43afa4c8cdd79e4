// The branches of a family: open one, compare two, give one another name, put one away.
import { html, useState } from "./vendor/ui.js";
import { python, visible } from "./format.js";
import { TAKEN, address, archive, branchCalled, canWrite, dialog, family, follow, go, labelOf, openThread, rename, route, rows } from "./model.js";
import { AsCode, everstep, inPython } from "./code.js";
import { Ago, Chip, Dialog, IconButton, Loading } from "./parts.js";

const close = () => (dialog.value = null);

// The lane of a branch, as far as its head is among the rows that are here.
const laneOf = (branch) => rows.value?.rowOf(branch.id)?.lane ?? 0;

function Item({ branch, chosen, onChoose }) {
  const { thread_id: thread, id, step, updated_at: when, archived, is_branch: isBranch } = branch;
  const isOpen = thread === route.value.thread;
  return html`<li>
    <span class=${`lane-mark lane-${laneOf(branch) % 6}`} aria-hidden="true"></span>
    <a href=${address({ thread })} dir="auto" title=${visible(thread)} onClick=${follow(() => (openThread(thread), close()))}>${visible(branch.name)}</a>
    <span class="faint">#${step} · <${Ago} at=${when} /></span>${isOpen && html`<${Chip} text="open" />`}${archived && html`<${Chip} text="archived" />`}<span class="spacer"></span>
    ${canWrite.value && isBranch && html`<${IconButton} icon="edit" label=${`Rename or archive ${branch.name}`} className="quiet" onClick=${() => (dialog.value = { name: "branch", thread })} />`}
    ${canWrite.value && !isOpen && html`<button type="button" class="small" onClick=${() => (dialog.value = { name: "merge", source: thread })}>Merge…</button>`}
    <button type="button" class="small" aria-pressed=${chosen?.id === id} onClick=${() => onChoose(branch)}>Compare</button>
  </li>`;
}

export function Branches() {
  const { thread, items } = family.value;
  const [first, setFirst] = useState(null);
  const choose = (branch) => {
    if (!first) return setFirst(branch);
    if (first.id !== branch.id) {
      go({ id: branch.id, vs: first.id, tab: "changes" });
      close();
    }
    return null;
  };
  const shown = [...items.filter((item) => !item.archived), ...items.filter((item) => item.archived)];
  return html`<${Dialog} title="Branches">
    <p>${first ? html`Compare the head of <b dir="auto">${visible(first.name)}</b> with…` : "Open a branch, or choose two to compare what they hold, and what was said in each."}</p>
    ${thread !== route.value.thread && html`<${Loading} lines=${3} />`}
    <ul class="branches family">${shown.map((branch) => html`<${Item} key=${branch.thread_id} branch=${branch} chosen=${first} onChoose=${choose} />`)}</ul>
  <//>`;
}

// One branch: what it is called, and whether lists show it.
export function Branch({ thread }) {
  const branch = family.value.items.find((item) => item.thread_id === thread);
  const [name, setName] = useState(branch?.name ?? labelOf(thread));
  const [isBusy, setBusy] = useState(false);
  const wanted = name.trim();
  const isArchived = Boolean(branch?.archived);
  const isNew = wanted !== branch?.name;
  const isTaken = isNew && Boolean(branchCalled(wanted));
  const act = async (work) => {
    setBusy(true);
    if (await work()) close();
    else setBusy(false);
  };
  const renaming = {
    command: everstep("branch rename", thread, wanted),
    python: inPython(`engine.rename_branch(${python(thread)}, ${python(wanted)})`),
    path: "rename",
    body: { thread, name: wanted },
  };
  const archiving = {
    command: everstep(isArchived ? "branch unarchive" : "branch archive", thread),
    python: inPython(`engine.${isArchived ? "unarchive" : "archive"}_branch(${python(thread)})`),
    path: "archive",
    body: { thread, archived: !isArchived },
  };
  return html`<${Dialog}
    title="Branch"
    footer=${html`<button type="button" disabled=${isBusy} onClick=${() => act(() => archive(thread, !isArchived))}>${isArchived ? "Put it back into lists" : "Archive"}</button>
      <span class="spacer"></span><button type="button" onClick=${close}>Cancel</button>
      <button type="submit" form="branch-form" class="primary" disabled=${isBusy || !isNew || isTaken}>Rename</button>`}
  >
    <form
      id="branch-form"
      onSubmit=${(event) => {
        event.preventDefault();
        if (isNew && !isTaken && !isBusy) act(() => rename(thread, wanted));
      }}
    >
      <label class="field">Name
        <input type="text" maxlength="200" spellcheck="false" autocomplete="off" autofocus aria-invalid=${isTaken} aria-describedby="branch-name" value=${name} onInput=${(event) => setName(event.target.value)} /></label>
      <p class="editor-problem name-problem" id="branch-name" role="status">${isTaken && TAKEN}</p>
      <p class="faint">Its thread keeps the id <code class="break">${visible(thread)}</code>. Without a name it has the one that it was made with again.</p>
      <p class="faint">An archived branch is left out of lists. Nothing else changes: it can be read, merged and gone on with.</p>
    </form>
    <${AsCode} ...${isNew ? renaming : archiving} />
  <//>`;
}

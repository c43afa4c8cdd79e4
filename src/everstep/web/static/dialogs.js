// The windows over the page: rewind, copy as, operations, tags, notes, keys.
import { html, useEffect, useRef, useState } from "./vendor/ui.js";
import { get } from "./api.js";
import { clock, oneLine, plural, python, visible, whole } from "./format.js";
import { address, canWrite, describe, dialog, family, labelOf, note, pin, redo, remove, rewindTo, route, rows, tag, undo } from "./model.js";
import { AsCode, Command, everstep, inPython, ReachNote, shown, TokenNote } from "./code.js";
import { Chip, Dialog, Empty, Icon, Key, Loading, Trouble } from "./parts.js";
import { Branch, Branches } from "./branches.js";
import { Fork } from "./editing.js";
import { Import } from "./importing.js";
import { Merge } from "./merging.js";
import { Sizes } from "./storage.js";
import { KEYS } from "./keys.js";
import { Timing } from "./timing.js";

const close = () => (dialog.value = null);

function useFetched(path, query, again) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    const stop = new AbortController();
    get(path, query, stop.signal)
      .then(setFound)
      .catch((failure) => failure.name !== "AbortError" && setError(failure));
    return () => stop.abort();
  }, [again]);
  return [found, error];
}

function Rewind({ data }) {
  const [plan, error] = useFetched("rewind", { ref: data.ref });
  const [isBusy, setBusy] = useState(false);
  const number = plan?.hidden ?? 0;
  const list = plan?.which ?? [];
  const button = useRef(null);
  useEffect(() => button.current?.focus(), [Boolean(plan)]); // it cannot have the focus before it can be pressed
  const send = async () => {
    setBusy(true);
    const done = await rewindTo(data, plan);
    if (done) close();
    else setBusy(false);
  };
  return html`<${Dialog}
    title=${`Rewind to #${data.step}`}
    footer=${html`<span class="spacer"></span><button type="button" onClick=${close}>Cancel</button><button type="button" class="primary" ref=${button} disabled=${!plan || isBusy} onClick=${send}>Rewind</button>`}
  >
    ${error && html`<${Trouble} error=${error} />`}
    ${!plan && !error && html`<${Loading} lines=${2} />`}
    ${plan &&
    html`<p><b dir="auto" title=${visible(data.thread_id)}>${visible(labelOf(data.thread_id))}</b> goes on from step ${data.step}. ${number
        ? html`<b>${plural(number, "later step")}</b> will be hidden. Nothing is deleted: undo brings ${number === 1 ? "it" : "them"} back, and ${number === 1 ? "it stays" : "they stay"} readable by id.`
        : "Nothing comes after it, so nothing is hidden."}</p>
      ${list.length > 0 &&
      html`<ul class="plain-list">
        ${list.slice(0, 6).map((row) => html`<li key=${row.id}><span class="faint">#${row.step}</span> <span dir="auto">${oneLine(rows.value?.rowOf(row.id)?.title ?? row.title ?? row.id)}</span></li>`)}
        ${number > 6 && html`<li class="faint">and ${plural(number - Math.min(6, list.length), "more", "more")}</li>`}
      </ul>`}`}
    <${AsCode}
      command=${everstep("rewind", data.copy.ref)}
      python=${inPython(`engine.rewind(${python(data.id)}, thread_id=${python(data.thread_id)})`)}
      path="rewind"
      body=${{ ref: data.ref }}
    />
  <//>`;
}

// A command that works as it is: with the address of this server.
const curl = (text) => String(text).replace("$EVERSTEP_URL", new URL(document.baseURI).href.replace(/\/$/, ""));

function Copy({ data }) {
  const texts = data.copy;
  const link = `${location.origin}${address({ thread: route.value.thread, id: data.id })}`;
  return html`<${Dialog} title=${`#${data.step} as…`} wide=${true}>
    <${Command} label="Command" text=${everstep(texts.cli.replace(/^everstep /, ""))} />
    <${Command} label="Python" text=${inPython(texts.python.replace(/^await /, ""), { config: null, result: "checkpoint" })} />
    <${Command} label="curl" text=${shown(curl(texts.curl))} />
    <${Command} label="Link" text=${link} />
    <${ReachNote} /><${TokenNote} />
  <//>`;
}

const KIND_ICONS = { rewind: "undo", branch: "fork", merge: "merge", pin: "pin", unpin: "pin", tag: "tag", untag: "tag", note: "note", rename: "edit", archive: "archive", unarchive: "archive" };

// Branches by the names that people gave them.
function withLabels(text) {
  const names = family.value.items.map((item) => item.thread_id);
  names.sort((one, other) => other.length - one.length); // one may begin with another
  return names.reduce((shorter, name) => shorter.replaceAll(name, labelOf(name)), text);
}

function Operations({ thread }) {
  const [again, setAgain] = useState(0);
  const [found, error] = useFetched("operations", { thread, limit: 100 }, again);
  const list = found?.operations ?? [];
  const canUndo = list.some((operation) => !operation.undone);
  const canRedo = list.some((operation) => operation.undone);
  const act = async (work) => {
    await work(thread);
    setAgain(again + 1);
  };
  return html`<${Dialog}
    title="Operations"
    footer=${canWrite.value &&
    html`<span class="spacer"></span><button type="button" disabled=${!canRedo} onClick=${() => act(redo)}>Redo</button><button type="button" class="primary" disabled=${!canUndo} onClick=${() => act(undo)}>Undo the newest</button>`}
  >
    <p>Everything that moved the head of <b dir="auto">${visible(thread)}</b> besides its own steps. Undo takes back the newest; steps made since are hidden, not lost.</p>
    ${error && html`<${Trouble} error=${error} />`}
    ${!found && !error && html`<${Loading} lines=${3} />`}
    ${found && !list.length && html`<${Empty} title="Nothing yet"><p>Rewinds, forks, merges, pins, tags, notes and names will be listed here.</p><//>`}
    <ol class="operations">
      ${list.map(
        (operation) => html`<li key=${operation.id} class=${operation.undone ? "undone" : ""}>
          <${Icon} name=${KIND_ICONS[operation.kind] ?? "history"} /><span class="operation-text" dir="auto" title=${visible(describe(operation))}>${visible(withLabels(describe(operation)))}</span>
          ${operation.undone && html`<${Chip} text="undone" />`}<time datetime=${operation.created_at} title=${whole(operation.created_at)}>${clock(operation.created_at)}</time>
        </li>`,
      )}
    </ol>
    <${AsCode}
      command=${everstep("undo", thread)}
      python=${inPython(`engine.undo(${python(thread)})`)}
      path="undo"
      body=${{ thread }}
    />
  <//>`;
}

const Help = () => html`<${Dialog} title="Keys" wide=${true}>
  <div class="keys">
    ${KEYS.map(
      ([title, list]) => html`<section key=${title}><h3 class="section">${title}</h3>
        <dl>${list.map(([keys, text]) => html`<div key=${keys}><dt>${keys.split(" ").map((key) => html`<${Key}>${key}<//> `)}</dt><dd>${text}</dd></div>`)}</dl></section>`,
    )}
  </div>
<//>`;

// The tags of a checkpoint: give it one, or take one away.
function Tags({ data }) {
  const [name, setName] = useState("");
  const own = data.tags.filter((old) => old !== data.trigger && old !== data.kind); // what every step of its kind has is no name
  const give = async (event) => {
    event.preventDefault();
    if (name.trim() && (await tag(data, name.trim(), true))) close();
  };
  const take = async (old) => {
    if (await tag(data, old, false)) close();
  };
  return html`<${Dialog} title="Tags of this checkpoint">
    <form class="tag-form" onSubmit=${give}>
      <input type="text" aria-label="A new tag" placeholder="A name, such as good" maxlength="200" autocomplete="off" autofocus value=${name} onInput=${(event) => setName(event.target.value)} />
      <button type="submit" class="primary" disabled=${!name.trim()}>Tag</button>
    </form>
    <p class="faint">It is a name for this checkpoint, kept in the log of the thread. Retention keeps what is pinned.</p>
    ${own.length > 0 &&
    html`<ul class="branches">
      ${own.map((old) => html`<li key=${old}><span dir="auto">${visible(old)}</span><span class="spacer"></span>
        <button type="button" class="small" aria-label=${`Take the tag ${old} away`} onClick=${() => take(old)}>Take away</button></li>`)}
    </ul>`}
    <${AsCode}
      command=${everstep("tag", data.copy.ref, name.trim() || "NAME")}
      python=${inPython(`engine.tag(${python(data.id)}, ${python(name.trim() || "NAME")}, thread_id=${python(data.thread_id)})`)}
      path="tag"
      body=${{ ref: data.ref, tag: name.trim() || "NAME" }}
    />
  <//>`;
}

// The only action that nothing brings back: whoever means it writes the name.
function Delete({ thread }) {
  const [plan, error] = useFetched("delete", { thread });
  const [typed, setTyped] = useState("");
  const label = labelOf(thread);
  const isMeant = typed.trim() === label;
  const field = useRef(null);
  useEffect(() => field.current?.focus(), [Boolean(plan)]);
  const send = (event) => {
    event.preventDefault();
    if (!isMeant) return;
    close();
    remove(thread);
  };
  return html`<${Dialog}
    title="Delete this thread"
    footer=${html`<span class="spacer"></span><button type="button" onClick=${close}>Cancel</button><button type="submit" form="delete-form" class="danger" disabled=${!plan || !isMeant}>Delete for good</button>`}
  >
    ${error && html`<${Trouble} error=${error} />`}
    ${!plan && !error && html`<${Loading} lines=${2} />`}
    ${plan && html`<form id="delete-form" onSubmit=${send}>
      <p><b dir="auto" title=${visible(thread)}>${visible(label)}</b> and its <b>${plural(plan.checkpoints, "checkpoint")}</b>, hidden ones included, go for good: undo does not bring them back. Its branches are threads of their own, and stay.</p>
      <p class="faint">A branch that is only in the way can be archived. An export keeps a copy, which can be imported again.</p>
      <label class="field"><span>Write <b dir="auto">${visible(label)}</b> if you mean it</span>
        <input ref=${field} type="text" spellcheck="false" autocomplete="off" value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>
    </form>`}
    <${AsCode}
      command=${everstep("rm", thread)}
      python=${inPython(`engine.checkpointer.delete_thread(${python(thread)})`)}
      path="delete"
      body=${{ thread }}
    />
  <//>`;
}

// What somebody notes about a checkpoint.
function Note({ data }) {
  const [text, setText] = useState(data.note);
  const [isBusy, setBusy] = useState(false);
  const wanted = text.trim();
  const send = async (what) => {
    setBusy(true);
    if (await note(data, what)) close();
    else setBusy(false);
  };
  return html`<${Dialog}
    title=${`Note about #${data.step}`}
    footer=${html`${data.note && html`<button type="button" disabled=${isBusy} onClick=${() => send("")}>Take it away</button>`}<span class="spacer"></span><button type="button" onClick=${close}>Cancel</button>
      <button type="button" class="primary" disabled=${isBusy || !wanted || wanted === data.note} onClick=${() => send(wanted)}>Note</button>`}
  >
    <textarea class="note-text" aria-label="The note" rows="4" maxlength="2000" autofocus value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
    <p class="faint">It is kept beside the checkpoint, in the log of the thread. Undo takes it back.</p>
    <${AsCode}
      command=${everstep("note", data.copy.ref, wanted || "NOTE")}
      python=${inPython(`engine.note(${python(data.id)}, ${python(wanted || "NOTE")}, thread_id=${python(data.thread_id)})`)}
      path="note"
      body=${{ ref: data.ref, note: wanted || "NOTE" }}
    />
  <//>`;
}

function Pin({ data }) {
  useEffect(() => {
    close();
    pin(data, !data.pinned);
  }, []);
  return null;
}

export function Dialogs() {
  const open = dialog.value;
  if (!open) return null;
  if (open.name === "help") return html`<${Help} />`;
  if (open.name === "operations") return html`<${Operations} thread=${open.thread} />`;
  if (open.name === "time") return html`<${Timing} thread=${open.thread} />`;
  if (open.name === "merge") return html`<${Merge} key=${open.source} source=${open.source} />`;
  if (open.name === "import") return html`<${Import} />`;
  if (open.name === "branches") return html`<${Branches} />`;
  if (open.name === "branch") return html`<${Branch} key=${open.thread} thread=${open.thread} />`;
  if (open.name === "sizes") return html`<${Dialog} title="Storage of this thread"><${Sizes} thread=${open.thread} /><//>`;
  if (open.name === "fork") return html`<${Fork} data=${open.data} />`;
  if (open.name === "edit") return html`<${Fork} data=${open.data} withEditor=${true} />`;
  if (open.name === "rewind") return html`<${Rewind} data=${open.data} />`;
  if (open.name === "copy") return html`<${Copy} data=${open.data} />`;
  if (open.name === "tags") return html`<${Tags} data=${open.data} />`;
  if (open.name === "delete") return html`<${Delete} thread=${open.thread} />`;
  if (open.name === "note") return html`<${Note} data=${open.data} />`;
  if (open.name === "pin") return html`<${Pin} data=${open.data} />`;
  return null;
}

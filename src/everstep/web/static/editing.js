// Forks: a name, and where wanted other values, checked while they are typed and compared before anything is saved.
import { html, useEffect, useMemo, useRef, useState } from "./vendor/ui.js";
import { get, post } from "./api.js";
import { bytes, json, piped, plural, python, quoteShell, visible } from "./format.js";
import { TAKEN, branchCalled, dialog, go, labelOf, openThread, renew, say, select, undo } from "./model.js";
import { AsCode, everstep, inPython } from "./code.js";
import { Chip, Dialog, Empty, Loading, Trouble, Value } from "./parts.js";

const EDIT_MAX = 1_000_000;
const SIGNS = { add: "+", remove: "−", replace: "~" };

// -- comparing two JSON values, for the preview and for the patch that is sent

const escape = (key) => String(key).replaceAll("~", "~0").replaceAll("/", "~1");

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

export function patchOf(before, after, path = "") {
  if (JSON.stringify(before) === JSON.stringify(after)) return [];
  if (!isObject(before) || !isObject(after)) return [{ op: "replace", path, before, value: after }];
  const changes = [];
  for (const key of Object.keys(before)) {
    const below = `${path}/${escape(key)}`;
    if (!(key in after)) changes.push({ op: "remove", path: below, before: before[key] });
    else changes.push(...patchOf(before[key], after[key], below));
  }
  for (const key of Object.keys(after)) {
    if (!(key in before)) changes.push({ op: "add", path: `${path}/${escape(key)}`, value: after[key] });
  }
  return changes;
}

function read(text) {
  try {
    return { value: JSON.parse(text) };
  } catch (error) {
    return { error: `${error.message.replace(/^JSON\.parse: /, "")}${place(text, error.message)}` };
  }
}

// Browsers say at which character; people count lines.
function place(text, message) {
  const found = /position (\d+)(?!.*line)/.exec(message);
  if (!found) return "";
  const before = text.slice(0, Number(found[1])).split("\n");
  return ` (line ${before.length}, column ${before.at(-1).length + 1})`;
}

// What the interface writes for values that JSON has no word for cannot be sent back.
function marked(value) {
  if (Array.isArray(value)) return value.some(marked);
  if (!isObject(value)) return false;
  return "$type" in value || "$cut" in value || Object.values(value).some(marked);
}

function Preview({ changes }) {
  if (!changes.length) return html`<p class="hint">Nothing is changed yet.</p>`;
  return html`<div class="preview" tabindex="0" aria-label="What you change" role="group">
    ${changes.slice(0, 100).map(
      ({ op, path, before, value }) => html`<div key=${path} class=${`change ${{ add: "added", remove: "removed", replace: "changed" }[op]}`}>
        <span class="sign">${SIGNS[op]}</span><span class="path" dir="auto">${visible(path || "/")}</span>
        <span class="change-value">${op !== "add" && html`<del><${Value} value=${before} /></del>`} ${op !== "remove" && html`<ins><${Value} value=${value} /></ins>`}</span>
      </div>`,
    )}
    ${changes.length > 100 && html`<p class="hint">and ${plural(changes.length - 100, "more")}</p>`}
  </div>`;
}

function Editor({ label, text, onInput, problem }) {
  return html`<div class="editor">
    <textarea
      class="mono"
      aria-label=${label}
      aria-invalid=${Boolean(problem)}
      aria-describedby=${problem ? "editor-problem" : null}
      spellcheck="false"
      autocomplete="off"
      value=${text}
      onInput=${(event) => onInput(event.target.value)}
      onKeyDown=${(event) => {
        // Tab indents; Escape first, then Tab leaves, as everywhere.
        if (event.key !== "Tab" || event.shiftKey) return;
        event.preventDefault();
        event.target.setRangeText("  ", event.target.selectionStart, event.target.selectionEnd, "end");
        onInput(event.target.value);
      }}
    ></textarea>
    <p class="editor-problem" id="editor-problem" role="status">${problem ? visible(problem) : ""}</p>
  </div>`;
}

const PARTS = [["state", "State"], ["messages", "Messages"]];

export function Fork({ data, withEditor = false }) {
  const [name, setName] = useState("");
  const [isEditing, setEditing] = useState(withEditor);
  const [part, setPart] = useState("state");
  const [stored, setStored] = useState(null);
  const [texts, setTexts] = useState({});
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const isTooMuch = data.size_bytes > EDIT_MAX; // it is not even fetched
  const field = useRef(null);
  useEffect(() => field.current?.focus(), []);
  useEffect(() => {
    if (!isEditing || stored || isTooMuch) return;
    const wanted = (pointer) => get("value", { ref: data.ref, pointer }).then((found) => found.value);
    Promise.all([wanted("/state"), wanted("/messages")])
      .then(([state, messages]) => {
        setStored({ state, messages });
        setTexts({ state: JSON.stringify(state, null, 2), messages: JSON.stringify(messages, null, 2) });
      })
      .catch(setError);
  }, [isEditing]);
  const parsed = useMemo(() => Object.fromEntries(Object.entries(texts).map(([key, text]) => [key, read(text)])), [texts]);
  const problem = PARTS.map(([key, title]) => checked(key, title, parsed[key])).find(Boolean);
  const changes = useMemo(() => {
    if (!stored || problem) return [];
    return PARTS.flatMap(([key]) => patchOf(stored[key], parsed[key].value, `/${key}`));
  }, [stored, parsed, problem]);
  const isTooLarge = stored && texts[part]?.length > EDIT_MAX;
  const taken = branchCalled(name.trim());
  const canSend = name.trim() && !taken && !isBusy && !problem && !(isEditing && !isTooMuch && !stored && !error);

  const patch = changes.map(({ op, path, value }) => (op === "remove" ? { op, path } : { op, path, value }));
  const body = { ref: data.ref, name: name.trim() || "NAME", ...(patch.length ? { patch } : {}) };
  const send = async (event) => {
    event?.preventDefault();
    if (!canSend) return;
    setBusy(true);
    try {
      const made = await post("fork", body);
      dialog.value = null;
      say(`Forked at step ${data.step}: ${name.trim()}${patch.length ? `, with ${plural(patch.length, "edit")}` : ""}.`, {
        undo: () => takeBack(data),
      });
      openThread(made.thread_id);
      await renew();
      if (made.id && patch.length) select(made.id, { replace: true });
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  const words = `fork -b ${quoteShell(name.trim() || "NAME")}`;
  const command = patch.length ? piped(patch, everstep(`${words} --patch -`, data.copy.ref)) : everstep(words, data.copy.ref);
  const program = patch.length
    ? inPython(`actions.fork(engine, ${python(data.copy.ref)}, ${python(body.name)}, patch=${python(patch)})`, { isAsync: true, imports: "from everstep.views import actions\n" })
    : inPython(`engine.branch(${python(data.id)}, ${python(body.name)}, thread_id=${python(data.thread_id)})`);
  return html`<${Dialog}
    title=${`Fork from #${data.step}`}
    wide=${isEditing}
    footer=${html`<span class="spacer"></span><button type="button" onClick=${() => (dialog.value = null)}>Cancel</button>
      <button type="submit" form="fork-form" class="primary" disabled=${!canSend}>${changes.length ? "Fork with these edits" : "Fork"}</button>`}
  >
    <form id="fork-form" onSubmit=${send}>
      <p>A new thread begins at this checkpoint. Nothing is copied, and <b dir="auto" title=${visible(data.thread_id)}>${visible(labelOf(data.thread_id))}</b> stays as it is.</p>
      <label class="field">Name of the branch
        <input ref=${field} type="text" required maxlength="128" placeholder="try-the-bus" spellcheck="false" autocomplete="off" aria-invalid=${Boolean(taken)} aria-describedby="fork-name" value=${name} onInput=${(event) => setName(event.target.value)} /></label>
      <p class="editor-problem name-problem" id="fork-name" role="status">${taken && TAKEN}</p>
      <label class="check"><input type="checkbox" checked=${isEditing} onChange=${(event) => setEditing(event.target.checked)} /> Edit the state or the messages first</label>
      ${isEditing && isTooMuch && html`<${Empty} title="Too large to edit here"><p>This checkpoint holds ${bytes(data.size_bytes)}. Use <code>everstep fork --edit</code> with your own editor, or <code>--set</code> and <code>--patch</code>.</p><//>`}
      ${isEditing && !isTooMuch && !stored && !error && html`<${Loading} lines=${4} />`}
      ${isEditing &&
      stored &&
      html`<div class="editing">
        <div class="editing-side"><div class="segments" role="group" aria-label="What to edit">
          ${PARTS.map(([key, title]) => html`<button type="button" key=${key} aria-pressed=${part === key} onClick=${() => setPart(key)}>${title}${parsed[key]?.error && html` <span class="bad-dot" title="not valid JSON"></span>`}</button>`)}
        </div>
        ${isTooLarge
          ? html`<${Empty} title="Too large to edit here"><p>${bytes(texts[part].length)}. Use <code>everstep fork --edit</code> with your own editor.</p><//>`
          : marked(stored[part])
            ? html`<${Empty} title="Not all of this is JSON"><p>It holds values that JSON has no word for, such as times or bytes. Edit it from Python.</p><//>`
            : html`<${Editor} key=${part} label=${`${part} as JSON`} text=${texts[part]} problem=${problem} onInput=${(text) => setTexts({ ...texts, [part]: text })} />`}</div>
        <div class="editing-side"><h3 class="section">Your edits ${changes.length > 0 && html`<span>${plural(changes.length, "change")}</span>`}</h3>
        <${Preview} changes=${changes} /></div>
      </div>`}
      ${error && html`<${Trouble} error=${error} />`}
    </form>
    <${AsCode} command=${command} python=${program} path="fork" body=${body} />
  <//>`;
}

// The branch is an operation of the thread that it came from. One goes back there first: what is undone is not to be seen.
function takeBack(data) {
  go({ view: "thread", thread: data.thread_id, id: data.id, vs: null });
  undo(data.thread_id);
}

function checked(key, title, parsed) {
  if (!parsed) return "";
  if (parsed.error) return `${title}: ${parsed.error}`;
  const isRight = key === "messages" ? Array.isArray(parsed.value) : isObject(parsed.value);
  return isRight ? "" : `${title}: this must be ${key === "messages" ? "a list" : "an object"}`;
}

export { Chip, json };

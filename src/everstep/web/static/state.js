// The values of a checkpoint as a tree: one level at a time, with the size of each part.
import { html, signal, useEffect, useState } from "./vendor/ui.js";
import { get, latest, url } from "./api.js";
import { ago, bytes, count, json, plural, shortId, visible } from "./format.js";
import { address, canWrite, complain, copy, dialog, follow, route, select } from "./model.js";
import { Chip, CopyButton, Icon, IconButton, Key, Loading, Trouble, Value } from "./parts.js";

const DOWNLOAD_FROM = 2_000_000;
const COPY_MAX = 1_000_000;
const REMEMBERED_MAX = 500;
const MEMORY = "everstep.open";
const open = signal(remembered()); // from one checkpoint to the next, and as long as the window is open

function remembered() {
  try {
    return new Set(JSON.parse(sessionStorage.getItem(MEMORY)) ?? ["", "/state"]);
  } catch {
    return new Set(["", "/state"]);
  }
}

function setOpen(paths) {
  open.value = paths;
  try {
    sessionStorage.setItem(MEMORY, JSON.stringify([...paths].slice(-REMEMBERED_MAX)));
  } catch {
    // It is forgotten when the page is loaded again.
  }
}

function toggle(path, isOpen) {
  const next = new Set(open.value);
  if (isOpen) next.add(path);
  else next.delete(path);
  setOpen(next);
}

async function copyValue(data, path) {
  try {
    const { value } = await get("value", { ref: data.ref, pointer: path });
    await copy(typeof value === "string" ? value : JSON.stringify(value, null, 2), "The value is copied");
  } catch (error) {
    complain(error);
  }
}

export function State({ data }) {
  const [asked, setAsked] = useState("");
  return html`<div class="state">
    <div class="changes-top">
      <label class="search small-search"><${Icon} name="search" /><input type="search" placeholder="Find in the values" aria-label="Find in the values" spellcheck="false" value=${asked} onInput=${(event) => setAsked(event.target.value)} /></label>
      <span class="spacer"></span>
      <button type="button" class="small" onClick=${() => setOpen(new Set([""]))}>Collapse all</button>
      ${canWrite.value && html`<button type="button" class="small" onClick=${() => (dialog.value = { name: "edit", data })}>Edit and fork <span class="wide-only"><${Key}>e<//></span></button>`}
    </div>
    ${asked.trim() ? html`<${Found} data=${data} text=${asked.trim()} />` : html`<div class="tree"><${Level} data=${data} path="" depth=${0} /></div>`}
  </div>`;
}

function Level({ data, path, depth }) {
  const [pages, setPages] = useState([]);
  const [error, setError] = useState(null);
  const load = (offset) =>
    get("state", { ref: data.ref, path, offset, limit: 200 })
      .then((page) => setPages((before) => (offset ? [...before, page] : [page])))
      .catch(setError);
  useEffect(() => {
    load(0);
  }, [data.id, path]);
  if (error) return html`<${Trouble} error=${error} />`;
  if (!pages.length) return html`<div class=${`node d${Math.min(depth, 12)}`}><span class="bone w1"></span></div>`;
  const children = pages.flatMap((page) => page.children);
  const { count: total, value, type } = pages[0];
  if (!children.length) {
    return html`<div class="node" style=${{ "--depth": depth }}><span class="node-value">${total === 0 ? html`<span class="faint">empty ${type}</span>` : html`<${Value} value=${value} />`}</span></div>`;
  }
  return html`${children.map((child) => html`<${Node} key=${child.path} data=${data} child=${child} depth=${depth} />`)}
    ${children.length < total &&
    html`<div class="node" style=${{ "--depth": depth }}><button type="button" class="link" onClick=${() => load(children.length)}>show more of ${count(total)}</button></div>`}`;
}

function Node({ data, child, depth }) {
  const { key, path, type, size_bytes: size, preview, leaf } = child;
  const isOpen = open.value.has(path);
  const isLarge = size > DOWNLOAD_FROM;
  const [wrote, setWrote] = useState(false);
  const link = url("value", { ref: data.ref, pointer: path });
  return html`<div class=${`node ${leaf ? "leaf" : ""}`} style=${{ "--depth": depth }}>
      <button type="button" class="node-key" aria-expanded=${isOpen} onClick=${() => toggle(path, !isOpen)}>
        <${Icon} name=${isOpen ? "down" : "right"} /><span dir="auto">${visible(key)}</span>
      </button>
      <span class="node-preview">${leaf && !isOpen ? html`<span class=${`v-${type}`} dir="auto">${type === "string" ? json(preview) : visible(preview)}</span>` : html`<span class="faint">${visible(preview)}</span>`}</span>
      <span class="node-tools">
        <${IconButton} icon="history" label="Who wrote this?" className="quiet" pressed=${wrote} onClick=${() => setWrote(!wrote)} />
        <${CopyButton} text=${path} label="Copy the path" />
        ${!(size > COPY_MAX) && html`<${IconButton} icon="paste" label="Copy the value" className="quiet" onClick=${() => copyValue(data, path)} />`}
        <a class="icon-button quiet" href=${link} download=${`${key}.json`} aria-label="Download this value" title="Download this value"><${Icon} name="download" /></a>
      </span>
      <span class="node-size">${bytes(size)}</span>
    </div>
    ${wrote && html`<${Writers} thread=${data.thread_id} path=${path} depth=${depth} />`}
    ${isOpen && isLarge && leaf && html`<div class="node" style=${{ "--depth": depth + 1 }}><span class="node-value"><${Chip} text=${bytes(size)} tone="warn" /> too large to show whole. <a href=${link} download=${`${key}.json`}>Download it</a></span></div>`}
    ${isOpen && !(isLarge && leaf) && html`<${Level} data=${data} path=${path} depth=${depth + 1} />`}`;
}

function Writers({ thread, path, depth }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    get("blame", { thread, path, limit: 20 }).then(setFound).catch(setError);
  }, [thread, path]);
  if (error) return html`<div class="writers" style=${{ "--depth": depth + 1 }}><${Trouble} error=${error} /></div>`;
  const list = found?.changes ?? [];
  return html`<div class="writers" style=${{ "--depth": depth + 1 }}>
    ${!found && html`<${Loading} lines=${1} />`}
    ${found && !list.length && html`<span class="faint">nothing in this thread has changed it</span>`}
    ${found?.damage && html`<span class="faint">${visible(found.damage.reason)}</span>`}
    ${list.map((row) => html`<a key=${row.id} href=${address({ ...route.value, id: row.id, vs: null })} onClick=${follow(() => select(row.id))}>#${row.step ?? shortId(row.id)} <span dir="auto">${visible(row.title ?? row.summary ?? "")}</span> <span class="faint">${ago(row.created_at)}</span></a>`)}
  </div>`;
}

const searchCall = latest();

function Found({ data, text }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    setError(null);
    const timer = setTimeout(() => {
      searchCall((stop) => get("state/search", { ref: data.ref, text }, stop))
        .then((answer) => answer && setFound(answer))
        .catch(setError);
    }, 150);
    return () => clearTimeout(timer);
  }, [data.id, text]);
  if (error) return html`<${Trouble} error=${error} />`;
  if (!found) return html`<${Loading} lines=${3} />`;
  const list = found.paths ?? found.found ?? [];
  if (!list.length) return html`<p class="hint">Nothing contains “${visible(text)}”.</p>`;
  return html`<p class="hint">${plural(list.length, "place")}${found.more ? " and more" : ""}</p>
    <div class="tree">${list.map((hit) => html`<${Hit} key=${hit.path ?? hit} data=${data} hit=${typeof hit === "string" ? { path: hit } : hit} />`)}</div>`;
}

const Hit = ({ data, hit }) => html`<${Node} data=${data} depth=${0} child=${{ key: hit.path, path: hit.path, type: hit.type ?? "", size_bytes: hit.size_bytes, preview: hit.preview ?? "", leaf: hit.leaf ?? true }} />`;


// Small things that many places use: icons, chips, menus, dialogs, values.
import { html, signal, useEffect, useLayoutEffect, useRef, useState } from "./vendor/ui.js";
import { ago, bytes, count, json, visible, whole } from "./format.js";
import { copy, dialog } from "./model.js";

const PATHS = {
  input: '<circle cx="7" cy="4.500" r="2.500"/><path d="M2.500 12c.3-4.600 8.700-4.600 9 0"/>',
  llm: '<path d="M2 2.500h10v7H7.500L4.500 12V9.500H2z"/>',
  tool: '<path d="M8.700 2a3 3 0 0 0-2.900 3.900L2 9.700 4.300 12l3.800-3.800A3 3 0 0 0 12 5.300L10 7 7 4z"/>',
  state: '<path d="M5 2H4a1.500 1.500 0 0 0-1.500 1.500v2L1.500 7l1 1.500v2A1.500 1.500 0 0 0 4 12h1M9 2h1a1.500 1.500 0 0 1 1.500 1.500v2l1 1.500-1 1.500v2A1.500 1.500 0 0 1 10 12H9"/>',
  fork: '<circle cx="4" cy="3" r="1.300"/><circle cx="10" cy="4" r="1.300"/><circle cx="4" cy="11" r="1.300"/><path d="M4 4.300v5.400M4 9c0-3 6-1.500 6-3.700"/>',
  merge: '<circle cx="4" cy="3" r="1.300"/><circle cx="4" cy="11" r="1.300"/><circle cx="10" cy="10" r="1.300"/><path d="M4 4.300v5.400M10 8.700C10 5.500 4 7.500 4 4.500"/>',
  interrupt: '<path d="M5 3v8M9 3v8"/>',
  error: '<path d="M3.500 3.500l7 7M10.500 3.500l-7 7"/>',
  damaged: '<path d="M7 2L12.500 12h-11z"/><path d="M7 5.800v2.700M7 10.200v.1"/>',
  search: '<circle cx="6" cy="6" r="3.800"/><path d="M9 9l3.300 3.300"/>',
  clock: '<circle cx="7" cy="7" r="5"/><path d="M7 4.200V7l2 1.500"/>',
  pin: '<path d="M5 2h4l-.5 4 2 2H3.500l2-2zM7 8v4.500"/>',
  sun: '<circle cx="7" cy="7" r="2.500"/><path d="M7 1v1.200M7 11.800V13M1 7h1.200M11.800 7H13M2.800 2.800l.8.8M10.400 10.400l.8.8M2.800 11.200l.8-.8M10.400 3.600l.8-.8"/>',
  moon: '<path d="M11.500 8.500A5 5 0 0 1 5.500 2.500 5 5 0 1 0 11.500 8.500z"/>',
  system: '<rect x="1.500" y="2.500" width="11" height="7" rx="1"/><path d="M5 12h4M7 9.500V12"/>',
  run: '<path d="M4 2.500v9l7-4.500z"/>',
  disk: '<ellipse cx="7" cy="3.500" rx="4.500" ry="1.800"/><path d="M2.500 3.500v7c0 1 2 1.800 4.500 1.800s4.500-.8 4.500-1.800v-7M2.500 7c0 1 2 1.800 4.500 1.800S11.500 8 11.500 7"/>',
  copy: '<rect x="4.500" y="4.500" width="7.500" height="7.500" rx="1.200"/><path d="M9.500 4.500V3.200A1.200 1.200 0 0 0 8.300 2H3.200A1.200 1.200 0 0 0 2 3.200v5.100a1.200 1.200 0 0 0 1.200 1.200h1.300"/>',
  paste: '<rect x="2.500" y="3" width="9" height="9.500" rx="1.200"/><path d="M5 3V1.800h4V3M5 6.500h4M5 9h2.500"/>',
  history: '<path d="M2 7a5 5 0 1 0 1.500-3.500L2 5M2 2v3h3M7 4.500V7l2 1.500"/>',
  eye: '<path d="M1.500 7c2.500-4.600 8.500-4.600 11 0-2.500 4.600-8.500 4.600-11 0z"/><circle cx="7" cy="7" r="1.700"/>',
  fold: '<path d="M2 7h10M7 1v3.500M5.200 3L7 4.800 8.800 3M7 13V9.500M5.200 11L7 9.200 8.800 11"/>',
  more: '<circle cx="3" cy="7" r=".7" fill="currentColor"/><circle cx="7" cy="7" r=".7" fill="currentColor"/><circle cx="11" cy="7" r=".7" fill="currentColor"/>',
  back: '<path d="M8.500 3L4.500 7l4 4"/>',
  right: '<path d="M5 3l4 4-4 4"/>',
  down: '<path d="M3 5l4 4 4-4"/>',
  close: '<path d="M3.500 3.500l7 7M10.500 3.500l-7 7"/>',
  undo: '<path d="M3 5.500h5.500a3 3 0 0 1 0 6H6M5.500 3L3 5.500 5.500 8"/>',
  swap: '<path d="M2.500 5h9L9 2.500M11.500 9h-9L5 11.500"/>',
  edit: '<path d="M9.500 2.500l2 2L5 11l-2.500.5L3 9z"/>',
  archive: '<path d="M2 3h10v2.500H2zM3 5.500V11h8V5.500M5.800 7.800h2.400"/>',
  note: '<path d="M3 2h8v7l-2.500 3H3zM8.500 12V9H11M5 5h4M5 7.200h2.500"/>',
  upload: '<path d="M7 9.500v-7M4 5.500L7 2.500l3 3M2.500 12h9"/>',
  download: '<path d="M7 2v7M4 6.500L7 9.500l3-3M2.500 12h9"/>',
  tag: '<path d="M2 2h4.500L12 7.500 7.500 12 2 6.500z"/><circle cx="4.500" cy="4.500" r=".6" fill="currentColor"/>',
};

export const NAMES = {
  input: "input", llm: "model", tool: "tool", state: "state", fork: "fork", merge: "merge",
  interrupt: "waits for a person", error: "error", damaged: "damaged",
};

export const Icon = ({ name, label }) => html`<svg
  class="icon"
  width="14"
  height="14"
  viewBox="0 0 14 14"
  fill="none"
  stroke="currentColor"
  stroke-width="1.3"
  stroke-linejoin="round"
  stroke-linecap="round"
  role=${label ? "img" : null}
  aria-label=${label ?? null}
  aria-hidden=${label ? null : "true"}
  dangerouslySetInnerHTML=${{ __html: PATHS[name] ?? PATHS.state }}
/>`;

export const Logo = () => html`<svg class="logo" width="20" height="20" viewBox="0 0 32 32" fill="none" aria-hidden="true">
  <rect width="32" height="32" rx="7" class="logo-ground" />
  <path d="M11 7v18M11 21c0-7 10-4 10-11" class="logo-line" />
  <circle cx="11" cy="24" r="3" class="logo-dot" /><circle cx="11" cy="8" r="3" class="logo-dot" />
  <circle cx="21" cy="9" r="3" class="logo-branch" />
</svg>`;

export const laneOf = (lane) => `lane-${(lane ?? 0) % 6}`;

export const Chip = ({ text, tone = "plain", lane = null, title }) => html`<span
  class=${`chip ${tone} ${tone === "branch" ? laneOf(lane) : ""}`}
  title=${title ?? null}
  >${visible(text)}</span
>`;

const TONES = { waiting: "warn", interrupted: "warn", failed: "error", damaged: "error", ready: "added", running: "branch" };

// How a thread or a run is, where there is something to say about it.
export const Status = ({ status, title }) => status && html`<${Chip} text=${status} tone=${TONES[status] ?? "plain"} lane=${0} title=${title} />`;

const tick = signal(0);
setInterval(() => tick.value++, 15_000);

// How long ago something was, which does not stand still while nothing else happens.
export function Ago({ at }) {
  tick.value;
  return html`<time datetime=${at} title=${whole(at)}>${ago(at)}</time>`;
}

export const Key = ({ children }) => html`<kbd>${children}</kbd>`;

export const IconButton = ({ icon, label, onClick, disabled, pressed, className = "" }) => html`<button
  type="button"
  class=${`icon-button ${className}`}
  aria-label=${label}
  title=${label}
  aria-pressed=${pressed ?? null}
  disabled=${disabled}
  onClick=${onClick}
>
  <${Icon} name=${icon} />
</button>`;

export const CopyButton = ({ text, label = "Copy", icon = "copy" }) => html`<${IconButton}
  icon=${icon}
  label=${label}
  className="quiet"
  onClick=${(event) => {
    event.stopPropagation();
    copy(typeof text === "function" ? text() : text);
  }}
/>`;

// Buttons beside each other of which one is on.
export const Segments = ({ label, value, options, onChange }) => html`<div class="segments" role="group" aria-label=${label}>
  ${options.map(
    ([name, text]) => html`<button type="button" aria-pressed=${value === name} onClick=${() => onChange(name)}>${text}</button>`,
  )}
</div>`;

export const Loading = ({ lines = 3 }) => html`<div class="loading" role="status" aria-label="Loading">
  ${Array.from({ length: lines }, (_, number) => html`<span key=${number} class=${`bone w${number % 3}`}></span>`)}
</div>`;

export const Empty = ({ title, children }) => html`<div class="empty"><p class="empty-title">${title}</p>${children}</div>`;

const TITLE_MAX = 140; // what is longer is a text, and bold would make it hard to read

// Something that is damaged, while the rest is shown: why, and the commands that help.
export const Damage = ({ title, damage }) => html`<div class="trouble" role="status">
  <p class="trouble-title">${title}</p>
  <p>${visible(damage.reason)}</p>
  <p>${visible(damage.hint)}</p>
</div>`;

export const Trouble = ({ error, retry }) => html`<div class="trouble" role="alert">
  <p class=${error.message.length > TITLE_MAX ? "trouble-text" : "trouble-title"}>${visible(error.message)}</p>
  ${error.hint && html`<p>${visible(error.hint)}</p>`}
  ${retry && html`<p><button type="button" onClick=${retry}>Try again</button></p>`}
</div>`;

// A menu below its button. Closes on Escape, on a click elsewhere, and when something was chosen.
export function Menu({ label, children, className = "", icon = null, text = null, disabled = false }) {
  const [isOpen, setOpen] = useState(false);
  const box = useRef(null);
  useEffect(() => {
    if (!isOpen) return undefined;
    const close = (event) => {
      if (event.type === "keydown" && event.key !== "Escape") return;
      if (event.type === "pointerdown" && box.current?.contains(event.target)) return;
      if (event.type === "keydown") event.stopPropagation();
      if (event.type === "keydown") box.current?.querySelector("button").focus(); // not to be lost with the menu
      setOpen(false);
    };
    addEventListener("pointerdown", close);
    addEventListener("keydown", close, true);
    return () => {
      removeEventListener("pointerdown", close);
      removeEventListener("keydown", close, true);
    };
  }, [isOpen]);
  useLayoutEffect(() => {
    if (isOpen) box.current?.querySelector(".menu button, .menu a")?.focus();
  }, [isOpen]);
  const move = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !isOpen) return;
    event.preventDefault();
    event.stopPropagation();
    const items = [...box.current.querySelectorAll(".menu button:not(:disabled), .menu a")];
    const next = items.indexOf(document.activeElement) + step;
    items[(next + items.length) % items.length]?.focus();
  };
  return html`<div class=${`menu-box ${className}`} ref=${box} onKeyDown=${move}>
    <button
      type="button"
      class=${text ? "" : "icon-button"}
      aria-label=${text ? null : label}
      title=${label}
      aria-haspopup="true"
      aria-expanded=${isOpen}
      disabled=${disabled}
      onClick=${() => setOpen(!isOpen)}
    >
      ${text ?? html`<${Icon} name=${icon ?? "more"} />`}${text && html`<${Icon} name="down" />`}
    </button>
    ${isOpen && html`<div class="menu" onClick=${(event) => event.target.closest("button, a") && setOpen(false)}>${children}</div>`}
  </div>`;
}

// A window over the page. The browser keeps the focus inside, and Escape closes it.
export function Dialog({ title, children, wide = false, footer = null, onClose = () => (dialog.value = null) }) {
  const element = useRef(null);
  useLayoutEffect(() => {
    const own = element.current;
    own.showModal();
    // Without a field to begin with the browser takes the first button, which would be the one that closes it.
    if (document.activeElement?.classList.contains("dialog-close")) own.querySelector(".dialog-body").focus();
    return () => own.close();
  }, []);
  return html`<dialog
    ref=${element}
    class=${wide ? "wide" : ""}
    aria-label=${title}
    onCancel=${(event) => {
      event.preventDefault();
      onClose();
    }}
    onPointerDown=${(event) => event.target === element.current && onClose()}
  >
    <div class="dialog-box">
      <header class="dialog-head">
        <h2>${title}</h2>
        <${IconButton} icon="close" label="Close" className="dialog-close" onClick=${onClose} />
      </header>
      <div class="dialog-body" tabindex="-1">${children}</div>
      ${footer && html`<footer class="dialog-foot">${footer}</footer>`}
    </div>
  </dialog>`;
}

const LONG = 600;

// Text of any length and content: shown as it is, never as markup, folded where it is long.
export function LongText({ text, mono = false }) {
  const [isOpen, setOpen] = useState(false);
  const shown = visible(text);
  const isLong = shown.length > LONG * 2;
  const part = isLong && !isOpen ? shown.slice(0, LONG) : shown.slice(0, 400000);
  return html`<span class=${`long ${mono ? "mono" : ""}`} dir="auto">${part}${isLong && !isOpen ? "…" : ""}</span
    >${isLong &&
    html` <button type="button" class="link" onClick=${() => setOpen(!isOpen)}>
      ${isOpen ? "show less" : `show all ${count(shown.length)} characters`}
    </button>`}`;
}

// A value of any kind: short ones in the line, large ones as an indented block.
export function Value({ value }) {
  if (value && typeof value === "object" && value.$type === "bytes") {
    return html`<${Chip} text=${`bytes, ${bytes(value.size)}`} />`;
  }
  if (value && typeof value === "object" && "$cut" in value) {
    return html`<span class="long" dir="auto">${json(value.text)}…</span> <${Chip} text=${`${count(value.$cut)} characters`} />`;
  }
  if (value && typeof value === "object" && "$type" in value && "text" in value) {
    return html`<span class="long" dir="auto">${visible(value.text)}</span> <${Chip} text=${value.$type} />`;
  }
  const flat = json(value);
  if (value !== null && typeof value === "object" && flat.length > 72) {
    return html`<${Block} text=${json(value, 2)} lines=${12} />`;
  }
  return html`<${LongText} text=${flat} mono=${true} />`;
}

export function Block({ text, lines: room = 24 }) {
  const [isOpen, setOpen] = useState(false);
  const lines = text.split("\n");
  const isLong = lines.length > room || text.length > 6000;
  const shown = isLong && !isOpen ? lines.slice(0, Math.max(3, room - 4)).join("\n").slice(0, 4000) : text.slice(0, 400000);
  return html`<pre class="block" dir="auto" tabindex=${isLong && isOpen ? 0 : null}>${shown}${isLong && !isOpen ? "\n…" : ""}</pre>
    ${isLong &&
    html`<button type="button" class="link" onClick=${() => setOpen(!isOpen)}>
      ${isOpen ? "show less" : `show all ${count(lines.length)} lines`}
    </button>`}`;
}

// Words of a text that were taken out and put in; a sign for each, so that it does not depend on colours.
export const Words = ({ words }) => html`<span class="words" dir="auto"
  >${words.map(([sign, text]) => {
    if (sign === "-") return html`<del>${visible(text)}</del>`;
    if (sign === "+") return html`<ins>${visible(text)}</ins>`;
    return visible(text);
  })}</span
>`;

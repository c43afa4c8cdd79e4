// The page: header, three panes, footer, and what floats above them.
import { effect, html, render } from "./vendor/ui.js";
import { visible } from "./format.js";
import {
  address, begin, canWrite, detail, dialog, follow, info, live, openRuns, openStart, openStorage, problem, route, setTheme, storeTrouble,
  theme, toast,
} from "./model.js";
import { Chip, IconButton, Key, Logo, Trouble } from "./parts.js";
import { ThreadList } from "./threads.js";
import { Nowhere, Welcome } from "./start.js";
import { Graph } from "./graph.js";
import { Detail } from "./detail.js";
import { Dialogs } from "./dialogs.js";
import { RunsPage } from "./runs.js";
import { StoragePage } from "./storage.js";
import { listenToKeys } from "./keys.js";

const THEMES = ["system", "light", "dark"];
const THEME_ICONS = { system: "system", light: "sun", dark: "moon" };

function Live() {
  if (live.value === null) return html`<span class="live off"></span>`;
  if (live.value) return html`<span class="live" role="status" title="Changes by others appear by themselves"><span class="dot"></span>live</span>`;
  const title = storeTrouble.value || "The server does not answer; this page tries again";
  return html`<span class="live broken" role="status" title=${visible(title)}><span class="dot"></span>${storeTrouble.value ? "store unreadable" : "no connection"}</span>`;
}

const Header = () => html`<header class="head">
  <a class="brand" href=${address({})} onClick=${follow(openStart)}><${Logo} /><b>everstep</b></a>
  <span class="store mono" title=${info.value?.store}>${visible(info.value?.store ?? "")}</span>
  <span class="spacer"></span>
  ${info.value?.demo && html`<${Chip} text="demo" />`}
  <${Live} />
  ${info.value?.read_only && html`<${Chip} text="read only" tone="warn" title="Nothing can be changed from this page" />`}
  <${IconButton} icon="run" label="Runs" pressed=${route.value.view === "runs"} onClick=${openRuns} />
  <${IconButton} icon="disk" label="Storage" pressed=${route.value.view === "storage"} onClick=${openStorage} />
  <${IconButton}
    icon=${THEME_ICONS[theme.value]}
    label=${`Colours: ${theme.value}`}
    onClick=${() => setTheme(THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length])}
  />
  <button type="button" class="icon-button help" aria-label="Keys" title="Keys" onClick=${() => (dialog.value = { name: "help" })}>?</button>
</header>`;

const Hint = ({ keys, text }) => html`<span>${keys.map((key) => html`<${Key}>${key}<//>`)} ${text}</span>`;

function Footer() {
  const command = detail.value.data?.copy?.cli ?? "";
  return html`<footer class="foot">
    ${route.value.view === "thread"
      ? html`<${Hint} keys=${["j", "k"]} text="rows" /><${Hint} keys=${["[", "]"]} text="branch" />
          ${canWrite.value && html`<${Hint} keys=${["f"]} text="fork" /><${Hint} keys=${["r"]} text="rewind" />`}
          <${Hint} keys=${["c"]} text="compare" />${canWrite.value && html`<${Hint} keys=${["u"]} text="undo" />`}`
      : html`<${Hint} keys=${["/"]} text="find a thread" /><${Hint} keys=${["?"]} text="keys" />`}
    <span class="spacer"></span>
    <code class="foot-command" title=${command}>${visible(command.split("\n")[0])}</code>
  </footer>`;
}

function Toast() {
  const said = toast.value;
  return html`<div class="toasts" role="status" aria-live="polite">
    ${said &&
    html`<div class=${`toast ${said.tone}`}>
      <span dir="auto">${visible(said.text)}</span>
      ${said.undo && html`<button type="button" onClick=${() => { toast.value = null; said.undo(); }}>${said.undoText ?? "Undo"}</button>`}
      <button type="button" class="toast-close" aria-label="Close" onClick=${() => (toast.value = null)}>×</button>
    </div>`}
  </div>`;
}

function Page() {
  const { view, id } = route.value;
  if (problem.value) return html`<div class="alone"><${Trouble} error=${problem.value} retry=${begin} /></div>`;
  return html`<div class=${`page at-${view} ${id ? "at-checkpoint" : ""}`}>
    <${Header} />
    <${ThreadList} />
    ${view === "thread" && html`<${Graph} /><${Detail} />`}
    ${view === "threads" && html`<main class="start" aria-label="Start"><${Welcome} /></main>`}
    ${view === "nowhere" && html`<main class="start" aria-label="Nothing"><${Nowhere} /></main>`}
    ${view === "runs" && html`<${RunsPage} />`}
    ${view === "storage" && html`<${StoragePage} />`}
    <${Footer} />
    <${Toast} />
    <${Dialogs} />
  </div>`;
}

effect(() => {
  const { view, thread } = route.value;
  document.title = view === "thread" ? `${thread} · Everstep` : { storage: "Storage · Everstep", runs: "Runs · Everstep" }[view] ?? "Everstep";
});

listenToKeys();
render(html`<${Page} />`, document.getElementById("page"));
begin();

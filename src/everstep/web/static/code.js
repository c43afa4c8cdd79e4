// The same as the page does, for people to paste: as a command, in Python, as a request.
import { html, signal } from "./vendor/ui.js";
import { quoteShell, visible } from "./format.js";
import { info } from "./model.js";
import { CopyButton, Segments } from "./parts.js";

// What others need to reach the store of this page. Until it is known nothing can be pasted anyway.
const reach = () => info.value?.reach ?? { command: "everstep", python: null, options: "", note: null };

// A command, which names the store: `words` are its name with its options, `names` what it is about. A name that begins
// with - would be taken for an option, so -- says before it that no more of them follow.
export function everstep(words, ...names) {
  const end = names.some((name) => name.startsWith("-")) ? ["--"] : [];
  return [reach().command, words, ...end, ...names.map(quoteShell)].join(" ");
}

const KEEP_ALL = 'everstep.SnapshotConfig(gc_policy="keep_all")'; // as the page does it: nothing goes by the way

const indented = (text) => text.replaceAll("\n", "\n    ");

// A call on `engine`, in a program that opens the store. `isAsync` where there is no other way; `config` is null where they
// only read.
export function inPython(call, { config = KEEP_ALL, isAsync = false, imports = "", result = "" } = {}) {
  const { python, options } = reach();
  const assigned = result && `${result} = `;
  if (!python) return `${imports}${assigned}await ${call}`; // on the engine that has it open
  const needed = `${isAsync ? "import asyncio\n" : ""}${python.startsWith("os.") ? "import os\n" : ""}import everstep\n${imports}`;
  const opened = `everstep.open(${[python, config].filter(Boolean).join(", ")}${options})`;
  if (!isAsync) return `${needed}\nwith ${opened}.sync as engine:\n    ${indented(`${assigned}${call}`)}`;
  return `${needed}\nasync def main():\n    async with ${opened} as engine:\n        ${indented(indented(`${assigned}await ${call}`))}\n\nasyncio.run(main())`;
}

const WORD_MAX = 30; // a longer one is broken where the line ends

// A command that can be copied. Its options stay whole: a line may end between words, not within them.
export const Command = ({ label, text }) => html`<div class="command">
  ${label && html`<span class="command-label">${label}</span>`}
  <code>${visible(text).split(/([ \n])/).map((word) => (word.trim() && word.length < WORD_MAX ? html`<span class="command-word">${word}</span>` : word))}</code>
  <${CopyButton} text=${text} label=${`Copy ${label ?? "command"}`} />
</div>`;

const Note = ({ text }) => text && html`<p class="hint">${visible(text)}</p>`;

// What has to be done before a command or a program reaches the store.
export const ReachNote = () => html`<${Note} text=${reach().note} />`;

// A request shows the token where the page has one, which is not shown here.
const TOKEN = ' -H "Authorization: Bearer $EVERSTEP_TOKEN"';
export const shown = (request) => (reach().needs_token ? `${request}${TOKEN}` : request);
export const TokenNote = () => html`<${Note} text=${reach().needs_token && "EVERSTEP_TOKEN must hold the token of this page."} />`;

const way = signal("command");
const WAYS = [["command", "Command"], ["python", "Python"], ["curl", "curl"]];

// An action as a command, in Python and as a request: each does the same. `body` is what the page itself would send,
// unless it is no JSON: then `curl` is the whole request.
export function AsCode({ command, python, path, body, curl }) {
  const texts = { command, python, curl: curl ?? curlOf(path, body) };
  return html`<div class="as-code">
    <${Segments} label="Show as" value=${way.value} options=${WAYS} onChange=${(next) => (way.value = next)} />
    <${Command} text=${texts[way.value]} />
    ${way.value === "curl" ? html`<${TokenNote} />` : html`<${ReachNote} />`}
  </div>`;
}

const curlOf = (path, body) => `${curlTo(path)} -H 'Content-Type: application/json' -d ${quoteShell(JSON.stringify(body))}`;

// The beginning of a request that changes something: it says that it is meant for this server.
export function curlTo(path) {
  const home = new URL(document.baseURI);
  return shown(`curl -X POST ${home.href.replace(/\/$/, "")}/api/v1/${path} -H ${quoteShell(`Origin: ${home.origin}`)}`);
}

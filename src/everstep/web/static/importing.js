// A file of threads, sent to the store: how far it is, what came of it, and what was wrong with it.
import { html, useEffect, useRef, useState } from "./vendor/ui.js";
import { upload } from "./api.js";
import { bytes, count, plural, python, quoteShell, visible } from "./format.js";
import { address, dialog, follow, info, labelOf, openThread, renew } from "./model.js";
import { AsCode, curlTo, everstep, inPython } from "./code.js";
import { Dialog, Icon, Trouble } from "./parts.js";

const SHOWN = 8; // names of threads; the others are counted
const close = () => (dialog.value = null);

const commandOf = (name) => ({
  command: everstep("import", name),
  python: inPython(`everstep.import_threads(${python(name)}, engine)`),
  curl: `${curlTo("import")} -H 'Content-Type: application/octet-stream' --data-binary ${quoteShell(`@${name}`)}`,
});

function Progress({ sent, total }) {
  const isSent = sent >= total;
  return html`<div class="progress-box" role="status">
    <progress max=${total} value=${isSent ? undefined : sent} aria-label="Import"></progress>
    <span>${isSent ? "Everything is checked and stored…" : `${bytes(sent)} of ${bytes(total)} sent`}</span>
  </div>`;
}

function Outcome({ report }) {
  const names = report.thread_ids;
  const more = report.threads - Math.min(names.length, SHOWN);
  return html`<div role="status" class="outcome">
    <p><b class="good">${report.checkpoints ? "Imported." : "Nothing new."}</b> ${plural(report.threads, "thread")}, ${plural(report.checkpoints, "checkpoint")} brought in${report.skipped
      ? `, ${count(report.skipped)} ${report.skipped === 1 ? "was" : "were"} there already`
      : ""}. ${report.verified > 0 && "All of it was read back and compared."}</p>
    <ul class="branches">
      ${names.slice(0, SHOWN).map((name) => html`<li key=${name}><${Icon} name="right" /><a href=${address({ thread: name })} dir="auto" title=${visible(name)} onClick=${follow(() => (openThread(name), close()))}>${visible(labelOf(name))}</a></li>`)}
      ${more > 0 && html`<li class="faint">and ${plural(more, "more thread", "more threads")}</li>`}
    </ul>
    ${report.kept_ids.length > 0 && html`<p class="faint">Left as they are in this store: ${report.kept_ids.map((name) => visible(labelOf(name))).join(", ")}.</p>`}
  </div>`;
}

export function Import() {
  const [file, setFile] = useState(null);
  const [sent, setSent] = useState(null);
  const [report, setReport] = useState(null);
  const [error, setError] = useState(null);
  const running = useRef(null);
  useEffect(() => () => running.current?.stop(), []); // who closes the window does not want it any more
  const limit = info.value?.import_bytes_max ?? Infinity;
  const choose = (event) => {
    const [chosen] = event.target.files;
    setFile(chosen ?? null);
    setReport(null);
    const isTooLarge = chosen && chosen.size > limit;
    setError(isTooLarge ? { message: `This file has ${bytes(chosen.size)}; the page takes up to ${bytes(limit)}.`, hint: "The command takes files of any size." } : null);
  };
  const send = async (event) => {
    event.preventDefault();
    setSent(0);
    setError(null);
    running.current = upload("import", file, setSent);
    try {
      setReport(await running.current.done);
      await renew();
    } catch (failure) {
      setError(failure);
    }
    running.current = null;
    setSent(null);
  };
  const isBusy = sent !== null;
  const code = commandOf(file?.name ?? "FILE.everstep");
  return html`<${Dialog}
    title="Import"
    footer=${html`<span class="spacer"></span><button type="button" onClick=${close}>${report ? "Close" : "Cancel"}</button>
      ${!report && html`<button type="submit" form="import-form" class="primary" disabled=${!file || isBusy || file.size > limit}>Import</button>`}`}
  >
    <form id="import-form" onSubmit=${send}>
      <p>A file that an export wrote, here or with <code>everstep export</code>, from any store. Everything in it is checked. What is here already is skipped, and nothing is overwritten.</p>
      <input class="drop" type="file" aria-label="A file of threads" accept=".everstep" disabled=${isBusy} onChange=${choose} />
    </form>
    ${isBusy && html`<${Progress} sent=${sent} total=${file.size} />`}
    ${report && html`<${Outcome} report=${report} />`}
    ${error && html`<${Trouble} error=${error} />`}
    <${AsCode} ...${code} />
  <//>`;
}

// The steps of a thread as bars on a time axis: how long each took, and which ran at the same time.
import { html, useEffect, useState } from "./vendor/ui.js";
import { get } from "./api.js";
import { clock, duration, oneLine, plural, whole } from "./format.js";
import { address, dialog, follow, select } from "./model.js";
import { Command, everstep } from "./code.js";
import { Dialog, Empty, Icon, Loading, Trouble } from "./parts.js";

const STEPS = 60; // more bars would be too thin to compare
const CUTS_MAX = 20; // more lines would hide the bars

const percent = (part) => `${(part * 100).toFixed(3)}%`;

function Bar({ bar, cuts }) {
  const took = bar.duration_ms == null ? "" : duration(bar.duration_ms);
  const open = follow(() => {
    dialog.value = null;
    select(bar.id);
  });
  return html`<li class="time-row">
    <a class="time-name" href=${address({ thread: bar.thread_id, id: bar.id })} title=${`${oneLine(bar.title)} · ${whole(bar.created_at)}`} onClick=${open}>
      <span class=${`row-kind ${bar.kind}`}><${Icon} name=${bar.kind} /></span><span class="time-title" dir="auto">${oneLine(bar.title)}</span></a>
    <span class="time-track" aria-hidden="true">
      ${cuts.map((cut) => html`<span class="time-cut" key=${cut.at} style=${{ left: percent(cut.at) }}></span>`)}
      <span class=${`time-bar lane-${bar.lane % 6} ${bar.kind === "error" ? "failed" : ""}`} style=${{ left: percent(bar.left), width: percent(bar.width) }}></span>
    </span>
    <span class="time-took">${took}</span>
  </li>`;
}

export function Timing({ thread }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    const stop = new AbortController();
    get("timing", { thread, limit: STEPS }, stop.signal)
      .then(setFound)
      .catch((trouble) => stop.signal.aborted || setError(trouble));
    return () => stop.abort();
  }, [thread]);
  const bars = found?.bars ?? [];
  const cuts = found?.cuts.length <= CUTS_MAX ? found.cuts : [];
  const leftOut = (found?.cuts ?? []).reduce((sum, cut) => sum + cut.left_out_ms, 0);
  return html`<${Dialog} title="Time" wide=${true}>
    ${error && html`<${Trouble} error=${error} />`}
    ${!found && !error && html`<${Loading} lines=${6} />`}
    ${found && !bars.length && html`<${Empty} title="Nothing yet"><p>Steps will be shown here with the time they took.</p><//>`}
    ${bars.length > 0 &&
    html`<p class="time-about">
        ${found.total > bars.length ? `The newest ${plural(bars.length, "step")} of ${found.total.toLocaleString("en")}, ` : `${plural(bars.length, "step")}, `}
        ${clock(bars[0].created_at)} to ${clock(bars.at(-1).created_at)}.
        ${found.cuts.length > 0 && ` ${plural(found.cuts.length, "long wait")}, ${duration(leftOut)} together, left out${cuts.length ? " (dashed)" : ""}.`}
        ${bars.every((bar) => bar.duration_ms == null) && " Nobody noted how long these steps took: they are marks at the time they ended."}
      </p>
      <ol class="time-rows">${bars.map((bar) => html`<${Bar} key=${bar.ref} bar=${bar} cuts=${cuts} />`)}</ol>`}
    <${Command} text=${everstep("log --time", thread)} />
  <//>`;
}

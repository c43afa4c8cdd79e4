// The conversation: who said what, tool calls with their results, nothing of it ever taken for markup.
import { html, signal, useEffect, useLayoutEffect, useRef, useState } from "./vendor/ui.js";
import { get, latest, url } from "./api.js";
import { bytes, count, json, plural, visible } from "./format.js";
import { go, labelOf, named, route } from "./model.js";
import { Markdown } from "./markdown.js";
import { Block, Chip, CopyButton, Empty, Icon, IconButton, Loading, LongText, Trouble } from "./parts.js";

const call = latest();
const isMarkdown = signal(false); // off until somebody wants it: what was said is shown as it was said

// What somebody or something said. What tools answer is no prose.
const Said = ({ text, role }) =>
  isMarkdown.value && role !== "tool" ? html`<${Markdown} text=${text} />` : html`<${LongText} text=${text} mono=${role === "tool"} />`;

const MarkdownSwitch = () => html`<button type="button" class="small" title="Headings, lists and code as such; nothing in it is loaded or followed" aria-pressed=${isMarkdown.value} onClick=${() => (isMarkdown.value = !isMarkdown.value)}>Markdown</button>`;

// One conversation, or, where a checkpoint is compared with another one, both from where they part.
export function Messages({ data }) {
  const vs = route.value.vs;
  if (vs && vs !== data.id) return html`<${Pair} data=${data} vs=${vs} />`;
  return html`<${Conversation} data=${data} />`;
}

const pairCall = latest();

function Pair({ data, vs }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    setError(null);
    const { ref: a, thread } = named(vs);
    pairCall((stop) => get("messages/pair", { a, b: data.ref, thread }, stop))
      .then((answer) => answer && setFound(answer))
      .catch(setError);
  }, [data.id, vs]);
  if (error) return html`<${Trouble} error=${error} />`;
  if (!found) return html`<${Loading} lines=${5} />`;
  const { common, a, b } = found;
  const isSame = !a.messages.length && !b.messages.length;
  return html`<div class="pair-box">
    <div class="changes-top">
      <span>${common ? `the same up to message ${count(common)}` : "different from the first message on"}</span>
      <span class="spacer"></span>
      <${MarkdownSwitch} />
      <${IconButton} icon="swap" label="The other way round" className="quiet" onClick=${() => go({ id: vs, vs: data.id })} />
      <${IconButton} icon="close" label="One conversation again" className="quiet" onClick=${() => go({ vs: null })} />
    </div>
    ${isSame && html`<${Empty} title="No difference"><p>Both hold the same ${plural(common, "message")}.</p><//>`}
    ${!isSame && html`<div class="pair"><${PairSide} side=${a} /><${PairSide} side=${b} /></div>`}
  </div>`;
}

function PairSide({ side }) {
  const byIndex = new Map(side.messages.map((message) => [message.index, message]));
  const title = `${labelOf(side.thread_id)} #${side.step}`;
  return html`<section class="pair-side transcript" aria-label=${visible(title)}>
    <h3 class="section" dir="auto" title=${visible(side.thread_id)}>${visible(title)} <span>${plural(side.total, "message")}</span></h3>
    ${!side.messages.length && html`<p class="hint">It ends here.</p>`}
    ${unpaired(side.messages).map((message) => html`<${Message} key=${message.index} message=${message} byIndex=${byIndex} data=${side} />`)}
    ${side.more > 0 && html`<p class="hint">and ${plural(side.more, "more message", "more messages")}</p>`}
  </section>`;
}

// A result stands with its call, and not once more by itself.
function unpaired(messages) {
  const paired = new Set(messages.flatMap((message) => (message.tool_calls ?? []).map((one) => one.result?.index)));
  return messages.filter((message) => message.role !== "tool" || !paired.has(message.index));
}

function Conversation({ data }) {
  const [page, setPage] = useState(null);
  const [error, setError] = useState(null);
  const [isRaw, setRaw] = useState(false);
  const start = useRef(true);
  const list = useRef(null);
  const load = (cursor) =>
    call((stop) => get("messages", { ref: data.ref, limit: 100, cursor }, stop))
      .then((answer) => {
        if (!answer) return;
        setError(null);
        setPage((before) => ({
          of: data.id,
          cursor: answer.cursor,
          total: answer.total,
          messages: cursor && before ? [...answer.messages, ...before.messages] : answer.messages,
        }));
      })
      .catch(setError);
  useEffect(() => {
    load(null);
  }, [data.id]);
  // The end of a conversation is what one comes for; what is read on above does not move it.
  useLayoutEffect(() => {
    const body = document.getElementById("tab-body");
    if (!page || !body || !start.current) return;
    start.current = false;
    body.scrollTop = body.scrollHeight;
  }, [page]);
  if (error) return html`<${Trouble} error=${error} />`;
  if (!page) return html`<${Loading} lines=${5} />`;
  if (!page.total) return html`<${Empty} title="No messages"><p>This checkpoint holds no conversation; its values are under State.</p><//>`;
  const more = page.total - page.messages.length;
  const byIndex = new Map(page.messages.map((message) => [message.index, message]));
  return html`<div class="transcript" ref=${list}>
    <div class="changes-top">
      <span>${plural(page.total, "message")}</span>
      <span class="spacer"></span>
      ${!isRaw && html`<${MarkdownSwitch} />`}
      <button type="button" class="small" aria-pressed=${isRaw} onClick=${() => setRaw(!isRaw)}>Raw JSON</button>
    </div>
    ${page.cursor && html`<p class="earlier"><button type="button" onClick=${() => load(page.cursor)}>Show earlier messages${more > 0 ? ` (${count(more)})` : ""}</button></p>`}
    ${isRaw && page.messages.map((message) => html`<${Raw} key=${message.index} message=${message} />`)}
    ${!isRaw && unpaired(page.messages).map((message) => html`<${Message} key=${message.index} message=${message} byIndex=${byIndex} data=${data} />`)}
  </div>`;
}

const Raw = ({ message }) => html`<div class="message raw"><div class="who"><span>${count(message.index + 1)}</span><span class="spacer"></span><${CopyButton} text=${() => JSON.stringify(message.raw, null, 2)} label="Copy the message" /></div><${Block} text=${json(message.raw ?? message, 2)} /></div>`;

function Message({ message, byIndex, data }) {
  const { role, name, text, parts, tool_calls: calls } = message;
  return html`<div class=${`message ${role}`}>
    <div class="who">
      <span class="role">${visible(role || "message")}</span>${name && html`<span>${visible(name)}</span>`}
      <span class="spacer"></span><${CopyButton} text=${text ?? ""} label="Copy the text" />
      <span class="faint">${count(message.index + 1)}</span>
    </div>
    ${parts?.length ? parts.map((part, number) => html`<${Part} key=${number} part=${part} role=${role} />`) : text ? html`<${Said} text=${text} role=${role} />` : null}
    ${message.text_length > (text ?? "").length && html`<p class="hint">The first ${count(text.length)} of ${count(message.text_length)} characters. <a href=${url("value", { ref: data.ref, pointer: `/messages/${message.index}` })} download=${`message-${message.index + 1}.json`}>Download the whole message</a></p>`}
    ${(calls ?? []).map((one, number) => html`<${Call} key=${one.id ?? number} call=${one} byIndex=${byIndex} />`)}
  </div>`;
}

function Part({ part, role }) {
  if (part.type === "text") return html`<div><${Said} text=${part.text} role=${role} /></div>`;
  if (part.type === "reasoning") {
    return html`<details class="reasoning"><summary>reasoning, ${count((part.text ?? "").length)} characters</summary><${LongText} text=${part.text ?? ""} /></details>`;
  }
  if (part.type === "image") {
    const about = [part.mime ?? part.media_type ?? "image", part.size ?? part.size_bytes ? bytes(part.size ?? part.size_bytes) : ""].filter(Boolean).join(", ");
    return html`<div><${Chip} text=${about} title="Pictures are not shown: they may come from anywhere" /></div>`;
  }
  return html`<details class="reasoning"><summary>${visible(part.type ?? "data")}</summary><${Block} text=${json(part.value ?? part, 2)} /></details>`;
}

function Call({ call: { name, args, result }, byIndex }) {
  const whole = result ? (byIndex.get(result.index)?.text ?? result.text ?? "") : "";
  const shown = typeof args === "string" ? visible(args) : json(args ?? {});
  return html`<div class=${`call ${result?.error ? "failed" : ""}`}>
    <div class="call-head mono"><${Icon} name="tool" /><span><b>${visible(name)}</b>(<${LongText} text=${shown.replace(/^\{|\}$/g, "")} mono=${true} />)</span></div>
    ${result
      ? html`<div class="call-result">${result.error && html`<${Chip} text="failed" tone="error" />`}<${LongText} text=${whole} mono=${true} /></div>`
      : html`<div class="call-result faint">no result yet</div>`}
  </div>`;
}

// Markdown as elements of the page, never as markup: nothing in it is loaded, run, or led to by a click.
import { html, useState } from "./vendor/ui.js";
import { count, visible } from "./format.js";
import { Chip } from "./parts.js";

const LONG = 1200;
const SHORT = 600;

// Each part is bounded, so that a text of nothing but marks is looked through once.
const INLINE =
  /`([^`\n]{1,2000})`|(!?)\[([^\]\n]{0,500})\]\(([^()\s]{0,2000})[^()\n]{0,200}\)|\*\*([^*\n]{1,1000})\*\*|__([^_\n]{1,1000})__|~~([^~\n]{1,1000})~~|(?<![\w*])\*([^*\s][^*\n]{0,1000})\*(?![\w*])|(?<![\w_])_([^_\s][^_\n]{0,1000})_(?![\w_])/g;

const Inline = ({ text }) => html`${[...inline(text)]}`;

function* inline(text) {
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > at) yield visible(text.slice(at, found.index));
    yield element(found);
    at = found.index + found[0].length;
  }
  if (at < text.length) yield visible(text.slice(at));
}

function element([, code, bang, label, target, strong, alsoStrong, struck, soft, alsoSoft]) {
  if (code !== undefined) return html`<code>${visible(code)}</code>`;
  if (bang) return html`<${Chip} text=${`picture: ${label || target}`} title="Pictures are not shown: they may come from anywhere" />`;
  // The address is read, not followed: whoever wrote it may want somebody to go there.
  if (label !== undefined) return html`<span class="md-link">${visible(label)}</span>${target && target !== label && html` <span class="faint mono">${visible(target)}</span>`}`;
  if (strong ?? alsoStrong) return html`<b><${Inline} text=${strong ?? alsoStrong} /></b>`;
  if (struck) return html`<s>${visible(struck)}</s>`;
  return html`<i>${visible(soft ?? alsoSoft)}</i>`;
}

const FENCE = /^ {0,3}(```+|~~~+)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^\s{0,3}>\s?(.*)$/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;

// The blocks of a text, each with its lines.
export function blocksOf(text) {
  const blocks = [];
  let fence = null;
  const add = (kind, line, more = {}) => {
    const last = blocks.at(-1);
    const goesOn = last?.kind === kind && kind !== "heading" && kind !== "rule" && kind !== "item";
    if (goesOn) last.lines.push(line);
    else blocks.push({ kind, lines: [line], ...more });
  };
  for (const line of text.split("\n")) {
    const mark = FENCE.exec(line)?.[1];
    if (fence !== null) {
      if (mark?.startsWith(fence)) fence = null;
      else blocks.at(-1).lines.push(line);
      continue;
    }
    const [heading, item, quote] = [HEADING, ITEM, QUOTE].map((form) => form.exec(line));
    if (mark) {
      fence = mark;
      blocks.push({ kind: "code", lines: [] });
    } else if (!line.trim()) blocks.push({ kind: "gap", lines: [] });
    else if (RULE.test(line)) add("rule", "");
    else if (heading) add("heading", heading[2], { level: heading[1].length });
    else if (item) add("item", item[3], { depth: Math.min(6, Math.floor(item[1].length / 2)), mark: item[2] });
    else if (quote) add("quote", quote[1]);
    else if (/^\s*\|/.test(line)) add("table", line);
    else if (blocks.at(-1)?.kind === "item" && /^\s{2,}/.test(line)) blocks.at(-1).lines.push(line.trim());
    else add("text", line);
  }
  return blocks.filter(({ kind }) => kind !== "gap");
}

function Block({ block }) {
  const text = block.lines.join("\n");
  if (block.kind === "code" || block.kind === "table") return html`<pre class="block" dir="auto">${visible(text)}</pre>`;
  if (block.kind === "rule") return html`<hr />`;
  if (block.kind === "heading") return html`<p class="md-heading"><${Inline} text=${text} /></p>`;
  if (block.kind === "quote") return html`<blockquote><${Inline} text=${text} /></blockquote>`;
  if (block.kind === "item") {
    const mark = /^\d/.test(block.mark) ? block.mark : "•";
    return html`<div class="md-item" style=${{ "--depth": block.depth }}><span class="faint">${mark}</span><span><${Inline} text=${text} /></span></div>`;
  }
  return html`<p><${Inline} text=${text} /></p>`;
}

export function Markdown({ text }) {
  const [isOpen, setOpen] = useState(false);
  const isLong = text.length > LONG;
  const shown = isLong && !isOpen ? `${text.slice(0, SHORT)}…` : text;
  return html`<div class="md" dir="auto">
    ${blocksOf(shown).map((block, place) => html`<${Block} key=${place} block=${block} />`)}
    ${isLong && html`<button type="button" class="link" onClick=${() => setOpen(!isOpen)}>${isOpen ? "show less" : `show all ${count(text.length)} characters`}</button>`}
  </div>`;
}

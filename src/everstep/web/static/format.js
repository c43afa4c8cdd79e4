// Numbers, times and values as people read them. Pure: nothing here knows of the page.

const DAY = 86400e3;

export function bytes(n) {
  if (n == null) return "";
  const abs = Math.abs(n);
  if (abs < 1000) return `${n} B`;
  if (abs < 1e6) return `${(n / 1e3).toFixed(abs < 1e4 ? 1 : 0)} kB`;
  if (abs < 1e9) return `${(n / 1e6).toFixed(abs < 1e7 ? 1 : 0)} MB`;
  return `${(n / 1e9).toFixed(1)} GB`;
}

export const count = (n) => (n == null ? "" : n.toLocaleString("en"));

export const plural = (n, word, many = `${word}s`) => `${count(n)} ${n === 1 ? word : many}`;

export function ago(iso, now = Date.now()) {
  const seconds = (now - Date.parse(iso)) / 1000;
  if (Number.isNaN(seconds)) return "";
  if (seconds < 10) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  if (seconds < 2 * 86400) return "yesterday";
  if (seconds < 30 * 86400) return `${Math.floor(seconds / 86400)} d`;
  return new Date(iso).toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
}

// A time in a narrow column: of today the clock, of other days the day.
export function clock(iso, now = Date.now()) {
  const moment = new Date(iso);
  if (Number.isNaN(moment.getTime())) return "";
  const isToday = moment.toDateString() === new Date(now).toDateString();
  if (isToday) return moment.toLocaleTimeString("en-GB");
  if (now - moment.getTime() < 300 * DAY) {
    const day = moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
    return `${day} ${moment.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })}`;
  }
  return moment.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
}

export function whole(iso) {
  const moment = new Date(iso);
  return Number.isNaN(moment.getTime()) ? String(iso ?? "") : moment.toLocaleString("en-GB", {
    dateStyle: "medium",
    timeStyle: "medium",
  });
}

// A time in a line: of today only the clock.
export function when(iso, now = Date.now()) {
  const isToday = new Date(iso).toDateString() === new Date(now).toDateString();
  return isToday ? `today ${new Date(iso).toLocaleTimeString("en-GB")}` : whole(iso);
}

export function duration(ms) {
  if (ms == null) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60e3) return `${(ms / 1000).toFixed(ms < 10e3 ? 1 : 0)} s`;
  if (ms < 3600e3) return `${Math.floor(ms / 60e3)} min ${Math.round((ms % 60e3) / 1000)} s`;
  return `${(ms / 3600e3).toFixed(1)} h`;
}

// What a step cost: small sums have more digits.
export const dollars = (n) => `$${n.toFixed(n < 1 ? 4 : 2)}`;

// The part of an id that tells it from others: its last, which is random. References may be written so.
export function shortId(id) {
  const text = String(id ?? "");
  const last = text.slice(text.lastIndexOf("-") + 1);
  return last.length >= 8 ? last.slice(0, 8) : text.slice(-12);
}

// A branch has the name that it was made with in a long id: "trip-branch-cheap-922df61bf47f8bc8".
export const branchName = (thread) => /-branch-(.+)-[0-9a-f]{16}$/s.exec(thread)?.[1] ?? thread;

// The thread that a branch came from, of the reference to where it began.
export const threadIn = (origin) => String(origin ?? "").replace(/@[^@]*$/, "");

// Characters that would change how the text around them is shown are made visible; everything else stays.
const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

export const visible = (text) =>
  String(text ?? "").replace(HIDDEN, (char) => {
    const code = char.codePointAt(0);
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    if (code === 0x7f) return "\u2421";
    return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });

export const oneLine = (text) => visible(String(text ?? "").replace(/\s+/g, " ").trim());

// A value of the interface, where `$type` stands for what JSON has no word for, in one line or in several.
export function json(value, indent = 0) {
  if (value === undefined) return "";
  return visible(JSON.stringify(value, marked, indent));
}

function marked(_, value) {
  if (value && typeof value === "object" && "$type" in value && "text" in value) return `${value.$type} ${value.text}`;
  if (value && value.$type === "bytes") return `bytes, ${bytes(value.size)}`;
  if (value && typeof value === "object" && "$cut" in value) return `${value.text}… (${count(value.$cut)} characters)`;
  return value;
}

// A value as Python writes it.
export function python(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (value.$type === "missing") return "everstep.MISSING";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, inner]) => `${python(key)}: ${python(inner)}`).join(", ")}}`;
  return JSON.stringify(value);
}

// A command that reads a value from its standard input, as JSON.
export const piped = (value, command) => `printf %s ${quoteShell(JSON.stringify(value))} | ${command}`;

export const quoteShell = (text) =>
  /^[\w@%+=:,./~#-]+$/.test(text) && !text.startsWith("~") && !text.startsWith("#")
    ? text
    : `'${text.replaceAll("'", `'\\''`)}'`;

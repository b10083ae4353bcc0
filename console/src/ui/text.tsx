// Text of models, tools and clients: text nodes only, with control and bidirectional characters made visible.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

// Everything that changes how other characters look, or is not seen: C0 and C1 controls but tab and line feed, and bidi controls.
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]/g;

/** Longer texts are cut until the reader asks for the rest. */
const LIMIT = 50_000;

/** Short names of the controls below the space, in their order. */
const C0 = "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US".split(" ");

function nameOf(code: number): string {
  return C0[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** The same where no element can be: in an option, in a notification of the system. */
export function named(text: string): string {
  return text.replace(CONTROLS, (character) => nameOf(character.charCodeAt(0)));
}

/** A text whose control characters are shown by their names. */
export function visible(text: string): ComponentChildren {
  const found: ComponentChildren[] = [];
  let from = 0;
  for (const { 0: character, index } of text.matchAll(CONTROLS)) {
    if (index > from) found.push(text.slice(from, index));
    found.push(
      <span class="control" title="A control character">
        {nameOf(character.charCodeAt(0))}
      </span>,
    );
    from = index + 1;
  }
  if (!found.length) return text;
  if (from < text.length) found.push(text.slice(from));
  return found;
}

export interface Mark {
  begin: number;
  end: number;
  label: string;
  lit: boolean;
}

/** A block of text in the mono typeface, wrapped, with marked parts (offsets in JavaScript's units, ascending). */
export function TextBlock({ text, marks = [], label }: { text: string; marks?: Mark[]; label: string }) {
  const [isWhole, showWhole] = useState(false);
  const shown = isWhole ? text.length : Math.min(LIMIT, text.length);
  const pieces: ComponentChildren[] = [];
  let from = 0;
  for (const mark of marks) {
    if (mark.begin < from || mark.begin >= shown) continue;
    pieces.push(visible(text.slice(from, mark.begin)));
    pieces.push(
      <mark class={mark.lit ? "lit" : ""}>
        <sup aria-label={`call ${mark.label}: `}>{mark.label}</sup>
        {visible(text.slice(mark.begin, Math.min(mark.end, shown)))}
      </mark>,
    );
    from = mark.end;
  }
  if (from < shown) pieces.push(visible(text.slice(from, shown)));
  return (
    <div class="block">
      <pre class="text" dir="auto" tabIndex={0} role="region" aria-label={label}>
        {pieces}
      </pre>
      {shown < text.length && (
        <button type="button" class="more" onClick={() => showWhole(true)}>
          Show the other {(text.length - shown).toLocaleString("en")} characters
        </button>
      )}
    </div>
  );
}

/** JSON, indented; `value` is any value that came as JSON, or its text. */
export function JsonBlock({ value, label }: { value: unknown; label: string }) {
  return <TextBlock text={JSON.stringify(value, null, 2) ?? "null"} label={label} />;
}

/** A short text on one line; with a class in an element of its own. */
export function Line({ text, class: own }: { text: string; class?: string }) {
  const line = <bdi>{visible(text.replace(/\s+/g, " "))}</bdi>;
  return own === undefined ? line : <span class={own}>{line}</span>;
}

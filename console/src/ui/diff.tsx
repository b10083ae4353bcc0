// The lines of two texts, with what the second one removes and adds.

import { diff } from "../json";
import { visible } from "./text";

const SIGNS = { same: " ", old: "−", new: "+" };

export function Diff({ before, after, label }: { before: string; after: string; label: string }) {
  return (
    <pre class="text diff" tabIndex={0} role="region" aria-label={label}>
      {diff(before, after).map(({ kind, text }, index) => (
        <span key={index} class={kind}>
          {SIGNS[kind]} {visible(text)}
          {"\n"}
        </span>
      ))}
    </pre>
  );
}

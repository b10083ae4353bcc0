// The lines of two texts, with what the second one removes and adds.

import { diffLines } from "diff";
import { visible } from "./text";

/** Texts that differ in more lines have no line in common. */
const MOST_EDITS = 2000;

export function Diff({ before, after, label }: { before: string; after: string; label: string }) {
  const changes = diffLines(`${before}\n`, `${after}\n`, { maxEditLength: MOST_EDITS }) ?? [
    { value: before, removed: true, added: false },
    { value: after, removed: false, added: true },
  ];
  return (
    <pre class="text diff" tabIndex={0} role="region" aria-label={label}>
      {changes.flatMap(({ value, removed, added }, index) =>
        value.replace(/\n$/, "").split("\n").map((line, place) => (
          <span key={`${index} ${place}`} class={removed ? "old" : added ? "new" : "same"}>
            {removed ? "−" : added ? "+" : " "} {visible(line)}
            {"\n"}
          </span>
        )),
      )}
    </pre>
  );
}

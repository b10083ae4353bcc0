// The list of turns: a grid whose rows have the focus one at a time.

import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { bytes, count, dateAndTime, duration, plural, timeOfDay } from "../format";
import { BASE, type Summary } from "../api";
import { now } from "../clock";
import { go, parts } from "../route";
import { openaiPath } from "../openai";
import { info } from "../session";
import { Copy, ModeTags, Problem, StateMark } from "../ui/parts";
import { focusList, type Rows, useRows } from "../ui/rows";
import { Line } from "../ui/text";
import { VirtualList } from "../ui/virtual";
import { Filters } from "./filters";
import { filters, isLoaded, listError, load, loadOlder, setAtTop, turns } from "./store";

/** The turn whose row has the focus, or had it last. */
export const focused = signal<string | null>(null);

/** The turn whose row has the focus or would get it: the last one, the open one, or the first. */
function currentId(): string | null {
  const listed = turns.value;
  const known = [focused.value, parts.value[1]].find((id) => id != null && listed.some((turn) => turn.id === id));
  return known ?? listed[0]?.id ?? null;
}

/** Opens a turn beside the list. Another turn begins with its own part in view. */
export function openTurn(id: string, replace = false): void {
  go({ path: ["turns", id], query: { at: null, tab: null, edit: null }, replace });
}

export function closeTurn(): void {
  go({ path: ["turns"], query: { at: null, tab: null, edit: null } });
  requestAnimationFrame(focusList);
}

const ROWS: Rows = {
  keys: () => turns.peek().map((turn) => turn.id),
  current: currentId,
  open: () => parts.peek()[1] ?? null,
  placeOf(id) {
    const index = turns.peek().findIndex((turn) => turn.id === id);
    return { first: index, index };
  },
  focus: (id) => (focused.value = id),
  select: openTurn,
};

export function TurnList() {
  const { frame, scroller, isWide, rowHeight, onKeyDown } = useRows(ROWS);
  const [above, setAbove] = useState(0);
  useEffect(() => {
    scroller.current?.scrollTo({ top: 0 });
  }, [filters.value]);
  const keys = turns.value.map((turn) => turn.id);
  const selected = parts.value[1] ?? null;
  const current = currentId();
  const isEmpty = isLoaded.value && !keys.length;
  return (
    <section class={`list ${isWide ? "wide" : "narrow"}`} ref={frame} aria-label="Turns">
      {selected === null && <h1 class="unseen">Turns</h1>}
      <Filters />
      {listError.value && <Problem error={listError.value} retry={() => void load()} />}
      {isEmpty && !listError.value ? (
        <Empty />
      ) : (
        <div class="grid" role="grid" aria-label="Turns" aria-rowcount={keys.length + 1} onKeyDown={onKeyDown}>
          {above > 0 && (
            <button type="button" class="newer" onClick={() => scroller.current?.scrollTo({ top: 0 })}>
              ↑ {plural(above, "new turn")}
            </button>
          )}
          <VirtualList
            keys={keys}
            rowHeight={rowHeight}
            keep={current}
            scroller={scroller}
            onEnd={() => void loadOlder()}
            onAbove={(added) => {
              setAtTop(!added);
              setAbove((before) => (added ? before + added : 0));
            }}
            row={(index, top) => {
              const turn = turns.value[index]!;
              return (
                <Row key={turn.id} turn={turn} index={index} top={top} isWide={isWide} isSelected={turn.id === selected} isCurrent={turn.id === current} />
              );
            }}
          >
            <Head />
          </VirtualList>
        </div>
      )}
    </section>
  );
}

function Head() {
  return (
    <div class="head" role="rowgroup">
      <div class="columns" role="row" aria-rowindex={1}>
        {["State", "Time", "Model", "Request", "Read as", "Calls", "Tokens", "Duration"].map((name) => (
          <span key={name} role="columnheader" class={name.toLowerCase().replace(" ", "-")}>
            {name}
          </span>
        ))}
      </div>
    </div>
  );
}

interface RowProps {
  turn: Summary;
  index: number;
  top: number;
  isWide: boolean;
  isSelected: boolean;
  isCurrent: boolean;
}

function Row({ turn, index, top, isSelected, isCurrent }: RowProps) {
  const seconds = turn.state === "running" ? Math.max(0, now.value - turn.began) : turn.seconds;
  const names = [...new Set(turn.calls)];
  return (
    <div
      class={`row columns ${isSelected ? "selected" : ""}`}
      role="row"
      aria-rowindex={index + 2}
      aria-selected={isSelected}
      tabIndex={isCurrent ? 0 : -1}
      style={{ transform: `translateY(${top}px)` }}
      onClick={() => openTurn(turn.id)}
      onFocus={() => (focused.value = turn.id)}
    >
      <span role="gridcell" class="state-cell">
        <StateMark state={turn.state} />
      </span>
      <span role="gridcell" class="time" title={dateAndTime(turn.began)}>
        {timeOfDay(turn.began)}
      </span>
      <span role="gridcell" class="model">
        <Line text={turn.model} />
      </span>
      <span role="gridcell" class="request">
        {turn.error ? <Line class="bad" text={turn.error} /> : <Line text={turn.preview} />}
      </span>
      <span role="gridcell" class="read-as">
        <ModeTags mode={turn.mode} format={turn.format} constraint={turn.constraint} />
        {turn.rounds > 1 && <span class="tag strong" title="Requests to the model for this turn">{turn.rounds}×</span>}
      </span>
      <span role="gridcell" class="calls" title={names.join(", ")}>
        {turn.calls.length > 0 && (
          <>
            <Line text={names[0]!} />
            {turn.calls.length > 1 && <span class="dim"> +{turn.calls.length - 1}</span>}
          </>
        )}
      </span>
      <span role="gridcell" class="tokens" title={tokensInWords(turn)}>
        {turn.prompt_tokens != null && (
          <>
            {count(turn.prompt_tokens)}
            {turn.cached_tokens ? <span class="dim"> ({count(turn.cached_tokens)})</span> : null}
            <span class="dim"> → </span>
            {count(turn.completion_tokens)}
          </>
        )}
      </span>
      <span role="gridcell" class="duration">
        {duration(seconds)}
      </span>
    </div>
  );
}

export function tokensInWords(turn: Pick<Summary, "prompt_tokens" | "completion_tokens" | "cached_tokens">): string {
  if (turn.prompt_tokens == null) return "The model's server counted no tokens";
  const cached = turn.cached_tokens ? `, ${count(turn.cached_tokens)} of them cached` : "";
  return `${count(turn.prompt_tokens)} tokens in the prompt${cached}; ${count(turn.completion_tokens)} in the answer`;
}

function Empty() {
  if (filters.value) {
    return (
      <div class="empty">
        <h2>No turn matches</h2>
        <p>Turns are searched on the server, among those that it keeps. Remove a filter to see more.</p>
      </div>
    );
  }
  if (info.value?.openai_path === null) {
    return (
      <div class="empty">
        <h2>No turns yet</h2>
        <p>
          This server takes no requests to models: it was started without <code>--upstream</code>.
        </p>
      </div>
    );
  }
  const base = `${window.location.origin}${BASE}${openaiPath()}`;
  const command = `curl ${base}/chat/completions -H 'Content-Type: application/json' \\\n  -d '{"model": "MODEL", "messages": [{"role": "user", "content": "Hello"}]}'`;
  const kept = info.value?.turns;
  return (
    <div class="empty">
      <h2>No turns yet</h2>
      <p>
        Set the base URL of your client to <code>{base}</code>. Each of its requests appears here while it runs
        {kept ? `; the last ${kept.kept} are kept, up to ${bytes(kept.bytes)}.` : "."}
      </p>
      <pre class="text" tabIndex={0} role="region" aria-label="An example">
        {command}
      </pre>
      <p class="actions">
        <Copy text={() => command}>Copy the command</Copy>
      </p>
    </div>
  );
}

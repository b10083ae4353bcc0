// One request to a model: what it was sent, the raw text of its answer beside what was read from it, and why it was asked again.

import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, type Attempt, type AttemptContent, type Call, type Reading, type ReadCall, type Summary } from "../api";
import { count, duration, plural } from "../format";
import { useLoaded } from "../loaded";
import { go, query } from "../route";
import { ModeTags, Problem, Tag } from "../ui/parts";
import { JsonBlock, Line, type Mark, TextBlock } from "../ui/text";
import { CallBlock, Messages, messagesOf, Others, Tools, toolsOf } from "./content";

/** What an attempt is for, beside an answer. */
const PURPOSES: Record<string, string> = {
  probe: "Whether the model calls tools natively was not known before this request",
  check: "This request finds out whether the server dropped the tools",
};

/** The content of an attempt, read again while the turn runs; null until it is known, and for no attempt. */
export function useAttempt(turnId: string, index: number | null, isRunning: boolean): AttemptContent | ApiError | null {
  const path = index === null ? null : `/api/turns/${encodeURIComponent(turnId)}/attempts/${index}`;
  const { value, error } = useLoaded<AttemptContent>(path, isRunning, () => isRunning);
  return error ?? value;
}

export function AttemptPanel({ turn, attempt }: { turn: Summary; attempt: Attempt }) {
  const content = useAttempt(turn.id, attempt.index, attempt.seconds === null && turn.state === "running");
  const before = useAttempt(turn.id, attempt.index > 0 ? attempt.index - 1 : null, false);
  const usage = attempt.usage;
  return (
    <>
      <div class="facts-line">
        <ModeTags mode={attempt.mode} format={attempt.format} constraint={attempt.constraint} />
        {PURPOSES[attempt.purpose] && <Tag title={PURPOSES[attempt.purpose]!}>{attempt.purpose}</Tag>}
        <span>{attempt.status ? `HTTP ${attempt.status}` : "no answer yet"}</span>
        {attempt.first_seconds != null && <span>first piece after {duration(attempt.first_seconds)}</span>}
        {usage?.prompt_tokens != null && (
          <span>
            {count(usage.prompt_tokens)} tokens in{usage.cached_tokens ? ` (${count(usage.cached_tokens)} cached)` : ""}, {count(usage.completion_tokens)} out
          </span>
        )}
      </div>
      {attempt.reason && (
        <p class="reason">
          <Line text={attempt.reason} />
        </p>
      )}
      {content instanceof ApiError ? (
        <Problem error={content} />
      ) : content === null ? (
        <p class="none">Loading…</p>
      ) : (
        <AttemptTabs attempt={attempt} content={content} before={before instanceof ApiError ? null : before} />
      )}
    </>
  );
}

function AttemptTabs({ attempt, content, before }: { attempt: Attempt; content: AttemptContent; before: AttemptContent | null }) {
  const messages = messagesOf(content.request);
  const tools = toolsOf(content.request);
  return (
    <Tabs
      tabs={{
        answer: { label: "Answer", body: () => <Answer attempt={attempt} content={content} /> },
        messages: {
          label: "Messages",
          count: messages.length,
          body: () => (content.request ? <><Messages messages={messages} before={before && messagesOf(before.request)} /><Others body={content.request} /></> : <NotKept cut={content.cut} />),
        },
        tools: {
          label: "Tools",
          count: tools.length,
          body: () => (
            <>
              {attempt.mode === "text" && <p class="hint">The tools of this request are in its messages: the model calls them by text.</p>}
              <Tools tools={tools} />
            </>
          ),
        },
        json: { label: "JSON", body: () => (content.request ? <JsonBlock value={content.request} label="Request as JSON" /> : <NotKept cut={content.cut} />) },
      }}
    />
  );
}

export function NotKept({ cut }: { cut: boolean }) {
  return (
    <p class="none">
      {cut
        ? "The server does not keep this content: it was over a limit, or the content of messages is not kept."
        : "There is nothing yet."}
    </p>
  );
}

export function Answer({ attempt, content }: { attempt: Pick<Attempt, "mode" | "status" | "calls">; content: AttemptContent }) {
  const [lit, setLit] = useState<number | null>(null);
  const { text, reading } = content;
  const native: Call[] = content.native_calls ?? [];
  const marks = useMemo(() => marksOf(text ?? "", reading?.calls ?? [], lit), [text, reading, lit]);
  useEffect(() => {
    if (lit !== null) document.querySelector(".raw mark.lit")?.scrollIntoView({ block: "nearest" });
  }, [lit]);
  return (
    <div class="answer">
      <p class="explained">{explain(attempt, content)}</p>
      <div class="sides">
        <section class="raw" aria-label="Raw text">
          <h2>Raw text of the model</h2>
          {text === null ? <NotKept cut={content.cut} /> : text === "" ? <p class="none">The model wrote no text.</p> : <TextBlock text={text} marks={marks} label="Raw text of the model" />}
          {native.length > 0 && (
            <>
              <h2>{plural(native.length, "native call")}</h2>
              {native.map((call, index) => (
                <CallBlock key={index} call={call} />
              ))}
            </>
          )}
        </section>
        <section class="read" aria-label="What was read">
          <h2>What was read</h2>
          {reading === null ? <p class="none">Nothing was read from this answer.</p> : <Read reading={reading} lit={lit} onLight={setLit} />}
        </section>
      </div>
    </div>
  );
}

function Read({ reading, lit, onLight }: { reading: Reading; lit: number | null; onLight: (index: number | null) => void }) {
  return (
    <>
      {reading.calls.map((call, index) => (
        <CallBlock key={index} call={call} label={String(index + 1)}>
          {call.begin !== null && (
            <button type="button" class="quiet" aria-pressed={lit === index} onClick={() => onLight(lit === index ? null : index)}>
              {lit === index ? "shown in the text" : "show in the text"}
            </button>
          )}
        </CallBlock>
      ))}
      {reading.repairs.length > 0 && (
        <div class="repairs">
          <h3>Repaired</h3>
          <ul>
            {reading.repairs.map((each, index) => (
              <li key={index}>{each.replaceAll("_", " ")}</li>
            ))}
          </ul>
        </div>
      )}
      {reading.incomplete.length > 0 && (
        <div class="repairs">
          <h3>Not a complete call</h3>
          {reading.incomplete.map((each, index) => (
            <TextBlock key={index} text={typeof each === "string" ? each : JSON.stringify(each, null, 2)} label="Incomplete call" />
          ))}
        </div>
      )}
      {reading.content && (
        <div>
          <h3>Content</h3>
          <TextBlock text={reading.content} label="Content" />
        </div>
      )}
      {reading.reasoning && (
        <div>
          <h3>Reasoning</h3>
          <TextBlock text={reading.reasoning} label="Reasoning" />
        </div>
      )}
    </>
  );
}

/** Says in a sentence how the answer was read. */
function explain({ mode, status }: Pick<Attempt, "mode" | "status">, { text, native_calls, reading }: AttemptContent): string {
  if (status !== null && status >= 400) return `The model's server answered with an error, HTTP ${status}: there is nothing to read.`;
  if (reading === null) return "The answer was not read: it has not ended, or it broke off.";
  const native = native_calls?.length ?? 0;
  const calls = reading.calls.length;
  const parts = [reading.content && "content", reading.reasoning && "reasoning"].filter(Boolean).join(" and ");
  if (native) return `The model's server returned ${plural(native, "call")} in a field of its own${calls > native ? `, and ${plural(calls - native, "more call")} stood in the text` : ""}.`;
  if (calls) {
    const where = mode === "native" ? "The model wrote into its text what its server should have read" : "The model wrote its calls as text";
    return `${where}: ${plural(calls, "call")} ${calls === 1 ? "was" : "were"} read${reading.format ? ` in the format ${reading.format}` : ""}${parts && `, beside ${parts}`}.`;
  }
  if (reading.incomplete.length) return `A call began in the text, but none is complete${parts && `; the rest is ${parts}`}.`;
  return text ? `No call stands in the text${parts && `: it is ${parts}`}.` : "The answer is empty.";
}

function marksOf(text: string, calls: ReadCall[], lit: number | null): Mark[] {
  return calls
    .flatMap((call, index) => {
      if (call.begin === null || call.end === null) return [];
      // Where a secret was removed from the text, the offsets are those of the text before that.
      const isThere = call.text === null || text.startsWith(call.text, call.begin);
      const begin = isThere ? call.begin : text.indexOf(call.text!);
      return begin < 0 ? [] : [{ begin, end: begin + (call.text?.length ?? call.end - call.begin), label: String(index + 1), lit: index === lit }];
    })
    .sort((one, other) => one.begin - other.begin);
}

export interface Tab {
  label: string;
  count?: number;
  body: () => preact.ComponentChildren;
}

/** Tabs whose choice is in the URL ("tab"). */
export function Tabs({ tabs }: { tabs: Record<string, Tab> }) {
  const names = Object.keys(tabs);
  const asked = query.value.get("tab") ?? "";
  const chosen = names.includes(asked) ? asked : names[0]!;
  const choose = (name: string) => go({ query: { tab: name === names[0] ? null : name }, replace: true });
  const onKeyDown = (event: KeyboardEvent) => {
    const index = names.indexOf(chosen);
    const to = { ArrowRight: index + 1, ArrowLeft: index - 1 + names.length, Home: 0, End: names.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const name = names[to % names.length]!;
    choose(name);
    document.getElementById(`tab-${name}`)?.focus();
  };
  return (
    <>
      <div class="tabs" role="tablist" aria-label="What to show" onKeyDown={onKeyDown}>
        {names.map((name) => (
          <button
            key={name}
            id={`tab-${name}`}
            type="button"
            role="tab"
            aria-selected={name === chosen}
            aria-controls="tab-panel"
            tabIndex={name === chosen ? 0 : -1}
            onClick={() => choose(name)}
          >
            {tabs[name]!.label}
            {tabs[name]!.count !== undefined && <span class="dim"> {tabs[name]!.count}</span>}
          </button>
        ))}
      </div>
      <div id="tab-panel" role="tabpanel" aria-labelledby={`tab-${chosen}`}>
        {tabs[chosen]!.body()}
      </div>
    </>
  );
}

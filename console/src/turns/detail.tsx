// The selected turn: its facts, its waterfall, and the part that is selected in it.

import { useEffect, useRef } from "preact/hooks";
import { BASE, type Turn } from "../api";
import { count, dateAndTime, duration } from "../format";
import { now } from "../clock";
import { useLoaded } from "../loaded";
import { go, query, urlOf } from "../route";
import { info } from "../session";
import { Bad, CloseButton, Copy, Fact, ModeTags, Problem, StateMark } from "../ui/parts";
import { JsonBlock, Line } from "../ui/text";
import { AttemptPanel, NotKept, Tabs } from "./attempt";
import { Messages, messagesOf, Others, Tools, toolsOf } from "./content";
import { closeTurn, tokensInWords } from "./list";
import { canEdit, Resend } from "./resend";
import { ToolPanel } from "./tool";
import { turns } from "./store";
import { type Part, partsOf, Waterfall } from "./waterfall";

export function TurnDetail({ id }: { id: string }) {
  const listed = turns.value.find((each) => each.id === id)?.state; // read again when the list hears of its end
  const { value: turn, error, reload } = useLoaded<Turn>(`/api/turns/${encodeURIComponent(id)}`, listed, (each) => each.state === "running");
  const ref = useRef<HTMLElement>(null);
  const edited = query.value.get("edit");
  const kept = info.value?.turns?.kept;
  return (
    <section id="detail" class="detail" tabIndex={-1} ref={ref} aria-label="Turn">
      {!turn && <h1 class="unseen">Turn</h1>}
      {turn ? (
        edited ? (
          <Resend turn={turn} of={edited} />
        ) : (
          <Loaded turn={turn} />
        )
      ) : error ? (
        <Problem error={error} retry={reload}>
          {error.status === 404 && (
            <>
              The server keeps the last {kept ?? "few"} turns, and this one is not among them.{" "}
              <button type="button" onClick={closeTurn}>
                Back to the list
              </button>
            </>
          )}
        </Problem>
      ) : (
        <p class="none">Loading…</p>
      )}
    </section>
  );
}

function Loaded({ turn }: { turn: Turn }) {
  const parts = partsOf(turn);
  const asked = query.value.get("at");
  const selected = parts.find((part) => part.key === asked) ?? firstPart(parts);
  const select = (key: string) => go({ query: { at: key, tab: null }, replace: true });
  useEffect(() => {
    const onStep = (event: Event) => {
      const part = parts[parts.indexOf(selected) + (event as CustomEvent<number>).detail];
      if (part) select(part.key);
    };
    window.addEventListener("console:step", onStep);
    return () => window.removeEventListener("console:step", onStep);
  });
  return (
    <>
      <Head turn={turn} selected={selected} />
      <Waterfall parts={parts} selected={selected.key} now={turn.state === "running" ? now.value : 0} onSelect={select} />
      <div id="part-panel" class="panel" role="tabpanel" aria-label={`${selected.kind} ${selected.name}`}>
        {selected.kind === "request" ? (
          <ClientRequest turn={turn} />
        ) : selected.attempt ? (
          <AttemptPanel key={selected.key} turn={turn} attempt={selected.attempt} />
        ) : (
          <ToolPanel key={selected.key} turn={turn} part={selected} />
        )}
      </div>
    </>
  );
}

/** The part that is shown first: the first attempt that needed another, since this is what one looks for, else the last attempt. */
function firstPart(parts: Part[]): Part {
  const attempts = parts.filter((part) => part.attempt);
  return attempts.find((part) => part.note) ?? attempts.at(-1) ?? parts[0]!;
}

function Head({ turn, selected }: { turn: Turn; selected: Part }) {
  const seconds = turn.state === "running" ? Math.max(0, now.value - turn.began) : turn.seconds;
  const edited = selected.attempt && canEdit(selected.attempt) ? selected : null;
  const reasons = turn.reasons.filter((reason) => !turn.attempts.some((attempt) => attempt.reason === reason));
  return (
    <header class="turn-head">
      <div class="title">
        <StateMark state={turn.state} />
        <h1>
          <Line text={turn.preview || turn.id} />
        </h1>
        <p class="actions">
          <button type="button" id="edit" onClick={() => go({ query: { edit: edited?.key ?? "request" } })} title={`Edit and resend ${edited ? "the selected attempt" : "the client's request"} (e)`}>
            Edit and resend
          </button>
          <Copy text={() => window.location.origin + urlOf({})}>Copy link</Copy>
          <a class="button" href={`${BASE}/api/turns/${encodeURIComponent(turn.id)}?download=1`} download>
            Export
          </a>
          <CloseButton what="the turn" onClick={closeTurn} />
        </p>
      </div>
      <Bad text={turn.error} />
      <dl class="facts">
        <Fact name="Model" value={turn.model} />
        <Fact name="Role" value={turn.role} />
        <Fact name="Session" value={turn.session} />
        <Fact name="Began" value={dateAndTime(turn.began)} />
        <Fact name="Took" value={duration(seconds)} />
        {turn.prompt_tokens != null && (
          <Fact name="Tokens" title={tokensInWords(turn)}>
            {count(turn.prompt_tokens)}
            {turn.cached_tokens ? <span class="dim"> ({count(turn.cached_tokens)} cached)</span> : null} → {count(turn.completion_tokens)}
          </Fact>
        )}
        <Fact name="Tools offered" value={turn.tools ? String(turn.tools) : ""} />
        <Fact name="Status" value={turn.status && turn.status !== 200 ? `HTTP ${turn.status}` : ""} />
        <Fact name="Id" value={turn.id} />
        {turn.mode && (
          <Fact name="Read as">
            <ModeTags {...turn} />
          </Fact>
        )}
      </dl>
      {reasons.length > 0 && (
        <ul class="reasons">
          {reasons.map((each, index) => (
            <li key={index}>
              <Line text={each} />
            </li>
          ))}
        </ul>
      )}
    </header>
  );
}

function ClientRequest({ turn }: { turn: Turn }) {
  const body = turn.client_request;
  if (!body) return <NotKept cut={turn.cut} />;
  const messages = messagesOf(body);
  const tools = toolsOf(body);
  return (
    <Tabs
      tabs={{
        messages: { label: "Messages", count: messages.length, body: () => <><Messages messages={messages} /><Others body={body} /></> },
        tools: { label: "Tools", count: tools.length, body: () => <Tools tools={tools} /> },
        json: { label: "JSON", body: () => <JsonBlock value={body} label="Request as JSON" /> },
      }}
    />
  );
}

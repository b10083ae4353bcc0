// One tool call, one hook's answer, or one approval, of a turn.

import { ApiError, type Turn } from "../api";
import { dateAndTime, duration } from "../format";
import { indented } from "../json";
import { Fact, PageLink, Tag } from "../ui/parts";
import { JsonBlock, Line, TextBlock } from "../ui/text";
import { useAttempt } from "./attempt";
import { isNew, Message, messagesOf } from "./content";
import type { Part } from "./waterfall";

export function ToolPanel({ turn, part }: { turn: Turn; part: Part }) {
  const find = (name: string): unknown => part.events.map((event) => event.payload?.[name]).find((value) => value !== undefined);
  const decisions = part.events.flatMap((event) => asList(event.attrs?.decisions));
  const answeredBy = part.events.map((event) => event.attrs?.responded_by).find((value) => typeof value === "string") as string | undefined;
  const callId = String(part.events.find((event) => event.attrs?.call_id)?.attrs?.call_id ?? part.hook?.call_id ?? "");
  // A record of a settled call has no arguments: they stand in the answer that made the call.
  const called = turn.attempts.flatMap((attempt) => attempt.calls).find((call) => call.id === callId);
  const given = find("Arguments");
  return (
    <>
      <div class="facts-line">
        <Tag kind={part.failed ? "bad" : ""}>{outcome(part)}</Tag>
        <span>{duration((part.end ?? part.begin) - part.begin)}</span>
        {callId && <Line class="dim" text={callId} />}
      </div>
      {part.note && (
        <p class="reason">
          <Line text={part.note} />
        </p>
      )}
      {part.hook && (
        <dl class="facts">
          <Fact name="Hook" value={part.hook.hook} />
          <Fact name="Began" value={dateAndTime(part.hook.began)} />
          <Fact name="Tool" value={part.hook.tool} />
        </dl>
      )}
      {answeredBy && <p class="reason">The hook <Line text={answeredBy} /> answered in the tool's place.</p>}
      {decisions.length > 0 && (
        <>
          <h2>Hooks</h2>
          <ul class="decisions">
            {decisions.map((each, index) => (
              <li key={index}>
                <Line text={`${each.by ?? "?"} at ${each.point ?? "?"}: ${each.decision ?? "?"}`} />
              </li>
            ))}
          </ul>
        </>
      )}
      {(given !== undefined || called) && (
        <>
          <h2>Arguments</h2>
          {given !== undefined ? <JsonBlock value={given} label="Arguments" /> : <TextBlock text={indented(called!.arguments)} label="Arguments" />}
        </>
      )}
      {part.kind === "tool" && <Result turn={turn} part={part} callId={callId} />}
      {part.kind === "approval" && <Approval part={part} />}
      {part.kind === "error" && <JsonBlock value={part.events} label="Events" />}
    </>
  );
}

function outcome(part: Part): string {
  if (part.hook) return part.hook.decision || "went on";
  if (part.end === null) return part.kind === "approval" ? "waits for a decision" : "running";
  if (part.kind === "approval") return part.failed ? "not approved" : "approved";
  return part.failed ? "failed" : "succeeded";
}

/** What the model got for the call: from the request that followed it. */
function Result({ turn, part, callId }: { turn: Turn; part: Part; callId: string }) {
  const end = part.end ?? Infinity;
  const later = turn.attempts.filter((attempt) => attempt.began >= end - 0.001);
  const following = later[0] ?? null;
  const earlier = turn.attempts.filter((attempt) => attempt.began < part.begin).at(-1) ?? null;
  const after = useAttempt(turn.id, following?.index ?? null, false);
  const before = useAttempt(turn.id, earlier?.index ?? null, false);
  if (part.end === null) return <p class="none">It has not answered yet.</p>;
  if (following === null) return <p class="none">The model was not asked again after this call, so it got no result.</p>;
  if (after === null) return <p class="none">Loading…</p>;
  if (after instanceof ApiError || !after.request) return <p class="none">The server does not keep the request with the result.</p>;
  const messages = messagesOf(after.request);
  const own = messages.filter((message) => message.role === "tool" && message.tool_call_id === callId);
  const known = before && !(before instanceof ApiError) ? messagesOf(before.request) : [];
  const shown = own.length ? own : messages.filter((message, index) => isNew(message, known[index]) && message.role !== "assistant");
  return (
    <>
      <h2>Result, as the model got it</h2>
      {!own.length && <p class="hint">The model gets results as text, so these are all messages that were added for its next answer.</p>}
      <ol class="messages">
        {shown.map((message, index) => (
          <Message key={index} message={message} />
        ))}
      </ol>
    </>
  );
}

function Approval({ part }: { part: Part }) {
  const asked = part.events.find((event) => event.kind === "agent.approval.requested")?.payload ?? {};
  return (
    <dl class="facts">
      <Fact name="Request">
        <PageLink to={`approvals/${encodeURIComponent(part.key.slice(1))}`}>{part.end === null ? "Decide about it" : "Show it"}</PageLink>
      </Fact>
      <Fact name="Rule" value={typeof asked.Rule === "string" ? asked.Rule : ""} />
      <Fact name="Who may decide" value={asked.Who === undefined ? "" : String(asked.Who)} />
      <Fact name="Deadline" value={typeof asked.Deadline === "number" ? dateAndTime(asked.Deadline) : ""} />
      {asked.Facts !== undefined && (
        <Fact name="Facts">
          <TextBlock text={typeof asked.Facts === "string" ? asked.Facts : JSON.stringify(asked.Facts, null, 2)} label="Facts" />
        </Fact>
      )}
    </dl>
  );
}

function asList(value: unknown): Record<string, unknown>[] {
  return Array.isArray(value) ? value.filter((each) => typeof each === "object" && each !== null) : [];
}

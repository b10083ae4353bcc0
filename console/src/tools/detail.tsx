// The selected tool: its facts, the bench, its schema, and its last calls.

import { BASE } from "../api";
import { count, dateAndTime, duration, timeOfDay } from "../format";
import { useLoaded } from "../loaded";
import { Tabs } from "../turns/attempt";
import { Bad, CloseButton, Fact, Problem, StateMark } from "../ui/parts";
import { JsonBlock, Line, TextBlock } from "../ui/text";
import { Bench } from "./bench";
import { ServerChanges } from "./changes";
import { closeTool, KIND_NAMES, shareOf, ToolState } from "./list";
import { changedName, listing, type Outcome, role, type Tool } from "./store";

export interface Detail extends Tool {
  parameters: Record<string, unknown>;
  /** As models get it; null where they do not. */
  sent: unknown;
  annotations: Record<string, unknown>;
  timeout_seconds: number | null;
  endpoint: string;
  recent: Outcome[];
}

export function ToolDetail({ name }: { name: string }) {
  const server = listing.value?.servers.find((each) => each.changed.some((tool) => changedName(each.name, tool) === name));
  return (
    <section id="detail" class="detail" tabIndex={-1} aria-label="Tool">
      {server ? <ServerChanges server={server.name} names={server.changed.join(" ")} /> : <Registered name={name} />}
    </section>
  );
}

function Registered({ name }: { name: string }) {
  const search = new URLSearchParams({ name, role: role.value });
  const { value: detail, error, reload } = useLoaded<Detail>(`/api/console/tools/definition?${search}`, listing.value);
  return (
    <>
      {!detail && <h1 class="unseen">Tool</h1>}
      {error ? (
        <Problem error={error} retry={reload}>
          {error.status === 404 && <button type="button" onClick={closeTool}>Back to the list</button>}
        </Problem>
      ) : detail ? (
        <Loaded tool={detail} />
      ) : (
        <p class="none">Loading…</p>
      )}
    </>
  );
}

function Loaded({ tool }: { tool: Detail }) {
  return (
    <>
      <header class="turn-head">
        <div class="title">
          <ToolState tool={tool} />
          <h1>
            <Line text={tool.name} />
          </h1>
          <p class="actions">
            <CloseButton what="the tool" onClick={closeTool} />
          </p>
        </div>
        <Bad text={tool.problem} />
        <dl class="facts">
          <Fact name="From" value={tool.source || KIND_NAMES[tool.kind]} />
          <Fact name="State" value={tool.state} />
          <Fact name="Answers at" value={tool.endpoint} />
          <Fact name="Time limit" value={duration(tool.timeout_seconds)} />
          <Fact name="Calls" value={`${count(tool.calls)}${tool.errors ? `, ${count(tool.errors)} failed` : ""}`} />
          <Fact name="p50" value={duration(tool.p50)} />
          <Fact name="p95" value={duration(tool.p95)} />
          <Fact name="Tokens" value={tool.tokens ? `about ${count(tool.tokens)}${shareOf(tool) && `, ${shareOf(tool)} of a prompt`}` : ""} />
          <Fact name="Hints" value={Object.entries(tool.annotations).map(([name, value]) => (value === true ? name : `${name}: ${value}`)).join(", ")} />
        </dl>
        {tool.failed && (
          <p class="last-error">
            Last failure: <Line class="bad" text={tool.failed.code} /> <TurnLink outcome={tool.failed} />
          </p>
        )}
      </header>
      <div class="panel">
        <Tabs
          tabs={{
            bench: { label: "Try", body: () => <Bench tool={tool} /> },
            schema: { label: "Schema", body: () => <Schema tool={tool} /> },
            calls: { label: "Calls", count: tool.recent.length, body: () => <Calls calls={tool.recent} /> },
          }}
        />
      </div>
    </>
  );
}

function Schema({ tool }: { tool: Detail }) {
  return (
    <>
      {tool.description && <TextBlock text={tool.description} label="Description" />}
      {tool.sent !== null ? (
        <>
          <h2>As models get it</h2>
          <JsonBlock value={tool.sent} label="Definition as models get it" />
        </>
      ) : (
        <>
          <h2>Its schema, which models do not get</h2>
          <JsonBlock value={tool.parameters} label="Schema" />
        </>
      )}
    </>
  );
}

function TurnLink({ outcome }: { outcome: Outcome }) {
  const at = <time title={dateAndTime(outcome.time)}>{timeOfDay(outcome.time)}</time>;
  return outcome.turn ? <a href={`${BASE}/console/turns/${encodeURIComponent(outcome.turn)}`}>{at}</a> : at;
}

function Calls({ calls }: { calls: Outcome[] }) {
  if (!calls.length) return <p class="none">This server has not run it yet. A client runs its own tools: their results are in the turns.</p>;
  const longest = Math.max(...calls.map((call) => call.seconds), 1e-9);
  return (
    <ol class="outcomes" aria-label="The last calls, the newest first">
      {calls.map((call, index) => (
        <li key={`${call.time} ${index}`}>
          <StateMark state={call.code ? "failed" : "done"} label={call.code ? "failed" : "succeeded"} />
          <TurnLink outcome={call} />
          <span class="track">
            <span class={call.code ? "fill failed" : "fill"} style={{ width: `${(100 * call.seconds) / longest}%` }} />
          </span>
          <span class="seconds">{call.seconds ? duration(call.seconds) : "not run"}</span>
          <Line class="bad" text={call.code} />
        </li>
      ))}
    </ol>
  );
}

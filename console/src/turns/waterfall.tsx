// The parts of a turn on its time axis: the request, the model's attempts, hooks, approvals and tools.

import type { Attempt, HookAnswer, RuntimeEvent, Turn } from "../api";
import { duration, parseTime, plural } from "../format";
import { Line } from "../ui/text";

export interface Part {
  /** Its key in the URL: "request", "a" and an attempt's index, "h" and a hook's place, "t" and a call's id, "p" and an approval's id. */
  key: string;
  kind: "request" | "model" | "hook" | "tool" | "approval" | "error";
  name: string;
  begin: number;
  /** Null while it runs. */
  end: number | null;
  /** When the first piece of an answer came. */
  first: number | null;
  failed: boolean;
  /** A sentence below the bar. */
  note: string;
  attempt?: Attempt;
  hook?: HookAnswer;
  events: RuntimeEvent[];
}

/** Returns the parts of a turn by the time of their beginning, the request first. */
export function partsOf(turn: Turn): Part[] {
  const end = turn.seconds == null ? null : turn.began + turn.seconds;
  const request: Part = {
    key: "request", kind: "request", name: turn.protocol || "request", begin: turn.began, end, first: null,
    failed: turn.state === "failed", note: "", events: [],
  };
  const rest = [...turn.attempts.map((attempt) => attemptPart(attempt, turn)), ...(turn.hooks ?? []).map(hookPart), ...eventParts(turn)];
  return [request, ...rest.sort((one, other) => one.begin - other.begin)];
}

function attemptPart(attempt: Attempt, turn: Turn): Part {
  const ended = attempt.seconds == null ? null : attempt.began + attempt.seconds;
  const what = attempt.calls.length ? plural(attempt.calls.length, "call") : ended === null ? "answers" : "answer";
  return {
    key: `a${attempt.index}`,
    kind: "model",
    name: attempt.purpose === "answer" ? what : `${what}, ${attempt.purpose}`,
    begin: attempt.began,
    end: ended ?? (turn.state === "running" ? null : turn.began + (turn.seconds ?? 0)),
    first: attempt.first_seconds == null ? null : attempt.began + attempt.first_seconds,
    failed: (attempt.status ?? 0) >= 400,
    note: attempt.reason,
    attempt,
    events: [],
  };
}

function hookPart(hook: HookAnswer, place: number): Part {
  return {
    key: `h${place}`, kind: "hook", name: hook.hook, begin: hook.began, end: hook.began + hook.seconds, first: null,
    failed: ["denied", "ended the turn", "failed", "timed out"].includes(hook.decision),
    note: [hook.point, hook.decision, hook.reason].filter(Boolean).join(": "), hook, events: [],
  };
}

function eventParts(turn: Turn): Part[] {
  const found = new Map<string, Part>();
  for (const event of turn.events) {
    const payload = event.payload ?? {};
    const time = parseTime(event.time) ?? turn.began;
    const callId = text(event.attrs?.call_id);
    const part = (key: string, kind: Part["kind"]): Part => {
      const known = found.get(key);
      if (known) return known;
      const made: Part = { key, kind, name: text(payload.Tool), begin: time, end: null, first: null, failed: false, note: "", events: [] };
      found.set(key, made);
      return made;
    };
    switch (event.kind) {
      case "agent.tool.exec_start":
        part(`t${callId}`, "tool").events.push(event);
        break;
      case "agent.tool.exec_end": {
        const tool = part(`t${callId}`, "tool");
        if (!tool.events.length && typeof payload.Duration === "number") tool.begin = time - payload.Duration / 1e9;
        tool.end = time;
        tool.failed = payload.IsError === true;
        tool.events.push(event);
        break;
      }
      case "agent.tool.exec_skipped": {
        const tool = part(`t${callId}`, "tool");
        tool.end = time;
        tool.failed = true;
        tool.note = text(payload.Reason);
        tool.events.push(event);
        break;
      }
      case "agent.approval.requested": {
        const approval = part(`p${text(payload.ID)}`, "approval");
        approval.note = "waits for approval";
        approval.events.push(event);
        break;
      }
      case "agent.approval.decided": {
        const approval = part(`p${text(payload.ID)}`, "approval");
        approval.end = time;
        approval.failed = payload.Decision !== "approved";
        approval.note = [text(payload.Decision), text(payload.By) && `by ${text(payload.By)}`, text(payload.Reason)].filter(Boolean).join(", ");
        approval.events.push(event);
        break;
      }
      case "agent.error": {
        const error = part(`e${event.id ?? time}`, "error");
        error.end = time;
        error.failed = true;
        error.name = text(payload.Stage);
        error.note = text(payload.Message);
        error.events.push(event);
      }
    }
  }
  const end = turn.state === "running" ? null : turn.began + (turn.seconds ?? 0);
  for (const part of found.values()) part.end ??= end;
  return [...found.values()];
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

interface WaterfallProps {
  parts: Part[];
  selected: string;
  now: number;
  onSelect: (key: string) => void;
}

export function Waterfall({ parts, selected, now, onSelect }: WaterfallProps) {
  const begin = Math.min(...parts.map((part) => part.begin));
  const end = Math.max(begin + 0.001, ...parts.map((part) => part.end ?? now));
  const span = end - begin;
  const at = (time: number) => Math.max(0, Math.min(100, ((time - begin) / span) * 100));
  const steps = ticks(span);

  const onKeyDown = (event: KeyboardEvent) => {
    const index = parts.findIndex((part) => part.key === selected);
    const to = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: parts.length - 1 }[event.key];
    const part = to === undefined ? undefined : parts[to];
    if (!part) return;
    event.preventDefault();
    onSelect(part.key);
    document.getElementById(`part-${parts.indexOf(part)}`)?.focus();
  };

  return (
    <div class="waterfall">
      <div class="axis" aria-hidden="true">
        {steps.map((step) => (
          <span key={step} style={{ left: `${(step / span) * 100}%` }}>
            {step ? duration(step) : "0"}
          </span>
        ))}
      </div>
      <div class="tracks" role="tablist" aria-orientation="vertical" aria-label="Parts of the turn" onKeyDown={onKeyDown}>
        {parts.map((part, place) => {
          const partEnd = part.end ?? Math.max(now, part.begin);
          const isSelected = part.key === selected;
          const seconds = partEnd - part.begin;
          const width = Math.max(at(partEnd) - at(part.begin), 0);
          const wait = part.first === null ? (part.kind === "model" ? 1 : 0) : Math.min(1, (part.first - part.begin) / (seconds || 1));
          return (
            <button
              key={part.key}
              id={`part-${place}`}
              type="button"
              role="tab"
              aria-selected={isSelected}
              aria-controls="part-panel"
              tabIndex={isSelected ? 0 : -1}
              class={`part ${part.kind} ${part.failed ? "failed" : ""} ${part.end === null ? "running" : ""}`}
              onClick={() => onSelect(part.key)}
            >
              <span class="kind">{part.kind}</span>
              <Line class="name" text={part.name} />
              <span class="track" aria-hidden="true">
                <span class="bar-box" style={{ left: `${at(part.begin)}%`, width: `${width}%` }}>
                  {wait > 0 && <span class="wait" style={{ width: `${wait * 100}%` }} />}
                  {wait < 1 && <span class="fill" />}
                </span>
              </span>
              <span class="seconds">{part.end === null ? `${duration(seconds)}…` : duration(seconds)}</span>
              {part.note && <Line class="note" text={part.note} />}
            </button>
          );
        })}
      </div>
    </div>
  );
}

/** Returns about four round steps from 0 on an axis of `span` seconds. */
function ticks(span: number): number[] {
  const rough = span / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough)!;
  const found: number[] = [];
  for (let at = 0; at < span * 0.97; at += step) found.push(at);
  return found;
}

// The requests that wait, with a box each to decide about several, and the last ones that are decided.

import { effect, signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { type Approval, BASE, type Permission } from "../api";
import { now } from "../clock";
import { countdown, dateAndTime, plural, timeOfDay } from "../format";
import { go, parts } from "../route";
import { Line } from "../ui/text";
import { criteriaInWords } from "./permission";
import { checked, decide, decider, noticesState, pending, permissions, recent, sessions, toggleNotices, type Verdict } from "./store";

const MOST_ROWS = 200;

/** What went wrong with the last decision about several requests, until others are selected or another one is shown. */
const batchProblems = signal<string[]>([]);
effect(() => {
  parts.value;
  batchProblems.value = [];
});

/** While several requests are decided. */
let isDeciding = false;

/** Shows a request beside the list. */
export function openRequest(id: string, replace = false): void {
  go({ path: ["approvals", id], replace });
}

/** Moves by so many requests that wait; the row has the focus then. */
export function move(by: number): void {
  const ids = pending.peek().map((each) => each.id);
  const at = ids.indexOf(parts.peek()[1] ?? "");
  const id = ids[at < 0 ? 0 : Math.max(0, Math.min(ids.length - 1, at + by))];
  if (id === undefined) return;
  openRequest(id, true);
  requestAnimationFrame(() => document.getElementById(`request-${id}`)?.focus());
}

export function toggle(id: string | undefined): void {
  if (!id || !pending.peek().some((each) => each.id === id)) return;
  const now = new Set(checked.peek());
  if (!now.delete(id)) now.add(id);
  select(now);
}

function select(ids: ReadonlySet<string>): void {
  checked.value = ids;
  batchProblems.value = [];
}

export async function decideChecked(verdict: Verdict, reason = ""): Promise<void> {
  const chosen = pending.peek().filter((each) => checked.peek().has(each.id));
  if (isDeciding || !chosen.length) return;
  isDeciding = true;
  batchProblems.value = await decide(chosen, { verdict, reason });
  isDeciding = false;
}

export function RequestList({ onDeny }: { onDeny: () => void }) {
  const waiting = pending.value;
  const decided = recent.value.filter((each) => each.state !== "pending");
  const number = checked.value.size;
  return (
    <section class="requests" aria-label="Requests">
      <header>
        <label>
          You are <input value={decider.value} placeholder="console" maxLength={100} onInput={(event) => (decider.value = event.currentTarget.value)} />
        </label>
        <NoticesButton />
      </header>
      <div class="lists">
        <h2 id="waiting">
          Waiting <span class="dim">{waiting.length}</span>
        </h2>
        {number > 0 && (
          <div class="batch">
            <span>{number} selected</span>
            <button type="button" id="approve-all" class="primary" onClick={() => void decideChecked("approve")}>
              Approve {number} <kbd>a</kbd>
            </button>
            <button type="button" id="deny-all" onClick={onDeny}>
              Deny {number} <kbd>d</kbd>
            </button>
            <button type="button" class="quiet" onClick={() => select(new Set())}>
              Clear
            </button>
          </div>
        )}
        {batchProblems.value.length > 0 && (
          <ul class="bad" role="alert">
            {batchProblems.value.map((each, index) => (
              <li key={index}>
                <Line text={each} />
              </li>
            ))}
          </ul>
        )}
        {waiting.length ? (
          <ul aria-labelledby="waiting">
            {waiting.slice(0, MOST_ROWS).map((each) => (
              <li key={each.id} class={shownClass(each)}>
                <input type="checkbox" checked={checked.value.has(each.id)} onChange={() => toggle(each.id)} aria-label={`Select ${each.tool}`} />
                <Row request={each} end={<Left request={each} />} />
              </li>
            ))}
          </ul>
        ) : (
          <p class="none">No call waits.</p>
        )}
        {waiting.length > MOST_ROWS && <p class="none">{plural(waiting.length - MOST_ROWS, "more call")} after these.</p>}
        <Group id="permissions" title="Always allowed" of={permissions.value} isCounted>
          {(each) => <Row request={each} about={criteriaInWords(each)} end={`by ${each.by}`} />}
        </Group>
        <Group id="sessions" title="Approved for a session" of={sessions.value} isCounted>
          {(each) => <Row request={each} about={`${each.session === "call" ? "this call" : "every call"} in ${each.session_key}`} end={`until ${timeOfDay(each.until)}`} />}
        </Group>
        <Group id="decided" title="Decided" of={decided}>
          {(each) => <Row request={each} about={outcome(each)} end={<span title={dateAndTime(each.decided ?? each.created)}>{timeOfDay(each.decided ?? each.created)}</span>} />}
        </Group>
      </div>
    </section>
  );
}

interface GroupProps<T> {
  id: string;
  title: string;
  of: T[];
  isCounted?: boolean;
  children: (request: T) => ComponentChildren;
}

/** A list under its title; nothing where it is empty. */
function Group<T extends Approval | Permission>({ id, title, of, isCounted = false, children }: GroupProps<T>) {
  if (!of.length) return null;
  return (
    <>
      <h2 id={id}>
        {title} {isCounted && <span class="dim">{of.length}</span>}
      </h2>
      <ul aria-labelledby={id}>
        {of.map((each) => (
          <li key={each.id} class={`${"state" in each && !isCounted ? each.state : ""} ${shownClass(each)}`}>
            {children(each)}
          </li>
        ))}
      </ul>
    </>
  );
}

function shownClass(request: { id: string }): string {
  return parts.value[1] === request.id ? "shown" : "";
}

function Row({ request, about, end }: { request: Approval | Permission; about?: string; end: ComponentChildren }) {
  return (
    <a
      id={`request-${request.id}`}
      class="request-row"
      href={`${BASE}/console/approvals/${encodeURIComponent(request.id)}`}
      aria-current={shownClass(request) ? "true" : undefined}
      onClick={(event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        openRequest(request.id);
      }}
    >
      <Line class="call-name" text={request.tool} />
      <span class="end">{end}</span>
      <Line class="request-about" text={about ?? ("arguments_text" in request ? `${request.session_key} ${request.arguments_text.slice(0, 300)}` : "")} />
    </a>
  );
}

/** The time that is left to decide. */
export function Left({ request }: { request: Approval }) {
  return <>{countdown(request.deadline - now.value)}</>;
}

/** What became of a request, in words. */
export function outcome(request: Approval): string {
  const scope = request.for_session ? " for the session" : request.for_always ? " and always allowed" : "";
  const what = request.state === "approved" ? `approved${scope}` : request.state;
  return [what + (request.edited ? " with other arguments" : ""), request.by && `by ${request.by}`].filter(Boolean).join(" ") + (request.reason && `: ${request.reason}`);
}

function NoticesButton() {
  const state = noticesState();
  if (state === "missing") return null;
  const labels = { on: "Notifications are on", off: "Notify me", blocked: "Notifications are blocked" };
  return (
    <button
      type="button"
      aria-pressed={state === "on"}
      disabled={state === "blocked"}
      onClick={() => void toggleNotices()}
      title={state === "blocked" ? "Allow them for this site in the browser's settings" : "A notification for each call that begins to wait while you look elsewhere"}
    >
      {labels[state]}
    </button>
  );
}

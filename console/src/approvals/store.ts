// Requests for approval, followed on every page: the event stream says when to read them again.

import { batch, signal } from "@preact/signals";
import { type ApiError, type Approval, type Criterion, get, type Permission, post, request as send, type SessionApproval } from "../api";
import { listen } from "../live";
import { goTo } from "../route";
import { asApiError } from "../session";
import { stored } from "../stored";
import { named } from "../ui/text";

const RECENT = 50;
/** Milliseconds after an event: several that come together are one. */
const SOON = 100;
/** Milliseconds between readings without an event: another server on the same database may have decided. */
const POLL = 15_000;
const NOTIFY = "patchbay.notify";
const NAME = "patchbay.name";

/** Oldest first. */
export const pending = signal<Approval[]>([]);
/** The last requests in any state, newest first. */
export const recent = signal<Approval[]>([]);
export const sessions = signal<SessionApproval[]>([]);
export const permissions = signal<Permission[]>([]);
export const approvalsError = signal<ApiError | null>(null);
export const isRead = signal(false);

/** Requests that are selected for one decision about all of them. */
export const checked = signal<ReadonlySet<string>>(new Set());

/** The name that decisions are recorded with. */
export const decider = stored(NAME);
const wantsNotices = stored(NOTIFY);

let timer = 0;

/** Follows the requests until the returned function is called. */
export function watchApprovals(): () => void {
  const stop = listen(["agent.approval.*"], { onEvent: () => readSoon(), onGap: () => readSoon() });
  const poll = window.setInterval(() => readSoon(), POLL);
  void read();
  return () => {
    stop();
    window.clearInterval(poll);
  };
}

function readSoon(): void {
  if (timer) return;
  timer = window.setTimeout(() => {
    timer = 0;
    void read();
  }, SOON);
}

export async function read(): Promise<void> {
  try {
    const [waiting, last, granted, allowed] = await Promise.all([
      get<{ approvals: Approval[] }>("/api/approvals"),
      get<{ approvals: Approval[] }>(`/api/approvals?all=1&limit=${RECENT}`),
      get<{ sessions: SessionApproval[] }>("/api/approvals/sessions"),
      get<{ permissions: Permission[] }>("/api/approvals/permissions"),
    ]);
    const known = new Set(pending.peek().map((each) => each.id));
    const fresh = isRead.peek() ? waiting.approvals.filter((each) => !known.has(each.id)) : [];
    batch(() => {
      pending.value = waiting.approvals;
      recent.value = last.approvals;
      sessions.value = granted.sessions;
      permissions.value = allowed.permissions;
      checked.value = new Set(waiting.approvals.map((each) => each.id).filter((id) => checked.peek().has(id)));
      approvalsError.value = null;
      isRead.value = true;
    });
    for (const each of fresh) notify(each);
  } catch (error) {
    approvalsError.value = asApiError(error);
  }
}

export type Verdict = "approve" | "deny" | "approve_session" | "approve_always";

export interface Decision {
  verdict: Verdict;
  reason?: string;
  /** Other arguments, as JSON. */
  edited?: string | null;
  /** The criteria of a standing permission; those that are left out are the narrowest. */
  permission?: Record<string, Record<string, Criterion>>;
}

/** Decides about requests as they were shown, one after the other; returns what went wrong, a sentence each. */
export async function decide(requests: Approval[], { verdict, reason = "", edited = null, permission }: Decision): Promise<string[]> {
  const problems: string[] = [];
  for (const request of requests) {
    const decision = JSON.stringify({ decision: verdict, reason, by: decider.peek().trim() || "console", digest: request.digest, permission });
    const body = edited === null ? decision : `${decision.slice(0, -1)},"arguments":${edited}}`;
    try {
      await post(`/api/approvals/${encodeURIComponent(request.id)}`, body);
    } catch (error) {
      const { message } = asApiError(error);
      problems.push(requests.length > 1 ? `${request.tool}: ${message}` : message);
    }
  }
  await read();
  return problems;
}

/** Revokes what a request was approved with: for its session, or for good; returns what went wrong. */
export async function revoke(kind: "sessions" | "permissions", id: string): Promise<string> {
  let problem = "";
  try {
    await send(`/api/approvals/${kind}/${encodeURIComponent(id)}`, { method: "DELETE" });
  } catch (error) {
    problem = asApiError(error).message;
  }
  await read();
  return problem;
}

export type Notices = "on" | "off" | "blocked" | "missing";

export function noticesState(): Notices {
  if (!("Notification" in window)) return "missing";
  if (Notification.permission === "denied") return "blocked";
  return wantsNotices.value === "on" && Notification.permission === "granted" ? "on" : "off";
}

/** Turns notifications on, with the browser's question, or off: only when a person asks for it. */
export async function toggleNotices(): Promise<void> {
  const isWanted = noticesState() !== "on" && (await Notification.requestPermission()) === "granted";
  wantsNotices.value = isWanted ? "on" : "off";
}

function notify(request: Approval): void {
  if (noticesState() !== "on" || document.hasFocus()) return;
  const who = [request.agent || request.role, request.session_key].filter(Boolean).join(", ");
  const notice = new Notification(named(`${request.tool} waits for approval`), { body: named(who), tag: request.id });
  notice.onclick = () => {
    window.focus();
    goTo(`approvals/${encodeURIComponent(request.id)}`);
    notice.close();
  };
}

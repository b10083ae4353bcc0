// What the server answers, and requests to it. All of its text is hostile: it is only ever shown as text.

import { parseJson } from "./json";

export type State = "running" | "done" | "failed";

export interface Summary {
  id: string;
  state: State;
  began: number;
  seconds: number | null;
  protocol: string;
  model: string;
  role: string;
  session: string;
  mode: "" | "native" | "text";
  format: string;
  constraint: "" | "grammar" | "schema";
  stream: boolean;
  tools: number;
  calls: string[];
  rounds: number;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  cached_tokens: number | null;
  status: number | null;
  error: string;
  reasons: string[];
  preview: string;
}

export interface Call {
  id: string;
  name: string;
  arguments: string;
}

export interface Usage {
  prompt_tokens?: number | null;
  completion_tokens?: number | null;
  cached_tokens?: number | null;
}

export interface Attempt {
  index: number;
  purpose: "answer" | "probe" | "check";
  began: number;
  first_seconds: number | null;
  seconds: number | null;
  status: number | null;
  mode: string;
  format: string;
  constraint: string;
  reason: string;
  usage: Usage | null;
  calls: Call[];
}

/** An answer of a hook that took a while or decided something. */
export interface HookAnswer {
  hook: string;
  point: string;
  began: number;
  seconds: number;
  /** What it answered, in words; "" for "go on". */
  decision: string;
  reason: string;
  tool: string;
  call_id: string;
}

export interface RuntimeEvent {
  id?: string;
  kind: string;
  time?: string;
  severity?: string;
  scope?: { turn_id?: string; session_key?: string };
  payload?: Record<string, unknown>;
  attrs?: Record<string, unknown>;
}

export interface Turn extends Summary {
  client_request: Body | null;
  cut: boolean;
  attempts: Attempt[];
  /** Absent in a turn that an earlier version kept. */
  hooks?: HookAnswer[];
  events: RuntimeEvent[];
}

export type Body = Record<string, unknown>;

export interface ReadCall extends Call {
  text: string | null;
  /** Offsets in JavaScript's units. */
  begin: number | null;
  end: number | null;
}

export interface Reading {
  format: string;
  content: string | null;
  reasoning: string | null;
  calls: ReadCall[];
  incomplete: unknown[];
  repairs: string[];
}

export interface AttemptContent {
  request: Body | null;
  cut: boolean;
  text: string | null;
  native_calls: Call[];
  reading: Reading | null;
}

export interface ConsoleInfo {
  version: string;
  server: "proxy" | "serve";
  needs_token: boolean;
  signed_in: boolean;
  upstream?: string | null;
  /** Null where the server has no models. */
  openai_path?: string | null;
  roles?: string[];
  turns?: { kept: number; bytes: number; archived_seconds: number | null };
  /** Absent where no call can wait for approval. */
  approvals?: { asks: boolean; outlives_server: boolean };
}

export type Outcome = "pending" | "approved" | "denied" | "expired" | "withdrawn";

/** A tool call that waits for approval, or did. */
export interface Approval {
  id: string;
  created: number;
  deadline: number;
  at_deadline: "deny" | "allow";
  call_id: string;
  tool: string;
  /** JSON; where `is_cut`, only its beginning. */
  arguments_text: string;
  is_cut: boolean;
  digest: string;
  facts: Body;
  source: string;
  endpoint: string;
  role: string;
  agent: string;
  session_key: string;
  turn: string;
  rule: string;
  why: string;
  who: string[];
  session: "tool" | "call" | "never";
  /** How far a standing permission may go. */
  always: "tool" | "call" | "never";
  parameters: Body | null;
  state: Outcome;
  awaited: boolean;
  decided: number | null;
  by: string;
  reason: string;
  for_session: boolean;
  for_always: boolean;
  edited: Body | null;
}

/** What a value must be; `same` is the value of the approved call, which is not written out. */
export type Criterion = { is: unknown } | { same: true } | { below: string } | { any: true };
type Criteria<T> = Record<"arguments" | "facts", Record<string, T>>;

/** Calls that run without a question; its id is that of the request that was approved with it. */
export interface Permission extends Criteria<Criterion> {
  id: string;
  created: number;
  by: string;
  tool: string;
  source: string;
  endpoint: string;
  role: string;
  agent: string;
  rule: string;
}

/** The narrowest permission for a request, and the wider criteria step by step. */
export interface Proposal {
  permission: Permission;
  steps: Criteria<Criterion[]>;
  outlives_server: boolean;
}

/** An approval for a session that is in force. */
export interface SessionApproval extends Approval {
  until: number;
}

/** The server's address, without the path of the console: "" or the path that an application mounts it under. */
export const BASE = new URL("..", import.meta.url).pathname.replace(/\/$/, "");

/** A response that is no success: status 0 where there was no response. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    /** The id of the turn, for a request to a model. */
    readonly requestId: string | null = null,
  ) {
    super(message);
  }
}

/** Calls a path of the server. Throws ApiError; aborting `signal` throws the signal's error. */
export async function request(path: string, options: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(BASE + path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, "The server does not answer.");
  }
  if (response.ok) return response;
  throw new ApiError(response.status, await explain(response), response.headers.get("x-request-id"));
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return parseJson(await (await request(path, signal ? { signal } : {})).text()) as T;
}

/** Posts a body as JSON; a text is JSON already. */
export function post(path: string, body: unknown, signal?: AbortSignal, more: Record<string, string> = {}): Promise<Response> {
  const headers = { "Content-Type": "application/json", ...more };
  return request(path, { method: "POST", headers, body: typeof body === "string" ? body : JSON.stringify(body), ...(signal ? { signal } : {}) });
}

/** Returns the message of an error response, in any of the shapes that the server has. */
async function explain(response: Response): Promise<string> {
  const text = await response.text().catch(() => "");
  try {
    const body = JSON.parse(text);
    const found = body?.error?.message ?? body?.detail ?? body?.error;
    if (typeof found === "string" && found) return found;
    if (found) return JSON.stringify(found);
  } catch {
    // no JSON: the text itself
  }
  return text.slice(0, 500) || `HTTP ${response.status}`;
}

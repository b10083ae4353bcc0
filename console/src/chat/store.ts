// A conversation: what was said, and the request that is answered at the moment. It ends with the page's document.

import { computed, signal } from "@preact/signals";
import { ApiError, get, type RuntimeEvent, request } from "../api";
import { isObject } from "../json";
import { openaiPath } from "../openai";
import { query } from "../route";
import { asApiError } from "../session";
import { readEvents } from "./sse";

export interface ToolUse {
  id: string;
  name: string;
  /** JSON. */
  arguments: string;
  /** null while it runs. */
  result: string | null;
  isError: boolean;
  seconds: number | null;
}

export type Part = { text: string } | { call: ToolUse };

export interface Entry {
  role: "user" | "assistant";
  /** Texts, and the calls between them, in the order of time. */
  parts: Part[];
  reasoning: string;
  /** The id of the turn that answers. */
  turn: string;
  state: "running" | "done" | "stopped" | "failed";
  problem: string;
}

type Json = Record<string, unknown>;

/** Of the events of a turn: they come beside the answer. */
export const KINDS = ["agent.tool.exec_start", "agent.tool.exec_end", "agent.tool.exec_skipped"];

export const entries = signal<Entry[]>([]);
export const models = signal<string[]>([]);
export const isRunning = computed(() => entries.value.at(-1)?.state === "running");
export const model = computed(() => query.value.get("model") ?? models.value[0] ?? "");
export const role = computed(() => query.value.get("role") ?? "");

let controller: AbortController | null = null;
/** The key of the conversation's session. */
export const session = signal(newSession());

export function newSession(): string {
  return `console-${crypto.getRandomValues(new Uint32Array(2)).join("")}`;
}

/** Reads which models there are; a server that does not say has none to choose from. */
export async function loadModels(): Promise<void> {
  try {
    const { data } = await get<{ data?: { id?: unknown }[] }>(`${openaiPath()}/models`);
    models.value = (data ?? []).map((each) => each.id).filter((id): id is string => typeof id === "string");
  } catch {
    models.value = [];
  }
}

export function restart(): void {
  stop();
  session.value = newSession();
  entries.value = [];
}

export function stop(): void {
  controller?.abort();
}

/** Sends a text, and reads the answer as it comes. */
export async function say(text: string): Promise<void> {
  if (isRunning.peek()) return;
  const user: Entry = { role: "user", parts: [{ text }], reasoning: "", turn: "", state: "done", problem: "" };
  entries.value = [...entries.peek(), user];
  await answer();
}

/** Asks for the last answer again. */
export async function again(): Promise<void> {
  if (isRunning.peek() || entries.peek().at(-1)?.role !== "assistant") return;
  entries.value = entries.peek().slice(0, -1);
  await answer();
}

async function answer(): Promise<void> {
  const mine = (controller = new AbortController());
  const messages = entries.peek().flatMap(messageOf);
  entries.value = [...entries.peek(), { role: "assistant", parts: [], reasoning: "", turn: "", state: "running", problem: "" }];
  const headers: Record<string, string> = { "Content-Type": "application/json", "X-Patchbay-Session": session.peek() };
  if (role.peek()) headers["X-Patchbay-Role"] = encodeURIComponent(role.peek());
  const body = JSON.stringify({ model: model.peek(), messages, stream: true });
  try {
    const response = await request(`${openaiPath()}/chat/completions`, { method: "POST", headers, body, signal: mine.signal });
    change({ turn: response.headers.get("x-request-id") ?? "" }, mine);
    let isEnded = false;
    for await (const data of readEvents(response)) {
      if (data === "[DONE]") isEnded = true;
      else isEnded = takeChunk(JSON.parse(data) as Json, mine) || isEnded;
    }
    change(isEnded ? { state: "done" } : { state: "failed", problem: "The answer ended before it was complete." }, mine);
  } catch (error) {
    if (mine.signal.aborted) change({ state: "stopped" }, mine);
    else if (error instanceof ApiError) change({ state: "failed", problem: error.message, turn: error.requestId ?? "" }, mine);
    else change({ state: "failed", problem: asApiError(error).message }, mine);
  }
}

/** The message of an entry, as the model gets it; none for an answer without a text. */
function messageOf(entry: Entry): Json[] {
  const content = entry.parts.map((part) => ("text" in part ? part.text : "")).join("");
  return content || entry.role === "user" ? [{ role: entry.role, content }] : [];
}

/** Takes a chunk of the answer; returns whether it is the last one. */
function takeChunk(chunk: Json, mine: AbortController): boolean {
  if (isObject(chunk.error)) throw new ApiError(0, String(chunk.error.message ?? "The answer failed."));
  const choice = Array.isArray(chunk.choices) && isObject(chunk.choices[0]) ? chunk.choices[0] : {};
  const delta = isObject(choice.delta) ? choice.delta : {};
  const reasoning = delta.reasoning_content ?? delta.reasoning;
  const entry = entries.peek().at(-1)!;
  if (typeof delta.content === "string" && delta.content) change({ parts: withText(entry.parts, delta.content) }, mine);
  if (typeof reasoning === "string" && reasoning) change({ reasoning: entry.reasoning + reasoning }, mine);
  const calls = isObject(chunk.patchbay) && Array.isArray(chunk.patchbay.calls) ? chunk.patchbay.calls.filter(isObject) : [];
  for (const call of calls) {
    const found = { name: text(call.name), arguments: text(call.arguments), result: text(call.content), isError: call.is_error === true };
    putCall(text(call.id), { ...found, seconds: typeof call.seconds === "number" ? call.seconds : null });
  }
  if (choice.finish_reason === "length") change({ problem: "The answer was cut at the model's limit of tokens." }, mine);
  return typeof choice.finish_reason === "string";
}

/** Takes an event of a tool: it may come before the answer's head, which says the turn. */
export function take(event: RuntimeEvent): void {
  const entry = entries.peek().at(-1);
  const turn = event.scope?.turn_id;
  if (entry?.state !== "running" || event.scope?.session_key !== session.peek() || !turn) return;
  if (entries.peek().some((each) => each !== entry && each.turn === turn)) return;
  if (!entry.turn) change({ turn });
  else if (turn !== entry.turn) return;
  const id = text(event.attrs?.call_id);
  const payload = event.payload ?? {};
  const isSkipped = event.kind === "agent.tool.exec_skipped";
  if (event.kind === "agent.tool.exec_start") putCall(id, { name: text(payload.Tool), arguments: JSON.stringify(payload.Arguments ?? {}) });
  else if (isSkipped) putCall(id, { name: text(payload.Tool), result: `Not run: ${text(payload.Reason)}`, isError: true });
  else putCall(id, { result: "", isError: payload.IsError === true, seconds: Number(payload.Duration) / 1e9 });
}

function putCall(id: string, known: Partial<ToolUse>): void {
  const parts = entries.peek().at(-1)!.parts;
  const place = parts.findIndex((part) => "call" in part && part.call.id === id);
  const before = parts[place];
  const call = { name: "?", arguments: "{}", result: null, isError: false, seconds: null, ...(before && "call" in before ? before.call : { id }), ...known };
  const isLate = place < 0 && known.result !== undefined && parts.at(-1) !== undefined && "text" in parts.at(-1)!;
  const put: Part = { call };
  change({ parts: place >= 0 ? parts.with(place, put) : isLate ? [...parts.slice(0, -1), put, parts.at(-1)!] : [...parts, put] });
}

function withText(parts: Part[], more: string): Part[] {
  const last = parts.at(-1);
  return last && "text" in last ? parts.with(-1, { text: last.text + more }) : [...parts, { text: more }];
}

/** Changes the answer that comes, unless another request has begun since (`mine`). */
function change(values: Partial<Entry>, mine = controller): void {
  const last = entries.peek().at(-1);
  if (last?.role === "assistant" && mine === controller) entries.value = entries.peek().with(-1, { ...last, ...values });
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

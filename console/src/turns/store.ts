// The turns that the list shows: pages of the server, and what its events add.

import { computed, signal } from "@preact/signals";
import { type ApiError, get, type RuntimeEvent, type Summary } from "../api";
import { query } from "../route";
import { asApiError } from "../session";

const PAGE = 50;
const MOST = 10_000;
/** Of the list while its top is in view: older turns are loaded again when they are scrolled to. */
const MOST_AT_TOP = 500;
const REFRESH_AFTER = 1000;
const TAKE_AFTER = 100;

export const FILTERS = ["q", "outcome", "model", "tool", "session"] as const;
export type Filter = (typeof FILTERS)[number];

export const turns = signal<Summary[]>([]);
export const listError = signal<ApiError | null>(null);
export const isLoaded = signal(false);

/** The filters of the URL, as the query of a request. */
export const filters = computed(() => {
  const found = new URLSearchParams();
  for (const name of FILTERS) {
    const value = query.value.get(name);
    if (value) found.set(name, value);
  }
  return found.toString();
});

interface Page {
  turns: Summary[];
  next: string | null;
}

let next: string | null = null;
let loading: AbortController | null = null;
let loadingOlder = false;
let refreshTimer = 0;
let takeTimer = 0;
let taken: RuntimeEvent[] = [];
let isAtTop = true;

export function setAtTop(value: boolean): void {
  isAtTop = value;
}

/** Loads the newest page in place of what is shown: at the start, and when the filters change. */
export async function load(): Promise<void> {
  loading?.abort();
  const mine = (loading = new AbortController());
  try {
    const page = await get<Page>(`/api/turns?${pageQuery()}`, mine.signal);
    next = page.next;
    turns.value = page.turns;
    listError.value = null;
    isLoaded.value = true;
  } catch (error) {
    if (!mine.signal.aborted) listError.value = asApiError(error);
  }
}

/** Loads the page after the last turn, if there is one. */
export async function loadOlder(): Promise<void> {
  if (loadingOlder || next === null || turns.peek().length >= MOST) return;
  loadingOlder = true;
  const asked = filters.peek();
  try {
    const page = await get<Page>(`/api/turns?${pageQuery(next)}`);
    if (asked !== filters.peek()) return;
    next = page.next;
    const known = new Set(turns.peek().map((turn) => turn.id));
    turns.value = [...turns.peek(), ...page.turns.filter((turn) => !known.has(turn.id))];
  } catch (error) {
    const problem = asApiError(error);
    if (problem.status === 404) next = null; // the last turn that is shown is not kept any more, nor are older ones
    else listError.value = problem;
  } finally {
    loadingOlder = false;
  }
}

/** Loads the newest page soon, and merges it into what is shown. */
export function refresh(): void {
  if (refreshTimer) return;
  refreshTimer = window.setTimeout(async () => {
    const asked = filters.peek();
    try {
      const page = await get<Page>(`/api/turns?${pageQuery()}`);
      if (asked === filters.peek()) merge(page);
      listError.value = null;
    } catch (error) {
      listError.value = asApiError(error);
    } finally {
      refreshTimer = 0;
    }
  }, REFRESH_AFTER);
}

function merge(page: Page): void {
  const fresh = new Map(page.turns.map((turn) => [turn.id, turn]));
  const shown = turns.peek();
  if (!isLoaded.peek() || !shown.some((turn) => fresh.has(turn.id))) {
    next = page.next;
    turns.value = page.turns;
    isLoaded.value = true;
    return;
  }
  const known = new Set(shown.map((turn) => turn.id));
  const merged = [...page.turns.filter((turn) => !known.has(turn.id)), ...shown.map((turn) => fresh.get(turn.id) ?? turn)];
  show(merged.sort((one, other) => other.began - one.began));
}

/** Takes the beginning or the end of a turn from the event stream, with others that come at the same time. */
export function take(event: RuntimeEvent): void {
  taken.push(event);
  if (!takeTimer) takeTimer = window.setTimeout(takeAll, TAKE_AFTER);
  refresh();
}

function takeAll(): void {
  takeTimer = 0;
  const events = taken;
  taken = [];
  const shown = new Map(turns.peek().map((turn) => [turn.id, turn]));
  const begun: Summary[] = [];
  for (const event of events) {
    const payload = event.payload as Partial<Summary> & { time?: number };
    const id = payload?.id;
    if (typeof id !== "string") continue;
    const known = shown.get(id);
    if (event.kind !== "server.request.begin") {
      if (known) shown.set(id, asSummary({ ...known, ...payload }, payload.error ? "failed" : "done"));
    } else if (!known && !filters.peek() && isLoaded.peek()) {
      // With filters the server decides whether the turn is listed.
      const turn = asSummary(payload, "running");
      begun.push(turn);
      shown.set(id, turn);
    }
  }
  show([...begun.reverse(), ...turns.peek()].map((turn) => shown.get(turn.id)!));
}

/** Shows the turns; the oldest that are too many are loaded again when they are scrolled to. */
function show(all: Summary[]): void {
  const listed = query.peek().get("outcome") === "running" ? all.filter((turn) => turn.state === "running") : all;
  const most = isAtTop ? MOST_AT_TOP : MOST;
  if (listed.length > most) next = listed[most - 1]!.id;
  turns.value = listed.slice(0, most);
}

function asSummary(payload: Partial<Summary> & { time?: number }, state: Summary["state"]): Summary {
  const seconds = payload.seconds ?? null;
  return {
    protocol: "", model: "", role: "", session: "", mode: "", format: "", constraint: "", stream: false, tools: 0, calls: [],
    rounds: 0, prompt_tokens: null, completion_tokens: null, cached_tokens: null, status: null, error: "", reasons: [], preview: "",
    id: "",
    ...payload,
    began: payload.began ?? (payload.time ?? Date.now() / 1000) - (seconds ?? 0),
    seconds: state === "running" ? null : seconds,
    state,
  };
}

function pageQuery(before: string | null = null): string {
  const search = new URLSearchParams(filters.peek());
  search.set("limit", String(PAGE));
  if (before !== null) search.set("before", before);
  return search.toString();
}

// The turns that the list shows: pages of the server, and what its events add.

import { computed, signal } from "@preact/signals";
import { type ApiError, get, type RuntimeEvent, type Summary } from "../api";
import { query } from "../route";
import { asApiError } from "../session";

const PAGE = 50;
const MOST = 10_000;
const REFRESH_AFTER = 1000;

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
  turns.value = merged.sort((one, other) => other.began - one.began);
}

/** Takes the beginning or the end of a turn from the event stream. */
export function take(event: RuntimeEvent): void {
  const payload = event.payload as Partial<Summary> & { time?: number };
  const id = payload?.id;
  if (typeof id !== "string") return;
  const known = turns.peek().findIndex((turn) => turn.id === id);
  if (event.kind === "server.request.begin") {
    // With filters the server decides whether the turn is listed.
    if (known < 0 && !filters.peek() && isLoaded.peek()) turns.value = [asSummary(payload, "running"), ...turns.peek()].slice(0, MOST);
  } else if (known >= 0) {
    const ended = asSummary({ ...turns.peek()[known]!, ...payload }, payload.error ? "failed" : "done");
    turns.value = turns.peek().map((turn, place) => (place === known ? ended : turn));
  }
  refresh();
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

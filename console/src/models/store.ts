// What the server has counted, what it knows of its models, and the last examination of their server.

import { computed, signal } from "@preact/signals";
import { type ApiError, get, post, request } from "../api";
import { query } from "../route";
import { asApiError } from "../session";

export type Window = "hour" | "day";

export const FIELDS = ["count", "errors", "calls", "prompt_tokens", "completion_tokens", "cached_tokens", "p50", "p95"] as const;
export type Field = (typeof FIELDS)[number];
type Values = Record<"p50" | "p95", number | null> & Record<Exclude<Field, "p50" | "p95">, number>;

export interface UsageRow {
  name: string;
  total: Values;
  series: Record<Field, (number | null)[]>;
}

export interface Usage {
  window: Window;
  begin: number;
  step: number;
  points: number;
  since: number;
  models: UsageRow[];
  tools: UsageRow[];
}

export interface Model {
  name: string;
  mode: "" | "native" | "text";
  why: string;
  limits: string[];
  ways: { mode: string; format: string; constraint: string; count: number }[];
  requests: number;
  errors: number;
  calls: number;
  rounds: number;
  asked_again: number;
  repairs: number;
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens: number;
}

export interface Finding {
  name: string;
  status: "ok" | "note" | "problem" | "skipped";
  seen: string;
  advice: string;
}

export interface Examination {
  model: string;
  state: "running" | "done" | "cancelled" | "failed";
  began: number;
  ended: number | null;
  check: string;
  findings: Finding[];
}

export const usage = signal<Usage | null>(null);
export const models = signal<Model[]>([]);
export const usageError = signal<ApiError | null>(null);

/** The last examination; `available`: the server can examine. */
export const doctor = signal<{ available: boolean; examination: Examination | null }>({ available: false, examination: null });
export const doctorError = signal<ApiError | null>(null);

export const shownWindow = computed<Window>(() => (query.value.get("window") === "day" ? "day" : "hour"));

/** Milliseconds between two readings while requests end. */
const SPACING = 2000;
/** Milliseconds after which the points have moved on, also without a request. */
const IDLE = 30_000;

let number = 0;

/** Reads the usage and the models; an older answer that comes later is dropped. */
export async function load(): Promise<void> {
  const mine = ++number;
  try {
    const [found, known] = await Promise.all([
      get<Usage>(`/api/usage?window=${shownWindow.peek()}`),
      get<{ models: Model[] }>("/api/models"),
    ]);
    if (mine !== number) return;
    usage.value = found;
    models.value = known.models;
    usageError.value = null;
  } catch (error) {
    if (mine === number) usageError.value = asApiError(error);
  }
}

/** Reads at once, then at most every two seconds while `note` is called, until `stop` is. */
export function follow(): { note: () => void; stop: () => void } {
  let timer = 0;
  let isStopped = false;
  let last = 0;
  const read = () => {
    last = Date.now();
    plan(IDLE);
    void load();
  };
  const plan = (delay: number) => {
    window.clearTimeout(timer);
    if (!isStopped) timer = window.setTimeout(read, delay);
  };
  read();
  return {
    note: () => plan(Math.max(0, last + SPACING - Date.now())),
    stop: () => {
      isStopped = true;
      window.clearTimeout(timer);
    },
  };
}

/** Reads the last examination. */
export async function loadDoctor(): Promise<void> {
  await change(() => request("/api/doctor", {}));
}

export async function examine(model: string): Promise<void> {
  await change(() => post("/api/doctor", { model }));
}

export async function cancelExamination(): Promise<void> {
  await change(() => request("/api/doctor", { method: "DELETE" }));
}

async function change(send: () => Promise<Response>): Promise<void> {
  try {
    doctor.value = await (await send()).json();
    doctorError.value = null;
  } catch (error) {
    const problem = asApiError(error);
    doctorError.value = problem.status === 404 ? null : problem; // a server without models has no doctor
  }
}

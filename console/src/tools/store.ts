// The tools of a role, read again when calls end, when the page is seen again, and every few seconds.

import { computed, signal } from "@preact/signals";
import { type ApiError, get } from "../api";
import { go, query } from "../route";
import { asApiError } from "../session";

const SOON = 500;
const EVERY = 5000;

export interface Outcome {
  time: number;
  /** 0 if the tool did not run. */
  seconds: number;
  /** The error's code, "" for success. */
  code: string;
  /** "" where it has none: calls of the bench and of scripts, and of turns that are not kept any more. */
  turn: string;
}

export interface Tool {
  name: string;
  description: string;
  source: string;
  kind: "function" | "plugin" | "callback" | "hook" | "mcp" | "client" | "added";
  state: "active" | "hidden" | "left out" | "offered" | "changed";
  problem: string;
  can_call: boolean;
  calls: number;
  errors: number;
  p50: number | null;
  p95: number | null;
  failed: Outcome | null;
  tokens: number;
  /** The last turn that offered it, for tools that are in no registry. */
  turn?: string;
}

export interface Server {
  name: string;
  state: string;
  problem: string;
  tools: number;
  changed: string[];
}

export interface Listing {
  role: string;
  roles: string[];
  tools: Tool[];
  servers: Server[];
  estimate: { bytes_per_token: number; requests: number; prompt_tokens: number | null };
}

export const listing = signal<Listing | null>(null);
export const listError = signal<ApiError | null>(null);

export const role = computed(() => query.value.get("role") ?? "");
export const selected = computed(() => query.value.get("tool"));

/** What the list can be sorted by; each gives the greater values first but for the names. */
export const COLUMNS = {
  name: { title: "Tool", of: (tool: Tool) => tool.name },
  calls: { title: "Calls", of: (tool: Tool) => tool.calls },
  errors: { title: "Errors", of: (tool: Tool) => tool.errors },
  p50: { title: "p50", of: (tool: Tool) => tool.p50 ?? -1 },
  p95: { title: "p95", of: (tool: Tool) => tool.p95 ?? -1 },
  tokens: { title: "≈ Tokens", of: (tool: Tool) => tool.tokens },
} as const;
export type Column = keyof typeof COLUMNS;

export const sort = computed<Column | "">(() => {
  const asked = query.value.get("sort") ?? "";
  return Object.hasOwn(COLUMNS, asked) ? (asked as Column) : "";
});

export type Row = { key: string; tool: Tool } | { key: string; source: string; kind: Tool["kind"]; server: Server | null; count: number };

const KINDS: Tool["kind"][] = ["function", "plugin", "callback", "hook", "mcp", "added", "client"];

/** The rows of the list: by source with a row for each, or in the order of a column. */
export const rows = computed<Row[]>(() => {
  const found = listing.value;
  if (!found) return [];
  const wanted = (query.value.get("q") ?? "").toLowerCase();
  const hasText = (text: string) => text.toLowerCase().includes(wanted);
  const tools = [...found.tools, ...changedTools(found)].filter((tool) => [tool.name, tool.description, tool.source, tool.kind].some(hasText));
  const column = sort.value;
  if (column) {
    const of = COLUMNS[column].of;
    tools.sort((one, other) => (column === "name" ? one.name.localeCompare(other.name) : Number(of(other)) - Number(of(one))));
    return tools.map((tool) => ({ key: tool.name, tool }));
  }
  const groups = new Map<string, Tool[]>();
  for (const tool of tools) groups.set(groupOf(tool), [...(groups.get(groupOf(tool)) ?? []), tool]);
  for (const server of found.servers) if (hasText(server.name) && !groups.has(`mcp mcp:${server.name}`)) groups.set(`mcp mcp:${server.name}`, []);
  const order = (key: string) => KINDS.indexOf(key.split(" ")[0] as Tool["kind"]);
  return [...groups].sort(([one], [other]) => order(one) - order(other)).flatMap(([key, tools]) => {
    const kind = key.split(" ")[0] as Tool["kind"];
    const source = key.slice(kind.length + 1);
    const server = kind === "mcp" ? (found.servers.find((each) => `mcp:${each.name}` === source) ?? null) : null;
    return [{ key: ` ${key}`, source, kind, server, count: tools.length }, ...tools.map((tool) => ({ key: tool.name, tool }))];
  });
});

function groupOf(tool: Tool): string {
  return `${tool.kind} ${tool.source}`;
}

export function changedName(server: string, tool: string): string {
  return `${server}/${tool}`;
}

/** Tools whose definition has changed are in no registry: only their server knows them. */
function changedTools({ servers }: Listing): Tool[] {
  const unknown = { description: "", calls: 0, errors: 0, p50: null, p95: null, failed: null, tokens: 0, can_call: false };
  return servers.flatMap((server) =>
    server.changed.map((name) => ({
      ...unknown,
      name: changedName(server.name, name),
      source: `mcp:${server.name}`,
      kind: "mcp" as const,
      state: "changed" as const,
      problem: "Its definition has changed since it was accepted: it is not used before that is accepted.",
    })),
  );
}

let loading: AbortController | null = null;
let timer = 0;

export async function load(): Promise<void> {
  loading?.abort();
  const mine = (loading = new AbortController());
  window.clearTimeout(timer);
  try {
    listing.value = await get<Listing>(`/api/console/tools?role=${encodeURIComponent(role.peek())}`, mine.signal);
    listError.value = null;
  } catch (error) {
    if (mine.signal.aborted) return;
    listError.value = asApiError(error);
  }
  plan(EVERY);
}

/** Loads soon. */
export function refresh(): void {
  plan(SOON);
}

function plan(delay: number): void {
  window.clearTimeout(timer);
  timer = window.setTimeout(() => (document.hidden ? plan(EVERY) : void load()), delay);
}

export function stop(): void {
  loading?.abort();
  window.clearTimeout(timer);
}

export function selectTool(name: string | null, replace = false): void {
  go({ query: { tool: name, tab: null }, replace });
}

// The list of tools: rows by source, one of which has the focus.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { count, duration, plural } from "../format";
import { go, query } from "../route";
import { info } from "../session";
import { Options, Problem, StateMark, Tag } from "../ui/parts";
import { focusList, type Rows, useRows } from "../ui/rows";
import { Line } from "../ui/text";
import { VirtualList } from "../ui/virtual";
import { COLUMNS, type Column, listError, listing, load, type Row, role, rows, selected, selectTool, sort, type Tool } from "./store";

export const KIND_NAMES: Record<Tool["kind"], string> = {
  function: "Functions of this program",
  plugin: "Plugin",
  callback: "Callbacks",
  hook: "Hook",
  mcp: "MCP server",
  added: "Added to requests by hooks or Patchbay",
  client: "Sent by clients with their requests",
};

export function closeTool(): void {
  selectTool(null);
  requestAnimationFrame(focusList);
}

/** The tool's share of a prompt, as an estimate in per cent. */
export function shareOf(tool: Pick<Tool, "tokens">): string {
  const prompt = listing.value?.estimate.prompt_tokens;
  if (!prompt || !tool.tokens) return "";
  const share = (100 * tool.tokens) / prompt;
  return share < 1 ? "< 1 %" : `${Math.min(100, Math.round(share))} %`;
}

/** The tool whose row has the focus, or had it last. */
const focused = signal<string | null>(null);

function names(): string[] {
  return rows.value.flatMap((row) => ("tool" in row ? [row.key] : []));
}

function currentName(): string | null {
  const known = names();
  return [focused.value, selected.value].find((name) => name !== null && known.includes(name)) ?? known[0] ?? null;
}

const ROWS: Rows = {
  keys: names,
  current: currentName,
  open: () => selected.peek(),
  placeOf(name) {
    const index = rows.peek().findIndex((row) => row.key === name);
    const isFirst = index > 0 && !("tool" in rows.peek()[index - 1]!); // it is seen with the row of its source
    return { first: isFirst ? index - 1 : index, index };
  },
  focus: (name) => (focused.value = name),
  select: selectTool,
};

export function ToolList() {
  const { frame, scroller, isWide, rowHeight, reveal, onKeyDown } = useRows(ROWS);
  const shown = rows.value;
  const current = currentName();
  const isLoaded = listing.value !== null;
  useEffect(() => {
    if (isLoaded && selected.value !== null && scroller.current) reveal(selected.value);
  }, [isLoaded, rowHeight]);

  return (
    <section class={`list ${isWide ? "wide" : "narrow"}`} ref={frame} aria-label="Tools">
      {selected.value === null && <h1 class="unseen">Tools</h1>}
      <Filters />
      {listError.value && <Problem error={listError.value} retry={() => void load()} />}
      {listing.value && !shown.length ? (
        <Empty />
      ) : (
        <div class="grid" role="grid" aria-label="Tools" aria-rowcount={shown.length + 1} onKeyDown={onKeyDown}>
          <VirtualList
            keys={shown.map((row) => row.key)}
            rowHeight={rowHeight}
            keep={current}
            scroller={scroller}
            onEnd={() => undefined}
            onAbove={() => undefined}
            row={(index, top) => {
              const row = shown[index]!;
              if (!("tool" in row)) return <SourceRow key={row.key} row={row} index={index} top={top} />;
              return <ToolRow key={row.key} tool={row.tool} index={index} top={top} isCurrent={row.key === current} onFocus={() => (focused.value = row.key)} />;
            }}
          >
            <Head />
          </VirtualList>
        </div>
      )}
      {listing.value && shown.length > 0 && <Footer />}
    </section>
  );
}

function Filters() {
  const found = listing.value;
  return (
    <form class="filters open" role="search" aria-label="Tools" onSubmit={(event) => event.preventDefault()}>
      <input
        id="filter-q"
        type="search"
        aria-label="Filter"
        placeholder="Filter by name, source or text"
        title="Filter: /"
        autocomplete="off"
        spellcheck={false}
        value={query.value.get("q") ?? ""}
        onInput={(event) => go({ query: { q: event.currentTarget.value }, replace: true })}
      />
      {found && found.roles.length > 1 && (
        <select aria-label="Role" value={found.role} onChange={(event) => go({ query: { role: event.currentTarget.value, tool: null } })}>
          <Options of={found.roles} />
        </select>
      )}
    </form>
  );
}

function Head() {
  const sorted = sort.value;
  const by = (column: Column) => go({ query: { sort: sorted === column ? null : column }, replace: true });
  return (
    <div class="head" role="rowgroup">
      <div class="columns" role="row" aria-rowindex={1}>
        <span role="columnheader" class="state">State</span>
        {(Object.keys(COLUMNS) as Column[]).map((column) => (
          <span key={column} role="columnheader" class={column} aria-sort={sorted !== column ? "none" : column === "name" ? "ascending" : "descending"}>
            <button type="button" class="quiet" onClick={() => by(column)} title={sorted === column ? "By source" : `Sort by ${COLUMNS[column].title}`}>
              {COLUMNS[column].title}
              {sorted === column && <span aria-hidden="true">{column === "name" ? "↑" : "↓"}</span>}
            </button>
          </span>
        ))}
      </div>
    </div>
  );
}

function SourceRow({ row, index, top }: { row: Extract<Row, { source: string }>; index: number; top: number }) {
  const { server } = row;
  const name = row.kind === "callback" || row.kind === "function" ? row.source : row.source.slice(row.source.indexOf(":") + 1);
  return (
    <div class="row source" role="row" aria-rowindex={index + 2} style={{ transform: `translateY(${top}px)` }}>
      <span role="gridcell">
        {KIND_NAMES[row.kind]}{" "}
        {name && (
          <b>
            <Line text={name} />
          </b>
        )}
        {server && server.state !== "ready" && <Tag kind={server.state === "down" ? "bad" : ""}>{server.state}</Tag>}
        {server?.problem && <Line class="bad" text={server.problem} />}
        <span class="dim"> {row.count}</span>
      </span>
    </div>
  );
}

const STATES = { active: "done", offered: "done", hidden: "failed", "left out": "failed", changed: "failed" } as const;

export function ToolState({ tool }: { tool: Tool }) {
  return <StateMark state={STATES[tool.state]} label={tool.problem ? `${tool.state}: ${tool.problem}` : tool.state} />;
}

function ToolRow({ tool, index, top, isCurrent, onFocus }: { tool: Tool; index: number; top: number; isCurrent: boolean; onFocus: () => void }) {
  const isSelected = tool.name === selected.value;
  return (
    <div
      class={`row columns ${isSelected ? "selected" : ""}`}
      role="row"
      aria-rowindex={index + 2}
      aria-selected={isSelected}
      tabIndex={isCurrent ? 0 : -1}
      style={{ transform: `translateY(${top}px)` }}
      onClick={() => selectTool(tool.name)}
      onFocus={onFocus}
    >
      <span role="gridcell" class="state-cell">
        <ToolState tool={tool} />
      </span>
      <span role="gridcell" class="name">
        <b>
          <Line text={tool.name} />
        </b>
        {tool.state !== "active" && tool.state !== "offered" && <Tag kind="bad">{tool.state}</Tag>}
        <Line class="dim" text={tool.description} />
      </span>
      <span role="gridcell" class="calls" data-unit={tool.calls === 1 ? "call" : "calls"}>
        {tool.calls ? count(tool.calls) : <span class="dim">0</span>}
      </span>
      <span role="gridcell" class="errors">
        {tool.errors ? <span class="bad">{count(tool.errors)}</span> : ""}
      </span>
      <span role="gridcell" class="p50">{duration(tool.p50)}</span>
      <span role="gridcell" class="p95">{duration(tool.p95)}</span>
      <span role="gridcell" class="tokens">
        {tool.tokens > 0 && (
          <>
            {count(tool.tokens)} <span class="dim share">{shareOf(tool)}</span>
          </>
        )}
      </span>
    </div>
  );
}

/** What all tools take of a prompt, and how that is estimated. */
function Footer() {
  const { tools, estimate } = listing.value!;
  const total = tools.reduce((sum, tool) => sum + tool.tokens, 0);
  const how = `Estimated by bytes of JSON, ${estimate.bytes_per_token} per token${
    estimate.requests ? `, as the model's server counted ${plural(estimate.requests, "request")}` : ": no request was counted"
  }.`;
  return (
    <p class="estimate" title={how}>
      {plural(tools.length, "tool")}, about {count(total)} tokens
      {estimate.prompt_tokens ? `, ${shareOf({ tokens: total })} of a prompt of ${count(estimate.prompt_tokens)}` : ""}.{" "}
      <span class="dim">{how}</span>
    </p>
  );
}

function Empty() {
  const isFiltered = Boolean(query.value.get("q"));
  const isProxy = info.value?.server === "proxy";
  return (
    <div class="empty">
      <h2>{isFiltered ? "No tool matches" : isProxy ? "No tools yet" : `The role ${role.value || listing.value!.role} has no tools`}</h2>
      <p>
        {isFiltered
          ? "Change the filter to see more."
          : isProxy
            ? "A proxy has no tools of its own: they come with the clients' requests. Those of the last turns appear here, with their calls."
            : "Programs register tools at POST /api/tools/register; patchbay serve --plugins runs plugins, and patchbay mcp add adds MCP servers."}
      </p>
    </div>
  );
}

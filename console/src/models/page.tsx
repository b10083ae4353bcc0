// The page of models: what was asked of them and of the tools, over an hour or a day, and what is known of each.

import { effect } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { count, duration, plural } from "../format";
import { listen } from "../live";
import type { ConsolePage } from "../pages";
import { go, query, urlOf } from "../route";
import { info } from "../session";
import { ModeTags, Problem } from "../ui/parts";
import { Line } from "../ui/text";
import { Chart, type Series } from "./chart";
import { ModelDetail } from "./detail";
import { type Field, follow, load, loadDoctor, type Model, models, shownWindow, type Usage, usage, usageError, type UsageRow } from "./store";

/** The rows with a colour of their own; the others are one line. */
const MOST_LINES = 5;

const DURATION = "Duration, p95";
const OF_MODELS: [string, Field[]][] = [
  ["Requests", ["count"]],
  ["Errors", ["errors"]],
  [DURATION, ["p95"]],
  ["Calls", ["calls"]],
  ["Tokens", ["prompt_tokens", "completion_tokens"]],
  ["Cached tokens", ["cached_tokens"]],
];
const OF_TOOLS: [string, Field[]][] = [
  ["Calls", ["count"]],
  ["Errors", ["errors"]],
  [DURATION, ["p95"]],
];

function ModelsPage() {
  useEffect(() => {
    if (info.peek()?.upstream) void loadDoctor();
    const following = follow();
    const stop = effect(() => {
      shownWindow.value;
      void load();
    });
    const stopListening = listen(["server.request"], { onEvent: following.note, onGap: following.note });
    return () => {
      stop();
      stopListening();
      following.stop();
    };
  }, []);
  const name = query.value.get("model"); // not in the path: names have dots and slashes
  const isOpen = name !== null || (query.value.get("doctor") === "1" && Boolean(info.value?.upstream));
  return (
    <main class={`models ${isOpen ? "open" : ""}`}>
      <Overview selected={name} isAlone={!isOpen} />
      {isOpen && <ModelDetail key={name ?? ""} name={name ?? ""} />}
    </main>
  );
}

function Overview({ selected, isAlone }: { selected: string | null; isAlone: boolean }) {
  const found = usage.value;
  return (
    <div class="overview" tabIndex={-1}>
      {isAlone && <h1 class="unseen">Models</h1>}
      <Toolbar />
      {usageError.value && <Problem error={usageError.value} retry={() => void load()} />}
      {found && !models.value.length && !found.tools.length && <Empty />}
      {found && (models.value.length > 0 || found.tools.length > 0) && (
        <>
          <Section title="Models" usage={found} rows={found.models} charts={OF_MODELS}>
            <ModelTable rows={found.models} selected={selected} />
          </Section>
          {found.tools.length > 0 && (
            <Section title="Tools" usage={found} rows={found.tools} charts={OF_TOOLS}>
              <ToolTable rows={found.tools} />
            </Section>
          )}
        </>
      )}
    </div>
  );
}

function Toolbar() {
  const asTable = query.value.get("view") === "table";
  return (
    <div class="toolbar" role="group" aria-label="What is shown">
      <span class="switch">
        {(["hour", "day"] as const).map((each) => (
          <button key={each} type="button" aria-pressed={shownWindow.value === each} onClick={() => showWindow(each)}>
            {each === "hour" ? "Last hour" : "Last day"}
          </button>
        ))}
      </span>
      <button type="button" aria-pressed={asTable} onClick={toggleTable}>
        Numbers
      </button>
      {info.value?.upstream && (
        <button type="button" class="last" id="doctor" onClick={() => go({ query: { doctor: "1", model: null } })}>
          Doctor
        </button>
      )}
    </div>
  );
}

interface SectionProps {
  title: string;
  usage: Usage;
  rows: UsageRow[];
  charts: [string, Field[]][];
  children: ComponentChildren;
}

function Section({ title, usage: found, rows, charts, children }: SectionProps) {
  const asTable = query.value.get("view") === "table";
  const times = useMemo(() => Array.from({ length: found.points }, (_, index) => found.begin + index * found.step), [found]);
  // Percentiles of several rows have no sum: the others have no line.
  const made = useMemo(() => charts.map(([name, fields]) => seriesOf(name === DURATION ? rows.slice(0, MOST_LINES) : rows, fields)), [found]);
  const slowest = Math.max(0, ...rows.map((row) => row.total.p95 ?? 0));
  return (
    <section aria-label={title}>
      <h2>{title}</h2>
      <div class="charts">
        {charts.map(([name, fields], index) => (
          <Chart
            key={name}
            title={name}
            of={title}
            unit={name === DURATION ? "seconds" : "number"}
            times={times}
            series={made[index]!}
            total={name !== DURATION ? count(sumOf(rows, fields)) : slowest ? `up to ${duration(slowest)}` : ""}
            asTable={asTable}
          />
        ))}
      </div>
      {children}
    </section>
  );
}

function sumOf(rows: UsageRow[], fields: Field[]): number {
  return rows.reduce((sum, row) => sum + fields.reduce((part, field) => part + (row.total[field] ?? 0), 0), 0);
}

/** Lines of the busiest rows, and one of all others together. */
function seriesOf(rows: UsageRow[], fields: Field[]): Series[] {
  const valuesOf = (row: UsageRow) =>
    fields.map((field) => row.series[field]).reduce((sum, more) => sum.map((value, index) => (value ?? 0) + (more[index] ?? 0)));
  const lines = rows.slice(0, MOST_LINES).map((row, index) => ({ name: row.name, color: index + 1, values: valuesOf(row) }));
  const others = rows.slice(MOST_LINES);
  if (!others.length) return lines;
  const values = others.map(valuesOf).reduce((sum, more) => sum.map((value, index) => (value ?? 0) + (more[index] ?? 0)));
  return [...lines, { name: plural(others.length, "other"), color: MOST_LINES + 1, values }];
}

function Swatch({ index }: { index: number }) {
  return <span class={`swatch series-${Math.min(index, MOST_LINES) + 1}`} aria-hidden="true" />;
}

/** All models that are known; those without a request in this time have no colour. */
function ModelTable({ rows, selected }: { rows: UsageRow[]; selected: string | null }) {
  const order = new Map(rows.map((row, index) => [row.name, index]));
  const known = [...models.value].sort((one, other) => (order.get(one.name) ?? Infinity) - (order.get(other.name) ?? Infinity) || 0);
  return (
    <div class="table">
      <table aria-label="Models">
        <thead>
          <tr>
            <th scope="col">Model</th>
            <th scope="col">Tools</th>
            <th scope="col" class="num">Requests</th>
            <th scope="col" class="num">Errors</th>
            <th scope="col" class="num">Calls</th>
            <th scope="col" class="num wide-only">Tokens</th>
            <th scope="col" class="num wide-only">Cached</th>
            <th scope="col" class="num wide-only">p50</th>
            <th scope="col" class="num">p95</th>
          </tr>
        </thead>
        <tbody>
          {known.map((model) => {
            const at = order.get(model.name);
            return <ModelRow key={model.name} model={model} at={at} row={at === undefined ? undefined : rows[at]} isSelected={model.name === selected} />;
          })}
        </tbody>
      </table>
    </div>
  );
}

function ModelRow({ model, at, row, isSelected }: { model: Model; at: number | undefined; row: UsageRow | undefined; isSelected: boolean }) {
  const total = row?.total;
  const way = model.ways[0];
  return (
    <tr class={isSelected ? "selected" : ""} onClick={() => openModel(model.name)}>
      <th scope="row">
        {at !== undefined && <Swatch index={at} />}
        <a href={urlOf({ query: { model: model.name, doctor: null } })} aria-current={isSelected || undefined} onClick={(event) => openLink(event, model.name)}>
          <Line text={model.name} />
        </a>
      </th>
      <td>{way ? <ModeTags {...way} /> : model.mode ? <ModeTags mode={model.mode} format="" constraint="" /> : <span class="dim">–</span>}</td>
      <td class="num">{count(total?.count ?? 0)}</td>
      <td class={`num ${total?.errors ? "bad" : ""}`}>{count(total?.errors ?? 0)}</td>
      <td class="num">{count(total?.calls ?? 0)}</td>
      <td class="num wide-only">{total && tokens(total.prompt_tokens, total.completion_tokens)}</td>
      <td class="num wide-only">{share(total?.cached_tokens, total?.prompt_tokens)}</td>
      <td class="num wide-only">{duration(total?.p50)}</td>
      <td class="num">{duration(total?.p95)}</td>
    </tr>
  );
}

export function tokens(given: number, written: number) {
  return (
    <>
      {count(given)}
      <span class="dim"> → </span>
      {count(written)}
    </>
  );
}

export function share(part: number | undefined, whole: number | undefined): string {
  return part && whole ? `${Math.round((100 * part) / whole)} %` : "";
}

function ToolTable({ rows }: { rows: UsageRow[] }) {
  return (
    <div class="table">
      <table aria-label="Tools">
        <thead>
          <tr>
            <th scope="col">Tool</th>
            <th scope="col" class="num">Calls</th>
            <th scope="col" class="num">Errors</th>
            <th scope="col" class="num">p50</th>
            <th scope="col" class="num">p95</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(({ name, total }, index) => (
            <tr key={name}>
              <th scope="row">
                <Swatch index={index} />
                <Line text={name} />
              </th>
              <td class="num">{count(total.count)}</td>
              <td class={`num ${total.errors ? "bad" : ""}`}>{count(total.errors)}</td>
              <td class="num">{duration(total.p50) || <span class="dim" title="The client runs it">client</span>}</td>
              <td class="num">{duration(total.p95)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Empty() {
  return (
    <div class="empty">
      <h2>No requests yet</h2>
      <p>
        Models appear here with their first request{info.value?.upstream ? "; Doctor examines the model server before that" : ""}. Counts begin anew
        when the server starts.
      </p>
    </div>
  );
}

export function openModel(name: string): void {
  go({ query: { model: name, doctor: null } });
}

function openLink(event: MouseEvent, name: string): void {
  event.stopPropagation();
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  openModel(name);
}

export function closeModel(): void {
  const link = document.querySelector<HTMLElement>(".models th a[aria-current]") ?? document.getElementById("doctor");
  go({ query: { model: null, doctor: null } });
  requestAnimationFrame(() => link?.focus());
}

function showWindow(window: "hour" | "day"): void {
  go({ query: { window: window === "day" ? "day" : null }, replace: true });
}

function toggleTable(): void {
  go({ query: { view: query.peek().get("view") === "table" ? null : "table" }, replace: true });
}

/** Moves the focus to another model's row. */
function move(by: number): void {
  const links = [...document.querySelectorAll<HTMLElement>(".models th a")];
  const at = links.findIndex((link) => link === document.activeElement);
  links[at < 0 ? 0 : Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
}

export const MODELS: ConsolePage = {
  path: "models",
  title: "Models",
  Page: ModelsPage,
  keys: [
    ["j  k", "Next and previous model"],
    ["Enter", "Open the model"],
    ["Esc", "Close what is open"],
    ["w", "Last hour or day"],
    ["n", "Charts or numbers"],
    ["d", "Doctor: examine the model server, where there is one"],
  ],
  close: closeModel,
  actionOf(key, _target, isField) {
    if (isField) return undefined;
    const actions: Record<string, () => void> = {
      j: () => move(1),
      k: () => move(-1),
      w: () => showWindow(shownWindow.peek() === "hour" ? "day" : "hour"),
      n: toggleTable,
      d: () => document.getElementById("doctor")?.click(),
      Escape: closeModel,
    };
    return actions[key];
  },
};

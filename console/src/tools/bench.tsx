// The bench: arguments as a form and as JSON, one call as any other, and what became of it.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, BASE, post } from "../api";
import { pending } from "../approvals/store";
import { duration, timeOfDay } from "../format";
import { indented, isJson, isObject } from "../json";
import { asApiError } from "../session";
import { storageOr } from "../stored";
import { Problem, Tag } from "../ui/parts";
import { JsonBlock, Line, TextBlock } from "../ui/text";
import type { Detail } from "./detail";
import { FormContext, Members } from "./form";
import { role } from "./store";
import { blank, faultsOf, kindOf, pointer, resolved, type Schema } from "./schema";

const HISTORY = "patchbay.bench";
const MOST_KEPT = 10;
const MOST_TOOLS = 50;
const MOST_CHARS = 20_000;

interface Called {
  call_id: string;
  output: unknown;
  content: string;
  is_error: boolean;
  code: string | null;
  error: string | null;
  ran: string | null;
  seconds: number;
  /** When the answer came, in seconds since 1970. */
  at: number;
  details?: string[] | null;
  files?: { url: string; media_type: string; name: string }[] | null;
}

export function Bench({ tool }: { tool: Detail }) {
  if (tool.kind === "client") return <p class="none">The client that sends this tool runs it. A turn shows what came of its calls.</p>;
  if (tool.kind === "hook" || tool.kind === "added") {
    return <p class="none">This tool exists during the turns of a model only, where a hook or Patchbay answers it: ask a model for it.</p>;
  }
  return <Called key={tool.name} tool={tool} />;
}

function Called({ tool }: { tool: Detail }) {
  const root = tool.parameters;
  const [text, setText] = useState(() => JSON.stringify(blank({ type: "object", ...root }, root) ?? {}, null, 2));
  const [called, setCalled] = useState<Called | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [running, setRunning] = useState<{ id: string; since: number; controller: AbortController } | null>(null);
  const [broken, setBroken] = useState<ReadonlySet<string>>(new Set());
  const [kept, setKept] = useState(() => historyOf(tool.name));
  const value = useMemo(() => objectOf(text), [text]);
  const faults = useMemo(() => new Map([...placed(called?.details ?? []), ...(value ? faultsOf(value, root) : [])]), [value, root, called]);
  const controller = useRef<AbortController | null>(null);
  const outcome = useRef<HTMLDivElement>(null);
  useEffect(() => () => controller.current?.abort(), []);
  useEffect(() => {
    if (called || running) outcome.current?.scrollIntoView({ block: "nearest" });
  }, [called, running !== null]);

  const change = (next: string) => {
    setText(next);
    if (called?.details) setCalled(null); // its faults are those of other arguments
  };
  const call = async () => {
    if (running || !value || broken.size) return;
    const mine = (controller.current = new AbortController());
    const id = `bench-${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 10)}`;
    setRunning({ id, since: Date.now(), controller: mine });
    setCalled(null);
    setError(null);
    setKept(keep(tool.name, text));
    try {
      const response = await post("/api/tools/call", { name: tool.name, role: role.peek(), raw_arguments: text, call_id: id }, mine.signal);
      setCalled({ ...((await response.json()) as Called), at: Date.now() / 1000 });
    } catch (problem) {
      setError(mine.signal.aborted ? new ApiError(0, "Cancelled. A tool that had begun may have done a part of its work.") : asApiError(problem));
    } finally {
      setRunning(null);
    }
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    void call();
  };
  const form = {
    root,
    faults,
    setBroken: (path: string, isBroken: boolean) =>
      setBroken((before) => {
        if (before.has(path) === isBroken) return before;
        const next = new Set(before);
        if (isBroken) next.add(path);
        else next.delete(path);
        return next;
      }),
  };
  return (
    <div class="bench" onKeyDown={onKeyDown}>
      <div class="sides">
        <section aria-label="Arguments">
          <h2>Arguments</h2>
          {!value ? (
            <p class="none">The JSON beside is no object, which arguments are.</p>
          ) : (
            <FormContext.Provider value={form}>
              <Root root={root} value={value} onChange={(next) => change(JSON.stringify(next, null, 2))} />
            </FormContext.Provider>
          )}
          {faults.get("") && <p class="bad">The arguments {faults.get("")}</p>}
        </section>
        <section aria-label="The same as JSON">
          <h2>
            <label for="bench-json">As JSON</label>
          </h2>
          <textarea id="bench-json" rows={Math.min(24, Math.max(5, text.split("\n").length))} spellcheck={false} value={text} aria-invalid={!value} onInput={(event) => change(event.currentTarget.value)} />
          {kept.length > 0 && (
            <>
              <h2>Used before</h2>
              <ul class="kept">
                {kept.map((each) => (
                  <li key={each}>
                    <button type="button" onClick={() => change(each)} title="Use these arguments again">
                      <Line text={compact(each)} />
                    </button>
                  </li>
                ))}
              </ul>
            </>
          )}
        </section>
      </div>
      <p class="actions">
        <button type="button" class="primary" disabled={running !== null || !value || broken.size > 0} onClick={() => void call()}>
          Call <kbd>Ctrl Enter</kbd>
        </button>
        {running && (
          <button type="button" onClick={() => running.controller.abort()}>
            Cancel
          </button>
        )}
        <span class="hint">It runs as a call of a model would, with the role's hooks and approvals.</span>
      </p>
      <div aria-live="polite" ref={outcome}>
        {running && <Waiting id={running.id} since={running.since} />}
        {called && <Result called={called} />}
      </div>
      {error && <Problem error={error}>{controller.current?.signal.aborted ? " " : undefined}</Problem>}
    </div>
  );
}

function Root({ root, value, onChange }: { root: Schema; value: Schema; onChange: (value: unknown) => void }) {
  const schema: Schema = { type: "object", ...resolved(root, root) };
  if (kindOf(schema, root, 0) === "object") return <Members schema={schema} value={value} path="" depth={0} onChange={onChange} />;
  const isEmpty = schema.properties === undefined || !Object.keys(schema.properties as object).length;
  if (isEmpty && !schema.anyOf && !schema.oneOf && schema.additionalProperties !== true) return <p class="none">The tool takes no arguments.</p>;
  return <p class="none">The form cannot show this schema: write the arguments as JSON.</p>;
}

/** How long a call runs, and whether a person must decide about it. */
function Waiting({ id, since }: { id: string; since: number }) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = window.setInterval(() => setNow(Date.now()), 1000);
    return () => window.clearInterval(timer);
  }, []);
  const request = pending.value.find((each) => each.call_id === id);
  if (!request) return <p>Running for {duration(Math.max(0, Math.round((now - since) / 1000)))}…</p>;
  const path = `approvals/${encodeURIComponent(request.id)}`;
  return (
    <p>
      The call waits for a person, by the rule <Line text={request.rule || "of a hook"} />:{" "}
      <a href={`${BASE}/console/${path}`} target="_blank" rel="noopener">
        decide in a new tab
      </a>
      . It ends when this page is left.
    </p>
  );
}

const RAN: Record<string, string> = { no: "did not run", yes: "ran", unknown: "may have run" };

function Result({ called }: { called: Called }) {
  const isData = called.output !== null && typeof called.output !== "string";
  const images = (called.files ?? []).filter((file) => /^image\/(png|jpeg|gif|webp)$/.test(file.media_type));
  const others = (called.files ?? []).filter((file) => !images.includes(file));
  return (
    <>
      <h2>Result</h2>
      <div class="facts-line">
        <Tag kind={called.is_error ? "bad" : ""}>{called.is_error ? "failed" : "succeeded"}</Tag>
        <span>{duration(called.seconds)}</span>
        {called.code && <Line class="bad" text={called.code} />}
        {called.ran && <span>the tool {RAN[called.ran] ?? called.ran}</span>}
        <span>at {timeOfDay(called.at)}</span>
      </div>
      {images.map((file) => (
        <img key={file.url} class="result" src={`${BASE}${file.url}`} alt={file.name || "Image of the result"} />
      ))}
      {others.map((file) => (
        <p key={file.url}>
          <a href={`${BASE}${file.url}`} download>
            <Line text={file.name || file.url} />
          </a>{" "}
          <Line class="dim" text={file.media_type} />
        </p>
      ))}
      {isJson(called.content) ? (
        <TextBlock text={indented(called.content)} label="Result as data" />
      ) : (
        <>
          {isData && <JsonBlock value={called.output} label="Result as data" />}
          {isData && <h2>As a model gets it</h2>}
          <TextBlock text={called.content} label="Result as a model gets it" />
        </>
      )}
    </>
  );
}

function objectOf(text: string): Schema | null {
  try {
    const value: unknown = JSON.parse(text);
    return isObject(value) ? value : null;
  } catch {
    return null;
  }
}

/** The server's faults by JSON pointer; a missing member counts as its own place. */
function placed(details: string[]): [string, string][] {
  return details.flatMap((line): [string, string][] => {
    const found = /^(\(root\)|\/.*?) (must .*|field .*|.* required.*)$/is.exec(line);
    if (!found) return [["", line]];
    const path = found[1] === "(root)" ? "" : found[1]!;
    const missing = /required property '(.*)'/s.exec(found[2]!);
    return [[missing ? pointer(path, missing[1]!) : path, missing ? "is required" : found[2]!]];
  });
}

function compact(text: string): string {
  const value = objectOf(text);
  return value ? JSON.stringify(value).slice(0, 300) : text.slice(0, 300);
}

// The history lives as long as the tab.

function read(): Record<string, string[]> {
  const value: unknown = storageOr(() => JSON.parse(window.sessionStorage.getItem(HISTORY) ?? "{}"));
  return isObject(value) ? (value as Record<string, string[]>) : {};
}

function historyOf(tool: string): string[] {
  const found = read();
  const own = Object.hasOwn(found, tool) ? found[tool] : [];
  return Array.isArray(own) ? own.filter((each) => typeof each === "string") : [];
}

function keep(tool: string, text: string): string[] {
  const before = historyOf(tool);
  if (text.length > MOST_CHARS) return before;
  const next = [text, ...before.filter((each) => each !== text)].slice(0, MOST_KEPT);
  const others = Object.entries(read()).filter(([name]) => name !== tool).slice(0, MOST_TOOLS - 1);
  storageOr(() => window.sessionStorage.setItem(HISTORY, JSON.stringify(Object.fromEntries([[tool, next], ...others]))));
  return next;
}

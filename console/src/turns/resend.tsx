// Edit and resend: a request in an editor, sent as a turn of its own, and both answers side by side.

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, type Attempt, type AttemptContent, type Body, get, post, type Turn } from "../api";
import { WaitingCalls } from "../approvals/inline";
import { newSession } from "../chat/store";
import { count, duration } from "../format";
import { isObject, parseJson } from "../json";
import { openaiPath } from "../openai";
import { go } from "../route";
import { asApiError } from "../session";
import { ModeTags, Options, Problem, StateMark } from "../ui/parts";
import { Line, TextBlock } from "../ui/text";
import { useAttempt } from "./attempt";
import { CallBlock } from "./content";
import { openTurn } from "./list";

interface Draft {
  model: string;
  tools: string;
  constrain: string;
  messages: string;
  offered: string;
  others: string;
}

/** Members that have a field of their own, or that the page decides. */
const OWN = ["model", "messages", "tools", "patchbay", "stream", "stream_options"];

const TOOL_MODES = ["", "auto", "text", "native"];
const CONSTRAIN_MODES = ["", "auto", "off", "force"];

export function Resend({ turn, of }: { turn: Turn; of: string }) {
  const asked = turn.attempts.find((attempt) => `a${attempt.index}` === of);
  const index = asked && canEdit(asked) ? asked.index : null;
  const content = useAttempt(turn.id, index, false);
  if (index !== null && content === null) return <p class="none">Loading…</p>;
  if (content instanceof ApiError) return <Problem error={content} />;
  const body = index === null ? turn.client_request : (content?.request ?? null);
  const title = index === null ? "the client's request" : "the request of one attempt";
  if (!body) {
    return (
      <Problem error={new ApiError(404, "The server does not keep this request, so it cannot be edited.")}>
        <button type="button" onClick={close}>Back to the turn</button>
      </Problem>
    );
  }
  return <Editor key={of} turn={turn} body={body} title={title} index={index} />;
}

/** Whether the request of an attempt can be sent again: with its tools in the prompt they would be put there twice. */
export function canEdit(attempt: Attempt): boolean {
  return attempt.mode !== "text";
}

function close(): void {
  go({ query: { edit: null } });
}

interface Sent {
  turn: Turn | null;
  /** The attempt whose answer is compared; null where it is not known. */
  attempt: Attempt | null;
  content: AttemptContent | null;
  error: ApiError | null;
}

function Editor({ turn, body, title, index }: { turn: Turn; body: Body; title: string; index: number | null }) {
  const [draft, setDraft] = useState(() => draftOf(body));
  const [sent, setSent] = useState<Sent | null>(null);
  const [since, setSince] = useState<number | null>(null);
  const [session, setSession] = useState("");
  const controller = useRef<AbortController | null>(null);
  const form = useRef<HTMLFormElement>(null);
  const results = useRef<HTMLDivElement>(null);
  const compared = attemptOf(turn, index ?? -1);
  const before = useAttempt(turn.id, compared?.index ?? null, false);
  const { value, problems } = read(draft);
  useEffect(() => () => controller.current?.abort(), []);
  useEffect(() => form.current?.querySelector<HTMLElement>("#draft-messages")?.focus({ preventScroll: true }), []);

  const send = async () => {
    if (!value || since !== null) return;
    const mine = (controller.current = new AbortController());
    const key = newSession();
    const headers = { "X-Patchbay-Session": key, ...(turn.role && { "X-Patchbay-Role": encodeURIComponent(turn.role) }) };
    setSession(key);
    setSince(Date.now() / 1000);
    setSent(null);
    results.current?.scrollIntoView({ block: "nearest" });
    try {
      setSent(await resend(value, headers, index === null, mine.signal));
    } catch (error) {
      setSent({ turn: null, attempt: null, content: null, error: mine.signal.aborted ? new ApiError(0, "The request was stopped.") : asApiError(error) });
    } finally {
      setSince(null);
    }
  };

  const set = (name: keyof Draft) => (event: { currentTarget: { value: string } }) => setDraft({ ...draft, [name]: event.currentTarget.value });
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      void send();
    } else if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      close();
    }
  };
  return (
    <div class="resend" onKeyDown={onKeyDown}>
      <form
        ref={form}
        onSubmit={(event) => {
          event.preventDefault();
          void send();
        }}
      >
        <header>
          <h1>Edit and resend {title}</h1>
          <button type="button" onClick={close}>Back to the turn <kbd>Esc</kbd></button>
          <button type="submit" class="primary" disabled={!value || since !== null}>
            Send <kbd>Ctrl Enter</kbd>
          </button>
        </header>
        <div class="settings">
          <label>
            Model
            <input value={draft.model} onInput={set("model")} spellcheck={false} autocomplete="off" />
          </label>
          <label>
            Tools
            <select value={draft.tools} onChange={set("tools")}>
              <Options of={TOOL_MODES} none="as the server is set" />
            </select>
          </label>
          <label>
            Constrain
            <select value={draft.constrain} onChange={set("constrain")}>
              <Options of={CONSTRAIN_MODES} none="as the server is set" />
            </select>
          </label>
        </div>
        <div class="fields">
          <JsonField id="messages" label="Messages" rows={16} value={draft.messages} problem={problems.messages} onInput={set("messages")} />
          <div>
            <JsonField id="tools" label="Tools" rows={9} value={draft.offered} problem={problems.offered} onInput={set("offered")} />
            <JsonField id="others" label="Other members" rows={5} value={draft.others} problem={problems.others} onInput={set("others")} />
          </div>
        </div>
      </form>
      <div class="sides" ref={results} aria-live="polite">
        <Outcome
          title="Before"
          turn={turn}
          attempt={compared}
          content={before && !(before instanceof ApiError) ? before : null}
          error={before instanceof ApiError ? before : null}
        />
        {since !== null ? (
          <section class="outcome" aria-label="After">
            <h2>After</h2>
            <p class="none">Waiting for the answer…</p>
            <WaitingCalls session={session} />
            <p class="actions"><button type="button" onClick={() => controller.current?.abort()}>Stop</button></p>
          </section>
        ) : sent ? (
          <Outcome title="After" {...sent} />
        ) : (
          <section class="outcome" aria-label="After">
            <h2>After</h2>
            <p class="none">Change the request and send it: its answer appears here.</p>
          </section>
        )}
      </div>
    </div>
  );
}

interface JsonFieldProps {
  id: string;
  label: string;
  rows: number;
  value: string;
  problem: string | undefined;
  onInput: (event: { currentTarget: HTMLTextAreaElement }) => void;
}

function JsonField({ id, label, rows, value, problem, onInput }: JsonFieldProps) {
  return (
    <div class="json-field">
      <label for={`draft-${id}`}>{label}</label>
      <textarea
        id={`draft-${id}`}
        rows={rows}
        spellcheck={false}
        autocomplete="off"
        value={value}
        onInput={onInput}
        aria-invalid={problem !== undefined}
        aria-describedby={problem === undefined ? undefined : `problem-${id}`}
      />
      {problem !== undefined && <p id={`problem-${id}`} class="bad">{problem}</p>}
    </div>
  );
}

function Outcome({ title, turn, attempt, content, error }: { title: string } & Sent) {
  const reading = content?.reading;
  const usage = attempt?.usage;
  return (
    <section class="outcome" aria-label={title}>
      <h2>{title}</h2>
      {turn && (
        <div class="facts-line">
          <StateMark state={turn.state} />
          {attempt && <ModeTags mode={attempt.mode} format={attempt.format} constraint={attempt.constraint} />}
          {usage?.completion_tokens != null && <span>{count(usage.prompt_tokens)} → {count(usage.completion_tokens)} tokens</span>}
          {attempt && <span>{duration(attempt.seconds)}</span>}
          {turn.rounds > 1 && attempt && <span>request {attempt.index + 1} of {turn.rounds}</span>}
          {title === "After" && <button type="button" onClick={() => openTurn(turn.id)}>Open this turn</button>}
        </div>
      )}
      {error && <Problem error={error} />}
      {turn?.error && <p class="bad"><Line text={turn.error} /></p>}
      {attempt?.reason && <p class="reason"><Line text={attempt.reason} /></p>}
      {reading?.calls.map((call, place) => <CallBlock key={place} call={call} label={String(place + 1)} />)}
      {reading?.content && <TextBlock text={reading.content} label="Content" />}
      {reading?.reasoning && (
        <details>
          <summary>Reasoning</summary>
          <TextBlock text={reading.reasoning} label="Reasoning" />
        </details>
      )}
      {content && !reading && content.text && <TextBlock text={content.text} label="Raw text" />}
      {content && !error && !reading?.calls.length && !reading?.content && !content.text && <p class="none">The answer is empty.</p>}
    </section>
  );
}

function draftOf(body: Body): Draft {
  const options = (typeof body.patchbay === "object" && body.patchbay) || {};
  const option = (name: string, known: string[]) => {
    const found = (options as Record<string, unknown>)[name];
    return typeof found === "string" && known.includes(found) ? found : "";
  };
  const others = Object.fromEntries(Object.entries(body).filter(([name]) => !OWN.includes(name)));
  return {
    model: typeof body.model === "string" ? body.model : "",
    tools: option("tools", TOOL_MODES),
    constrain: option("constrain", CONSTRAIN_MODES),
    messages: JSON.stringify(body.messages ?? [], null, 2),
    offered: body.tools === undefined ? "" : JSON.stringify(body.tools, null, 2),
    others: JSON.stringify(others, null, 2),
  };
}

/** Reads a draft: the body to send, null where a field has a problem. */
function read(draft: Draft): { value: Body | null; problems: Partial<Record<keyof Draft, string>> } {
  const problems: Partial<Record<keyof Draft, string>> = {};
  const parse = (name: "messages" | "offered" | "others", check: (value: unknown) => string | null): unknown => {
    try {
      const value = parseJson(draft[name]);
      const problem = check(value);
      if (problem) problems[name] = problem;
      return value;
    } catch (error) {
      problems[name] = `This is not JSON: ${(error as Error).message}`;
      return null;
    }
  };
  const messages = parse("messages", (value) =>
    Array.isArray(value) && value.length && value.every((each) => isObject(each) && typeof each.role === "string")
      ? null
      : "Messages are a list of objects, each with a role.",
  );
  const tools = draft.offered.trim() ? parse("offered", (value) => (Array.isArray(value) && value.every(isObject) ? null : "Tools are a list of objects.")) : undefined;
  const others = parse("others", (value) => {
    if (!isObject(value)) return "The other members are one object.";
    const own = Object.keys(value as object).find((name) => OWN.includes(name));
    return own ? `Leave “${own}” out: it has a field of its own, or the page sets it.` : null;
  });
  if (Object.keys(problems).length) return { value: null, problems };
  const options = Object.fromEntries([["tools", draft.tools], ["constrain", draft.constrain]].filter(([, chosen]) => chosen));
  const body: Body = { ...(others as Body), model: draft.model, messages };
  if (Array.isArray(tools) && tools.length) body.tools = tools;
  if (Object.keys(options).length) body.patchbay = options;
  return { value: body, problems };
}

/**
 * Sends a request as a turn of its own, and reads that turn. Throws ApiError where no turn is known of it. An edited attempt is
 * compared with the first attempt of that turn, a client's request (`isWhole`) with its last answer.
 */
async function resend(body: Body, headers: Record<string, string>, isWhole: boolean, signal: AbortSignal): Promise<Sent> {
  let error: ApiError | null = null;
  let id: string | null = null;
  try {
    const response = await post(`${openaiPath()}/chat/completions`, body, signal, headers);
    id = response.headers.get("x-request-id");
    await response.arrayBuffer();
  } catch (problem) {
    if (!(problem instanceof ApiError) || !problem.requestId) throw problem;
    error = problem;
    id = problem.requestId;
  }
  if (!id) throw new ApiError(0, "The answer has no x-request-id, so its turn is not known.");
  // The turn ends after its answer was sent.
  for (let tries = 0; ; tries++) {
    const turn = await get<Turn>(`/api/turns/${encodeURIComponent(id)}`, signal).catch((problem) => {
      throw error ?? problem;
    });
    if (turn.state !== "running" || tries >= 20) {
      const attempt = attemptOf(turn, isWhole ? -1 : 0);
      const path = `/api/turns/${encodeURIComponent(id)}/attempts/${attempt?.index}`;
      return { turn, attempt, content: attempt && (await get<AttemptContent>(path, signal)), error };
    }
    await new Promise((done) => window.setTimeout(done, 100));
  }
}

function attemptOf(turn: Turn, index: number): Attempt | null {
  return turn.attempts.at(index) ?? null;
}

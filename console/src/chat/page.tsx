// The page that tries a role or a model: a conversation, with the calls and approvals of its answers between their texts.

import { useEffect, useRef, useState } from "preact/hooks";
import { WaitingCalls } from "../approvals/inline";
import { duration } from "../format";
import { indented } from "../json";
import { listen } from "../live";
import type { ConsolePage } from "../pages";
import { go } from "../route";
import { info } from "../session";
import { Bad, Options, PageLink, StateMark } from "../ui/parts";
import { Line, TextBlock, visible } from "../ui/text";
import { again, type Entry, entries, isRunning, KINDS, loadModels, model, models, restart, role, say, session, stop, take, type ToolUse } from "./store";

function ChatPage() {
  useEffect(() => {
    void loadModels();
    return listen(KINDS, { onEvent: take, onGap: () => undefined });
  }, []);
  return (
    <main class="chat">
      <h1 class="unseen">Chat</h1>
      <Settings />
      <Conversation />
      <WaitingCalls session={session.value} />
      <Composer />
    </main>
  );
}

function Settings() {
  const roles = info.value?.roles ?? [];
  const known = models.value;
  const chosen = model.value;
  const set = (name: string) => (event: { currentTarget: { value: string } }) => go({ query: { [name]: event.currentTarget.value }, replace: true });
  return (
    <header class="chat-settings">
      {roles.length > 1 && (
        <label>
          Role
          <select value={role.value || roles[0]} onChange={set("role")}>
            <Options of={roles} />
          </select>
        </label>
      )}
      <label>
        Model
        {known.length ? (
          <select value={chosen} onChange={set("model")}>
            <Options of={known.includes(chosen) ? known : [chosen, ...known]} />
          </select>
        ) : (
          <input value={chosen} onChange={set("model")} spellcheck={false} autocomplete="off" placeholder="name of a model" />
        )}
      </label>
      <button type="button" onClick={restart} disabled={!entries.value.length}>
        New conversation
      </button>
    </header>
  );
}

/** Stays at the end while the reader is there. */
function Conversation() {
  const ref = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const shown = entries.value;
  useEffect(() => {
    if (isAtEnd.current && ref.current) ref.current.scrollTop = ref.current.scrollHeight;
  }, [shown]);
  const onScroll = (event: { currentTarget: HTMLElement }) => {
    const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < 40;
  };
  return (
    <div class="conversation" ref={ref} onScroll={onScroll} tabIndex={0} role="log" aria-label="Conversation">
      {shown.length ? (
        <ol>
          {shown.map((entry, index) => (
            <Said key={index} entry={entry} isLast={index === shown.length - 1} />
          ))}
        </ol>
      ) : (
        <p class="none">
          {info.value?.server === "serve"
            ? "Say something to the model: the tools of the role are called here, and what waits for approval can be decided here."
            : "Say something to the model. This proxy offers it no tools of its own: they come with the requests of its clients."}
        </p>
      )}
    </div>
  );
}

function Said({ entry, isLast }: { entry: Entry; isLast: boolean }) {
  const isEmpty = !entry.parts.length && !entry.reasoning;
  return (
    <li class={`said-by ${entry.role}`}>
      <div class="role">{entry.role}</div>
      <div class="said">
        {entry.reasoning && (
          <details>
            <summary>Reasoning</summary>
            <TextBlock text={entry.reasoning} label="Reasoning" />
          </details>
        )}
        {entry.parts.map((part, index) =>
          "text" in part ? (
            part.text.trim() && (
              <p key={index} class="prose" dir="auto">
                {visible(part.text.trim())}
              </p>
            )
          ) : (
            <Used key={part.call.id} call={part.call} isOver={entry.state !== "running"} />
          ),
        )}
        {entry.state === "running" && isEmpty && <p class="none">Waiting for the model…</p>}
        {entry.state === "done" && isEmpty && entry.role === "assistant" && <p class="none">The answer is empty.</p>}
        <Bad text={entry.problem} role="alert" />
        {entry.role === "assistant" && entry.state !== "running" && (
          <p class="after">
            {entry.state === "stopped" && <span class="dim">stopped</span>}
            {entry.turn && <PageLink to={`turns/${encodeURIComponent(entry.turn)}`}>Turn</PageLink>}
            {isLast && (
              <button type="button" class="quiet" onClick={() => void again()}>
                Ask again
              </button>
            )}
          </p>
        )}
      </div>
    </li>
  );
}

function Used({ call, isOver }: { call: ToolUse; isOver: boolean }) {
  const runs = call.result === null && !isOver;
  return (
    <details class="call">
      <summary class="call-head">
        <StateMark state={runs ? "running" : call.isError || call.result === null ? "failed" : "done"} />
        <Line class="call-name" text={call.name} />
        <Line class="dim gist" text={call.arguments.slice(0, 200)} />
        {call.seconds !== null && <span class="dim">{duration(call.seconds)}</span>}
      </summary>
      <TextBlock text={indented(call.arguments)} label={`Arguments of ${call.name}`} />
      {call.result && <TextBlock text={indented(call.result)} label={`Result of ${call.name}`} />}
    </details>
  );
}

function Composer() {
  const [draft, setDraft] = useState("");
  const field = useRef<HTMLTextAreaElement>(null);
  const runs = isRunning.value;
  const send = () => {
    if (!draft.trim() || runs || !model.peek()) return;
    setDraft("");
    void say(draft);
    field.current?.focus();
  };
  useEffect(() => field.current?.focus(), []);
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <label class="unseen" for="chat-text">
        Message
      </label>
      <textarea
        id="chat-text"
        ref={field}
        rows={3}
        value={draft}
        placeholder={model.value ? "Message; Enter sends it, Shift Enter begins a line" : "Name a model above"}
        onInput={(event) => setDraft(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
          event.preventDefault();
          send();
        }}
      />
      {runs ? (
        <button type="button" onClick={stop}>
          Stop <kbd>Esc</kbd>
        </button>
      ) : (
        <button type="submit" class="primary" disabled={!draft.trim() || !model.value}>
          Send
        </button>
      )}
    </form>
  );
}

export const CHAT: ConsolePage = {
  path: "chat",
  title: "Chat",
  Page: ChatPage,
  keys: [
    ["Enter", "Send the message"],
    ["Esc", "Stop the answer"],
    ["c", "Write a message"],
  ],
  actionOf(key, _target, isField) {
    if (key === "Escape" && isRunning.peek()) return stop;
    if (key === "c" && !isField) return () => document.getElementById("chat-text")?.focus();
    return undefined;
  },
};

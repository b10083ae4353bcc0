// Small parts that several pages use.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, BASE, type State } from "../api";
import { goTo } from "../route";
import { needsSignIn } from "../session";
import { Line } from "./text";

const STATES: Record<State, string> = { running: "running", done: "done", failed: "failed" };

export function StateMark({ state, label }: { state: State; label?: string }) {
  return <span class={`state ${state}`} role="img" aria-label={label ?? STATES[state]} title={label ?? STATES[state]} />;
}

export function Tag({ children, kind = "", title }: { children: ComponentChildren; kind?: string; title?: string }) {
  return (
    <span class={`tag ${kind}`} title={title}>
      {children}
    </span>
  );
}

/** Tags for how a model got its tools. */
export function ModeTags({ mode, format, constraint }: { mode: string; format: string; constraint: string }) {
  return (
    <span class="tags">
      {mode && <Tag title={mode === "text" ? "The tools were written into the prompt" : "The model has tool calls of its own"}>{mode}</Tag>}
      {format && <Tag title="The format of the calls">{format}</Tag>}
      {constraint && <Tag title={`The answer was constrained by a ${constraint === "schema" ? "JSON Schema" : "grammar"}`}>{constraint}</Tag>}
    </span>
  );
}

/** What went wrong, in a sentence; nothing for none. */
export function Bad({ text, role }: { text: string | undefined; role?: "alert" }) {
  if (!text) return null;
  return (
    <p class="bad" role={role}>
      <Line text={text} />
    </p>
  );
}

/** One of the facts in a list of them: a short text or what else stands there; nothing for none. */
export function Fact({ name, value, title, children }: { name: string; value?: string; title?: string; children?: ComponentChildren }) {
  if (!value && !children) return null;
  return (
    <div title={title}>
      <dt>{name}</dt>
      <dd>{value ? <Line text={value} /> : children}</dd>
    </div>
  );
}

export function CloseButton({ what, onClick }: { what: string; onClick: () => void }) {
  return (
    <button type="button" class="quiet" onClick={onClick} aria-label={`Close ${what}`} title="Close (Esc)">
      ✕
    </button>
  );
}

/** The choices of a select; `none` is shown for the empty one. */
export function Options({ of, none = "" }: { of: readonly string[]; none?: string }) {
  return (
    <>
      {of.map((each) => (
        <option key={each} value={each}>
          {each || none}
        </option>
      ))}
    </>
  );
}

/** A link to a place of the console: its path below /console, encoded. */
export function PageLink({ to, children }: { to: string; children: ComponentChildren }) {
  const follow = (event: MouseEvent) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // in a tab or window of its own
    event.preventDefault();
    goTo(to);
  };
  return (
    <a href={`${BASE}/console/${to}`} onClick={follow}>
      {children}
    </a>
  );
}

/** A button that copies a text, and says so. */
export function Copy({ text, children }: { text: () => string; children: ComponentChildren }) {
  const [isDone, setDone] = useState(false);
  useEffect(() => {
    if (!isDone) return;
    const timer = window.setTimeout(() => setDone(false), 2000);
    return () => window.clearTimeout(timer);
  }, [isDone]);
  const copy = () => void navigator.clipboard?.writeText(text()).then(() => setDone(true), () => undefined);
  return (
    <button type="button" onClick={copy} aria-live="polite">
      {isDone ? "Copied" : children}
    </button>
  );
}

/** What went wrong, and the way out. */
export function Problem({ error, retry, children }: { error: ApiError; retry?: () => void; children?: ComponentChildren }) {
  const way =
    error.status === 0
      ? "Check that patchbay still runs, then try again."
      : error.status === 401
        ? "Sign in with the server's token."
        : error.status === 503
          ? "Close other tabs of the console, or try again later."
          : "";
  return (
    <div class="problem" role="alert">
      <h2>{error.status ? `${error.message} (HTTP ${error.status})` : error.message}</h2>
      <p>{children ?? way}</p>
      <p class="actions">
        {error.status === 401 && (
          <button type="button" class="primary" onClick={() => (needsSignIn.value = true)}>
            Sign in
          </button>
        )}
        {retry && (
          <button type="button" onClick={retry}>
            Try again
          </button>
        )}
      </p>
    </div>
  );
}

/** A modal dialog; Esc and a click beside it close it. */
export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement;
    ref.current?.showModal();
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={ref}
      aria-label={title}
      onClose={onClose}
      onClick={(event) => event.target === ref.current && onClose()}
      onKeyDown={(event) => event.stopPropagation()}
    >
      <div class="sheet">
        <header>
          <h2>{title}</h2>
          <button type="button" class="quiet" onClick={onClose}>
            Close <kbd>Esc</kbd>
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

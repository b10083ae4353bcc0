// The filters above the list. The server applies them; their state is in the URL.

import { useEffect, useRef, useState } from "preact/hooks";
import { go, query } from "../route";
import { FILTERS, type Filter, turns } from "./store";

const TYPING = 250;

export function Filters() {
  const isFiltered = FILTERS.some((name) => name !== "q" && query.value.get(name));
  const [isOpen, setOpen] = useState(isFiltered);
  return (
    <form class={`filters ${isOpen ? "open" : ""}`} role="search" aria-label="Turns" onSubmit={(event) => event.preventDefault()}>
      <Field name="q" label="Search" placeholder="Search the text of turns" type="search" />
      <button type="button" class="toggle" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        Filters
      </button>
      <select
        aria-label="Outcome"
        value={query.value.get("outcome") ?? ""}
        onChange={(event) => go({ query: { outcome: event.currentTarget.value }, replace: true })}
      >
        <option value="">Any outcome</option>
        <option value="running">Running</option>
        <option value="done">Done</option>
        <option value="failed">Failed</option>
      </select>
      <Field name="model" label="Model" options={() => turns.value.map((turn) => turn.model)} />
      <Field name="tool" label="Tool" options={() => turns.value.flatMap((turn) => turn.calls)} />
      <Field name="session" label="Session" options={() => turns.value.map((turn) => turn.session)} />
      {(isFiltered || query.value.get("q")) && (
        <button type="button" class="quiet clear" onClick={clear}>
          Clear
        </button>
      )}
    </form>
  );
}

function clear(): void {
  go({ query: Object.fromEntries(FILTERS.map((name) => [name, null])), replace: true });
}

interface FieldProps {
  name: Filter;
  label: string;
  placeholder?: string;
  type?: "search" | "text";
  options?: () => string[];
}

function Field({ name, label, placeholder = label, type = "text", options }: FieldProps) {
  const value = query.value.get(name) ?? "";
  const [typed, setTyped] = useState(value);
  const timer = useRef(0);
  useEffect(() => setTyped(value), [value]);
  const change = (text: string) => {
    setTyped(text);
    window.clearTimeout(timer.current);
    timer.current = window.setTimeout(() => go({ query: { [name]: text.trim() }, replace: true }), TYPING);
  };
  return (
    <>
      <input
        id={`filter-${name}`}
        type={type}
        aria-label={label}
        placeholder={placeholder}
        title={name === "q" ? "Search: /" : label}
        value={typed}
        autocomplete="off"
        spellcheck={false}
        list={options ? `known-${name}` : undefined}
        onInput={(event) => change(event.currentTarget.value)}
      />
      {options && (
        <datalist id={`known-${name}`}>
          {[...new Set(options())].filter(Boolean).slice(0, 100).map((each) => (
            <option key={each} value={each} />
          ))}
        </datalist>
      )}
    </>
  );
}

// The arguments of a call: as a form and as JSON, to read and to edit, with what the edit changes.

import { useState } from "preact/hooks";
import type { Approval, Body } from "../api";
import { indented, isJson, isObject, type Member, membersOf, objectOf } from "../json";
import { Diff } from "../ui/diff";
import { Bad, Options } from "../ui/parts";
import { Line, TextBlock } from "../ui/text";

export interface Draft {
  isEditing: boolean;
  isEdited: boolean;
  /** Why it cannot be sent; "" if it can. */
  problem: string;
  members: Member[];
  /** The text of the JSON field while it is edited there. */
  text: string | null;
  set: (members: Member[], text: string | null) => void;
  edit: (isEditing: boolean) => void;
}

/** The arguments as they are edited; another request begins anew. */
export function useDraft(request: Approval): Draft {
  const original = membersOf(request.arguments_text) ?? [];
  const [isEditing, setEditing] = useState(false);
  const [draft, setDraft] = useState<{ members: Member[]; text: string | null }>({ members: original, text: null });
  const broken = draft.members.find((each) => each.source.trim() && !isJson(each.source));
  const problem =
    draft.text !== null && membersOf(draft.text) === null ? "The arguments are no JSON object." : broken ? `The value of ${broken.name} is no JSON.` : "";
  return {
    ...draft,
    isEditing,
    problem: isEditing ? problem : "",
    isEdited: isEditing && objectOf(draft.members) !== objectOf(original),
    set: (members, text) => setDraft({ members, text }),
    edit: (starts) => {
      setEditing(starts);
      setDraft({ members: original, text: null });
    },
  };
}

/** The edited arguments as JSON. */
export function sourceOf(draft: Draft): string {
  return objectOf(draft.members);
}

export function Arguments({ request, draft }: { request: Approval; draft: Draft }) {
  const [view, setView] = useState<"form" | "json">("form");
  const isOpen = request.state === "pending";
  const before = indented(request.arguments_text);
  const after = request.edited ? JSON.stringify(request.edited, null, 2) : draft.isEdited && !draft.problem ? indented(sourceOf(draft)) : null;
  const toggle = () => {
    draft.edit(!draft.isEditing);
    if (draft.isEditing) document.getElementById("detail")?.focus({ preventScroll: true });
  };
  return (
    <div>
      <div class="arguments-head">
        <h2>Arguments</h2>
        <span class="switch" role="group" aria-label="How the arguments are shown">
          <button type="button" aria-pressed={view === "form"} onClick={() => setView("form")}>
            Form
          </button>
          <button type="button" aria-pressed={view === "json"} onClick={() => setView("json")}>
            JSON
          </button>
        </span>
        {isOpen && request.parameters && (
          <button type="button" id={draft.isEditing ? "discard" : "edit"} onClick={toggle}>
            {draft.isEditing ? "Discard the edit" : "Edit"} <kbd>{draft.isEditing ? "Esc" : "e"}</kbd>
          </button>
        )}
      </div>
      {draft.isEditing && isOpen ? view === "form" ? <Form request={request} draft={draft} /> : <JsonField draft={draft} /> : view === "form" ? (
        <Values members={membersOf(request.arguments_text) ?? []} />
      ) : (
        <TextBlock text={before} label="Arguments as JSON" />
      )}
      <Bad text={draft.problem} role="alert" />
      {after !== null && (
        <>
          <h2>What the edit changes</h2>
          <Diff before={before} after={after} label="What the edit changes" />
        </>
      )}
    </div>
  );
}

function Values({ members }: { members: Member[] }) {
  if (!members.length) return <p class="none">No arguments.</p>;
  return (
    <dl class="values">
      {members.map(({ name, source }) => (
        <div key={name}>
          <dt>
            <Line text={name} />
          </dt>
          <dd>
            <TextBlock text={source.startsWith('"') ? (JSON.parse(source) as string) : indented(source)} label={`Argument ${name}`} />
          </dd>
        </div>
      ))}
    </dl>
  );
}

function JsonField({ draft }: { draft: Draft }) {
  const onInput = (event: { currentTarget: HTMLTextAreaElement }) => {
    const text = event.currentTarget.value;
    draft.set(membersOf(text) ?? draft.members, text);
  };
  return <textarea aria-label="Arguments as JSON" rows={14} spellcheck={false} value={draft.text ?? indented(sourceOf(draft))} onInput={onInput} aria-invalid={draft.problem !== ""} />;
}

function Form({ request, draft }: { request: Approval; draft: Draft }) {
  const properties = isObject(request.parameters?.properties) ? request.parameters.properties : {};
  const names = [...new Set([...draft.members.map((each) => each.name), ...Object.keys(properties)])];
  const set = (name: string, source: string) => {
    const isKnown = draft.members.some((each) => each.name === name);
    draft.set(isKnown ? draft.members.map((each) => (each.name === name ? { name, source } : each)) : [...draft.members, { name, source }], null);
  };
  return (
    <div class="values form">
      {names.map((name) => (
        <Field key={name} name={name} source={draft.members.find((each) => each.name === name)?.source ?? ""} schema={isObject(properties[name]) ? properties[name] : {}} onChange={(source) => set(name, source)} />
      ))}
    </div>
  );
}

interface FieldProps {
  name: string;
  source: string;
  schema: Body;
  onChange: (source: string) => void;
}

function Field({ name, source, schema, onChange }: FieldProps) {
  const id = `argument-${name}`;
  const choices = Array.isArray(schema.enum) ? schema.enum.map((each) => JSON.stringify(each)) : schema.type === "boolean" ? ["true", "false"] : null;
  const isText = source ? source.startsWith('"') && isJson(source) : schema.type === "string";
  const text = isText && source ? (JSON.parse(source) as string) : source;
  const change = (value: string) => onChange(isText ? JSON.stringify(value) : value);
  const lines = Math.min(12, Math.max(1, Math.ceil(text.length / 80), text.split("\n").length));
  return (
    <div>
      <label for={id}>
        <Line text={name} />
      </label>
      <div>
        {choices ? (
          <select id={id} value={source} onChange={(event) => onChange(event.currentTarget.value)}>
            <Options of={[...new Set(["", source, ...choices])]} none="not given" />
          </select>
        ) : (
          <textarea id={id} rows={lines} spellcheck={false} value={text} placeholder="not given" aria-invalid={!isText && source.trim() !== "" && !isJson(source)} onInput={(event) => change(event.currentTarget.value)} />
        )}
        {typeof schema.description === "string" && (
          <p class="hint">
            <Line text={schema.description} />
          </p>
        )}
      </div>
    </div>
  );
}

// A form that is made of a JSON Schema. A part that it has no control for is edited as JSON.

import { createContext, type ComponentChildren } from "preact";
import { useContext, useEffect, useId, useState } from "preact/hooks";
import { isObject } from "../json";
import { Line } from "../ui/text";
import { blank, choicesOf, isRequired, isSame, kindOf, member, pointer, propertiesOf, resembles, resolved, type Schema, variantOf, variantsOf } from "./schema";

export interface FormState {
  root: Schema;
  /** What is wrong, by JSON pointer. */
  faults: ReadonlyMap<string, string>;
  /** A part that is edited as JSON is none at the moment. */
  setBroken(path: string, isBroken: boolean): void;
}

export const FormContext = createContext<FormState>({ root: {}, faults: new Map(), setBroken: () => undefined });

interface PartProps {
  schema: Schema;
  value: unknown;
  path: string;
  depth: number;
  id: string;
  label: string;
  fault?: string | undefined;
  onChange(value: unknown): void;
}

/** The members of an object. */
export function Members({ schema, value, path, depth, onChange }: Omit<PartProps, "id" | "label">) {
  const { root } = useContext(FormContext);
  const own = isObject(value) ? value : {};
  const properties = propertiesOf(schema);
  const others = Object.fromEntries(Object.entries(own).filter(([name]) => member(schema.properties, name) === undefined));
  const set = (name: string, next: unknown) => onChange(next === undefined ? without(own, name) : { ...own, [name]: next });
  const allows = schema.additionalProperties === true || isObject(schema.additionalProperties);
  return (
    <>
      {properties.map(([name, part]) => (
        <Field
          key={name}
          name={name}
          schema={resolved(part, root)}
          value={member(own, name)}
          path={pointer(path, name)}
          depth={depth}
          isRequired={isRequired(schema, name)}
          onChange={(next) => set(name, next)}
        />
      ))}
      {(allows || Object.keys(others).length > 0) && (
        <Field
          name="other members"
          schema={{ type: "object" }}
          value={Object.keys(others).length ? others : undefined}
          path={`${path}/*`}
          depth={depth}
          onChange={(next) => onChange({ ...Object.fromEntries(Object.entries(own).filter(([name]) => !Object.hasOwn(others, name))), ...(isObject(next) ? next : {}) })}
        />
      )}
    </>
  );
}

function without(value: Schema, name: string): Schema {
  return Object.fromEntries(Object.entries(value).filter(([each]) => each !== name));
}

interface FieldProps {
  name: string;
  schema: Schema;
  value: unknown;
  path: string;
  depth: number;
  isRequired?: boolean;
  /** Removes the item of a list. */
  onRemove?: () => void;
  onChange(value: unknown): void;
}

function Field({ name, schema, value, path, depth, isRequired = false, onRemove, onChange }: FieldProps) {
  const { root, faults } = useContext(FormContext);
  const id = useId();
  const [isOpen, setOpen] = useState(false);
  // A control whose text is deleted stays, where it would give way to a button otherwise.
  useEffect(() => {
    if (value !== undefined) setOpen(true);
  }, [value === undefined]);
  const kind = kindOf(schema, root, depth);
  const isGroup = kind === "object" || kind === "array" || kind === "variants";
  const isShown = value !== undefined || isOpen || (isRequired && !isGroup);
  // Of a union the server names the faults of every part: a choice that is one of this part's is none.
  const isChosen = kind === "choice" && choicesOf(schema)!.some((each) => isSame(each, value));
  const fault = isChosen ? undefined : faults.get(path);
  const open = () => {
    setOpen(true);
    const first = blank(schema, root);
    if (first !== undefined) onChange(first);
    requestAnimationFrame(() => document.getElementById(id)?.focus());
  };
  const close = () => {
    setOpen(false);
    onChange(undefined);
  };
  const hint = typeof schema.description === "string" && (
    <p class="hint">
      <Line text={schema.description} />
    </p>
  );
  const remove = onRemove ?? (isShown && !isRequired ? close : null);
  return (
    <div class={`argument ${isGroup && isShown ? "group" : ""}`} role={isGroup && isShown ? "group" : undefined} aria-label={isGroup && isShown ? name : undefined}>
      <label for={isShown && !isGroup ? id : undefined}>
        <Line text={name} />
        {isRequired && <span class="required" title="Required"> *</span>}
      </label>
      <div class="given">
        {isGroup && isShown && hint}
        {isShown ? (
          <Part schema={schema} value={value} path={path} depth={depth} id={id} label={name} fault={fault} onChange={onChange} />
        ) : (
          <button type="button" class="quiet" onClick={open}>
            <span class="unseen">Set <Line text={name} />, </span>
            {Object.hasOwn(schema, "default") ? <>default: <Line text={JSON.stringify(schema.default).slice(0, 100)} /></> : "not given"}
          </button>
        )}
        {!(isGroup && isShown) && hint}
        {fault && (
          <p class="bad" id={`${id}-fault`}>
            <Line text={fault} />
          </p>
        )}
      </div>
      {remove && (
        <button type="button" class="quiet" aria-label={`Remove ${name}`} title="Remove" onClick={remove}>
          ✕
        </button>
      )}
    </div>
  );
}

function Part(props: PartProps) {
  const { root } = useContext(FormContext);
  const kind = kindOf(props.schema, root, props.depth);
  if (kind === "choice") return <Choice {...props} choices={choicesOf(props.schema)!} />;
  if (kind === "boolean") return <Choice {...props} choices={[true, false]} />;
  if (kind === "text" && (typeof props.value === "string" || props.value === undefined)) return <Text {...props} />;
  if (kind === "number" && !isObject(props.value) && !Array.isArray(props.value)) return <Numeral {...props} />;
  if (kind === "null") return <code id={props.id}>null</code>;
  if (kind === "object" && isObject(props.value)) return <Members {...props} depth={props.depth + 1} />;
  if (kind === "array" && Array.isArray(props.value)) return <Items {...props} value={props.value} />;
  if (kind === "variants") return <Variants {...props} />;
  return <JsonPart {...props} />;
}

function describedBy({ fault, id }: PartProps): { "aria-invalid": boolean; "aria-describedby": string | undefined } {
  return { "aria-invalid": fault !== undefined, "aria-describedby": fault === undefined ? undefined : `${id}-fault` };
}

function Choice(props: PartProps & { choices: unknown[] }) {
  const { value, id, choices, onChange } = props;
  const place = choices.findIndex((each) => isSame(each, value));
  return (
    <select id={id} value={String(place)} onChange={(event) => onChange(choices[Number(event.currentTarget.value)])} {...describedBy(props)}>
      {place < 0 && <option value="-1">{value === undefined ? "choose" : JSON.stringify(value).slice(0, 100)}</option>}
      {choices.map((each, index) => (
        <option key={index} value={String(index)}>
          {typeof each === "string" ? each : JSON.stringify(each)}
        </option>
      ))}
    </select>
  );
}

function Text(props: PartProps) {
  const { value, id, onChange } = props;
  const text = typeof value === "string" ? value : "";
  const lines = Math.min(12, Math.max(1, Math.ceil(text.length / 60), text.split("\n").length));
  return <textarea id={id} rows={lines} spellcheck={false} value={text} onInput={(event) => onChange(event.currentTarget.value)} {...describedBy(props)} />;
}

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;

/** A number; another text stays one, and is a fault. So is an integer that JavaScript's numbers cannot hold: the JSON field can. */
function Numeral(props: PartProps) {
  const { value, id, onChange } = props;
  const read = (text: string): unknown => (text === "" ? undefined : NUMBER.test(text) && Math.abs(Number(text)) <= Number.MAX_SAFE_INTEGER ? Number(text) : text);
  const [typed, setTyped] = useState("");
  const shown = Object.is(read(typed.trim()), value) ? typed : String(value ?? "");
  const change = (text: string) => {
    setTyped(text);
    onChange(read(text.trim()));
  };
  return <input id={id} inputMode="decimal" autocomplete="off" value={shown} onInput={(event) => change(event.currentTarget.value)} {...describedBy(props)} />;
}

function Items({ schema, value, path, depth, label, id, onChange }: PartProps & { value: unknown[] }) {
  const { root } = useContext(FormContext);
  const items = resolved(schema.items, root);
  const addItem = () => onChange([...value, blank(items, root) ?? null]);
  return (
    <>
      {value.map((each, index) => (
        <Field
          key={index}
          name={String(index + 1)}
          schema={items}
          value={each}
          path={pointer(path, index)}
          depth={depth + 1}
          isRequired
          onChange={(next) => onChange(value.map((old, at) => (at === index ? (next ?? null) : old)))}
          onRemove={() => onChange(value.filter((_, at) => at !== index))}
        />
      ))}
      <button type="button" id={id} onClick={addItem} aria-label={`Add to ${label}`}>
        Add
      </button>
    </>
  );
}

function Variants(props: PartProps) {
  const { schema, value, path, depth, id, label, onChange } = props;
  const { root } = useContext(FormContext);
  const [picked, setPicked] = useState<number | null>(null);
  const variants = variantsOf(schema, root);
  const place = picked !== null && (value === undefined || resembles(value, variants[picked]!, root)) ? picked : variantOf(value, variants, root, depth + 1);
  const chosen = variants[place] ?? {};
  const pick = (index: number) => {
    setPicked(index);
    onChange(blank(variants[index], root));
  };
  return (
    <>
      <select id={id} class="variant" aria-label={`Kind of ${label}`} value={String(place)} onChange={(event) => pick(Number(event.currentTarget.value))}>
        {variants.map((each, index) => (
          <option key={index} value={String(index)}>
            {nameOf(each, root)}
          </option>
        ))}
      </select>
      {kindOf(chosen, root, depth + 1) !== "null" && (
        <Labelled label={label}>{(inner) => <Part key={place} schema={chosen} value={value} path={path} depth={depth + 1} id={inner} label={label} onChange={onChange} />}</Labelled>
      )}
    </>
  );
}

/** A control under the choice of its kind, which has the visible label. */
function Labelled({ label, children }: { label: string; children: (id: string) => ComponentChildren }) {
  const id = useId();
  return (
    <>
      <label class="unseen" for={id}>
        {label}
      </label>
      {children(id)}
    </>
  );
}

/** A part's title, its choices, the member that tells it apart, or its type. */
function nameOf(schema: Schema, root: Schema): string {
  if (typeof schema.title === "string" && schema.title) return schema.title;
  const choices = choicesOf(schema);
  if (choices) return choices.slice(0, 3).map((each) => JSON.stringify(each)).join(", ");
  for (const [name, part] of propertiesOf(schema)) {
    const only = choicesOf(resolved(part, root));
    if (only?.length === 1) return `${name}: ${typeof only[0] === "string" ? only[0] : JSON.stringify(only[0])}`;
  }
  return String(schema.type ?? "any");
}

function JsonPart({ value, path, id, onChange }: PartProps) {
  const { setBroken } = useContext(FormContext);
  const written = value === undefined ? "" : JSON.stringify(value, null, 2);
  const [typed, setTyped] = useState(written);
  const parsed = parse(typed);
  const isBroken = typed.trim() !== "" && parsed === undefined;
  const shown = isBroken || isSame(parsed, value) ? typed : written;
  useEffect(() => {
    setBroken(path, isBroken);
    return () => setBroken(path, false);
  }, [path, isBroken]);
  const change = (text: string) => {
    setTyped(text);
    const next = parse(text);
    if (next !== undefined || !text.trim()) onChange(next);
  };
  const lines = Math.min(12, Math.max(2, shown.split("\n").length));
  return (
    <>
      <textarea id={id} rows={lines} spellcheck={false} placeholder="JSON" value={shown} onInput={(event) => change(event.currentTarget.value)} aria-invalid={isBroken} />
      {isBroken && <p class="bad">This is not JSON.</p>}
    </>
  );
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

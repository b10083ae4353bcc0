// JSON Schema as far as a form needs it: what control a part gets, its first value, and what is plainly wrong with a value.
// Schemas are hostile data: depth, number of members and choices are bounded, and patterns are left to the server.

import { isObject } from "../json";
import { decoded } from "../route";

export type Schema = Record<string, unknown>;
export type Kind = "choice" | "text" | "number" | "boolean" | "null" | "object" | "array" | "variants" | "json";

const MOST_MEMBERS = 200;
const MOST_CHOICES = 500;
const MOST_VARIANTS = 20;
const DEEPEST = 8;
const MOST_REFS = 20;
/** Parts of schemas that one check looks at, and that one first value is made of: a schema may refer to itself in many places. */
const MOST_CHECKED = 20_000;
const MOST_MADE = 300;
let left = 0;

/** An own member; names such as "constructor" are only members where a schema has them. */
export function member(value: unknown, name: string): unknown {
  return isObject(value) && Object.hasOwn(value, name) ? value[name] : undefined;
}

/** A schema without its references into the document, and without an allOf of one part. */
export function resolved(given: unknown, root: Schema): Schema {
  let schema = isObject(given) ? given : {};
  for (let refs = 0; refs < MOST_REFS; refs++) {
    const { $ref, allOf, ...rest } = schema;
    let base: unknown;
    if (typeof $ref === "string" && $ref.startsWith("#")) {
      base = root;
      for (const part of $ref.slice(1).split("/").slice(1)) base = member(base, decoded(part).replaceAll("~1", "/").replaceAll("~0", "~"));
    } else if (Array.isArray(allOf) && allOf.length === 1) base = allOf[0];
    else break;
    schema = { ...(isObject(base) ? base : {}), ...rest };
  }
  return schema;
}

export function choicesOf(schema: Schema): unknown[] | null {
  if (Object.hasOwn(schema, "const")) return [schema.const];
  return Array.isArray(schema.enum) && schema.enum.length <= MOST_CHOICES ? schema.enum : null;
}

export function propertiesOf(schema: Schema): [string, unknown][] {
  return isObject(schema.properties) ? Object.entries(schema.properties) : [];
}

export function isRequired(schema: Schema, name: string): boolean {
  return Array.isArray(schema.required) && schema.required.includes(name);
}

/** The parts of a union, of which a value has one: of anyOf, oneOf, or several types. */
export function variantsOf(schema: Schema, root: Schema): Schema[] {
  const { anyOf, oneOf, default: _default, title: _title, ...rest } = schema;
  const parts = Array.isArray(anyOf) ? anyOf : Array.isArray(oneOf) ? oneOf : null;
  if (parts) return parts.map((part) => ({ ...rest, ...resolved(part, root) }));
  return Array.isArray(schema.type) ? schema.type.map((type) => ({ ...rest, type })) : [];
}

export function kindOf(schema: Schema, root: Schema, depth: number): Kind {
  if (depth > DEEPEST) return "json";
  if (choicesOf(schema)) return "choice";
  if (Array.isArray(schema.anyOf) || Array.isArray(schema.oneOf) || Array.isArray(schema.type)) {
    return variantsOf(schema, root).length <= MOST_VARIANTS ? "variants" : "json";
  }
  if (schema.type === "string") return "text";
  if (schema.type === "number" || schema.type === "integer") return "number";
  if (schema.type === "boolean" || schema.type === "null") return schema.type;
  const names = propertiesOf(schema).length;
  if ((schema.type === "object" || schema.type === undefined) && names) return names <= MOST_MEMBERS && !schema.patternProperties ? "object" : "json";
  if (schema.type === "array" && isObject(schema.items) && !schema.prefixItems) return "array";
  return "json";
}

/** The value that a part begins with; undefined where the reader must choose one. */
export function blank(given: unknown, root: Schema): unknown {
  left = MOST_MADE;
  return made(given, root, 0);
}

function made(given: unknown, root: Schema, depth: number): unknown {
  if (left-- <= 0) return undefined;
  const schema = resolved(given, root);
  if (Object.hasOwn(schema, "default")) return structuredClone(schema.default);
  const kind = kindOf(schema, root, depth);
  if (kind === "choice") return Object.hasOwn(schema, "const") ? schema.const : undefined;
  if (kind === "text") return "";
  if (kind === "null") return null;
  if (kind === "variants") return made(variantsOf(schema, root)[0], root, depth + 1);
  if (kind === "array") {
    const least = Math.min(3, typeof schema.minItems === "number" ? schema.minItems : 0);
    return Array.from({ length: Math.max(0, least) }, () => made(schema.items, root, depth + 1) ?? null);
  }
  if (kind !== "object") return schema.type === "object" ? {} : schema.type === "array" ? [] : undefined;
  const members = propertiesOf(schema).filter(([name]) => isRequired(schema, name));
  const values = members.map(([name, part]) => [name, made(part, root, depth + 1)] as const);
  return Object.fromEntries(values.filter(([, value]) => value !== undefined));
}

export function pointer(path: string, name: string | number): string {
  return `${path}/${String(name).replaceAll("~", "~0").replaceAll("/", "~1")}`;
}

export function isSame(one: unknown, other: unknown): boolean {
  return one === other || JSON.stringify(one) === JSON.stringify(other);
}

/** Which part of a union a value has: the first that it fits, else the first of its type. */
export function variantOf(value: unknown, variants: Schema[], root: Schema, depth: number): number {
  left = MOST_CHECKED;
  const fitting = variants.findIndex((part) => !faults(value, part, root, "", depth).size);
  return fitting >= 0 ? fitting : Math.max(0, variants.findIndex((part) => resembles(value, part, root)));
}

/** A value has the type of a schema, and the members that tell the parts of a union apart. */
export function resembles(value: unknown, given: Schema, root: Schema): boolean {
  const schema = resolved(given, root);
  const choices = choicesOf(schema);
  if (choices) return choices.some((each) => isSame(each, value));
  if (isObject(value)) {
    const fixed = propertiesOf(schema).map(([name, part]) => [member(value, name), choicesOf(resolved(part, root))] as const);
    return hasType(value, schema.type ?? "object") && fixed.every(([own, only]) => only?.length !== 1 || own === undefined || isSame(own, only[0]));
  }
  return hasType(value, schema.type ?? (schema.properties ? "object" : undefined));
}

function hasType(value: unknown, type: unknown): boolean {
  const own = value === null ? "null" : Array.isArray(value) ? "array" : typeof value;
  return type === undefined || type === own || (type === "integer" && own === "number" && Number.isInteger(value));
}

/** What is wrong with a value, by the JSON pointer of each place. What is missing or empty, and patterns, are left to the server. */
export function faultsOf(value: unknown, root: Schema): Map<string, string> {
  left = MOST_CHECKED;
  return faults(value, root, root, "", 0);
}

function faults(value: unknown, given: unknown, root: Schema, path: string, depth: number): Map<string, string> {
  if (left-- <= 0) return new Map();
  const schema = resolved(given, root);
  const kind = kindOf(schema, root, depth);
  const found = new Map<string, string>();
  const limit = (name: string, breaks: (bound: number) => boolean, words: string) => {
    const bound = schema[name];
    if (typeof bound === "number" && breaks(bound) && !found.has(path)) found.set(path, `must ${words.replace("N", String(bound))}`);
  };
  if (value === undefined || kind === "json") return found;
  if (kind === "choice") {
    if (!choicesOf(schema)!.some((each) => isSame(each, value))) found.set(path, "must be one of the choices");
  } else if (kind === "variants") {
    const variants = variantsOf(schema, root);
    const each = variants.map((part) => faults(value, part, root, path, depth + 1));
    const nearest = Math.max(0, variants.findIndex((part) => resembles(value, part, root)));
    return each.some((fault) => !fault.size) ? found : (each[nearest] ?? found);
  } else if (!hasType(value, schema.type ?? kind)) {
    found.set(path, `must be ${/^[aio]/.test(String(schema.type)) ? "an" : "a"} ${schema.type === "null" ? "null" : String(schema.type)}`);
  } else if (typeof value === "number") {
    limit("minimum", (bound) => value < bound, "be at least N");
    limit("exclusiveMinimum", (bound) => value <= bound, "be more than N");
    limit("maximum", (bound) => value > bound, "be at most N");
    limit("exclusiveMaximum", (bound) => value >= bound, "be less than N");
  } else if (typeof value === "string") {
    limit("minLength", (bound) => value !== "" && [...value].length < bound, "have at least N characters");
    limit("maxLength", (bound) => [...value].length > bound, "have at most N characters");
  } else if (Array.isArray(value)) {
    limit("minItems", (bound) => value.length > 0 && value.length < bound, "have at least N items");
    limit("maxItems", (bound) => value.length > bound, "have at most N items");
    value.forEach((each, index) => add(found, faults(each, schema.items, root, pointer(path, index), depth + 1)));
  } else if (isObject(value)) {
    for (const [name, part] of propertiesOf(schema)) add(found, faults(member(value, name), part, root, pointer(path, name), depth + 1));
    const unknown = Object.keys(value).filter((name) => member(schema.properties, name) === undefined);
    if (schema.additionalProperties === false && unknown.length) found.set(path, `must not have the member ${unknown[0]}`);
  }
  return found;
}

function add(found: Map<string, string>, more: Map<string, string>): void {
  for (const [path, message] of more) found.set(path, message);
}

// JSON as text, token by token: numbers stay as they are written, which JavaScript's own numbers would not.

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/** As browsers since 2025 have them, which TypeScript does not know yet. */
const exact = JSON as typeof JSON & { rawJSON?: (source: string) => unknown };

/** Parses JSON; whole numbers that JavaScript would round stay as they are written, for JSON.stringify. Throws SyntaxError. */
export function parseJson(text: string): unknown {
  if (!exact.rawJSON || !/\d{16}/.test(text)) return JSON.parse(text);
  const keep = (_name: string, value: unknown, context?: { source?: string }): unknown =>
    Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source ? exact.rawJSON!(context.source) : value;
  return JSON.parse(text, keep);
}

export interface Member {
  name: string;
  /** Its value, as JSON. */
  source: string;
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** JSON on several lines; the text itself where it is no JSON. */
export function indented(text: string): string {
  if (!isJson(text)) return text;
  let out = "";
  let depth = 0;
  let last = "";
  for (const [token] of text.matchAll(TOKEN)) {
    const closes = token === "}" || token === "]";
    if (closes) depth--;
    if ((closes && last !== "{" && last !== "[") || (!closes && (last === "{" || last === "[" || last === ","))) out += `\n${"  ".repeat(depth)}`;
    out += token === ":" ? ": " : token.startsWith('"') ? readable(token) : token;
    if (token === "{" || token === "[") depth++;
    last = token;
  }
  return out;
}

/** The members of a JSON object in their order; null where the text is no object. */
export function membersOf(text: string): Member[] | null {
  if (!isJson(text) || !text.trimStart().startsWith("{")) return null;
  const found: Member[] = [];
  let depth = 0;
  let name: string | null = null;
  for (const [token] of text.matchAll(TOKEN)) {
    if (token === "}" || token === "]") depth--;
    if (depth === 1 && token === ",") name = null;
    else if (depth === 1 && name === null && token.startsWith('"')) found.push({ name: (name = JSON.parse(token) as string), source: "" });
    else if (depth > 1 || (depth === 1 && (token !== ":" || found.at(-1)!.source))) found.at(-1)!.source += token;
    if (token === "{" || token === "[") depth++;
  }
  return found;
}

/** The JSON object of these members; those without a value are left out. */
export function objectOf(members: Member[]): string {
  return `{${members.filter((each) => each.source.trim()).map((each) => `${JSON.stringify(each.name)}:${each.source}`).join(",")}}`;
}

export function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** A string with its letters instead of escapes, where those can be seen. */
function readable(token: string): string {
  return JSON.stringify(JSON.parse(token));
}

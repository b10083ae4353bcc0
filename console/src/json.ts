// JSON as text, token by token: numbers stay as they are written, which JavaScript's own numbers would not.

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

export interface Member {
  name: string;
  /** Its value, as JSON. */
  source: string;
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

export interface DiffLine {
  kind: "same" | "old" | "new";
  text: string;
}

const MOST_COMPARED = 2_000_000;

/** The lines of two texts: what both have, what only the old one has, what only the new one has. */
export function diff(old: string, fresh: string): DiffLine[] {
  const [a, b] = [old.split("\n"), fresh.split("\n")];
  let [from, endA, endB] = [0, a.length, b.length];
  while (from < endA && from < endB && a[from] === b[from]) from++;
  while (endA > from && endB > from && a[endA - 1] === b[endB - 1]) {
    endA--;
    endB--;
  }
  const [n, m] = [endA - from, endB - from];
  // The longest common subsequence of what is left; in texts that differ widely nothing is common.
  const width = n * m <= MOST_COMPARED ? m : 0;
  const common = width ? Array.from({ length: n + 1 }, () => new Uint32Array(m + 1)) : [];
  for (let i = n - 1; width && i >= 0; i--) {
    for (let j = m - 1; j >= 0; j--) {
      common[i]![j] = a[from + i] === b[from + j] ? common[i + 1]![j + 1]! + 1 : Math.max(common[i + 1]![j]!, common[i]![j + 1]!);
    }
  }
  const lines: DiffLine[] = a.slice(0, from).map((text) => ({ kind: "same", text }));
  let [i, j] = [0, 0];
  while (i < n || j < m) {
    if (i < n && j < m && a[from + i] === b[from + j]) {
      lines.push({ kind: "same", text: a[from + i++]! });
      j++;
    } else if (i < n && (j === m || !width || common[i + 1]![j]! >= common[i]![j + 1]!)) lines.push({ kind: "old", text: a[from + i++]! });
    else lines.push({ kind: "new", text: b[from + j++]! });
  }
  return [...lines, ...a.slice(endA).map((text): DiffLine => ({ kind: "same", text }))];
}

// The state of the pages in the URL: the path below /console, and the query.

import { computed, signal } from "@preact/signals";
import { BASE } from "./api";

const ROOT = `${BASE}/console`;

const location_ = signal(here());

function here() {
  return { path: window.location.pathname, query: window.location.search };
}

window.addEventListener("popstate", () => (location_.value = here()));

/** The parts of the path below /console: ["turns", ID]. */
export const parts = computed(() => {
  const below = location_.value.path.startsWith(ROOT) ? location_.value.path.slice(ROOT.length) : "";
  return below.split("/").filter(Boolean).map(decoded);
});

export const query = computed(() => new URLSearchParams(location_.value.query));

export interface Change {
  path?: string[];
  /** Values of the query; "" or null removes one. The others stay. */
  query?: Record<string, string | null>;
  /** Replaces the current entry of the history. */
  replace?: boolean;
}

/** Returns the URL of the current place with a change. */
export function urlOf({ path, query: values }: Change): string {
  const search = new URLSearchParams(location_.peek().query);
  for (const [name, value] of Object.entries(values ?? {})) {
    if (value) search.set(name, value);
    else search.delete(name);
  }
  const text = search.toString();
  const below = (path ?? parts.peek()).map(encodeURIComponent).join("/");
  return `${ROOT}${below && `/${below}`}${text && `?${text}`}`;
}

export function go(change: Change): void {
  const url = urlOf(change);
  if (url === location_.peek().path + location_.peek().query) return;
  window.history[change.replace ? "replaceState" : "pushState"](null, "", url);
  location_.value = here();
}

/** Goes to another page, without the query of this one. */
export function goTo(page: string): void {
  window.history.pushState(null, "", `${ROOT}/${page}`);
  location_.value = here();
}

export function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

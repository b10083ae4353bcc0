// The server's event stream, read by one connection for all listeners; the browser reconnects with Last-Event-ID.

import { signal } from "@preact/signals";
import { BASE, type RuntimeEvent } from "./api";

export type Connection = "connecting" | "live" | "lost";

export const connection = signal<Connection>("connecting");

const FIRST_DELAY = 1000;
const LONGEST_DELAY = 30_000;

export interface Listener {
  onEvent(event: RuntimeEvent): void;
  /** Events may be missing: the server dropped some, or the connection is new. */
  onGap(): void;
}

const listeners = new Map<Listener, string[]>();
/** All kinds that were ever listened to: another page needs no other connection. */
const kinds = new Set<string>();
let source: EventSource | null = null;
let timer = 0;
let delay = FIRST_DELAY;

/** Reads events of the kinds (`agent.approval.*` is a pattern) until the returned function is called. */
export function listen(wanted: string[], listener: Listener): () => void {
  listeners.set(listener, wanted);
  if (!source || wanted.some((kind) => !kinds.has(kind))) {
    for (const kind of wanted) kinds.add(kind);
    window.clearTimeout(timer);
    timer = window.setTimeout(open); // once for all listeners of a page
  }
  return () => {
    listeners.delete(listener);
    if (listeners.size) return;
    window.clearTimeout(timer);
    source?.close();
    source = null;
    connection.value = "connecting";
  };
}

function open(): void {
  source?.close();
  const mine = (source = new EventSource(`${BASE}/api/events?${new URLSearchParams([...kinds].map((kind) => ["kind", kind]))}`));
  source.onopen = () => {
    connection.value = "live";
    delay = FIRST_DELAY;
    for (const listener of listeners.keys()) listener.onGap();
  };
  source.onmessage = (message) => {
    let event: RuntimeEvent;
    try {
      event = JSON.parse(message.data);
    } catch {
      return;
    }
    for (const [listener, wanted] of listeners) {
      if (event.kind === "stream.dropped") listener.onGap();
      else if (wanted.some((kind) => (kind.endsWith("*") ? event.kind.startsWith(kind.slice(0, -1)) : kind === event.kind))) listener.onEvent(event);
    }
  };
  source.onerror = () => {
    connection.value = "lost";
    // A refused stream (401, 503) is closed for good, and the browser does not try again.
    if (mine.readyState === EventSource.CLOSED) {
      timer = window.setTimeout(open, delay);
      delay = Math.min(delay * 2, LONGEST_DELAY);
    }
  };
}

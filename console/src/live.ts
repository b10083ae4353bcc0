// The server's event stream, read by one connection of the page; the browser reconnects with Last-Event-ID.

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

/** Reads events of the kinds until the returned function is called. */
export function listen(kinds: string[], listener: Listener): () => void {
  const search = new URLSearchParams(kinds.map((kind) => ["kind", kind]));
  let source: EventSource | null = null;
  let timer = 0;
  let delay = FIRST_DELAY;

  function open(): void {
    source = new EventSource(`${BASE}/api/events?${search}`);
    source.onopen = () => {
      connection.value = "live";
      delay = FIRST_DELAY;
      listener.onGap();
    };
    source.onmessage = (message) => {
      let event: RuntimeEvent;
      try {
        event = JSON.parse(message.data);
      } catch {
        return;
      }
      if (event.kind === "stream.dropped") listener.onGap();
      else listener.onEvent(event);
    };
    source.onerror = () => {
      connection.value = "lost";
      // A refused stream (401, 503) is closed for good, and the browser does not try again.
      if (source?.readyState === EventSource.CLOSED) {
        timer = window.setTimeout(open, delay);
        delay = Math.min(delay * 2, LONGEST_DELAY);
      }
    };
  }

  open();
  return () => {
    window.clearTimeout(timer);
    source?.close();
    connection.value = "connecting";
  };
}

// The server's event stream. One page of the browser reads it for all: a browser has six connections to a server, and each
// page with one of its own would leave none for requests. The browser reconnects with Last-Event-ID.

import { signal } from "@preact/signals";
import { BASE, type RuntimeEvent } from "./api";
import { loadInfo } from "./session";

export type Connection = "connecting" | "live" | "lost";

export const connection = signal<Connection>("connecting");

const FIRST_DELAY = 1000;
const LONGEST_DELAY = 30_000;
/** What all pages listen to. */
const KINDS = ["server.request.begin", "server.request", "agent.approval.*", "agent.tool.exec_start", "agent.tool.exec_end", "agent.tool.exec_skipped"];
const NAME = `patchbay ${BASE} events`;

export interface Listener {
  onEvent(event: RuntimeEvent): void;
  /** Events may be missing: the server dropped some, or the connection is new. */
  onGap(): void;
}

/** What the page with the connection tells the others: an event as its text, or what became of the connection. */
type Message = { event: string } | { state: Connection } | "which state?" | "signed in";

const listeners = new Map<Listener, string[]>();
const channel = new BroadcastChannel(NAME);
let source: EventSource | null = null;
let timer = 0;
let delay = FIRST_DELAY;
let isFollowing = false;

/** Reads events of the kinds (`agent.approval.*` is a pattern) until the returned function is called. */
export function listen(wanted: string[], listener: Listener): () => void {
  listeners.set(listener, wanted);
  if (!isFollowing) follow();
  return () => void listeners.delete(listener);
}

/** Opens the stream again at once, after a sign-in. */
export function reconnect(): void {
  delay = FIRST_DELAY;
  if (source?.readyState === EventSource.CLOSED) open();
  channel.postMessage("signed in" satisfies Message);
}

function follow(): void {
  isFollowing = true;
  channel.onmessage = ({ data }: MessageEvent<Message>) => {
    if (data === "which state?") {
      if (source) channel.postMessage({ state: connection.peek() } satisfies Message);
    } else if (data === "signed in") {
      if (source?.readyState === EventSource.CLOSED) open();
    } else if ("event" in data) deliver(data.event);
    else become(data.state);
  };
  channel.postMessage("which state?" satisfies Message);
  // The page that has the lock has the connection, as long as it is there. Without locks (HTTP from another machine) each has one.
  if (!navigator.locks) open();
  else
    void navigator.locks.request(NAME, () => {
      open();
      return new Promise<never>(() => undefined);
    });
}

function open(): void {
  window.clearTimeout(timer);
  source?.close();
  const mine = (source = new EventSource(`${BASE}/api/events?${new URLSearchParams(KINDS.map((kind) => ["kind", kind]))}`));
  const tell = (state: Connection) => {
    become(state);
    channel.postMessage({ state } satisfies Message);
  };
  source.onopen = () => {
    delay = FIRST_DELAY;
    tell("live");
  };
  source.onmessage = (message) => {
    deliver(message.data);
    channel.postMessage({ event: message.data } satisfies Message);
  };
  source.onerror = () => {
    tell("lost");
    // A refused stream (401, 503) is closed for good, and the browser does not try again.
    if (mine.readyState === EventSource.CLOSED) {
      void loadInfo(); // where the sign-in has ended it asks for another one
      timer = window.setTimeout(open, delay);
      delay = Math.min(delay * 2, LONGEST_DELAY);
    }
  };
}

function become(state: Connection): void {
  connection.value = state;
  if (state === "live") for (const listener of listeners.keys()) listener.onGap();
}

function deliver(data: string): void {
  let event: RuntimeEvent;
  try {
    event = JSON.parse(data);
  } catch {
    return;
  }
  for (const [listener, wanted] of listeners) {
    if (event.kind === "stream.dropped") listener.onGap();
    else if (wanted.some((kind) => (kind.endsWith("*") ? event.kind.startsWith(kind.slice(0, -1)) : kind === event.kind))) listener.onEvent(event);
  }
}

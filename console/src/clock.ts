// The time in seconds since 1970, which advances once a second while a turn runs or a call waits for approval.

import { effect, signal } from "@preact/signals";
import { pending } from "./approvals/store";
import { turns } from "./turns/store";

export const now = signal(Date.now() / 1000);

effect(() => {
  if (!pending.value.length && !turns.value.some((turn) => turn.state === "running")) return;
  now.value = Date.now() / 1000;
  const timer = window.setInterval(() => (now.value = Date.now() / 1000), 1000);
  return () => window.clearInterval(timer);
});

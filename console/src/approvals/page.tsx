// The page of approvals: the requests, and the one that is shown beside them.

import { useEffect, useState } from "preact/hooks";
import type { ConsolePage } from "../pages";
import { parts } from "../route";
import { info } from "../session";
import { Dialog, Problem } from "../ui/parts";
import { RequestDetail } from "./detail";
import { decideChecked, move, openRequest, RequestList, toggle } from "./list";
import { approvalsError, checked, isRead, pending, read, recent } from "./store";

const RULE = `[[approvals.rules]]
tools = ["delete_*"]
outcome = "ask"`;

function ApprovalsPage() {
  const known = info.value;
  const id = parts.value[1];
  const first = pending.value[0]?.id;
  const [denies, setDenies] = useState<{ what: string; decide: (reason: string) => Promise<void> } | null>(null);
  // The shown request is in the URL, so that none takes its place under the reader's hands.
  useEffect(() => {
    if (id === undefined && first !== undefined) openRequest(first, true);
  }, [id, first]);
  if (!known?.approvals) return <Missing />;
  const isEmpty = isRead.value && !pending.value.length && !recent.value.length && id === undefined;
  return (
    <main class="approvals">
      {!id && <h1 class="unseen">Approvals</h1>}
      {approvalsError.value && <Problem error={approvalsError.value} retry={() => void read()} />}
      {isEmpty ? (
        <Empty asks={known.approvals.asks} />
      ) : (
        <div class="split">
          <RequestList onDeny={() => setDenies({ what: `${checked.peek().size} calls`, decide: (reason) => decideChecked("deny", reason) })} />
          {id ? (
            <RequestDetail key={id} id={id} onDeny={(decide) => setDenies({ what: "the call", decide })} />
          ) : (
            <section class="detail" aria-label="Request">
              <p class="none">{isRead.value ? "No call waits. The next one appears here." : "Loading…"}</p>
            </section>
          )}
        </div>
      )}
      {denies && <Deny {...denies} onClose={() => setDenies(null)} />}
    </main>
  );
}

function Deny({ what, decide, onClose }: { what: string; decide: (reason: string) => Promise<void>; onClose: () => void }) {
  const [reason, setReason] = useState("");
  const send = (event: Event) => {
    event.preventDefault();
    onClose();
    void decide(reason);
  };
  return (
    <Dialog title={`Deny ${what}`} onClose={onClose}>
      <form onSubmit={send}>
        <label for="deny-reason">Reason, which the model gets</label>
        <input id="deny-reason" maxLength={2000} autofocus autocomplete="off" value={reason} onInput={(event) => setReason(event.currentTarget.value)} />
        <p class="actions">
          <button type="submit" class="primary">
            Deny <kbd>Enter</kbd>
          </button>
        </p>
      </form>
    </Dialog>
  );
}

function Empty({ asks }: { asks: boolean }) {
  return (
    <div class="empty">
      <h2>No call has waited yet</h2>
      <p>
        {asks
          ? "A call appears here while it waits for a person. Nothing else of its turn runs on until then."
          : "No rule of this server asks a person, so only a hook could. A rule in its configuration file (--config) asks about the tools that it names:"}
      </p>
      {!asks && <Example />}
    </div>
  );
}

function Missing() {
  return (
    <main class="approvals">
      <h1 class="unseen">Approvals</h1>
      <div class="empty">
        <h2>This proxy asks nobody</h2>
        <p>It was started without a configuration, and runs no tools itself. With one, its hooks can run tools, and rules say which calls wait here for a person:</p>
        <Example />
        <p>
          Write it into <code>patchbay.toml</code>, and start <code>patchbay proxy --config patchbay.toml</code>, or <code>patchbay serve</code>, whose tools the rules cover too.
        </p>
      </div>
    </main>
  );
}

function Example() {
  return (
    <pre class="text" tabIndex={0} role="region" aria-label="An example">
      {RULE}
    </pre>
  );
}

function click(...ids: string[]): void {
  ids.map((id) => document.getElementById(id)).find((element) => element !== null)?.click();
}

export const APPROVALS: ConsolePage = {
  path: "approvals",
  title: "Approvals",
  Page: ApprovalsPage,
  waiting: () => pending.value.length,
  keys: [
    ["j  k", "Next and previous call that waits"],
    ["a", "Approve: the selected calls, else the shown one"],
    ["d", "Deny, with a reason"],
    ["s", "Approve for this session"],
    ["e  Esc", "Edit the arguments, discard the edit"],
    ["x", "Select the call, to decide about several"],
  ],
  actionOf(key, target, isField, isHeld) {
    if (isHeld && key !== "j" && key !== "k") return undefined; // else the shown call is decided after the selected ones
    if (isField && key !== "Escape" && !target.matches("[type='checkbox']")) return undefined;
    const actions: Record<string, () => void> = {
      j: () => move(1),
      k: () => move(-1),
      a: () => click("approve-all", "approve"),
      d: () => click("deny-all", "deny"),
      s: () => click("approve-session"),
      e: () => click("edit"),
      Escape: () => click("discard"),
      x: () => toggle(parts.peek()[1]),
    };
    return actions[key];
  },
};

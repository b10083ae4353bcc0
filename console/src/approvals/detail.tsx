// One request for approval: the call, who asks, its arguments, and the decision.

import { useRef, useState } from "preact/hooks";
import { ApiError, type Approval, type SessionApproval } from "../api";
import { countdown, dateAndTime } from "../format";
import { now } from "../clock";
import { useLoaded } from "../loaded";
import { Fact, PageLink, Problem, Tag } from "../ui/parts";
import { JsonBlock, Line } from "../ui/text";
import { Arguments, type Draft, sourceOf, useDraft } from "./arguments";
import { outcome } from "./list";
import { AllowAlways, PermissionBox, Revoke } from "./permission";
import { checked, decide, type Decision, pending, permissions, recent, sessions } from "./store";

/** The request with all of its arguments, in its present state. */
function useRequest(id: string): Approval | ApiError | null {
  const listed = [...pending.value, ...recent.value].find((each) => each.id === id);
  const isComplete = listed !== undefined && !listed.is_cut;
  const { value, error } = useLoaded<{ approval: Approval }>(isComplete ? null : `/api/approvals/${encodeURIComponent(id)}`, listed?.state);
  if (isComplete) return listed;
  return error ?? (value && { ...value.approval, state: listed?.state ?? value.approval.state });
}

export function RequestDetail({ id, onDeny }: { id: string; onDeny: (decide: (reason: string) => Promise<void>) => void }) {
  const found = useRequest(id);
  const permission = permissions.value.find((each) => each.id === id);
  return (
    <section id="detail" class="detail" tabIndex={-1} aria-label="Request">
      {found === null ? (
        <p class="none">Loading…</p>
      ) : found instanceof ApiError && permission ? (
        <header class="request-head">
          <h1 class="call-name">
            <Line text={permission.tool} />
          </h1>
          <PermissionBox permission={permission} />
        </header>
      ) : found instanceof ApiError ? (
        <Problem error={found}>{found.status === 404 && "Requests are kept for a week, in memory until the server ends."}</Problem>
      ) : (
        <Loaded request={found} onDeny={onDeny} />
      )}
    </section>
  );
}

function Loaded({ request, onDeny }: { request: Approval; onDeny: (decide: (reason: string) => Promise<void>) => void }) {
  const draft = useDraft(request);
  const [problems, setProblems] = useState<string[]>([]);
  const isSending = useRef(false);
  const isOver = request.state !== "pending";
  const act = async (decision: Decision) => {
    if (isSending.current) return;
    isSending.current = true;
    const edited = decision.verdict === "approve" && draft.isEdited ? sourceOf(draft) : null;
    const wrong = await decide([request], { ...decision, edited });
    setProblems(wrong);
    isSending.current = false;
    if (!wrong.length) requestAnimationFrame(() => document.getElementById("detail")?.focus({ preventScroll: true }));
  };
  const session = sessions.value.find((each) => each.id === request.id);
  const permission = permissions.value.find((each) => each.id === request.id);
  return (
    <>
      <header class="request-head">
        <h1 class="call-name">
          <Line text={request.tool} />
        </h1>
        {isOver ? (
          <p class="said">
            <b class={request.state === "approved" ? "" : "bad"}>
              <Line text={outcome(request)} />
            </b>
            {request.decided && <span class="dim"> {dateAndTime(request.decided)}</span>}
          </p>
        ) : (
          <p class="said">
            <span class="left">{countdown(request.deadline - now.value)}</span>
            <span class="dim"> until it {request.at_deadline === "allow" ? "runs without a decision" : "is denied"}</span>
          </p>
        )}
        <Facts request={request} />
        {request.why && (
          <p class="reason">
            Asked for by <Line text={request.why} />
          </p>
        )}
        {!isOver && !request.awaited && <p class="reason">No run waits for it now: the decision counts when the same call comes again in this session.</p>}
        {session && <Session grant={session} />}
        {permission && <PermissionBox permission={permission} />}
      </header>
      <div class="panel">
        {Object.keys(request.facts).length > 0 && (
          <>
            <h2>What the call is really about</h2>
            <JsonBlock value={request.facts} label="Facts" />
          </>
        )}
        <Arguments request={request} draft={draft} />
      </div>
      {!isOver && <Decide request={request} draft={draft} problems={problems} act={act} deny={() => onDeny((reason) => act({ verdict: "deny", reason }))} />}
      {isOver && problems.length > 0 && (
        <p class="decided-first" role="alert">
          Decided elsewhere first. <Line text={problems[0]!} />
        </p>
      )}
    </>
  );
}

function Facts({ request }: { request: Approval }) {
  return (
    <dl class="facts">
      <Fact name="Agent" value={request.agent} />
      <Fact name="Role" value={request.role === request.agent ? "" : request.role} />
      <Fact name="Session" value={request.session_key} />
      <Fact name="Rule" value={request.rule} />
      <Fact name="Source" value={request.source || "this server"} />
      <Fact name="Address" value={request.endpoint} />
      <Fact name="Asked" value={dateAndTime(request.created)} />
      <Fact name="Id" value={request.id} />
      {request.turn && (
        <Fact name="Turn">
          <PageLink to={`turns/${encodeURIComponent(request.turn)}?at=p${encodeURIComponent(request.id)}`}>Show it</PageLink>
        </Fact>
      )}
    </dl>
  );
}

interface DecideProps {
  request: Approval;
  draft: Draft;
  problems: string[];
  act: (decision: Decision) => Promise<void>;
  deny: () => void;
}

function Decide({ request, draft, problems, act, deny }: DecideProps) {
  if (!request.who.includes("http")) return <p class="decide none">Its rule lets it be decided by {request.who.join(", ")} alone.</p>;
  const areKeysMine = checked.value.size === 0; // else they are of the selected calls
  const [isAllowing, setAllowing] = useState(false);
  const covered = request.session === "tool" ? "every call of this tool" : "this call, whenever it comes again";
  return (
    <div class="decide">
      {problems.length > 0 && (
        <p class="bad" role="alert">
          <Line text={problems.join(" ")} />
        </p>
      )}
      <p class="actions">
        <button type="button" id="approve" class="primary" disabled={draft.problem !== ""} onClick={() => void act({ verdict: "approve" })}>
          {draft.isEdited ? "Approve as edited" : "Approve"} {areKeysMine && <kbd>a</kbd>}
        </button>
        <button type="button" id="deny" onClick={deny}>
          Deny… {areKeysMine && <kbd>d</kbd>}
        </button>
        {request.session !== "never" && (
          <button type="button" id="approve-session" disabled={draft.isEdited} onClick={() => void act({ verdict: "approve_session" })} title={`Approves ${covered} in this session, for a day`}>
            Approve for this session <kbd>s</kbd>
          </button>
        )}
        {request.always !== "never" && (
          <button type="button" disabled={draft.isEdited} onClick={() => setAllowing(true)}>
            Always allow…
          </button>
        )}
      </p>
      {isAllowing && <AllowAlways request={request} onClose={() => setAllowing(false)} onAllow={(permission) => void act({ verdict: "approve_always", permission })} />}
    </div>
  );
}

function Session({ grant }: { grant: SessionApproval }) {
  return (
    <div class="grant">
      <p>
        <Tag kind="strong">in force</Tag> Until {dateAndTime(grant.until)} {grant.session === "call" ? "this call" : "every call of this tool"} runs in this session without a question.
      </p>
      <Revoke kind="sessions" id={grant.id} />
    </div>
  );
}

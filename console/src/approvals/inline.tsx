// The calls of a session that wait for approval, beside what is shown of it: for the chat, and for a request that is sent again.

import { useState } from "preact/hooks";
import type { Approval } from "../api";
import { indented } from "../json";
import { PageLink } from "../ui/parts";
import { Line, TextBlock } from "../ui/text";
import { decide, pending } from "./store";

export function WaitingCalls({ session }: { session: string }) {
  const waiting = session ? pending.value.filter((each) => each.session_key === session) : [];
  if (!waiting.length) return null;
  return (
    <div class="decisions">
      {waiting.map((each) => (
        <Waiting key={each.id} request={each} />
      ))}
    </div>
  );
}

function Waiting({ request }: { request: Approval }) {
  const [problems, setProblems] = useState<string[]>([]);
  const act = async (verdict: "approve" | "deny") => setProblems(await decide([request], { verdict }));
  return (
    <div class="call waits" role="group" aria-label={`${request.tool} waits for approval`}>
      <div class="call-head">
        <Line class="call-name" text={request.tool} />
        <span class="dim">waits for approval</span>
        <PageLink to={`approvals/${encodeURIComponent(request.id)}`}>Edit or allow for longer</PageLink>
      </div>
      <TextBlock text={indented(request.arguments_text)} label={`Arguments of ${request.tool}`} />
      {problems.map((each) => (
        <p key={each} class="bad" role="alert">
          <Line text={each} />
        </p>
      ))}
      <p class="actions">
        <button type="button" class="primary" onClick={() => void act("approve")}>
          Approve
        </button>
        <button type="button" onClick={() => void act("deny")}>
          Deny
        </button>
      </p>
    </div>
  );
}

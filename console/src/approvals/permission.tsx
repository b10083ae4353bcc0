// Standing permissions: what one covers in words, and how one is chosen, step by step, before it is written.

import { useState } from "preact/hooks";
import type { Approval, Criterion, Permission, Proposal } from "../api";
import { dateAndTime } from "../format";
import { useLoaded } from "../loaded";
import { Dialog, Problem, Tag } from "../ui/parts";
import { Line, named } from "../ui/text";
import { revoke } from "./store";

const PARTS = ["arguments", "facts"] as const;
type Chosen = Record<(typeof PARTS)[number], Record<string, Criterion>>;

function inWords(criterion: Criterion): string {
  if ("is" in criterion) return JSON.stringify(criterion.is);
  if ("below" in criterion) return `any path below ${criterion.below}`;
  return "any" in criterion ? "any value, or none" : "the same value as here, which is not written out";
}

export function criteriaInWords(permission: Permission): string {
  const found = PARTS.flatMap((part) => Object.entries(permission[part]).map(([name, each]) => `${name}: ${inWords(each)}`));
  return found.join("; ") || "without arguments";
}

/** The rule as it is written. */
function Rule({ permission }: { permission: Permission }) {
  const same: [string, string][] = [
    ["tool", permission.tool],
    ["source", permission.source || "this server"],
    ["address", permission.endpoint],
    ["role", permission.role],
    ["agent", permission.agent],
    ["asked by the rule", permission.rule],
  ];
  const rows = [...same.filter(([, value]) => value), ...PARTS.flatMap((part) => Object.entries(permission[part]).map(([name, each]): [string, string] => [`${part === "facts" ? "really" : "argument"} ${name}`, inWords(each)]))];
  return (
    <div class="rule" role="group" aria-label="The rule">
      <dl>
        {rows.map(([name, value], index) => (
          <div key={index}>
            <dt>
              <Line text={name} />
            </dt>
            <dd>
              <Line text={value} />
            </dd>
          </div>
        ))}
        <div>
          <dt>others</dt>
          <dd>no other arguments; any session</dd>
        </div>
      </dl>
    </div>
  );
}

export function PermissionBox({ permission }: { permission: Permission }) {
  return (
    <div class="grant">
      <p>
        <Tag kind="strong">always allowed</Tag> by <Line text={permission.by} /> since {dateAndTime(permission.created)}: such calls run without a question.
      </p>
      <Revoke kind="permissions" id={permission.id} />
      <Rule permission={permission} />
    </div>
  );
}

export function Revoke({ kind, id }: { kind: "sessions" | "permissions"; id: string }) {
  const [problem, setProblem] = useState("");
  return (
    <>
      {problem && (
        <span class="bad" role="alert">
          {problem}
        </span>
      )}
      <button type="button" onClick={() => void revoke(kind, id).then(setProblem)}>
        Revoke
      </button>
    </>
  );
}

interface AllowAlwaysProps {
  request: Approval;
  onAllow: (permission: Chosen) => void;
  onClose: () => void;
}

/** Shows the narrowest permission, lets a person widen it, and shows the rule that would be written. */
export function AllowAlways({ request, onAllow, onClose }: AllowAlwaysProps) {
  const { value: found, error } = useLoaded<Proposal>(`/api/approvals/${encodeURIComponent(request.id)}/permission`);
  const [chosen, setChosen] = useState<Chosen>({ arguments: {}, facts: {} });
  return (
    <Dialog title="Always allow" onClose={onClose}>
      {error ? (
        <Problem error={error} />
      ) : found === null ? (
        <p class="none">Loading…</p>
      ) : (
        <form
          class="allow"
          onSubmit={(event) => {
            event.preventDefault();
            onClose();
            onAllow(chosen);
          }}
        >
          {PARTS.flatMap((part) =>
            Object.entries(found.steps[part]).map(([name, steps]) => (
              <label key={`${part} ${name}`}>
                <Line text={part === "facts" ? `really ${name}` : name} />
                <select onChange={(event) => setChosen(withStep(chosen, part, name, steps, event.currentTarget.selectedIndex))}>
                  {steps.map((each, index) => (
                    <option key={index}>{named(inWords(each)).slice(0, 200)}</option>
                  ))}
                </select>
              </label>
            )),
          )}
          <h3>The rule that is written</h3>
          <Rule permission={{ ...found.permission, arguments: { ...found.permission.arguments, ...chosen.arguments }, facts: { ...found.permission.facts, ...chosen.facts } }} />
          <p class="hint">{found.outlives_server ? "It stays until it is revoked." : "This server keeps it in memory: it ends with the server, or when it is revoked."}</p>
          <p class="actions">
            <button type="submit" class="primary">
              Approve, and write the rule
            </button>
          </p>
        </form>
      )}
    </Dialog>
  );
}

/** The narrowest step is not sent: JavaScript could change its numbers. */
function withStep(chosen: Chosen, part: keyof Chosen, name: string, steps: Criterion[], index: number): Chosen {
  const { [name]: _before, ...rest } = chosen[part];
  return { ...chosen, [part]: index ? { ...rest, [name]: steps[index]! } : rest };
}

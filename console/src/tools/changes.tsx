// Definitions of an MCP server's tools that have changed since they were accepted, as a diff, and their acceptance.

import { useState } from "preact/hooks";
import { type ApiError, post } from "../api";
import { plural } from "../format";
import { useLoaded } from "../loaded";
import { asApiError } from "../session";
import { Diff } from "../ui/diff";
import { CloseButton, Problem, StateMark } from "../ui/parts";
import { Line } from "../ui/text";
import { closeTool } from "./list";
import { load } from "./store";

interface Changes {
  server: string;
  digest: string;
  tools: { tool: string; accepted: string; now: string }[];
}

export function ServerChanges({ server, names }: { server: string; names: string }) {
  const { value: changes, error: unread, reload } = useLoaded<Changes>(`/api/console/tools/changes?server=${encodeURIComponent(server)}`, names);
  const [refused, setRefused] = useState<ApiError | null>(null);
  const error = refused ?? unread;
  const accept = async () => {
    setRefused(null);
    try {
      await post("/api/console/tools/changes", { server, digest: changes!.digest });
      await load();
      closeTool();
    } catch (problem) {
      setRefused(asApiError(problem));
      reload();
    }
  };
  return (
    <>
      <header class="turn-head">
        <div class="title">
          <StateMark state="failed" label="changed" />
          <h1>
            Changed definitions of <Line text={server} />
          </h1>
          <p class="actions">
            <CloseButton what="the tool" onClick={closeTool} />
          </p>
        </div>
        <p>
          The MCP server describes these tools otherwise than when they were accepted. Models do not get them before you accept what is shown here: read
          the added lines as what a stranger tells your model.
        </p>
      </header>
      {error && <Problem error={error}>{error.status === 409 ? "Below is what there is now." : undefined}</Problem>}
      {!changes ? (
        <p class="none">Loading…</p>
      ) : !changes.tools.length ? (
        <p class="none">No definition waits to be accepted.</p>
      ) : (
        <div class="panel changes">
          {changes.tools.map(({ tool, accepted, now }) => (
            <section key={tool}>
              <h2>
                <Line text={tool} />
              </h2>
              <Diff before={accepted} after={now} label={`Change of ${tool}`} />
            </section>
          ))}
          <p class="actions">
            <button type="button" class="primary" onClick={() => void accept()}>
              Accept {plural(changes.tools.length, "changed tool")}
            </button>
          </p>
        </div>
      )}
    </>
  );
}

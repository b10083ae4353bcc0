// One model: how it takes tools and why, and the examination of its server.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { count, dateAndTime, duration, plural } from "../format";
import { info } from "../session";
import { Copy, ModeTags, Problem } from "../ui/parts";
import { Line } from "../ui/text";
import { closeModel, openModel, share, tokens } from "./page";
import { cancelExamination, doctor, doctorError, examine, type Examination, type Finding, loadDoctor, type Model, models } from "./store";

const READ_AGAIN = 1000;

/** The model `name`; "": only its server. */
export function ModelDetail({ name }: { name: string }) {
  const ref = useRef<HTMLElement>(null);
  useEffect(() => ref.current?.focus({ preventScroll: true }), []);
  const model = models.value.find((each) => each.name === name);
  return (
    <section class="about" tabIndex={-1} ref={ref} aria-label={name ? "Model" : "Doctor"}>
      <header>
        <h1>{name ? <Line text={name} /> : "Doctor"}</h1>
        <button type="button" class="quiet" onClick={closeModel}>
          Close <kbd>Esc</kbd>
        </button>
      </header>
      {name && (model ? <Facts model={model} /> : <p class="none">No request has asked for this model since the server started.</p>)}
      <Doctor name={name} />
    </section>
  );
}

function Facts({ model }: { model: Model }) {
  const rows: [string, ComponentChildren][] = [
    ["Tools", <>{model.mode ? <ModeTags mode={model.mode} format="" constraint="" /> : <span class="dim">not known yet</span>} <Line text={model.why} /></>],
    ["Requests", `${count(model.requests)}, ${plural(model.errors, "error")}; ${plural(model.rounds, "request")} to its server`],
    ["Asked again", model.asked_again ? `after ${plural(model.asked_again, "answer")}` : "never"],
    ["Calls", `${count(model.calls)}, ${plural(model.repairs, "repair")} of their text`],
    ["Tokens", <>{tokens(model.prompt_tokens, model.completion_tokens)}{model.cached_tokens ? `, ${share(model.cached_tokens, model.prompt_tokens)} of the prompt cached` : ""}</>],
  ];
  return (
    <>
      <dl class="facts-of">
        {rows.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {model.ways.length > 0 && (
        <>
          <h2>Requests with tools</h2>
          <ul class="ways">
            {model.ways.map((way) => (
              <li key={`${way.mode} ${way.format} ${way.constraint}`}>
                <ModeTags {...way} />
                {!way.constraint && way.mode === "text" && <span class="dim">not constrained</span>}
                <span class="num">{count(way.count)}</span>
              </li>
            ))}
          </ul>
        </>
      )}
      {model.limits.length > 0 && (
        <>
          <h2>What its server does not take</h2>
          <ul class="limits">
            {model.limits.map((limit) => (
              <li key={limit}>
                <Line text={`It ${limit}.`} />
              </li>
            ))}
          </ul>
        </>
      )}
      <p class="hint">Counted since the server started.</p>
    </>
  );
}

function Doctor({ name }: { name: string }) {
  const { available, examination } = doctor.value;
  const isRunning = examination?.state === "running";
  useEffect(() => {
    if (!isRunning) return;
    const timer = window.setInterval(() => void loadDoctor(), READ_AGAIN);
    return () => window.clearInterval(timer);
  }, [isRunning]);
  if (doctorError.value) return <Problem error={doctorError.value} retry={() => void loadDoctor()} />;
  if (!available) return info.value?.upstream ? <p class="hint">This server cannot examine its upstream: patchbay doctor does.</p> : null;
  const isOther = examination !== null && name !== "" && examination.model !== name;
  return (
    <div class="doctor">
      <h2>{name ? "Doctor" : "The model server"}</h2>
      <p class="hint">
        About 20 requests to {info.value?.upstream ?? "the model server"} show how {name ? "this model" : "its first model"} takes tools, formats and
        constraints, how long its context is, and what to do.
      </p>
      <p class="actions">
        {isRunning ? (
          <button type="button" onClick={() => void cancelExamination()}>
            Cancel
          </button>
        ) : (
          <button type="button" class="primary" onClick={() => void examine(name)}>
            {examination && !isOther ? "Examine again" : "Examine"}
          </button>
        )}
      </p>
      {isOther ? <Other examination={examination} /> : examination && <Result examination={examination} />}
    </div>
  );
}

function Other({ examination }: { examination: Examination }) {
  return (
    <p class="hint">
      The last examination {examination.state === "running" ? "runs now, " : ""}is that of{" "}
      {examination.model ? (
        <button type="button" class="link" onClick={() => openModel(examination.model)}>
          <Line text={examination.model} />
        </button>
      ) : (
        "the server's first model"
      )}
      .
    </p>
  );
}

const ENDS = { running: "", done: "", cancelled: "Cancelled. ", failed: "It failed: the server's log says why. " };

function Result({ examination }: { examination: Examination }) {
  const { state, began, ended, findings, check } = examination;
  const problems = findings.filter((each) => each.status === "problem").length;
  // At the end what is to be done comes first.
  const order = ["problem", "note", "ok", "skipped"];
  const shown = state === "running" ? findings : [...findings].sort((one, other) => order.indexOf(one.status) - order.indexOf(other.status));
  const age = ended ? Math.max(0, Date.now() / 1000 - ended) : 0;
  return (
    <>
      <p class="progress" role="status">
        {state === "running"
          ? `Checking ${check || "…"} (${findings.length} done)`
          : `${ENDS[state]}${plural(findings.length, "finding")}, ${plural(problems, "problem")}, in ${duration((ended ?? began) - began)}`}
        {ended && (
          <span class="dim" title={dateAndTime(ended)}>
            {" "}
            {age < 60 ? "just now" : `${duration(age)} ago`}
          </span>
        )}
      </p>
      <ul class="findings" aria-label="Findings">
        {shown.map((each) => (
          <FindingRow key={each.name} finding={each} />
        ))}
      </ul>
    </>
  );
}

function FindingRow({ finding }: { finding: Finding }) {
  const isCommand = finding.name === "recommended" && finding.status !== "skipped";
  return (
    <li class={`is-${finding.status}`}>
      <span class="status">{finding.status}</span>
      <Line class="name" text={finding.name} />
      <div>
        {isCommand ? <code><Line text={finding.seen} /></code> : <Line text={finding.seen} />}
        {finding.advice && (
          <p class="advice">
            → <Line text={finding.advice} />
          </p>
        )}
        {isCommand && (
          <p class="actions">
            <Copy text={() => finding.seen}>Copy the command</Copy>
          </p>
        )}
      </div>
    </li>
  );
}

// The content of requests: messages as blocks, and tools that unfold to their schemas.

import type { ComponentChildren } from "preact";
import type { Body, Call } from "../api";
import { plural } from "../format";
import { indented, isObject } from "../json";
import { JsonBlock, Line, TextBlock } from "../ui/text";

type Json = Record<string, unknown>;

export function messagesOf(body: Body | null): Json[] {
  return Array.isArray(body?.messages) ? body.messages.filter(isObject) : [];
}

export function toolsOf(body: Body | null): Json[] {
  return Array.isArray(body?.tools) ? body.tools.filter(isObject) : [];
}

/** Messages as blocks. Those that are not in `before`, the messages of an earlier request, are marked as new. */
export function Messages({ messages, before = null }: { messages: Json[]; before?: Json[] | null }) {
  if (!messages.length) return <p class="none">No messages.</p>;
  return (
    <ol class="messages">
      {messages.map((message, index) => (
        <Message key={index} message={message} isNew={before !== null && isNew(message, before[index])} />
      ))}
    </ol>
  );
}

export function isNew(message: Json, before: Json | undefined): boolean {
  return JSON.stringify(message) !== JSON.stringify(before);
}

export function Message({ message, isNew = false }: { message: Json; isNew?: boolean }) {
  const role = typeof message.role === "string" ? message.role : "?";
  const calls = Array.isArray(message.tool_calls) ? message.tool_calls.filter(isObject).map(readCall) : [];
  const name = message.name ?? message.tool_call_id;
  return (
    <li class={`message ${["system", "developer", "user", "assistant", "tool"].includes(role) ? role : ""}`}>
      <div class="role">
        <Line text={role} />
        {isNew && (
          <span class="tag strong" title="It was not in the request before">
            new
          </span>
        )}
        {typeof name === "string" && <Line class="dim" text={name} />}
      </div>
      <div class="said">
        {contentBlocks(message.content, `${role} message`)}
        {typeof message.reasoning_content === "string" && message.reasoning_content && (
          <TextBlock text={message.reasoning_content} label="Reasoning" />
        )}
        {calls.map((call, index) => (
          <CallBlock key={index} call={call} />
        ))}
      </div>
    </li>
  );
}

function contentBlocks(content: unknown, label: string): ComponentChildren {
  if (content == null || content === "") return null;
  if (typeof content === "string") return <TextBlock text={content} label={label} />;
  if (!Array.isArray(content)) return <JsonBlock value={content} label={label} />;
  return content.map((part, index) => {
    if (isObject(part) && typeof part.text === "string") return <TextBlock key={index} text={part.text} label={label} />;
    const text = JSON.stringify(part) ?? "null";
    // A picture's data would fill the page.
    return <TextBlock key={index} text={text.length > 2000 ? `${text.slice(0, 200)}… (${text.length} characters)` : text} label={label} />;
  });
}

function readCall(call: Json): Call {
  const called = isObject(call.function) ? call.function : call;
  const raw = called.arguments;
  return {
    id: typeof call.id === "string" ? call.id : "",
    name: typeof called.name === "string" ? called.name : "?",
    arguments: typeof raw === "string" ? raw : JSON.stringify(raw ?? {}),
  };
}

export function CallBlock({ call, label, children }: { call: Call; label?: string; children?: ComponentChildren }) {
  return (
    <div class="call">
      <div class="call-head">
        {label && <span class="number">{label}</span>}
        <Line class="call-name" text={call.name} />
        {children}
        <Line class="dim id" text={call.id} />
      </div>
      <TextBlock text={indented(call.arguments)} label={`Arguments of ${call.name}`} />
    </div>
  );
}

export function Tools({ tools }: { tools: Json[] }) {
  if (!tools.length) return <p class="none">No tools in this request's field “tools”.</p>;
  return (
    <ul class="offered">
      {tools.map((tool, index) => {
        const spec = isObject(tool.function) ? tool.function : tool;
        const { name, description, parameters, ...rest } = spec;
        return (
          <li key={index}>
            <details>
              <summary>
                <Line class="call-name" text={typeof name === "string" ? name : "?"} />
                <Line class="dim" text={typeof description === "string" ? description : ""} />
              </summary>
              {typeof description === "string" && description.length > 80 && <TextBlock text={description} label="Description" />}
              <JsonBlock value={parameters ?? {}} label={`Schema of ${String(name)}`} />
              {Object.keys(rest).length > 0 && <JsonBlock value={rest} label="Other members" />}
            </details>
          </li>
        );
      })}
    </ul>
  );
}

/** The members of a request beside its messages and tools. */
export function Others({ body }: { body: Body }) {
  const { messages: _messages, tools: _tools, ...rest } = body;
  return (
    <details class="others">
      <summary>{plural(Object.keys(rest).length, "other member")} of the request</summary>
      <JsonBlock value={rest} label="Other members" />
    </details>
  );
}

// A tool conversation with `@anthropic-ai/sdk`: node anthropic.mjs BASE_URL stream|whole. Prints one JSON object.
import Anthropic from "@anthropic-ai/sdk";

import { question, run, tools } from "./tools.mjs";

const [baseURL, how] = process.argv.slice(2);
const client = new Anthropic({ baseURL: baseURL.replace(/\/v1$/, ""), apiKey: "unused", maxRetries: 0, timeout: 20_000 });

/** One request; a stream is put together by the package itself. */
async function ask(messages) {
  const request = {
    model: "scripted-model",
    max_tokens: 500,
    messages,
    tools: tools.map(({ function: { parameters, ...told } }) => ({ ...told, input_schema: parameters })),
  };
  return how === "whole" ? client.messages.create(request) : client.messages.stream(request).finalMessage();
}

const seen = { calls: [], finish: [] };
const messages = [{ role: "user", content: question }];
let message = await ask(messages);
while (message.stop_reason === "tool_use" && seen.finish.length < 4) {
  seen.finish.push("tool_calls");
  const calls = message.content.filter((block) => block.type === "tool_use");
  seen.calls.push(...calls.map((call) => ({ name: call.name, arguments: JSON.stringify(call.input) })));
  const results = calls.map((call) => ({
    type: "tool_result",
    tool_use_id: call.id,
    content: JSON.stringify(run[call.name](call.input)),
  }));
  messages.push({ role: "assistant", content: message.content }, { role: "user", content: results });
  message = await ask(messages);
}
seen.finish.push(message.stop_reason === "end_turn" ? "stop" : message.stop_reason);
const answer = message.content.map((block) => block.text ?? "").join("");
console.log(JSON.stringify({ ...seen, answer }));

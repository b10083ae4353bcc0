// A tool conversation over OpenAI Responses with the `openai` package: node responses.mjs BASE_URL stream|whole. Prints one JSON object.
import OpenAI from "openai";

import { answerTo, question, tools } from "./tools.mjs";

const [baseURL, how] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0, timeout: 20_000 });

/** One request; a stream is put together by the package itself. */
async function ask(input, previous) {
  const request = {
    model: "scripted-model",
    input,
    previous_response_id: previous,
    tools: tools.map((tool) => ({ type: "function", strict: false, ...tool.function })),
  };
  if (how === "whole") return client.responses.create(request);
  return client.responses.stream(request).finalResponse();
}

const seen = { calls: [], finish: [] };
let response = await ask(question);
for (;;) {
  const calls = response.output.filter((item) => item.type === "function_call");
  seen.finish.push(calls.length ? "tool_calls" : "stop");
  if (!calls.length || seen.finish.length > 4) break;
  seen.calls.push(...calls.map((call) => ({ name: call.name, arguments: call.arguments })));
  const outputs = calls.map((call) => ({ type: "function_call_output", call_id: call.call_id, output: answerTo(call) }));
  response = await ask(outputs, response.id);
}
console.log(JSON.stringify({ ...seen, answer: response.output_text }));

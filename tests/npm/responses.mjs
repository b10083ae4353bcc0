// A tool conversation over OpenAI Responses with the `openai` package: node responses.mjs BASE_URL stream|whole|socket. Prints one JSON object.
import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

import { answerTo, question, tools } from "./tools.mjs";

const [baseURL, how] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0, timeout: 20_000 });

const socket = how === "socket" ? new ResponsesWS(client) : undefined;
const messages = socket?.stream()[Symbol.asyncIterator]();

/** One request over the socket, whose responses are not stored. */
async function askOnSocket(request) {
  socket.send({ type: "response.create", store: false, ...request });
  for (;;) {
    const { value: event } = await messages.next();
    if (event.type === "error") throw event.error;
    if (event.type === "message" && event.message.type === "response.completed") return event.message.response;
  }
}

/** One request; a stream is put together by the package itself. */
async function ask(input, previous) {
  const request = {
    model: "scripted-model",
    input,
    previous_response_id: previous,
    tools: tools.map((tool) => ({ type: "function", strict: false, ...tool.function })),
  };
  if (socket) return askOnSocket(request);
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
socket?.close();
const answer = response.output.flatMap((item) => item.content ?? []).map((part) => part.text);
console.log(JSON.stringify({ ...seen, answer: answer.join("") }));

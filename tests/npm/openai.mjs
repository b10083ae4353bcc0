// A tool conversation with the `openai` package: node openai.mjs BASE_URL stream|whole. Prints one JSON object.
import OpenAI from "openai";

import { answerTo, question, tools } from "./tools.mjs";

const [baseURL, how] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0, timeout: 20_000 });

/** One request; a stream is put together by the package itself. */
async function ask(messages) {
  const request = { model: "scripted-model", messages, tools };
  if (how === "whole") return (await client.chat.completions.create(request)).choices[0];
  const stream = client.chat.completions.stream(request);
  for await (const chunk of stream) seen.chunks.push(chunk.choices[0]?.delta ?? null);
  return (await stream.finalChatCompletion()).choices[0];
}

const seen = { calls: [], chunks: [], finish: [] };
const messages = [{ role: "user", content: question }];
let choice = await ask(messages);
while (choice.finish_reason === "tool_calls" && seen.finish.length < 4) {
  seen.finish.push(choice.finish_reason);
  messages.push(choice.message);
  for (const call of choice.message.tool_calls) {
    seen.calls.push({ name: call.function.name, arguments: call.function.arguments });
    messages.push({ role: "tool", tool_call_id: call.id, content: answerTo(call.function) });
  }
  choice = await ask(messages);
}
seen.finish.push(choice.finish_reason);
console.log(JSON.stringify({ ...seen, answer: choice.message.content }));

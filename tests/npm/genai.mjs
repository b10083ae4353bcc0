// A tool conversation with `@google/genai`: node genai.mjs BASE_URL stream|whole. Prints one JSON object.
import { GoogleGenAI } from "@google/genai";

import { question, run, tools } from "./tools.mjs";

const [baseURL, how] = process.argv.slice(2);
const httpOptions = { baseUrl: baseURL.replace(/\/v1$/, ""), timeout: 20_000 };
const client = new GoogleGenAI({ apiKey: "unused", httpOptions });
const functionDeclarations = tools.map(({ function: { parameters, ...told } }) => ({
  ...told,
  parametersJsonSchema: parameters,
}));

/** One request; returns the parts of the answer. */
async function ask(contents) {
  const request = { model: "scripted-model", contents, config: { tools: [{ functionDeclarations }] } };
  const chunks = [];
  if (how === "whole") chunks.push(await client.models.generateContent(request));
  else for await (const chunk of await client.models.generateContentStream(request)) chunks.push(chunk);
  return chunks.flatMap((chunk) => chunk.candidates[0].content.parts ?? []);
}

const seen = { calls: [], finish: [] };
const contents = [{ role: "user", parts: [{ text: question }] }];
let parts = await ask(contents);
for (;;) {
  const calls = parts.filter((part) => part.functionCall).map((part) => part.functionCall);
  seen.finish.push(calls.length ? "tool_calls" : "stop");
  if (!calls.length || seen.finish.length > 4) break;
  seen.calls.push(...calls.map((call) => ({ name: call.name, arguments: JSON.stringify(call.args) })));
  const results = calls.map(({ id, name, args }) => ({ functionResponse: { id, name, response: run[name](args) } }));
  contents.push({ role: "model", parts }, { role: "user", parts: results });
  parts = await ask(contents);
}
console.log(JSON.stringify({ ...seen, answer: parts.map((part) => part.text ?? "").join("") }));

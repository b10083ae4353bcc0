// A tool conversation with the `ai` package, which runs the loop itself: node ai.mjs BASE_URL stream|whole PROVIDER. Prints one JSON object.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createGoogleGenerativeAI } from "@ai-sdk/google";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

import { parameters, question, run } from "./tools.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false; // they go to stdout
const [baseURL, how, provider] = process.argv.slice(2);
const apiKey = "unused";
const model = {
  anthropic: () => createAnthropic({ baseURL, apiKey }),
  compatible: () => createOpenAICompatible({ name: "patchbay", baseURL, apiKey }),
  google: () => createGoogleGenerativeAI({ baseURL: `${baseURL}beta`, apiKey }),
  openai: () => createOpenAI({ baseURL, apiKey }),
}[provider]()("scripted-model");

const calls = [];
const tools = Object.fromEntries(
  Object.keys(run).map((name) => [
    name,
    tool({
      description: `Use it to ${name}.`,
      inputSchema: jsonSchema(parameters[name]),
      execute: async (input) => {
        calls.push({ name, arguments: JSON.stringify(input) });
        return run[name](input);
      },
    }),
  ]),
);

const request = { model, tools, prompt: question, maxRetries: 0, stopWhen: stepCountIs(4), abortSignal: AbortSignal.timeout(20_000) };
const chunks = [];
let result;
if (how === "whole") {
  result = await generateText(request);
} else {
  result = streamText(request);
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    chunks.push(part.type);
  }
}
const steps = await result.steps;
console.log(JSON.stringify({ calls, chunks, finish: steps.map((step) => step.finishReason), answer: await result.text }));

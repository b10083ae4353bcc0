// A tool and a typed answer with the `ai` package: node structured.mjs BASE_URL stream|whole. Prints one JSON object.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";

const [baseURL, how] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "patchbay", baseURL, apiKey: "unused", supportsStructuredOutputs: true });
const schema = (properties) =>
  jsonSchema({ type: "object", properties, required: Object.keys(properties), additionalProperties: false });

const calls = [];
const request = {
  model: provider("scripted-model"),
  tools: {
    get_degrees: tool({
      description: "The temperature in a city.",
      inputSchema: schema({ city: { type: "string" } }),
      execute: async (input) => {
        calls.push(input);
        return "21.0 degrees";
      },
    }),
  },
  output: Output.object({ schema: schema({ city: { type: "string" }, degrees: { type: "integer" } }) }),
  prompt: "How warm is Rome?",
  maxRetries: 0,
  stopWhen: stepCountIs(4),
  abortSignal: AbortSignal.timeout(20_000),
};
let result;
if (how === "whole") {
  result = await generateText(request);
} else {
  result = streamText({ ...request, onError: ({ error }) => { throw error; } });
  for await (const _ of result.partialOutputStream);
}
console.log(JSON.stringify({ calls, output: await result.output, steps: (await result.steps).map((step) => step.text) }));

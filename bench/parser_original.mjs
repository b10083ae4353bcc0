// Runs in a process of its own: times the parser of llm-tool-capability. `node parser_original.mjs PLAN.json MODULE` prints JSON;
// parser_ours.py is its twin. CPU time of the whole process, so what its collector's threads burn counts too.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [planFile, module] = process.argv.slice(2);
const plan = JSON.parse(readFileSync(planFile, "utf8"));
const { ToolCallStreamParser, parseToolCalls } = await import(pathToFileURL(module).href);
const LONG_ENOUGH = 20; // milliseconds of CPU time, as in the twin

function whole(text) {
  return parseToolCalls(text).toolCalls.length;
}

function inChunks(chunks) {
  const parser = new ToolCallStreamParser();
  for (const chunk of chunks) parser.push(chunk);
  parser.flush();
  return parser.toolCallCount;
}

function best(run, readings) {
  const calls = run();
  let repeats = 1;
  let least = Infinity;
  while (readings > 0) {
    const start = process.cpuUsage();
    for (let i = 0; i < repeats; i++) run();
    const { user, system } = process.cpuUsage(start);
    const spent = (user + system) / 1e3;
    if (spent < LONG_ENOUGH && repeats < 10_000) {
      repeats *= 4;
      continue;
    }
    least = Math.min(least, spent / repeats);
    readings--;
  }
  return { milliseconds: least, calls };
}

const results = plan.cases.map((wanted) => {
  const text = readFileSync(`${plan.texts}/${wanted.kind}-${wanted.size}.txt`, "ascii");
  const chunks = [];
  for (let at = 0; wanted.chunk && at < text.length; at += wanted.chunk) chunks.push(text.slice(at, at + wanted.chunk));
  const run = wanted.chunk ? () => inChunks(chunks) : () => whole(text);
  return { ...wanted, characters: text.length, ...best(run, wanted.readings) };
});
process.stdout.write(JSON.stringify(results));

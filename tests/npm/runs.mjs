// Runs a program of this folder several times in one process: node runs.mjs PROGRAM JSON, a list of the arguments of each run.
const [program, runs] = process.argv.slice(2);
for (const [number, given] of JSON.parse(runs).entries()) {
  process.argv.splice(2, Infinity, ...given);
  await import(`./${program}?${number}`);
}

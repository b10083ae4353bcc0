// Runs the program of docs/guides/realtime.md against a server as a web page would, with undici's WebSocket where node has none.
import { readFileSync } from "node:fs";
import { WebSocket } from "undici";

const [docs, server, token] = process.argv.slice(2);
const program = readFileSync(docs, "utf8").match(/```js\n([^]*?)```/)[1].replace("ws://127.0.0.1:48911", server);
const seen = { ready: null, samples: 0, rates: [], written: "", notes: [], ends: [] };
let told;
const end = new Promise((resolve) => (told = resolve));
Object.assign(globalThis, {
  WebSocket: globalThis.WebSocket ?? WebSocket,
  token,
  page: {
    ready: (rate) => {
      seen.ready = rate;
      talk.say("How is Rome?");
    },
    play: (samples, rate) => {
      seen.samples += samples.length;
      seen.rates.push(rate);
    },
    write: (text) => (seen.written += text),
    note: (text) => seen.notes.push(text),
    stopPlaying: () => seen.notes.push("interrupted"),
    end: (status) => {
      seen.ends.push(status);
      if (seen.ends.length === 2) talk.speak(new Int16Array(seen.ready / 2));
      if (seen.ends.length === 3) told();
    },
    closed: (code, reason) => told(seen.notes.push(`closed: ${code} ${reason}`)),
  },
});
const talk = await import("data:text/javascript," + encodeURIComponent(program));
await end;
process.stdout.write(JSON.stringify(seen), () => process.exit(0));

// A tool of a program in any language, over plain HTTP. Here in Node 20, with nothing to install: node plugin.mjs [SERVER]
import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { buffer } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";

const SERVER = process.argv[2] ?? "http://127.0.0.1:48911";
const SECRET = randomBytes(24).toString("base64url"); // our own, so that it is known before the first call comes
const WEATHER = { Beijing: { temp_c: 22, weather: "sunny" }, Oslo: { temp_c: 3, weather: "rain" } };

function getWeather({ city }) {
  if (!Object.hasOwn(WEATHER, city)) throw new Error(`city not found: ${city}`);
  return { city, ...WEATHER[city] };
}

function answerTo(body, signature = "") {
  const right = Buffer.from(`sha256=${createHmac("sha256", SECRET).update(body).digest("hex")}`);
  const given = Buffer.from(signature, "latin1");
  if (given.length !== right.length || !timingSafeEqual(given, right)) return [403, { error: "not signed by the server" }];
  try {
    return [200, { output: getWeather(JSON.parse(body).arguments), is_error: false }];
  } catch (error) {
    return [200, { output: null, is_error: true, error: error.message }]; // the model is told
  }
}

const callbacks = createServer(async (request, response) => {
  const body = await buffer(request).catch(() => ""); // a caller that leaves in the middle has not signed
  const [status, answer] = answerTo(body, request.headers["x-patchbay-signature"]);
  response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(answer));
}).listen(0, "127.0.0.1");
await once(callbacks, "listening");
const tool = {
  name: "get_weather", description: "Look up the weather in a given city.", source: "weather_in_node", secret: SECRET,
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] }, timeout_seconds: 10,
  callback_url: `http://127.0.0.1:${callbacks.address().port}/tool_invoke`,
};
const ask = (path, headers, more) => fetch(SERVER + path, { headers, ...more, signal: AbortSignal.timeout(5000) });
const post = async (path, body) =>
  (await ask(path, { "Content-Type": "application/json" }, { method: "POST", body: JSON.stringify(body) })).json();

let [seen, start] = ["", ""]; // the list as it was last seen, and in which start of the server
async function keepRegistered() {
  const listing = await ask("/api/tools", { "If-None-Match": seen });
  if (listing.status === 304) return; // nothing has changed
  const { instance_id, tools_by_role } = await listing.json();
  const tools = Object.values(tools_by_role ?? {}).flat();
  if (instance_id !== start || !tools.some((each) => each.callback_url === tool.callback_url)) {
    const { ok, affected_roles, failed_roles, detail } = await post("/api/tools/register", tool);
    if (!ok) throw new Error(JSON.stringify(failed_roles ?? detail));
    console.log(`registered for ${affected_roles}`);
  }
  [seen, start] = [listing.headers.get("etag"), instance_id];
}

const stop = new AbortController();
for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => stop.abort());
for (let pause = 0.1; !stop.signal.aborted; ) {
  pause = await keepRegistered().then(() => 1, (error) => (console.error(`${error.cause ?? error}`), Math.min(2 * pause, 2)));
  await sleep(1000 * pause * (0.5 + Math.random()), null, { signal: stop.signal }).catch(() => {});
}
await post("/api/tools/clear", { source: tool.source, secret: SECRET }).catch(() => {}); // the tool first, then its callback
callbacks.close();

"""A tool of a program in any language, over plain HTTP. Here in Python, with nothing to install: python plugin.py [SERVER]."""

import hmac
import json
import random
import secrets
import signal
import sys
import threading
from contextlib import closing, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SERVER = (sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:48911").removeprefix("http://")
SECRET = secrets.token_urlsafe(24)  # our own, so that it is known before the first call comes
WEATHER = {"Beijing": {"temp_c": 22, "weather": "sunny"}, "Oslo": {"temp_c": 3, "weather": "rain"}}


def get_weather(city):
    if city not in WEATHER:
        raise LookupError(f"city not found: {city}")
    return {"city": city, **WEATHER[city]}


def answer_to(body, signature):
    right = f"sha256={hmac.new(SECRET.encode(), body, 'sha256').hexdigest()}"
    if not hmac.compare_digest(right.encode(), signature.encode()):
        return 403, {"error": "not signed by the server"}
    try:
        return 200, {"output": get_weather(**json.loads(body)["arguments"]), "is_error": False}
    except Exception as error:  # noqa: BLE001  (the model gets any error)
        return 200, {"output": None, "is_error": True, "error": str(error)}


class Callback(BaseHTTPRequestHandler):
    timeout = 10  # seconds for a caller to say what it wants
    log_message = lambda *_: None  # noqa: E731  (it would print every call)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, answer = answer_to(body, self.headers.get("X-Patchbay-Signature", ""))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


callbacks = ThreadingHTTPServer(("127.0.0.1", 0), Callback)
callbacks.daemon_threads = False  # calls that are under way at the end may finish
threading.Thread(target=callbacks.serve_forever).start()
tool = {
    "name": "get_weather", "description": "Look up the weather in a given city.", "source": "weather_in_python",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}, "secret": SECRET,
    "callback_url": f"http://127.0.0.1:{callbacks.server_port}/tool_invoke", "timeout_seconds": 10,
}  # fmt: skip


def ask(method, path, headers, body=None):
    with closing(HTTPConnection(SERVER, timeout=5)) as connection:
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.headers["ETag"], json.loads(answer.read() or "null")


def keep_registered(seen, start):
    """Register the tool where it is not; return the list as it was seen, and in which start of the server."""
    etag, listing = ask("GET", "/api/tools", {"If-None-Match": seen})
    if listing is None:
        return seen, start  # 304: nothing has changed
    urls = [each["callback_url"] for tools in listing.get("tools_by_role", {}).values() for each in tools]
    if listing.get("instance_id") != start or tool["callback_url"] not in urls:
        _, answer = ask("POST", "/api/tools/register", {}, tool)
        if not answer.get("ok"):
            raise ValueError(answer)
        print("registered for", *answer["affected_roles"], flush=True)
    return etag, listing["instance_id"]


stop = threading.Event()
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: stop.set())
seen, start, pause = "", "", 0.1
while not stop.is_set():
    try:
        (seen, start), pause = keep_registered(seen, start), 1
    except Exception as error:  # noqa: BLE001  (whatever it is, it is tried again)
        print(repr(error), file=sys.stderr)
        pause = min(2 * pause, 2)
    stop.wait(pause * random.uniform(0.5, 1.5))
with suppress(Exception):  # the tool first, then what answers for it
    ask("POST", "/api/tools/clear", {}, {"source": tool["source"], "secret": SECRET})
callbacks.shutdown()
callbacks.server_close()

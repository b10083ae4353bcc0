"""What a plugin's process, its host and a tool server say to each other.

``server-and-host``: a recording tool server, the host as ``patchbay plugins run`` runs it, registrations and callbacks.
``host-and-plugin``: the frames between the host and the plugin's process, which a relay in the place of its interpreter writes down.
"""

from __future__ import annotations

import contextlib
import hmac
import http.server
import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from . import Names, Recorded

PLUGIN = '''
from patchbay.plugins import Err, Ok, PluginBase, Progress, ToolContext, lifecycle, llm_tool, plugin


@plugin
class Oracle(PluginBase):
    @lifecycle(id="startup")
    async def startup(self, **_):
        self.logger.info("it has begun")

    @llm_tool
    async def get_weather(self, *, city: str, days: int = 1):
        """Look up the weather.

        :param city: its name
        """
        if city == "Atlantis":
            return Err("it has sunk")
        if city == "Mars":
            raise ValueError("too far")
        return {"city": city, "days": days, "unit": self.config.get("oracle.unit", "C")}

    @llm_tool(timeout=60)
    async def warmest(self, *, cities: list[str]):
        """Compare cities."""
        yield Progress("asking", fraction=0.5)
        yield Ok({"city": cities[0]})

    @llm_tool
    async def where(self, *, tool_context: ToolContext):
        """Say which call this is."""
        return {"call_id": tool_context.call_id}
'''
MANIFEST = """
[plugin]
id = "oracle"
name = "Oracle"
version = "1.0.0"
entry = "main:Oracle"

[oracle]
unit = "F"
"""
TOOLS = ("get_weather", "warmest", "where")
CALLS: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("get_weather", {"city": "Oslo", "days": 2}, {}),
    ("get_weather", {"city": "Atlantis"}, {}),
    ("get_weather", {"city": "Mars"}, {}),
    ("get_weather", {"city": 5}, {}),
    ("get_weather", {}, {}),
    ("warmest", {"cities": ["Rome"]}, {}),
    ("warmest", {"cities": ["Rome"]}, {"Accept": "application/x-ndjson"}),
    ("where", {}, {"Idempotency-Key": "key-1"}),
    ("where", {}, {"Idempotency-Key": "key-1"}),
    ("get_weather", {"city": "Oslo"}, {"Idempotency-Key": "key-1"}),
    ("no_such_tool", {}, {}),
]
SECRET_OF_NOBODY = "0" * 64
# Runs the host with a relay in the place of the interpreter that plugins are started with.
HOST = "import sys; sys.executable = sys.argv.pop(1); from patchbay.cli import main; sys.exit(main(sys.argv[1:]))"


class ToolServer(http.server.ThreadingHTTPServer):
    """Takes registrations as the registry's HTTP contract has it, and writes down all that comes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.said: list[str] = []
        self.tools: dict[str, dict[str, Any]] = {}
        self.news = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def wait_for(self, names: set[str]) -> None:
        with self.news:
            if not self.news.wait_for(lambda: names == set(self.tools), 60):
                raise TimeoutError(f"{names} are not registered, but {set(self.tools)}")


class Asked(http.server.BaseHTTPRequestHandler):
    """One request of the host."""

    server: ToolServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Be silent."""

    def do_GET(self) -> None:
        listed = [{**tool, "is_remote": True} for tool in self.server.tools.values()]
        self._answer({"ok": True, "tools_by_role": {"default": listed}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer: dict[str, Any] = {"ok": True, "affected_roles": ["default"], "failed_roles": []}
        with self.server.news:
            self.server.said.append(f"> POST {self.path} {json.dumps(body, sort_keys=True, ensure_ascii=False)}")
            if self.path.endswith("/register"):
                self.server.tools[body["name"]] = body
                answer |= {"registered": body["name"], **({"secret": body["secret"]} if "secret" in body else {})}
            elif self.path.endswith("/unregister"):
                answer |= {"removed": self.server.tools.pop(body["name"], None) is not None, "name": body["name"]}
            else:
                answer |= {"removed": len(self.server.tools), "source": body.get("source")}
                self.server.tools.clear()
            self.server.news.notify_all()
        self._answer(answer)

    def _answer(self, body: Any) -> None:
        data = json.dumps({**body, "instance_id": "one", "revision": 1}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def record() -> Recorded:
    """Run one plugin, call its tools, and end its host."""
    with tempfile.TemporaryDirectory() as name, ToolServer() as server:
        folder = Path(name)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with hosting(folder, server.url) as process:
                server.wait_for(set(TOOLS))
                wait_for_states(folder / "frames")
                registered = sorted(server.said)
                server.said.clear()
                called = [line for each in CALLS for line in call(server, *each)]
                called += call(server, "where", {}, {"X-Patchbay-Signature": f"sha256={SECRET_OF_NOBODY}"})
                process.terminate()
                called.append(f"host: exit status {process.wait(30)}")
                server.wait_for(set())
                ended = sorted(set(server.said))  # a pass that had the list before the end clears once more
        finally:
            server.shutdown()
        frames = (folder / "frames").read_text(encoding="utf-8").splitlines()
    names = Names(
        port=r"127\.0\.0\.1:(\d+)", folder=rf"({name}[^\" ]*)", time=r'"(?:time|created|at|monotonic)": ?([\d.]+)',
        hex=r"\b[0-9a-f]{16,}\b", pid=r'"pid": (\d+)', secret=r'"secret": "([^"]+)"',
    )  # fmt: skip
    said = ["##### registered", *registered, "##### called", *called, "##### ended", *ended]
    return Recorded(
        {
            "plugins/server-and-host.txt": "".join(f"{names(line)}\n" for line in said),
            "plugins/host-and-plugin.txt": "".join(f"{names(line)}\n" for line in ordered(frames)),
        }
    )


def wait_for_states(frames: Path) -> None:
    """Wait until the plugin knows that its tools are registered: a call may come before."""
    end = time.monotonic() + 60
    while frames.read_text(encoding="utf-8").count('"LLM_TOOL_STATE"') < len(TOOLS):
        if time.monotonic() > end:
            raise TimeoutError("the plugin was not told the states of its tools")
        time.sleep(0.01)


@contextlib.contextmanager
def hosting(folder: Path, server: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a plugin's host while the block runs."""
    plugin, sockets, relay = folder / "oracle", folder / "run", folder / "python"
    plugin.mkdir()
    sockets.mkdir(mode=0o700)
    (plugin / "main.py").write_text(PLUGIN, encoding="utf-8")
    (plugin / "plugin.toml").write_text(MANIFEST, encoding="utf-8")
    relay.write_text(
        f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("frame_relay.py")} {folder} {sys.executable} "$@"\n'
    )
    relay.chmod(relay.stat().st_mode | stat.S_IXUSR)
    command = [sys.executable, "-c", HOST, str(relay), "plugins", "run", str(plugin), "--server", server, "--port", "0"]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(sockets)}
    with (
        (folder / "output").open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=environment) as process,
    ):
        try:
            yield process
        except BaseException:
            print((folder / "output").read_text(encoding="utf-8"), file=sys.stderr)
            raise
        finally:
            process.kill()


def call(server: ToolServer, tool: str, arguments: dict[str, Any], headers: dict[str, str]) -> Iterator[str]:
    """Call a tool as the server does, and give what was sent and answered."""
    known = server.tools.get(tool) or server.tools["where"]
    url = known["callback_url"].replace("where", tool) if tool not in server.tools else known["callback_url"]
    body = {"name": tool, "arguments": arguments, "call_id": f"call-{tool}", "raw_arguments": json.dumps(arguments)}
    data = json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **headers}
    if "secret" in known and "X-Patchbay-Signature" not in headers:
        sent["X-Patchbay-Signature"] = f"sha256={hmac.new(known['secret'].encode(), data, 'sha256').hexdigest()}"
    yield f"> {tool} {json.dumps(arguments)} {headers}"
    request = urllib.request.Request(url, data, sent)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            yield f"< {answer.status} {answer.headers['content-type']} {answer.read().decode().strip()}"
    except urllib.error.HTTPError as error:
        yield f"< {error.code} {error.read().decode().strip()}"


def ordered(frames: list[str]) -> list[str]:
    """List the tool states, then the host's frames, then the plugin's. Pings are left out.

    Tool states come first because the time of the server's response decides their place.
    """
    states = sorted(line for line in frames if '"LLM_TOOL_STATE"' in line)
    told = [line for line in frames if not any(f'"{word}' in line for word in ("PING", "PONG", "LLM_TOOL_STATE"))]
    return states + [line for mark in (">", "<") for line in told if line.startswith(mark)]


def decode(body: bytes) -> str:
    """Show one frame."""
    return json.dumps(msgspec.msgpack.decode(body), ensure_ascii=False, default=bytes.decode)

"""Have coding agents call a tool of the registry over MCP, and write what they did into the documentation.

    python tests/external/mcp_clients.py            Codex and Claude Code (from npm, into .build/clients, as tests/external/clients.py)

``patchbay serve`` offers a tool at /mcp, and a scripted model that only writes text calls it by the name that the agent gives it. Exit
status 1 where the tool was not called, or the model was not sent its result.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import Request, urlopen

from coding_agents import AGENTS, Agent
from pages import GUIDES, write_table

from clients import LIMIT, install, program, version
from patchbay.cli.children import listening
from patchbay.cli.client_settings import client_settings
from patchbay.testing import ScriptedUpstream

TASK = "Where is order 1234? Use the tool."
OFFERED = re.compile(r'^\{"name": "([\w-]+)"', re.MULTILINE)
"""The name of a tool in a prompt, on the line with its definition."""
MOST_SEARCHES = 20
RESULT = "Order 1234 is in Rotterdam."
SERVERS = json.dumps({"mcpServers": {"patchbay": {"type": "http", "url": "URL"}}})


class Orders(BaseHTTPRequestHandler):
    """The callback of the tool; ``calls`` are the arguments of its calls."""

    calls: list[Any] = []  # noqa: RUF012  (of the one server)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.calls.append(body["arguments"])
        answer = json.dumps({"output": RESULT}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def fenced(name: str, arguments: Mapping[str, Any]) -> str:
    return "```tool_call\n" + json.dumps({"name": name, "arguments": arguments}) + "\n```"


def arguments_of(client: str, url: str) -> list[str]:
    """The agent's arguments for the task and the MCP server."""
    if client == "codex":
        options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return ["exec", *options, "-c", f'mcp_servers.patchbay.url="{url}"', TASK]
    servers = SERVERS.replace("URL", url)
    return ["-p", TASK, "--mcp-config", servers, "--strict-mcp-config", "--allowedTools", "mcp__patchbay__look_up_order"]


def run(agent: Agent, server: str) -> tuple[bool, bool]:
    """Run an agent; return whether the tool was called, and whether the model was sent its result."""
    Orders.calls.clear()
    seen: list[str] = []

    def answer(body: Mapping[str, Any]) -> str:
        text = "\n".join(message["content"] for message in body["messages"])
        seen.append(text)
        if Orders.calls:
            return "It is in Rotterdam."
        offered = OFFERED.findall(text)
        for name in offered:
            if name.endswith("look_up_order"):
                return fenced(name, {"number": "1234"})
        # The tools of MCP servers are offered once a search has found them, and Codex connects to the servers meanwhile.
        searches = [name for name in offered if name in ("tool_search", "ToolSearch")] if len(seen) < MOST_SEARCHES else []
        return fenced(searches[0], {"query": "order"}) if searches else "I cannot look it up."

    with tempfile.TemporaryDirectory() as home, ScriptedUpstream(answer, tools="refuse", model=agent.model) as upstream:
        command = [sys.executable, "-m", "patchbay", "proxy", "--port", "0", "--upstream", upstream.url]
        with listening(command, name="patchbay proxy", timeout=60) as proxy:
            origin = proxy.url.removesuffix("/v1")
            settings = client_settings(agent.client, origin=origin, base_path="/v1", model=agent.model, key="x")
            if settings.file:
                file = Path(home, settings.file)
                file.parent.mkdir(parents=True)
                file.write_text(settings.text)
            done = subprocess.run(
                [program(agent), *arguments_of(agent.client, f"{server}/mcp")],
                cwd=home,
                env={"PATH": os.environ["PATH"], "HOME": home, **settings.variables},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
    if not Orders.calls:
        print(f"{agent.title}: exit status {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}", file=sys.stderr)
    return Orders.calls == [{"number": "1234"}], any(RESULT in text for text in seen)


def main() -> int:
    agents = [AGENTS[name][0] for name in ("codex", "claude")]
    install(agents)
    callback = ThreadingHTTPServer(("127.0.0.1", 0), Orders)
    Thread(target=callback.serve_forever, daemon=True).start()
    rows, complete = [], True
    serve = [sys.executable, "-m", "patchbay", "serve", "--port", "0", "--store", "memory"]
    with listening(serve, name="patchbay serve", timeout=60) as server:
        tool = {
            "name": "look_up_order",
            "description": "Find where an order is.",
            "parameters": {"type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"]},
            "callback_url": f"http://127.0.0.1:{callback.server_port}/call",
        }
        body = json.dumps(tool).encode()
        urlopen(Request(f"{server.url}/api/tools/register", body, {"content-type": "application/json"}), timeout=60).close()
        for agent in agents:
            print(f"{agent.title} {version(agent)} ...", flush=True)
            done = run(agent, server.url)
            complete = complete and all(done)
            rows.append("| " + " | ".join([agent.title, version(agent), *("yes" if each else "**no**" for each in done)]) + " |")
    header = ["| client | version | calls the tool | reads its result |", "|---|---|---|---|"]
    write_table(GUIDES / "mcp-server.md", "mcp clients", [*header, *rows])
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())

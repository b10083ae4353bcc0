"""Foreign peers of MCP's conformance: clients that use the registry, and servers that ``patchbay serve`` and a ToolRunner mount.

The Inspector and FastMCP are such clients, over HTTP and over stdio; FastMCP and the protocol's reference servers are such servers.
Run by tests/external/conformance.py.
"""

from __future__ import annotations

import asyncio
import functools
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock
from urllib.request import Request, urlopen

from patchbay import ToolRunner
from patchbay.cli.children import listening
from patchbay.testing import ScriptedModel
from patchbay.types import ToolCall

HERE = Path(__file__).parent
FASTMCP = "fastmcp==4.1.2"
INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
EVERYTHING = "@modelcontextprotocol/server-everything@2026.8.31"
FILES = "@modelcontextprotocol/server-filesystem@2026.8.31"
TIME, GIT, FETCH = "mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19", "mcp-server-fetch==2026.10.24"
NPM_PACKAGES: Final = (INSPECTOR, EVERYTHING, FILES)
PYTHON_PACKAGES: Final = (FASTMCP, TIME, GIT, FETCH)
LIMIT = 120.0
"""Seconds for one program, and for all servers to be ready."""

TOOLS = f"{HERE / 'conformance_server.py'}:TOOLS"
OVER_STDIO = [sys.executable, "-m", "patchbay", "mcp", "serve", "--tools", TOOLS]
TEXT = "This is a simple text response for testing."

Checks = dict[str, bool]
Scenarios = dict[str, Checks]


@dataclass(frozen=True)
class Call:
    """A call of a mounted server's tool, and what its result says."""

    tool: str
    arguments: Mapping[str, Any]
    said: str
    is_error: bool = False


@dataclass(frozen=True)
class Mounted:
    """A server that ``patchbay serve`` mounts, by its entry in mcpServers, and the calls of its tools."""

    package: str
    scenario: str
    entry: Mapping[str, Any]
    calls: Sequence[Call]


class Peers:
    """The installed peers: ``build`` has node and its packages, ``python`` is the interpreter with the others."""

    def __init__(self, build: Path, python: Path) -> None:
        self._modules = build / "node_modules"
        self._node = str(self._modules / ".bin" / "node")
        self._python = str(python)
        self._fastmcp = [self._python, str(HERE / "conformance_fastmcp.py")]

    def clients(self, url: str) -> dict[str, Scenarios]:
        """Return what clients of the registry at ``url``, and of its tools over stdio, have checked, by package."""
        return {
            INSPECTOR: {
                "http": self._inspect([url, "--transport", "http"], extended=True),
                "stdio": self._inspect(OVER_STDIO, extended=False),
            },
            FASTMCP: {
                f"client, {name}, {mode}": self._check_by_fastmcp(mode, target)
                for name, target in (("http", [url]), ("stdio", OVER_STDIO))
                for mode in ("auto", "legacy")
            },
        }

    def servers(self, url: str) -> dict[str, Scenarios]:
        """Return what mounting servers has shown, by package. ``url`` is the registry's, of which FastMCP serves a proxy."""
        found: dict[str, Scenarios] = {}
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"XDG_CONFIG_HOME": folder}):
            place = _prepare(Path(folder).resolve())
            with _page() as page, self._fastmcp_over_http() as fastmcp_url:
                mounted = self._mounted(url, place, page, fastmcp_url)
                for name, checks in _served(mounted, place).items():
                    each = mounted[name]
                    found.setdefault(each.package, {})[each.scenario] = checks
        found[FASTMCP]["ToolRunner, stdio"] = self._run_by_a_runner()
        return found

    # Clients

    def _inspect(self, target: Sequence[str], *, extended: bool) -> Checks:
        def ask(*arguments: str) -> dict[str, Any]:
            script = self._modules / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build" / "index.js"
            printed = _run([self._node, str(script), "--cli", *target, *arguments])
            return _json(printed)

        called = ask("--method", "tools/call", "--tool-name", "test_simple_text")
        failed = ask("--method", "tools/call", "--tool-name", "test_error_handling")
        checks = {
            "tools/list": "test_simple_text" in {each["name"] for each in ask("--method", "tools/list").get("tools", ())},
            "tools/call": TEXT in str(called.get("content")) and called.get("isError") is False,
            "an error": failed.get("isError") is True and "intentionally" in str(failed.get("content")),
        }
        if extended:
            checks["prompts/list"] = "test_simple_prompt" in str(ask("--method", "prompts/list"))
            checks["resources/read"] = "content of the resource" in str(
                ask("--method", "resources/read", "--uri", "test://static-text")
            )
        return checks

    def _check_by_fastmcp(self, mode: str, target: Sequence[str]) -> Checks:
        return _json(_run([*self._fastmcp, "client", mode, *target])) or {"it ran": False}

    # Servers

    @contextmanager
    def _fastmcp_over_http(self) -> Iterator[str]:
        port = _free_port()
        with subprocess.Popen(
            [*self._fastmcp, "server", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                yield f"http://127.0.0.1:{port}/mcp"  # the host connects again and again until it is there
            finally:
                process.terminate()

    def _run_by_a_runner(self) -> Checks:
        server = {"peer": {"command": self._python, "args": [*self._fastmcp[1:], "server"]}}
        calls = [ToolCall("1", "mcp__peer__add", '{"a": 3}'), ToolCall("2", "mcp__peer__steps", "{}")]
        runner = ToolRunner(ScriptedModel([calls, "It is 4."]), mcp_servers=server)

        async def run() -> Checks:
            try:
                result = await asyncio.wait_for(runner.run("What is 3 + 1?"), LIMIT)
            finally:
                await runner.aclose()
            added, stepped = result.tool_executions
            return {
                "structured result": added.value == {"result": 4},
                "progress and text": "three steps" in stepped.content,
                "answer": result.content == "It is 4.",
            }

        return asyncio.run(run())

    def _mounted(self, url: str, place: Path, page: str, fastmcp_url: str) -> dict[str, Mounted]:
        return {**self._fastmcp_servers(url, fastmcp_url), **self._reference_servers(place, page)}

    def _fastmcp_servers(self, url: str, fastmcp_url: str) -> dict[str, Mounted]:
        ours = {"command": self._python, "args": [*self._fastmcp[1:], "proxy", url]}
        peer = {"command": self._python, "args": [*self._fastmcp[1:], "server"]}
        calls = [
            Call("add", {"a": 3, "b": 4}, "7"),
            Call("add", {"a": "three"}, "invalid", is_error=True),
            Call("picture", {}, "attachments of the kind image"),
            Call("steps", {}, "three steps"),
            Call("fail", {}, "no such order", is_error=True),
        ]
        of_ours = [
            Call("ours_test_simple_text", {}, TEXT),
            Call("ours_test_image_content", {}, "image/png"),
            Call("ours_test_error_handling", {}, "intentionally", is_error=True),
            Call("ours_test_header_argument", {"region": "EU"}, "match the schema"),
        ]
        return {
            "peer": Mounted(FASTMCP, "server, stdio", peer, calls),
            "web": Mounted(FASTMCP, "server, http", {"url": fastmcp_url}, calls),
            "proxy": Mounted(FASTMCP, "proxy of the registry, mounted", ours, of_ours),
        }

    def _reference_servers(self, place: Path, page: str) -> dict[str, Mounted]:
        def node(package: str, argument: str, *calls: Call) -> Mounted:
            script = self._modules / package.rpartition("@")[0] / "dist" / "index.js"
            return Mounted(package, "stdio", {"command": self._node, "args": [str(script), argument]}, calls)

        def python(package: str, arguments: Sequence[str], *calls: Call) -> Mounted:
            module = package.partition("=")[0].replace("-", "_")
            return Mounted(package, "stdio", {"command": self._python, "args": ["-m", module, *arguments]}, calls)

        noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        repository = {"repo_path": str(place)}
        return {
            "everything": node(
                EVERYTHING,
                "stdio",
                Call("echo", {"message": "hello"}, "hello"),
                Call("get-sum", {"a": 3, "b": 4}, "7"),
                Call("get-sum", {"a": "three", "b": 4}, "invalid", is_error=True),
                Call("get-tiny-image", {}, "attachments of the kind image"),
                Call("get-structured-content", {"location": "New York"}, "temperature"),
                Call("trigger-long-running-operation", {"duration": 1, "steps": 2}, "completed"),
                Call("get-resource-links", {"count": 2}, "[resource "),
            ),
            "files": node(
                FILES,
                str(place),
                Call("list_directory", {"path": str(place)}, "a.txt"),
                Call("read_text_file", {"path": str(place / "a.txt")}, "an order"),
                Call("write_file", {"path": str(place / "b.txt"), "content": "more"}, "Successfully"),
                Call("read_text_file", {"path": str(place / "b.txt")}, "more"),
                Call("read_text_file", {"path": "/etc/hostname"}, "denied", is_error=True),
            ),
            "time": python(
                TIME,
                (),
                Call("get_current_time", {"timezone": "Europe/Berlin"}, "Europe/Berlin"),
                Call("convert_time", noon, "21:00"),
                Call("get_current_time", {"timezone": "Mars"}, "Mars", is_error=True),
            ),
            "git": python(
                GIT,
                ("--repository", str(place)),
                Call("git_log", repository, "The first commit"),
                Call("git_status", repository, "b.txt"),
                Call("git_status", {"repo_path": "/"}, "outside", is_error=True),
            ),
            "fetch": python(
                FETCH,
                ("--allow-private-ips",),
                Call("fetch", {"url": f"{page}/order.html"}, "Order 1234"),
                Call("fetch", {"url": f"{page}/none.html"}, "404", is_error=True),
            ),
        }


def _served(mounted: Mapping[str, Mounted], place: Path) -> Scenarios:
    """Mount the servers in one ``patchbay serve``, call their tools over its API, and return the checks by server."""
    config = place.parent / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {name: each.entry for name, each in mounted.items()}}), encoding="utf-8")
    flags = ["--port", "0", "--store", "memory", "--mcp-config", str(config)]
    found: Scenarios = {}
    with listening([sys.executable, "-m", "patchbay", "serve", *flags], name="patchbay serve", timeout=LIMIT) as child:
        _wait_for(child.url, {f"mcp:{name}" for name in mounted})
        for name, each in mounted.items():
            checks = found[name] = {}
            for number, call in enumerate(each.calls, 1):
                body = {"name": f"mcp__{name}__{call.tool}", "arguments": call.arguments}
                result = _ask(f"{child.url}/api/tools/call", body)
                is_right = call.said in json.dumps(result, ensure_ascii=False) and result["is_error"] is call.is_error
                checks[f"{number}. {call.tool}"] = is_right
                if not is_right:
                    print(f"  {name}: {call.tool}: {str(result)[:300]}")
    return found


def _wait_for(url: str, sources: set[str]) -> None:
    """Return when all sources have tools, or after LIMIT."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        roles = _ask(f"{url}/api/tools")["tools_by_role"]
        if sources <= {each["source"] for tools in roles.values() for each in tools}:
            return
        time.sleep(0.2)


def _prepare(folder: Path) -> Path:
    """Make a folder with a file and a commit."""
    place = folder / "place"
    place.mkdir()
    (place / "a.txt").write_text("an order", encoding="utf-8")
    git = ["git", "-c", "user.name=Ann", "-c", "user.email=ann@example.com", "-C", str(place)]
    for arguments in (("init", "-q"), ("add", "a.txt"), ("commit", "-qm", "The first commit")):
        subprocess.run([*git, *arguments], check=True)
    return place


@contextmanager
def _page() -> Iterator[str]:
    """Serve a page on loopback."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "order.html").write_text(
            "<html><body><article><h1>Order 1234</h1><p>It is in Rotterdam.</p></article></body></html>", encoding="utf-8"
        )
        handler = functools.partial(_Handler, directory=folder)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _free_port() -> int:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        return server.server_port


def _run(command: Sequence[str]) -> str:
    """Return what a program prints; its errors are printed where it fails."""
    with tempfile.TemporaryDirectory() as home:  # (of the Inspector's own files)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT, check=False, env={**os.environ, "HOME": home}
        )
    if done.returncode and not done.stdout.strip():
        print(f"  {Path(command[1]).name}: {done.stderr.strip()[-600:]}")
    return done.stdout


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _ask(url: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    data = json.dumps(body).encode() if body is not None else None
    with urlopen(Request(url, data, {"Content-Type": "application/json"}), timeout=LIMIT) as response:
        found: dict[str, Any] = json.load(response)
    return found

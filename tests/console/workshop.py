"""A ``serve`` with tools of every source: functions, a plugin, a callback, a hook, an MCP server, and one whose texts are hostile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field

from console.travel import get_weather
from mcp_client.rig import raw_server
from patchbay.cli.serve_plugins import ServedPlugins
from patchbay.hooks import HookManager, Modify, Respond
from patchbay.mcp.pins import Pins
from patchbay.server.app import create_tools_app
from patchbay.server.governance import Governance, GovernanceSettings
from patchbay.server.settings import ToolsSettings
from patchbay.testing import ScriptedUpstream
from patchbay.types import Attachment
from plugins.host_rig import write_plugin
from support.http_server import ask, serving
from support.served import wait_for

POLICY = """
[[approvals.rules]]
name = "money needs a person"
tools = ["refund"]
outcome = "ask"
"""
PLUGIN = """
@neko_plugin
class Plugin(NekoPluginBase):
    @llm_tool(name="convert_currency", description="Convert an amount at the rate of today.", parameters={
        "type": "object",
        "properties": {"amount": {"type": "number", "minimum": 0}, "to": {"type": "string", "enum": ["EUR", "NOK", "SEK"]}},
        "required": ["amount", "to"]})
    async def convert_currency(self, *, amount: float, to: str):
        return {"amount": round(amount * 11.42, 2), "currency": to}
"""
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000028000000180103000000b24a2d8300000006504c54450c6a5bffffff1d95b8e900000015494441"
    "5478da635805020c10f20c0840c901120700796857a9ae284b6c0000000049454e44ae426082"
)


class Stop(BaseModel):
    """One place on the way."""

    place: str
    nights: Annotated[int, Field(ge=0, le=30)] = 1


class Train(BaseModel):
    """By rail."""

    kind: Literal["train"]
    sleeper: bool = False


class Ferry(BaseModel):
    """By sea."""

    kind: Literal["ferry"]
    cabin: Literal["inside", "outside", "none"]


def plan_trip(
    traveller: Annotated[str, Field(min_length=2, description="Name as in the passport.")],
    stops: Annotated[list[Stop], Field(min_length=1, max_length=8, description="In the order of the way.")],
    by: Train | Ferry,
    budget: Annotated[float | None, Field(ge=0, description="In euros; null for no limit.")] = None,
    notes: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Plan a trip over several stops, and reserve nothing yet."""
    return {
        "traveller": traveller,
        "nights": sum(stop.nights for stop in stops),
        "by": by.kind,
        "stops": [stop.place for stop in stops],
        "budget": budget,
        "notes": notes,
    }


def refund(booking: str, euros: Annotated[int, Field(ge=1, le=500)]) -> str:
    """Pay money back for a booking."""
    return f"{euros} € are on their way for {booking}."


def draw_map(place: str) -> list[Any]:
    """Draw a small map of a place."""
    return [f"A map of {place}", Attachment(PNG, "image/png", "map.png")]


def export_archive(year: int) -> str:
    """Write all bookings of a year to the archive."""
    raise OSError(f"the archive of {year} is on a disk that is not there")


class Holidays:
    """A hook with a tool."""

    TOOL: ClassVar = {
        "type": "function",
        "function": {
            "name": "is_holiday",
            "description": "Whether a day is a public holiday.",
            "parameters": {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]},
        },
    }

    async def before_llm(self, request: Any) -> Any:
        request.tools.append(self.TOOL)
        return Modify(request)

    async def before_tool(self, call: Any) -> Any:
        return Respond("It is.") if call.tool == "is_holiday" else None


@dataclass
class Workshop:
    """The running server. ``release`` lets the calls of ``wait_for_crane`` end; the other events are set when one is started or stopped."""

    port: int
    words: Path
    mcp_pid: int = 0
    release: threading.Event = field(default_factory=threading.Event)
    started: threading.Event = field(default_factory=threading.Event)
    stopped: threading.Event = field(default_factory=threading.Event)
    callback: str = ""

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, **body: Any) -> Any:
        return ask(self.port, "POST", path, body, headers={"content-type": "application/json"}).json

    def get(self, path: str) -> Any:
        return ask(self.port, "GET", path).json

    def call(self, name: str, **arguments: Any) -> Any:
        return self.post("/api/tools/call", name=name, arguments=arguments)

    def register(self, name: str, **fields: Any) -> None:
        """Register a callback tool, which answers with its arguments."""
        assert self.post("/api/tools/register", name=name, callback_url=self.callback, **{"source": "harbour", **fields})["ok"]

    @contextlib.contextmanager
    def registered(self, name: str, description: str, parameters: dict[str, Any], **fields: Any) -> Iterator[None]:
        """Have a callback tool during the block."""
        self.register(name, description=description, parameters=parameters, **fields)
        try:
            yield
        finally:
            self.post("/api/tools/unregister", name=name)

    def chat(self, text: str) -> Any:
        return self.post("/v1/chat/completions", model="qwen3-8b", messages=[{"role": "user", "content": text}])

    def change_mcp(self, description: str) -> None:
        """Let the MCP server say something else of its tool when it has started again."""
        self.words.write_text(description)
        pid = int(self.call("mcp__raw__pid")["content"])
        os.kill(pid, signal.SIGKILL)

    def fill(self) -> None:
        """Make some calls, one of them in a turn."""
        for ship in ("MS Nord", "MS Sol", "MS Kyst") * 4:
            self.call("berth_of", ship=ship)
        for amount in (20, 75, 310):
            self.call("convert_currency", amount=amount, to="NOK")
        self.call("get_weather", place="Bergen", days=2)
        self.call("export_archive", year=2020)
        self.chat("Is the 25th a holiday?")

    def names(self) -> list[str]:
        return [each["name"] for each in self.get("/api/console/tools")["tools"]]


def _answer(body: dict[str, Any]) -> str:
    last = body["messages"][-1]
    if last["role"] == "user" and "holiday" in last["content"]:
        return '<tool_call>\n{"name": "is_holiday", "arguments": {"day": "2026-12-25"}}\n</tool_call>'
    return "Done."


@contextlib.contextmanager
def running_workshop(folder: Path) -> Iterator[Workshop]:
    """Run it, with all tools registered."""
    policy, words = folder / "patchbay.toml", folder / "words"
    policy.write_text(POLICY)
    write_plugin(folder / "plugins" / "bank", PLUGIN)
    plugins = ServedPlugins(str(folder / "plugins"), 0)
    hooks = HookManager()
    hooks.mount("holidays", Holidays())
    workshop = Workshop(0, words)

    async def wait_for_crane(crane: int = 1) -> str:
        """Wait until a crane is free."""
        import asyncio

        workshop.started.set()
        try:
            while not workshop.release.is_set():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            workshop.stopped.set()
            raise
        return f"Crane {crane} is free."

    with contextlib.ExitStack() as stack:
        stack.callback(plugins.close)
        upstream = stack.enter_context(ScriptedUpstream(_answer, model="qwen3-8b"))
        app = create_tools_app(
            ("travel", "harbour"),
            upstream=upstream.url,
            settings=ToolsSettings(lease=0.2, max_failures=1000),
            governance=Governance(GovernanceSettings(config=policy), hooks=hooks),
            mcp_servers=[raw_server("", str(words), allow=("pid", "say"))],
            mcp_pins=Pins(folder / "accepted.json"),
            beside=plugins.run,
        )
        for function in (plan_trip, refund, draw_map, export_archive, get_weather, wait_for_crane):
            app.managers["travel"].register_tool(function)
        workshop.port = stack.enter_context(serving(app))
        workshop.callback = stack.enter_context(_callback())
        workshop.register(
            "berth_of",
            description="The berth of a ship, and when it leaves.",
            parameters={"type": "object", "properties": {"ship": {"type": "string"}}, "required": ["ship"]},
            annotations={"read_only": True},
        )
        wait_for(lambda: {"convert_currency", "mcp__raw__say"} <= {*workshop.names()})
        try:
            yield workshop
        finally:
            workshop.release.set()


@contextlib.contextmanager
def _callback() -> Iterator[str]:
    """Answer calls with their arguments; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer = json.dumps({"output": body["arguments"], "is_error": False}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/tool_invoke"
    finally:
        server.shutdown()
        server.server_close()

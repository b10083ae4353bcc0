"""Plays the dialogues in ``tables/``: a whole session with a scripted server, without sockets, in time that jumps.

A table has cases, each with a line ``## name [providers]`` and these lines:

    with {...}    what the session has: "limits" (RealtimeLimits), "tools", "hook", "observed", "settings", "accepts"
    ! what ...    the program or the clock: text, audio, respond, interrupt, tools, finish (a tool), wait (seconds), close
    < what ...    the server: a frame in short form or JSON, "kill", "refuse" (the next connections)
    > frame       a frame that the session sends, in short form
    = event       an event of the session
    ~ event       an event for observers

``python -m realtime.dialogues.player`` (in ``tests``) writes the last three again: review the difference. All but ``with``, ``!``
and ``<`` is recorded, after each of these, when nothing moves any more.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from executor.virtual_time import jump_run
from patchbay.errors import ToolSyncError, UpstreamError
from patchbay.hooks import AbortTurn, Event, HardAbort, HookManager
from patchbay.realtime import RealtimeEvent, RealtimeLimits, RealtimeSession, RealtimeSettings
from patchbay.realtime.connection import WebSocketConnection
from patchbay.tools import ToolContext, ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from patchbay.tools.output import ToolOutput

TABLES = Path(__file__).with_name("tables")
SETTLE = 0.001
"""Seconds of the jumping clock in which all that is ready happens."""

GEMINI = frozenset({"says", "over", "cut", "calls", "withdraw", "goaway", "heard"})


@dataclass
class Case:
    """A dialogue; ``lines`` are those of the table."""

    table: str
    name: str
    providers: list[str]
    lines: list[str] = field(default_factory=list)


def cases() -> Iterator[Case]:
    """Yield the cases of all tables."""
    return cases_in(TABLES)


def cases_in(tables: Path) -> Iterator[Case]:
    """Yield the cases of the tables in a directory."""
    for path in sorted(tables.glob("*.txt")):
        for text in path.read_text(encoding="utf-8").split("## ")[1:]:
            title, *lines = text.splitlines()
            name, _, providers = title.rstrip("]").rpartition(" [")
            yield Case(path.stem, name, providers.split(), [line for line in lines if line])


def played(case: Case, provider: str) -> list[str]:
    """Play a case; return its lines with what has come of them."""
    with patch.object(random, "uniform", lambda _least, most: most):
        return jump_run(Player(case, provider).play())


class ScriptedConnection:
    """A connection in memory. ``sent`` are frames that were not shown yet."""

    def __init__(self, player: Player) -> None:
        self.sent: list[str] = []
        self.is_accepted = False
        self.reason = ""
        self.closed_by_server = False
        self.bytes_received = 0
        self._player = player
        self._frames: deque[Any] = deque()
        self._changed = asyncio.Event()
        self._ended = False

    def send(self, frames: Sequence[Mapping[str, Any]]) -> None:
        for frame in frames:
            if not self._ended:
                self.sent.append(short_frame(frame))
                self._player.accept(self, frame)

    async def wait_for_space(self) -> None:
        await asyncio.sleep(0)

    def put(self, frame: Any) -> None:
        self._frames.append(frame)
        self._changed.set()

    async def receive(self) -> Any:
        while not self._frames:
            if self._ended:
                raise EOFError(self.reason)
            self._changed.clear()
            await self._changed.wait()
        return self._frames.popleft()

    def abort(self, reason: str) -> None:
        self._end(reason)

    def finish_sending(self, reason: str) -> None:
        self._end(reason)

    async def close(self) -> None:
        self._end("closed by us")
        await asyncio.sleep(0)

    def kill(self, reason: str, *, by_server: bool = False) -> None:
        self.closed_by_server = by_server
        self._end(reason)

    def _end(self, reason: str) -> None:
        if not self._ended:
            self._ended, self.reason = True, reason
        self._changed.set()


class Gate:
    """A tool that runs until it may end."""

    def __init__(self, result: Any) -> None:
        self.may_end = asyncio.Event()
        self._result = result

    async def __call__(self, _arguments: object) -> Any:
        await self.may_end.wait()
        return self._result


class StubbornGate(Gate):
    """A tool that does not end when it is cancelled, until it may."""

    async def __call__(self, arguments: object) -> Any:
        try:
            return await super().__call__(arguments)
        finally:
            await self.may_end.wait()


def make_tool(name: str, gates: dict[str, Gate]) -> Any:
    """Return the tool of a name; one that runs until a test lets it end is in ``gates``."""
    if name == "progress":
        return progress
    if name not in ("slow", "slow2", "show", "stubborn"):
        return ToolDefinition(name, "d", handler=_at_once)
    output = ToolOutput(for_llm="shown", for_user="Look", response_handled=True)
    kind = StubbornGate if name == "stubborn" else Gate
    gate = gates[name] = kind(output if name == "show" else "forty-two")
    return ToolDefinition(name, "d", handler=gate)


class Player:
    """Plays one case."""

    def __init__(self, case: Case, provider: str) -> None:
        self.case = case
        self.provider = provider
        self.connections: list[ScriptedConnection] = []
        self.gates: dict[str, Gate] = {}
        self.lines: list[str] = []
        self.events: deque[str] = deque()
        self._refusals = 0
        self._observed: deque[str] = deque()
        self._tasks: list[asyncio.Task[Any]] = []
        self._options: dict[str, Any] = {}

    async def play(self) -> list[str]:
        inputs = [line for line in self.case.lines if line[0] not in ">=~"]
        if inputs[0].startswith("with "):
            self._options = json.loads(inputs[0].removeprefix("with "))
            self.lines.append(inputs.pop(0))
        session = self._session()
        with patch.object(WebSocketConnection, "open", self._open):
            reader = asyncio.ensure_future(self._read(session))
            connecting = asyncio.ensure_future(session.connect())
            await self._settle()
            for line in inputs:
                self.lines.append(line)
                await self._step(session, line)
                await self._settle()
            await session.close()
            await asyncio.gather(connecting, *self._tasks, return_exceptions=True)
            await reader
        if self._options.get("end"):
            self._show()
        return self.lines

    def _session(self) -> RealtimeSession:
        limits = RealtimeLimits(**{"flood_calls": 1000, "slow_after": None, **self._options.get("limits", {})})
        settings = {"output": "text", **self._options.get("settings", {})}
        made = RealtimeSettings(model=f"{self.provider}/m", api_key="k", limits=limits, **settings)
        hooks = HookManager() if self._options.get("observed") or self._options.get("hook") else None
        if hooks is not None and self._options.get("observed"):
            hooks.mount("observer", self)
        if hooks is not None and self._options.get("hook"):
            hooks.mount("aborts", Aborts(self._options["hook"]))
        self._hooks = hooks
        tools = [make_tool(name, self.gates) for name in self._options.get("tools", "").split()]
        return RealtimeSession(made, tools=tools, hooks=hooks)

    async def _open(self, *_: object, **__: object) -> ScriptedConnection:
        if self._refusals:
            self._refusals -= 1
            raise UpstreamError("The model's server refused the connection: HTTP 503", upstream_status=503)
        connection = ScriptedConnection(self)
        self.connections.append(connection)
        if self.provider != "gemini":
            connection.put({"type": "session.created", "session": {}})
        return connection

    def accept(self, connection: ScriptedConnection, frame: Mapping[str, Any]) -> None:
        """Accept the configuration of a connection, unless the case does that: of those after the first ``accepts``."""
        is_setup = "setup" in frame or frame.get("type") == "session.update"
        if is_setup and not connection.is_accepted and len(self.connections) <= self._options.get("accepts", 1000):
            connection.is_accepted = True
            connection.put({"setupComplete": {}} if "setup" in frame else {"type": "session.updated", "session": {}})

    async def on_runtime_event(self, event: Event) -> None:
        self._observed.append(short_observed(event))

    async def _read(self, session: RealtimeSession) -> None:
        await asyncio.sleep(0)
        async for event in session.events():
            self.events.append(short_event(event))

    async def _settle(self) -> None:
        await asyncio.sleep(SETTLE)
        if self._hooks is not None:
            await self._hooks.events.flush()
        self._show()

    def _show(self) -> None:
        for connection in self.connections:
            self.lines += counted(f"> {frame}" for frame in connection.sent)
            connection.sent.clear()
        self.lines += counted(f"= {each}" for each in self.events)
        self.lines += counted(f"~ {each}" for each in self._observed)
        self.events.clear()
        self._observed.clear()

    async def _step(self, session: RealtimeSession, line: str) -> None:
        side, what, *arguments = shlex.split(line) if not line.startswith("< {") else ["<", line.removeprefix("< ")]
        if side == "<":
            self._serve(what, arguments)
        elif what == "text":
            await session.send_text(arguments[0])
        elif what == "audio":
            await session.send_audio(bytes(320))
        elif what == "tools":
            self._tasks.append(asyncio.ensure_future(self._use_tools(session, arguments)))
        elif what == "finish":
            for name in arguments:
                self.gates[name].may_end.set()
        elif what == "wait":
            await asyncio.sleep(float(arguments[0]))
        elif what == "idle?":
            self.lines.append(f"= {session.idle}")
        else:
            await {"respond": session.respond, "interrupt": session.interrupt, "close": session.close}[what]()

    async def _use_tools(self, session: RealtimeSession, names: Sequence[str]) -> None:
        manager = LLMSessionManager("ann")
        for name in names:
            manager.register_tool(make_tool(name, self.gates))
        try:
            await session.use_tools(manager.snapshot())
        except ToolSyncError as error:
            self.events.append(f"tools failed: {error}")
        else:
            self.events.append("tools confirmed")

    def _serve(self, what: str, arguments: Sequence[str]) -> None:
        connection = self.connections[-1]
        if what == "kill":
            connection.kill(*(arguments or ["the connection broke"]), by_server=bool(arguments))
        elif what == "refuse":
            self._refusals = int(arguments[0])
        else:
            for frame in [json.loads(what)] if what.startswith("{") else long_frames(what, arguments):
                connection.put(frame)


class Aborts:
    """A hook that ends the turn after a second."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    async def before_tool(self, _request: Any) -> Any:
        await asyncio.sleep(1)
        return HardAbort("enough") if self._kind == "hard" else AbortTurn("enough")


async def _at_once(_arguments: object) -> str:
    return "at once"


async def progress(context: ToolContext) -> str:
    """Count."""
    context.progress("half of it", fraction=0.5)
    return "done"


def long_frames(what: str, arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Return the frames for a short form."""
    if what in GEMINI:
        return [_gemini_frame(what, arguments)]
    if what == "answer":  # a whole response
        return [
            frame for each in ("created", "text", "done") for frame in long_frames(each, arguments[: 2 if each == "text" else 1])
        ]
    response = arguments[0] if arguments else ""
    if what == "created":
        return [{"type": "response.created", "response": {"id": response, "status": "in_progress"}}]
    if what == "text":
        return [{"type": "response.output_text.delta", "response_id": response, "item_id": "m", "delta": arguments[1]}]
    if what == "done":
        status, *names = arguments[1:] or ["completed"]
        return [
            {"type": "response.done", "response": {"id": response, "status": status, "output": [_call(name) for name in names]}}
        ]
    if what == "call":
        call = {**_call(arguments[1]), "item_id": f"i_{arguments[1]}", "response_id": response}
        return [{**call, "type": "response.function_call_arguments.done"}]
    if what == "begun":
        return [
            {
                "type": "response.output_item.added",
                "response_id": response,
                "output_index": 0,
                "item": {**_call(arguments[1]), "arguments": ""},
            }
        ]
    if what == "speech":
        return [{"type": "input_audio_buffer.speech_started"}]
    if what == "silence":
        return [{"type": "input_audio_buffer.speech_stopped"}]
    if what == "transcript":
        return [{"type": "conversation.item.input_audio_transcription.completed", "item_id": "i", "transcript": response}]
    if what == "updated":
        return [{"type": "session.updated", "session": {"tools": [{"type": "function", "name": name} for name in arguments]}}]
    if what == "accepted":
        return [{"type": "session.updated"}]
    assert what == "error", what
    names = ("message", "code", "param", "event_id")
    return [{"type": "error", "error": dict(zip(names, arguments, strict=False))}]


def _call(name: str) -> dict[str, Any]:
    """Return a call of a tool, whose name is also the call's id; ``name=id`` for another."""
    name, _, call_id = name.partition("=")
    call_id = call_id or name
    return {
        "id": f"i_{call_id}",
        "type": "function_call",
        "status": "completed",
        "name": name,
        "call_id": call_id,
        "arguments": "{}",
    }


def _gemini_frame(what: str, arguments: Sequence[str]) -> dict[str, Any]:
    if what == "says":
        return {"serverContent": {"modelTurn": {"parts": [{"text": arguments[0]}]}}}
    if what == "heard":
        return {"serverContent": {"inputTranscription": {"text": arguments[0]}}}
    if what == "calls":
        return {"toolCall": {"functionCalls": [{"id": name, "name": name, "args": {}} for name in arguments]}}
    if what == "withdraw":
        return {"toolCallCancellation": {"ids": list(arguments)}}
    if what == "goaway":
        return {"goAway": {"timeLeft": f"{arguments[0]}s"}}
    return {"serverContent": {"turnComplete" if what == "over" else "interrupted": True}}


def short_frame(frame: Mapping[str, Any]) -> str:
    """Return a frame of the session in short form."""
    kind = frame.get("type") or next(iter(frame))
    if kind == "session.update":
        return f"session.update {_names(frame['session'].get('tools', ()))}"
    if kind == "conversation.item.create":
        item = frame["item"]
        if item["type"] == "message":
            return f"{item['role']} {_json(item['content'][0]['text'])}"
        return f"result {item.get('call_id', '')} {_json(item['output'])}"
    if kind == "setup":
        tools = frame["setup"].get("tools", [{"functionDeclarations": ()}])
        return f"setup {_names(tools[0]['functionDeclarations'])}"
    if kind == "clientContent":
        turns = [f"{each['role']} {_json(each['parts'][0]['text'])}" for each in frame[kind].get("turns", ())]
        return f"turns {', '.join(turns)}{' complete' if frame[kind]['turnComplete'] else ''}"
    if kind == "toolResponse":
        return "results " + ", ".join(f"{each['id']} {_json(each['response'])}" for each in frame[kind]["functionResponses"])
    if kind == "realtimeInput":
        return f"input {_json(frame[kind].get('text', next(iter(frame[kind]))))}"
    return f"{kind} {frame['response_id']}" if "response_id" in frame else kind


def _names(tools: Sequence[Mapping[str, Any]]) -> str:
    return "[" + " ".join(each.get("name") or each["function"]["name"] for each in tools) + "]"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def short_event(event: RealtimeEvent) -> str:
    """Return an event in short form."""
    kind = event.type
    if kind == "text":
        return f"text {_json(event.delta)}"
    if kind == "transcript":
        return f"transcript {event.role} {_json(event.text)}{' whole' if event.whole else ''}"
    if kind == "tool_call":
        return f"tool_call {event.tool_call.name} {event.iteration}"
    if kind == "tool_result":
        execution = event.execution
        return f"tool_result {execution.call.name} {event.iteration} {execution.result.code or _json(execution.content)}"
    if kind == "tool_progress":
        return f"tool_progress {event.tool_call.name} {event.progress.message}"
    if kind == "user_output":
        return f"user_output {_json(event.text)}"
    if kind == "response_end":
        return f"response_end {event.status}"
    if kind == "connection":
        return f"connection {event.state} {event.reason}{' planned' if event.planned else ''}".rstrip()
    if kind == "error":
        return f"error {event.error.code}: {event.error}"
    if kind == "dropped":
        return f"dropped {event.tool or event.count}"
    return kind


def counted(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines, with a number in place of repetitions."""
    for line, same in itertools.groupby(lines):
        count = len(list(same))
        yield line if count == 1 else f"{line} ({count} times)"


def short_observed(event: Event) -> str:
    """Return an event for observers in short form."""
    kind, about = event.kind.removeprefix("agent."), event.payload
    if kind == "turn.start":
        return f"turn.start {_json(about['UserMessage'])}"
    if kind == "turn.end":
        tools = " ".join(f"{each['name']}={each['success']}" for each in about["ToolExecutions"])
        words = (_json(about["UserMessage"]), about["Status"], _json(about["FinalContent"]), about["Iterations"], tools)
        return f"turn.end {' '.join(map(str, words))}".rstrip()
    if kind == "llm.request":
        return f"llm.request {about['MessagesCount']} messages {about['ToolsCount']} tools"
    if kind == "llm.response":
        return f"llm.response {about['ContentLen']} characters {about['ToolCalls']} calls"
    return f"{kind} {about.get('Message') or about.get('Tool') or about.get('Text') or ''}".rstrip()


def write_tables(all_cases: Iterator[Case], tables: Path, play: Callable[[Case, str], list[str]]) -> None:
    """Write tables again."""
    texts: dict[str, list[str]] = {}
    for case in list(all_cases):
        lines = [f"## {case.name} [{' '.join(case.providers)}]", *play(case, case.providers[0]), ""]
        texts.setdefault(case.table, []).extend(lines)
    for table, lines in texts.items():
        (tables / f"{table}.txt").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    write_tables(cases(), TABLES, played)

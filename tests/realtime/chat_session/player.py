"""Plays the dialogues in ``tables/``: a chat session with a scripted model, in time that jumps.

As ``dialogues.player``, with these differences: ``<`` is the model (says, answer, calls, fail, bug), ``>`` a request to it with its
messages and tools, and ``! messages`` shows the history. ``python -m realtime.chat_session.player`` (in ``tests``) writes the lines
``>``, ``=``, ``~`` and ``#`` again.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from executor.virtual_time import jump_run
from patchbay.errors import UpstreamError
from patchbay.hooks import Event, HookManager
from patchbay.models import ModelReply
from patchbay.models.chat_model import ChatRequest, TextDelta
from patchbay.realtime import ChatSession, RealtimeLimits
from patchbay.tools.manager import LLMSessionManager
from patchbay.types import Reply, ToolCall
from realtime.dialogues.player import SETTLE, Aborts, Case, cases_in, make_tool, short_event, short_observed, write_tables

from .playing import assert_answered_once

TABLES = Path(__file__).with_name("tables")


def played(case: Case, _provider: str = "chat") -> list[str]:
    """Play a case; return its lines with what has come of them."""
    return jump_run(Player(case).play())


class Player:
    """Plays one case; it is the chat's model, and an observer."""

    name = "m"

    def __init__(self, case: Case) -> None:
        self.case = case
        self.lines: list[str] = []
        self.gates: dict[str, Any] = {}
        self._shown: list[str] = []
        self._steps: asyncio.Queue[list[str]] = asyncio.Queue()
        self._hooks: HookManager | None = None

    async def respond(self, request: ChatRequest) -> AsyncIterator[Any]:
        """Answer as the next steps say."""
        assert_answered_once(request.messages)
        tools = " ".join(each.name for each in request.tools)
        parameters = {name: value for name, value in request.parameters.items() if name != "model"}
        self._shown.append(f"> {short_messages(request.messages)} [{tools}]{f' {parameters}' if parameters else ''}")
        while True:
            what, *arguments = await self._steps.get()
            if what == "says":
                yield TextDelta(arguments[0])
                continue
            if what == "fail":
                raise UpstreamError("out of order")
            if what == "bug":
                raise ZeroDivisionError("oh")
            if what == "answer":
                yield TextDelta(arguments[0])
                yield ModelReply(Reply(arguments[0]))
            else:
                yield ModelReply(Reply(None, tool_calls=tuple(_call(each) for each in arguments)))
            return

    async def on_runtime_event(self, event: Event) -> None:
        self._shown.append(f"~ {short_observed(event)}")

    async def play(self) -> list[str]:
        inputs = [line for line in self.case.lines if line[0] not in ">=~#"]
        options: dict[str, Any] = {}
        if inputs[0].startswith("with "):
            self.lines.append(inputs[0])
            options = json.loads(inputs.pop(0).removeprefix("with "))
        session = self._session(options)
        reader = asyncio.ensure_future(self._read(session))
        async with session:
            await self._settle()
            for line in inputs:
                self.lines.append(line)
                await self._step(session, line)
                await self._settle()
        await reader
        if options.get("end"):
            self._show()
        return self.lines

    def _session(self, options: Mapping[str, Any]) -> ChatSession:
        if options.get("observed") or options.get("hook"):
            self._hooks = HookManager()
            if options.get("observed"):
                self._hooks.mount("observer", self)
            if options.get("hook"):
                self._hooks.mount("aborts", Aborts(options["hook"]))
        tools = [make_tool(name, self.gates) for name in options.get("tools", "").split()]
        return ChatSession(
            self,
            tools=tools,
            hooks=self._hooks,
            instructions=options.get("instructions", ""),
            parameters=options.get("parameters"),
            limits=RealtimeLimits(**options.get("limits", {})),
        )

    async def _read(self, session: ChatSession) -> None:
        await asyncio.sleep(0)
        async for event in session.events():
            self._shown.append(f"= {short_event(event)}")

    async def _settle(self) -> None:
        await asyncio.sleep(SETTLE)
        if self._hooks is not None:
            await self._hooks.events.flush()
        self._show()

    def _show(self) -> None:
        self.lines += self._shown
        self._shown.clear()

    async def _step(self, session: ChatSession, line: str) -> None:
        side, what, *arguments = shlex.split(line)
        if side == "<":
            self._steps.put_nowait([what, *arguments])
        elif what == "text":
            await session.send_text(arguments[0])
        elif what == "tools":
            manager = LLMSessionManager("ann")
            for name in arguments:
                manager.register_tool(make_tool(name, self.gates))
            await session.use_tools(manager.snapshot())
        elif what == "finish":
            for name in arguments:
                self.gates[name].may_end.set()
        elif what == "wait":
            await asyncio.sleep(float(arguments[0]))
        elif what == "messages":
            assert_answered_once(session.messages)
            self.lines.append(f"# {short_messages(session.messages)}")
        else:
            await {"respond": session.respond, "interrupt": session.interrupt}[what]()


def _call(name: str) -> ToolCall:
    """Return a call of a tool, whose name is also the call's id; ``name=id`` for another."""
    name, _, call_id = name.partition("=")
    return ToolCall(call_id or name, name, "{}")


def short_messages(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return messages in short form."""
    return ", ".join(map(_short_message, messages)) or "nothing"


def _short_message(message: Mapping[str, Any]) -> str:
    calls = " ".join(each["function"]["name"] for each in message.get("tool_calls") or ())
    content = message.get("content")
    text = f" {json.dumps(content[:60], ensure_ascii=False)}" if content else ""
    return f"{message['role']}{text}{f' calls {calls}' if calls else ''}"


if __name__ == "__main__":
    write_tables(cases_in(TABLES), TABLES, played)

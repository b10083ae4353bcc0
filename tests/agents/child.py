"""A process with a session in a database, to be killed: ``child.py URL SESSION COMMAND ...``.

- ``begin``: begin the session, and say "begun".
- ``hold``: take the session's lock, say "held", and keep it until standard input ends.
- ``write NAME FIRST LAST``: append these numbers; each is said when its append has returned.
- ``keep TEXT ...``: keep these long results, and say their ids.
- ``halt before`` or ``halt after``: run a turn with a long result; say so when it is about to be recorded or has been, and wait.
- ``turns COUNT``: run so many turns.
- ``step``: run a turn, and wait at each moment for a line to continue. Each moment is said, such as "before calls" (the event is about
  to be recorded), "after calls" (it is), "tool a", "model 1"; the line that is read lets that step continue.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from patchbay import ToolCall
from patchbay.agents import Content, DatabaseSessionService, Event, EventActions, LlmAgent, Part, Runner, Session
from patchbay.models.chat_model import ChatRequest, ModelReply
from patchbay.testing import ScriptedModel
from patchbay.types import Reply

TOOLS = ("a", "b", "c")
TEXT = "".join(f"line {number}\n" for number in range(10_000))


def say(line: object) -> None:
    print(line, flush=True)  # noqa: T201


async def existing(service: DatabaseSessionService, session_id: str) -> Session:
    session = await service.get_session("app", "u", session_id)
    assert session is not None
    return session


async def begin(service: DatabaseSessionService, session_id: str) -> None:
    await service.create_session("app", "u", session_id=session_id)
    say("begun")


async def hold(service: DatabaseSessionService, session_id: str) -> None:
    async with service.lock("app", "u", session_id):
        say("held")
        await asyncio.to_thread(sys.stdin.read)


async def write(service: DatabaseSessionService, session_id: str, name: str, first: str, last: str) -> None:
    session = await existing(service, session_id)
    for number in range(int(first), int(last) + 1):
        await service.append_event(session, numbered(session_id, name, number))
        say(number)


def numbered(session_id: str, name: str, number: int) -> Event:
    """An event that changes the session's rows and shared ones, so that a torn transaction would show in either."""
    actions = EventActions({name: number, f"user:{session_id}:{name}": number})
    return Event(id=f"{name}{number}", author=name, content=Content("user", [Part(str(number))]), actions=actions)


async def keep(service: DatabaseSessionService, session_id: str, *texts: str) -> None:
    session = await existing(service, session_id)
    for text in texts:
        say(await service.results(session).keep(text))


async def read_log() -> str:
    return TEXT


class HaltingSessionService(DatabaseSessionService):
    """Stops for good at the moment."""

    moment = ""

    async def append_event(self, session: Session, event: Event) -> Event:
        if not event.get_function_responses():
            return await super().append_event(session, event)
        if self.moment == "after":
            await super().append_event(session, event)
        say(self.moment)
        await asyncio.Event().wait()
        return event


async def halt(service: HaltingSessionService, session_id: str, moment: str) -> None:
    service.moment = moment
    await play(LlmAgent(name="a", model=ScriptedModel([ToolCall("c1", "read_log")]), tools=[read_log]), service, session_id)


async def play(agent: LlmAgent, service: DatabaseSessionService, session_id: str, message: str = "hi") -> None:
    async for _ in Runner(agent, "app", service).run("u", session_id, message):
        pass


class Breakpoints:
    """Waits at named moments for a line of standard input."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}

    async def listen(self) -> None:
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            self._waiting.pop(line).set()

    async def come_to(self, moment: str) -> None:
        gone_on = self._waiting[moment] = asyncio.Event()
        say(moment)
        await gone_on.wait()


class SteppedSessionService(DatabaseSessionService):
    moments: Breakpoints

    async def append_event(self, session: Session, event: Event) -> Event:
        what = kind(event)
        await self.moments.come_to(f"before {what}")
        kept = await super().append_event(session, event)
        await self.moments.come_to(f"after {what}")
        return kept


class Model:
    def __init__(self, moments: Breakpoints | None) -> None:
        self.moments = moments

    async def respond(self, request: ChatRequest) -> AsyncIterator[Any]:
        is_first = request.messages[-1]["role"] == "user"
        if self.moments is not None:
            await self.moments.come_to(f"model {1 if is_first else 2}")
        if not is_first:
            yield ModelReply(Reply("done"), "stop")
            return
        yield ModelReply(Reply(None, tool_calls=tuple(ToolCall(name, name, "{}") for name in TOOLS)), "tool_calls")


def kind(event: Event) -> str:
    """Return the kind of an event: "user", "calls", "answer", "result b"."""
    if event.author == "user":
        return "user"
    if event.get_function_calls():
        return "calls"
    if responses := event.get_function_responses():
        return f"result {' '.join(response.name for response in responses)}"
    return "answer"


def tool(name: str, moments: Breakpoints | None) -> Any:
    async def work(tool_context: Any) -> str:
        tool_context.state[f"done_{name}"] = True
        if moments is not None:
            await moments.come_to(f"tool {name}")
        else:
            await asyncio.sleep(0)
        return f"result of {name}"

    work.__name__ = name
    return work


async def step(service: SteppedSessionService, session_id: str) -> None:
    moments = service.moments = Breakpoints()
    listening = asyncio.create_task(moments.listen())
    tools = [tool(name, moments) for name in TOOLS]
    await play(LlmAgent(name="agent", model=Model(moments), tools=tools, output_key="answer"), service, session_id)
    await moments.come_to("end")
    await listening


async def turns(service: DatabaseSessionService, session_id: str, count: str) -> None:
    agent = LlmAgent(name="agent", model=Model(None), tools=[tool(name, None) for name in TOOLS])
    for number in range(int(count)):
        await play(agent, service, session_id, str(number))


SERVICES = {"step": SteppedSessionService, "halt": HaltingSessionService}


async def main(url: str, session_id: str, command: str, *arguments: str) -> None:
    async with SERVICES.get(command, DatabaseSessionService)(url) as service:
        await globals()[command](service, session_id, *arguments)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

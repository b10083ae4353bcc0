"""A process that keeps long results in a session: ``halting.py URL SESSION`` with a moment, or with texts.

With ``before`` or ``after`` it runs a turn with a tool whose result is long, says so when that result is about to be recorded or has
been, and waits there to be killed. With anything else it keeps each of these texts, and says the ids it got.
"""

from __future__ import annotations

import asyncio
import sys

from patchbay import ToolCall
from patchbay.agents import DatabaseSessionService, Event, LlmAgent, Runner, Session
from patchbay.testing import ScriptedModel

TEXT = "".join(f"line {number}\n" for number in range(10_000))


class HaltingSessionService(DatabaseSessionService):
    """Stops for good at the moment."""

    moment = ""

    async def append_event(self, session: Session, event: Event) -> Event:
        if not event.get_function_responses():
            return await super().append_event(session, event)
        if self.moment == "after":
            await super().append_event(session, event)
        print(self.moment, flush=True)  # noqa: T201
        await asyncio.Event().wait()
        return event


async def read_log() -> str:
    return TEXT


async def halt_at(url: str, session_id: str, moment: str) -> None:
    async with HaltingSessionService(url) as service:
        service.moment = moment
        agent = LlmAgent(name="a", model=ScriptedModel([ToolCall("c1", "read_log")]), tools=[read_log])
        async for _ in Runner(agent, "app", service).run("u", session_id, "hi"):
            pass


async def append_texts(url: str, session_id: str, texts: list[str]) -> None:
    async with DatabaseSessionService(url) as service:
        session = await service.get_session("app", "u", session_id)
        assert session is not None
        for text in texts:
            print(await service.results(session).keep(text), flush=True)  # noqa: T201


if __name__ == "__main__":
    url, session_id, *texts = sys.argv[1:]
    asyncio.run(halt_at(url, session_id, texts[0]) if texts[0] in ("before", "after") else append_texts(url, session_id, texts))

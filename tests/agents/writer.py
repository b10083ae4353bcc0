"""A process that appends to a session until it is killed, and says so: ``writer.py URL SESSION NAME FIRST LAST``.

Each number is written when its append has returned. With the command ``hold`` in place of NAME it takes the session's lock, says
"held", and keeps it until its standard input ends; with ``begin`` it begins the session, and says "begun".
"""

from __future__ import annotations

import asyncio
import sys

from patchbay.agents import Content, DatabaseSessionService, Event, EventActions, Part


async def write(url: str, session_id: str, name: str, first: int, last: int) -> None:
    async with DatabaseSessionService(url) as service:
        session = await service.get_session("app", "user", session_id)
        assert session is not None
        for number in range(first, last + 1):
            event = Event(
                id=f"{name}{number}",
                author=name,
                content=Content("user", [Part(str(number))]),
                # Rows of the session and shared ones, so that a torn transaction would show in either.
                actions=EventActions({name: number, f"user:{session_id}:{name}": number}),
            )
            await service.append_event(session, event)
            print(number, flush=True)  # noqa: T201


async def hold(url: str, session_id: str) -> None:
    async with DatabaseSessionService(url) as service, service.lock("app", "user", session_id):
        print("held", flush=True)  # noqa: T201
        await asyncio.to_thread(sys.stdin.read)


async def begin(url: str, session_id: str) -> None:
    async with DatabaseSessionService(url) as service:
        await service.create_session("app", "user", session_id=session_id)
        print("begun", flush=True)  # noqa: T201


if __name__ == "__main__":
    url, session_id, name, *numbers = sys.argv[1:]
    if name == "hold":
        asyncio.run(hold(url, session_id))
    elif name == "begin":
        asyncio.run(begin(url, session_id))
    else:
        asyncio.run(write(url, session_id, name, *map(int, numbers)))

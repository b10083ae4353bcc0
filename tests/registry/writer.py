"""A process that changes registrations until it is killed, and says so.

``writer.py URL SOURCE FIRST LAST`` carries out the steps from FIRST to LAST on what is stored, and writes the number of each when it
has been saved. With ``zygote`` in the place of SOURCE it forks such a process for each line ``FIRST ACKNOWLEDGED SPINS`` of its
standard input, kills it SPINS turns of a loop after it has said so many numbers, and writes the last number that it said: so a
round costs a fork, and not a start of Python.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from patchbay.registrations import RegistrationStore
from patchbay.tools.registry import Change, Registration, ToolRegistry

ROLES = ("ann", "ben", "eve")


def step(registry: ToolRegistry, number: int, source: str = "s") -> Change:
    """One change. Each but the first of four touches several rows: one that is half there is like no other state."""

    def tool(name: str, role: str | None = None) -> Registration:
        return Registration(
            name, str(number), source=source, role=role, callback_url="http://127.0.0.1:9/", secret=f"secret {number}"
        )

    kind, name = (number - 1) % 4, f"{source}{(number - 1) // 4 % 3}"
    if kind == 0:
        return registry.register(tool(name))
    if kind == 1:
        return registry.register(tool(name, ROLES[number % 3]))  # and is taken from the one for all
    if kind == 2:
        return registry.clear(source, ROLES[(number + 1) % 3])
    return registry.register(tool(name))  # and takes the places of those for roles


async def work(url: str, source: str, first: int, last: int) -> None:
    registry = ToolRegistry(ROLES)
    async with RegistrationStore(url) as store:
        registry.restore(await store.load())
        for number in range(first, last + 1):
            await store.save(registry, step(registry, number, source))
            os.write(1, f"{number}\n".encode())


def killed_after(url: str, first: int, acknowledged: int, spins: int) -> int:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        os.close(reader)
        try:
            asyncio.run(work(url, "s", first, first + 10_000))
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as lines:
        text = first - 1
        for _ in range(acknowledged):
            text = int(lines.readline())
        for _ in range(spins):
            pass  # its next change is at an unknown stage
        os.kill(child, signal.SIGKILL)
        rest = lines.read().split(b"\n")[:-1]
    os.waitpid(child, 0)
    return int(rest[-1]) if rest else text


if __name__ == "__main__":
    url, source, *numbers = sys.argv[1:]
    if source == "zygote":
        for line in sys.stdin:
            os.write(1, f"{killed_after(url, *map(int, line.split()))}\n".encode())
    else:
        asyncio.run(work(url, source, *map(int, numbers)))

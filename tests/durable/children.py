"""Workers as processes, for the tests of durable runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from patchbay.agents import Runner
from patchbay.agents.durable import DurableRuns
from support.processes import Process

from . import clerk

ROOT = Path(__file__).parents[2]


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment without settings of Patchbay, and with ``more``."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("PATCHBAY_")}, **more}


class Worker:
    """A ``patchbay worker`` with the agent of ``clerk``."""

    def __init__(self, url: str, environment: dict[str, str], *flags: str) -> None:
        command = [sys.executable, "-m", "patchbay", "worker", "tests.durable.clerk:agent", "--database", url, "--json", *flags]
        self.said: dict[str, dict[str, str]] = {}
        self.process = Process(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)

    def wait_for(self, event: str) -> dict[str, str]:
        """Return the first line of this event, as soon as there is one; {} at the end of the output."""
        if event in self.said:
            return self.said[event]
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            self.said.setdefault(said["event"], said)
            if said["event"] == event:
                return said  # type: ignore[no-any-return]
        return {}

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def workers(url: str, environment: dict[str, str], count: int, *flags: str) -> Iterator[list[Worker]]:
    """Run so many workers, which may be replaced in the list."""
    running = [Worker(url, environment, *flags) for _ in range(count)]
    try:
        yield running
    finally:
        for each in running:
            each.kill()


@asynccontextmanager
async def client(url: str) -> AsyncIterator[DurableRuns]:
    """The durable runs of a process that only adds them."""
    runs = DurableRuns(url, carries_out=False)
    runs.add(Runner(clerk.agent, "clerk", runs.sessions))
    async with runs:
        yield runs

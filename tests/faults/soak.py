"""Many streaming chats with tools and live sessions on three servers, with faults: nothing is lost, doubled or wrong.

``python -m faults.soak --minutes 10 --chats 500 --sessions 50``. The first server is never a victim: its memory and its open files
are measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from faults.cluster import HOSTS, SERVERS, Cluster
from faults.rig import poll_until
from faults.soak_upstream import PIECES
from ports import kept_port
from support.processes import Process

FAULTS = ("kill server", "kill host", "cut sessions", "restart PostgreSQL")
WORDS = [f"word{number}" for number in (*range(PIECES // 2), *range(PIECES))]
"""Of an answer with a call: those before it, and those after."""
GRACE = 5.0
"""Seconds by which what a client sees of a fault may be later."""
PAGE = os.sysconf("SC_PAGE_SIZE")
TICK = os.sysconf("SC_CLK_TCK")


class WrongAnswerError(AssertionError):
    """An answer that no fault explains."""


@dataclass
class Sample:
    """The first server at one moment: memory in bytes, open files, seconds of CPU since its start."""

    at: float
    memory: int
    files: int
    cpu: float

    @classmethod
    def of(cls, pid: int) -> Sample:
        process = Path(f"/proc/{pid}")
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        memory = int((process / "statm").read_text().split()[1]) * PAGE
        return cls(time.monotonic(), memory, len(os.listdir(process / "fd")), (int(fields[11]) + int(fields[12])) / TICK)  # noqa: PTH208


@dataclass
class Soak:
    """The load, and what became of it."""

    cluster: Cluster
    totals: Counter[str] = field(default_factory=Counter)
    done: set[str] = field(default_factory=set)
    faults: list[tuple[float, str]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    is_over: bool = False

    async def run(self, *, seconds: float, chats: int, sessions: int, interval: float) -> None:
        """Run the load for ``seconds``, with a fault every ``interval`` seconds."""
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for number in range(chats):
                group.create_task(self._chat_again(number / chats))
            for number in range(sessions):
                group.create_task(self._use_session(number))
            next_fault = time.monotonic() + interval
            while (now := time.monotonic()) < end:
                self.samples.append(Sample.of(self.cluster.servers[0].child.pid))
                if now >= next_fault:
                    next_fault = now + interval
                    kind = random.choice(FAULTS)
                    self.faults.append((time.monotonic(), kind))
                    await asyncio.to_thread(self.cluster.fault, kind, spared=1)
                    self.faults.append((time.monotonic(), kind))
                await asyncio.sleep(1)
            self.is_over = True

    def _explains(self, since: float, *kinds: str) -> bool:
        """Whether a fault of these kinds was under way after ``since``."""
        return any(at > since - GRACE for at, kind in self.faults if kind in kinds)

    def _check(self, text: str, token: str, since: float, *, is_cut: bool) -> None:
        """Raise WrongAnswerError for an answer that is neither whole nor explained by a fault."""
        if text.endswith(f"result-{token}") and re.findall(r"word\d", text) == WORDS:
            self.totals["done"] += 1
            self.done.add(token)
        elif (text.endswith("failed") or "```tool_call" in text) and self._explains(since, "kill host"):
            self.totals["call failed"] += 1  # or the model was not offered the tool
        elif is_cut and self._explains(since, "kill server"):
            self.totals["cut"] += 1
        else:
            raise WrongAnswerError((text, is_cut, self.faults[-2:], since))

    async def _chat_again(self, delay: float) -> None:
        await asyncio.sleep(20 * delay)
        while not self.is_over:
            token, since = uuid.uuid4().hex, time.monotonic()
            text, is_cut = await self._chat(token)
            self._check(text, token, since, is_cut=is_cut)
            if is_cut:
                await asyncio.sleep(0.5)

    async def _chat(self, token: str) -> tuple[str, bool]:
        """Stream one chat of a random server; return its text, and whether its stream was cut."""
        messages = [{"role": "user", "content": task(token)}]
        body = json.dumps({"model": "soak", "stream": True, "messages": messages}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
        text = []
        try:
            port = random.choice(self.cluster.servers).port
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
            with contextlib.closing(writer):
                writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
                async for line in reader:
                    if line.startswith(b"data: [DONE]"):
                        return "".join(text), False
                    if line.startswith(b"data: "):
                        event = json.loads(line[6:])
                        text += [choice["delta"].get("content") or "" for choice in event.get("choices", ())]
        except OSError:
            pass
        return "".join(text), True

    async def _use_session(self, number: int) -> None:
        await asyncio.sleep(10 * random.random())
        while not self.is_over:
            since = time.monotonic()
            port = self.cluster.servers[number % SERVERS].port
            url = f"ws://127.0.0.1:{port}/api/sessions/r{number // SERVERS}?model=soak&output=text"
            try:
                async with connect(url, proxy=None) as socket:
                    count = 0
                    while not self.is_over:
                        token, since, count = uuid.uuid4().hex, time.monotonic(), count + 1
                        await socket.send(json.dumps({"type": "text", "text": task(token)}))
                        text = ""
                        async for data in socket:
                            frame = json.loads(data)
                            if frame["type"] == "text":
                                text += frame["delta"]
                            elif frame["type"] == "idle" and frame["heard"] == count:
                                break
                        self._check(text, token, since, is_cut=False)
                        self.totals["turns of sessions"] += 1
                        await asyncio.sleep(5 * random.random())
            except (OSError, ConnectionClosed, InvalidHandshake) as error:
                if not self._explains(since, "kill server"):
                    raise WrongAnswerError(f"a session ended: {error}") from error
                self.totals["sessions cut"] += 1
                await asyncio.sleep(1)

    def check(self) -> dict[str, Any]:
        """Check the journal, and return the figures."""
        ran = Counter(self.cluster.journal.read_text().split())
        assert {} == {token: times for token, times in ran.items() if times > 1}, "a call ran twice"
        assert not [token for token in self.done if not ran[token]], "an answer without its call"
        first, last = self.samples[0], self.samples[-1]
        settled = [each for each in self.samples if each.at > first.at + 60] or self.samples
        slope = 0.0
        if len(settled) > 2:
            line = statistics.linear_regression([each.at for each in settled], [each.memory for each in settled])
            slope = 60 * line.slope / settled[0].memory
        return {
            **self.totals,
            "faults": dict(Counter(kind for _, kind in self.faults[::2])),
            "memory_mb": [round(each.memory / 1e6, 1) for each in (first, settled[0], last)],
            "memory_percent_a_minute": round(100 * slope, 2),
            "open_files": [first.files, max(each.files for each in settled), last.files],
            "cpu_of_a_server": round((last.cpu - first.cpu) / (last.at - first.at), 3),
        }


def task(token: str) -> str:
    return f"call echo_{random.randrange(HOSTS)} with token-{token}"


@contextlib.contextmanager
def upstream(pause: float) -> Iterator[str]:
    """Run the model server."""
    port = kept_port()
    command = [sys.executable, "-m", "faults.soak_upstream", "--port", str(port), "--pause", str(pause)]
    with Process(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as process:
        try:
            assert process.stdout is not None
            yield f"{process.stdout.readline().strip()}/v1"
        finally:
            process.kill()


def soak(folder: Path, *, minutes: float, chats: int, sessions: int, pause: float) -> dict[str, Any]:
    """Run it; return the figures. Raises AssertionError where something was lost, doubled or wrong."""
    roles = ",".join(["default", *(f"r{number}" for number in range(-(-sessions // SERVERS)))])
    with upstream(pause) as url, Cluster(folder, serve=("--upstream", url, "--tools", "text", "--roles", roles)) as cluster:
        run = Soak(cluster)
        before = Sample.of(cluster.servers[0].child.pid)
        asyncio.run(run.run(seconds=60 * minutes, chats=chats, sessions=sessions, interval=min(15.0, 10 * minutes)))
        poll_until(lambda: Sample.of(cluster.servers[0].child.pid).files <= before.files + 30, within=30, what="closed files")
        after = Sample.of(cluster.servers[0].child.pid)
        return {**run.check(), "open_files_before_and_after": [before.files, after.files]}


def main() -> None:
    """Run the soak that the command line asks for, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--chats", type=int, default=500, help="streaming chats at once")
    parser.add_argument("--sessions", type=int, default=50, help="live sessions at once")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two pieces of the model's text")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory(prefix="patchbay-soak-") as folder:
        found = soak(Path(folder), minutes=options.minutes, chats=options.chats, sessions=options.sessions, pause=options.pause)
    print(json.dumps(found, indent=2))  # noqa: T201
    if options.minutes >= 3:
        assert found["memory_percent_a_minute"] < 1, "memory grows"


if __name__ == "__main__":
    main()

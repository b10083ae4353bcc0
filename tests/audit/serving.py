"""Client of the server of ``served``, which it starts and stops, and commands that are run against it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from support.processes import Process
from support.served import BOUND, Served, serve_script, wait_for


class Server(Served):
    """A running server."""

    def run(self, **about: Any) -> None:
        """Run a turn to its end."""
        assert (200, "It is 3.") == self.ask("POST", "/run", {"message": "How much is it?", **about})


@contextlib.contextmanager
def serving(folder: Path, *, token: str | None = None, port: int = 0, database: str = "") -> Iterator[Server]:
    """Run a server over a database of the folder."""
    database = database or f"sqlite:///{folder / 'audit.db'}"
    with serve_script(Path(__file__).with_name("served.py"), database, str(port), folder=folder, token=token) as running:
        yield Server(**vars(running))


class Events:
    """A stream of events, read one at a time."""

    def __init__(self, server: Server, path: str = "/api/events", **options: Any) -> None:
        self._opened = contextlib.ExitStack()
        self.response = self._opened.enter_context(server.open("GET", path, **options))
        assert 200 == self.response.status
        assert b": \n" == self.response.readline()  # it is heard from here on
        self.response.readline()
        self.last_id = ""

    def next(self) -> dict[str, Any]:
        """Return the next event."""
        while line := self.response.readline():
            if line.startswith(b"id: "):
                self.last_id = line[4:].decode().strip()
            elif line.startswith(b"data: "):
                return json.loads(line[6:])
        raise EOFError

    def turn(self) -> list[dict[str, Any]]:
        """Return the events up to the end of a turn."""
        events = [self.next()]
        while events[-1]["kind"] != "agent.turn.end":
            events.append(self.next())
        return events

    def close(self) -> None:
        self._opened.close()


class Command:
    """A running ``patchbay`` command: the lines that it prints, as they come."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.process = Process(
            [sys.executable, "-m", "patchbay", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=without_settings(environment),
        )  # fmt: skip
        self.errors: list[str] = []
        self.lines: list[str] = []
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.process.stdout, self.lines), (self.process.stderr, self.errors))
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(source: Any, lines: list[str]) -> None:
        lines.extend(iter(source.readline, ""))

    def said(self, words: str, count: int = 1) -> None:
        """Wait until this is on stderr."""
        wait_for(lambda: sum(words in line for line in list(self.errors)) >= count)

    def printed(self, words: str, count: int = 1) -> None:
        """Wait until ``count`` of its lines have these words."""
        wait_for(lambda: sum(words in line for line in list(self.lines)) >= count)

    def end(self, signal: int) -> int:
        self.process.send_signal(signal)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(BOUND)
        for reader in self._readers:
            reader.join(BOUND)
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.wait()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()


class Reading:
    """A running ``patchbay`` command whose reader reads some lines, and then leaves."""

    def __init__(self, *arguments: str) -> None:
        self.process = Process(
            [sys.executable, "-m", "patchbay", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=without_settings(None),
        )  # fmt: skip

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def leave(self) -> int:
        """Stop reading, and return the exit status of the command."""
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(BOUND)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=BOUND)


def patchbay(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run a command to its end: status, stdout, stderr."""
    with Process(
        [sys.executable, "-m", "patchbay", *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=without_settings(environment),
    ) as process:  # fmt: skip
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err


def without_settings(more: dict[str, str] | None) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith("PATCHBAY_")}, **(more or {})}

"""A person at the terminal that the program itself runs in.

What lives here: asking there, one question at a time. What does not: the terminal of another process, which asks the server
(``patchbay approvals watch``).
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import time
from dataclasses import replace
from typing import Final, Self

from patchbay.approvals.request import Answer, ApprovalRequest
from patchbay.approvals.shown import VIEW, hint, question, read_answer, written
from patchbay.approvals.typed import TypedLines
from patchbay.legible import printable

_PIECE: Final = 4096


class TerminalApprover:
    """Asks whoever sits at the terminal: for ``ApprovalDesk(policy, terminal=TerminalApprover())``.

    The question is put on the terminal itself (``path``), whatever standard input and output are; what was typed before it was
    put is dropped. Where there is no terminal, nobody can be asked.
    """

    def __init__(self, path: str = "/dev/tty") -> None:
        self._path = path
        self._lock = asyncio.Lock()

    async def ask(self, request: ApprovalRequest) -> Answer | None:
        """Return the answer; None where there is no terminal, or it is at its end. Raises what cancels it, between two lines."""
        async with self._lock:
            try:
                terminal = os.open(self._path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                return None
            try:
                return await self._asked(terminal, request)
            finally:
                os.close(terminal)

    async def _asked(self, terminal: int, request: ApprovalRequest) -> Answer | None:
        try:
            await _say(terminal, f"\n{written(request)}\n")
            _drop_what_was_typed(terminal)
            await _say(terminal, question(request, time.time()))
            with _Lines(terminal) as lines:
                while (line := await lines.next()) is not None:
                    answer = read_answer(line, request)
                    if isinstance(answer, Answer):
                        return replace(answer, by=_user())
                    if answer == VIEW:
                        await _say(terminal, f"{written(request, whole=True)}\n")
                    elif isinstance(answer, str) and answer:
                        await _say(terminal, f"{printable(answer)}\n")
                    elif line.strip():
                        await _say(terminal, f"{hint(request)}\n")
                    await _say(terminal, question(request, time.time()))
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):  # a terminal that is not read now is not waited for
                os.write(terminal, b"(no answer is needed any more)\n")
            raise
        return None


class _Lines:
    """The lines that are typed at a terminal, as they come: no thread waits for them, so nothing is left behind."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._loop = asyncio.get_running_loop()
        self._came: asyncio.Event = asyncio.Event()
        self._typed = TypedLines()

    def __enter__(self) -> Self:
        self._loop.add_reader(self._terminal, self._came.set)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._terminal)

    async def next(self) -> str | None:
        """Return the next line, None at the end."""
        while (line := self._typed.next()) is None:
            await self._came.wait()
            self._came.clear()
            try:
                piece = os.read(self._terminal, _PIECE)
            except BlockingIOError:
                continue
            except OSError:  # the terminal was closed
                return None
            if not piece:
                return None
            self._typed.feed(piece)
        return line


async def _say(terminal: int, text: str) -> None:
    """Write a text to the terminal, however slowly it is read: while it is stopped (Ctrl-S) nothing else waits."""
    left = memoryview(text.encode("utf-8", "backslashreplace"))
    while left:
        try:
            left = left[os.write(terminal, left) :]
        except BlockingIOError:
            await _until_it_is_read(terminal)
        except OSError:
            return


async def _until_it_is_read(terminal: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(terminal, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(terminal)


def _drop_what_was_typed(terminal: int) -> None:
    """Answers are for what is on the screen, and not for what comes there next."""
    with contextlib.suppress(ImportError, OSError):
        import termios

        with contextlib.suppress(termios.error):
            termios.tcflush(terminal, termios.TCIFLUSH)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return "terminal"

"""One process of a hook: started, asked, listened to, ended.

What lives here: the process and its three pipes. What does not: what it is asked and what the answers mean (``hook``), and
whether it is started again (``supervisor``).

It leads a session of its own, so that what it starts is of its group and ends with it. It is as good as dead once it cannot be
asked or cannot answer: whoever waits is told so at once, and whoever comes.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

from patchbay.hooks.process.calls import Calls
from patchbay.hooks.process.errors import HookProcessError
from patchbay.hooks.process.lines import Overlong
from patchbay.hooks.process.spec import ProcessSpec
from patchbay.hooks.process.stream import LineStream
from patchbay.hooks.process.wire import notification_line, request_line

STDERR_LINE: Final = 4096
"""What is longer on standard error is cut."""

_EXIT_CODE: Final = 0.2
"""Seconds to wait for the exit code of a process whose pipes have ended: it says more than that they have."""

_LAST_WORDS: Final = 0.5
"""Seconds to read what a process has said that is gone, while somebody else holds its pipes."""

_KERNEL: Final = 512 * 1024
"""More bytes than the kernel holds for a process: one that has taken as much has read."""

_UNKILLABLE: Final = 5.0
"""Seconds to wait for a process that was killed: one that the kernel holds is left to it."""


class HookProcess(asyncio.SubprocessProtocol):
    """A process of ``spec``: ``start`` it, ``call`` it, ``close`` it in any case.

    ``stray`` is told of what it prints on its standard output that is no reply, ``stderr`` of what it prints on its standard
    error, line by line. Used in one event loop, the one that it is made in.
    """

    def __init__(self, spec: ProcessSpec, *, stray: Callable[[str], object], stderr: Callable[[str], object]) -> None:
        self.pid = 0
        self.dropped = 0
        """How many notifications were not sent because the process does not read."""
        self._spec = spec
        self._limits = spec.limits
        self._loop = loop = asyncio.get_running_loop()
        self._dead: asyncio.Future[str] = loop.create_future()
        self._exited: asyncio.Future[str] = loop.create_future()
        self._released: asyncio.Future[None] = loop.create_future()
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: Any = None
        self._calls = Calls(stray)
        self._stdout = LineStream(spec.limits.line, self._calls.take)
        self._stderr = LineStream(STDERR_LINE, self._take_words)
        self._words = stderr
        self.last_words = ""
        """The last line that it printed on standard error: mostly why it has ended."""
        self._written = 0
        self._is_blocked = False
        self._stuck: asyncio.TimerHandle | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._closing: asyncio.Task[None] | None = None

    @property
    def end(self) -> str | None:
        """Why it cannot be asked any more, None while it can."""
        return self._dead.result() if self._dead.done() else None

    @property
    def exit(self) -> str | None:
        """How it ended ("exit status 0", "ended by SIGKILL"), None while it runs."""
        return self._exited.result() if self._exited.done() else None

    async def start(self) -> None:
        """Start the process. Raises HookProcessError."""
        spec = self._spec
        # uvloop leaves the child a second descriptor of each of its streams, and one that is closed would not seem to be.
        extra: dict[str, Any] = {"preexec_fn": _have_three} if type(self._loop).__module__.startswith("uvloop") else {}
        try:
            await self._loop.subprocess_exec(
                lambda: self,
                *spec.command,
                stdin=-1,
                stdout=-1,
                stderr=-1,
                cwd=spec.folder,
                env=spec.environment(),
                start_new_session=True,
                **extra,
            )
        except (OSError, ValueError) as error:
            self._die(f"it cannot be started: {error}")
            raise HookProcessError(f"it cannot be started: {error}") from None

    async def call(self, method: str, params: Any) -> Any:
        """Ask, and return the ``result`` that comes back. Raises HookProcessError, HookReplyError."""
        if asyncio.get_running_loop() is not self._loop:
            raise HookProcessError("it was started in another event loop than this one")
        if self._stdin is None or self._stdin.is_closing():
            raise HookProcessError(await self.ended())  # in a moment it is known why
        request_id = self._calls.next_id()
        self.write(request_line(request_id, method, params))
        read = self._read
        try:
            return await self._calls.answer(request_id)
        except asyncio.CancelledError:
            if self._is_blocked and self._read - read < _KERNEL:
                self._be_stuck()
            raise

    def tell(self, method: str, params: Any) -> None:
        """Send a notification; it is dropped where the process has not read the last ones. Raises HookProcessError."""
        if self._is_blocked:
            self.dropped += 1
        else:
            self.write(notification_line(method, params))

    def write(self, line: bytes) -> None:
        """Send a line as it is. Raises HookProcessError where the process has gone, or does not read."""
        if self._dead.done():
            raise HookProcessError(self._dead.result())
        stdin = self._stdin
        if stdin is None or stdin.is_closing():
            raise HookProcessError("its standard input is closed")
        if self._is_blocked:
            waiting = stdin.get_write_buffer_size()
            if self._stuck is not None or waiting + len(line) > self._limits.queued:
                raise HookProcessError("it does not read what it is asked")
        stdin.write(line)
        self._written += len(line)

    @property
    def _read(self) -> int:
        """How many bytes have gone into the pipe."""
        waiting = self._stdin.get_write_buffer_size() if self._stdin is not None else 0
        return self._written - int(waiting)

    async def ended(self) -> str:
        """Wait until it cannot be asked any more, and return why."""
        return await asyncio.shield(self._dead)

    async def close(self) -> None:
        """End the process and all of its group, and free everything. May be called at any time, and again.

        Who is cancelled here waits no more; the end goes on.
        """
        self._die("it was closed")
        if self._transport is None:
            return
        if self._closing is None:
            self._closing = self._loop.create_task(self._end(self._transport))
        await asyncio.shield(self._closing)

    async def _end(self, transport: asyncio.SubprocessTransport) -> None:
        try:
            if self._stdin is not None:
                self._stdin.close()
            for grace, number in ((self._limits.eof_grace, signal.SIGTERM), (self._limits.term_grace, signal.SIGKILL)):
                await asyncio.wait({self._exited}, timeout=grace)
                if self._exited.done():
                    break
                self._signal(number)
            await asyncio.wait({self._exited}, timeout=_UNKILLABLE)
            # The pipes end with the last process that holds them; one that has left the group may hold them for ever.
            await asyncio.wait({self._released}, timeout=_LAST_WORDS)
        finally:
            if not self._exited.done():
                self._signal(signal.SIGKILL)
            if self._stdin is not None:
                self._stdin.abort()  # with what the process has not read
            transport.close()
            self._stdout.stop()
            self._stderr.stop()
            self._be_free()
            for timer in self._timers:
                timer.cancel()
        await asyncio.wait({self._released}, timeout=_LAST_WORDS)

    def _signal(self, number: signal.Signals) -> None:
        # The id is ours for as long as a member of the group lives, also after its leader's end.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _die(self, why: str) -> None:
        """Tell whoever waits, and from now on whoever comes."""
        if not self._dead.done():
            self._dead.set_result(why)
            self._calls.fail_all(why)

    def _die_in(self, seconds: float, why: str) -> None:
        # In two halves: an event loop that was held up for as long hears first how the process has ended, or what it has said.
        half = seconds / 2
        self._timers.append(self._loop.call_later(half, self._die_later, half, why))

    def _die_later(self, seconds: float, why: str) -> None:
        self._timers.append(self._loop.call_later(seconds, self._die, why))

    def _be_stuck(self) -> None:
        """Let nobody else wait for a process that was given up in vain, until it reads again; or end it, if it does not."""
        if self._stuck is None:
            seconds = self._limits.stuck_after
            self._stuck = self._loop.call_later(seconds, self._die, f"it has read nothing for {seconds:g} s")

    def _be_free(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _take_words(self, line: bytes | Overlong) -> bool:
        text = (line.head + b"..." if isinstance(line, Overlong) else line).rstrip(b"\r").decode("utf-8", "replace")
        self.last_words = text.strip() or self.last_words
        self._words(text)
        return False

    # What asyncio tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the process."""
        self._transport = process = cast("asyncio.SubprocessTransport", transport)  # uvloop's is not of that class
        self.pid = process.get_pid()
        self._stdin = process.get_pipe_transport(0)
        self._stdout.connect(process.get_pipe_transport(1))
        self._stderr.connect(process.get_pipe_transport(2))

    def pause_writing(self) -> None:
        """Take note that the process does not read as fast as it is asked."""
        self._is_blocked = True

    def resume_writing(self) -> None:
        """Take note that the process has read."""
        self._is_blocked = False
        self._be_free()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Read what the process says."""
        (self._stdout if fd == 1 else self._stderr).take(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Take note that a pipe has ended: without its input or its output the process is of no use."""
        del exc
        if fd == 2:
            self._stderr.end()
            return
        if fd == 0:
            self._stdin = None
        else:
            self._stdout.end()
            if self._exited.done():
                self._die(self._exited.result())
        if not self._dead.done():
            self._die_in(_EXIT_CODE, f"it has closed its standard {'output' if fd == 1 else 'input'}")

    def process_exited(self) -> None:
        """Take note of the exit code; what the process has started and left behind goes too."""
        assert self._transport is not None
        self._signal(signal.SIGKILL)
        how = _how(self._transport.get_returncode())
        if not self._exited.done():
            self._exited.set_result(how)
        if self._stdout.is_open:  # it may have answered before it went
            self._die_in(_LAST_WORDS, how)
        else:
            self._die(how)

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note that the process is gone, and its pipes were read to their ends."""
        del exc
        if not self._released.done():
            self._released.set_result(None)


def _have_three() -> None:
    """In the child, before its program: let it have its standard streams and nothing else of ours."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208  (as little as possible is done there)
        with suppress(OSError, ValueError):
            if (descriptor := int(name)) > 2:
                os.set_inheritable(descriptor, False)  # noqa: FBT003  (it takes no names)


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit status {code}"
    with suppress(ValueError):
        return f"ended by {signal.Signals(-code).name}"
    return f"ended by signal {-code}"

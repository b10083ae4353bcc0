"""One child process of a hook: its configuration, pipes, pending calls and termination.

The child leads its own session, so that its descendants end with it. Once it can no longer be asked or answer, every pending
and later call fails at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from patchbay._backoff import Backoff
from patchbay._redaction import Redactor, protect, secret_values, values_of_environment
from patchbay._subprocess import (
    BASE_ENVIRONMENT,
    ChildProcess,
    LineReader,
    Overlong,
    PendingRequests,
    describe_exit,
    inherited,
)
from patchbay._text import escape_controls
from patchbay.errors import PatchbayError
from patchbay.hooks.process.protocol import METHODS_OF, MODES
from patchbay.hooks.process.wire import (
    UndecodableError,
    id_in_head,
    notification_line,
    read_reply,
    request_line,
)


class HookProcessError(PatchbayError, RuntimeError):
    """The process cannot be called, or will not answer any more."""

    code = "hook_process"


class HookReplyError(HookProcessError, ValueError):
    """The process answered with an error, or with something invalid."""

    code = "hook_reply"


class UnreadableReplyError(HookReplyError):
    """A reply whose id is readable but nothing else. ``why`` explains it, ``line`` is its beginning."""

    def __init__(self, why: str, line: str) -> None:
        super().__init__(f"it answered with a line that is not a reply: {why}")
        self.why = why
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """Bounds of a process, in bytes and seconds.

    ``line`` is the longest reply; ``queued`` bounds what waits to be read by the process; ``hello`` is the time for the first
    answer. A process with a cancelled call that reads nothing for ``stuck_after`` is ended: its standard input is closed,
    after ``eof_grace`` its group gets SIGTERM, and ``term_grace`` later SIGKILL.

    A process that ends by itself is restarted after ``backoff_first``, doubled each time up to ``backoff_most``, until it has
    failed more than ``restarts`` times in a row (0: no restarts); after running for ``healthy_after`` the count starts anew.
    """

    line: int = 1024 * 1024
    queued: int = 32 * 1024 * 1024
    hello: float = 5.0
    stuck_after: float = 10.0
    eof_grace: float = 2.0
    term_grace: float = 1.0
    backoff_first: float = 0.2
    backoff_most: float = 30.0
    restarts: int = 5
    healthy_after: float = 10.0

    def backoff(self) -> Backoff:
        """Return the delays between the starts of one hook."""
        return Backoff(self.backoff_first, self.backoff_most, retries=self.restarts, healthy_after=self.healthy_after)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A hook in another process.

    ``command`` is its argv, ``folder`` its working directory. ``env`` is added to the variables of ours that it inherits: those
    in ``inherit`` (names or patterns as ``LC_*``), None for BASE_ENVIRONMENT. ``modes`` are of MODES; ``kinds`` are the
    events that it observes (None: all). With ``fail_closed`` its failures deny (``HookManager.mount``); with that or with
    ``strict`` a reply with an unknown member, or in a flat form, is a failure. ``flat_context`` adds ``channel`` and
    ``chat_id`` as old hosts did. ``media_folder`` is where it may leave files for the user or the model.
    """

    name: str
    command: tuple[str, ...]
    folder: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # it may hold secrets
    inherit: tuple[str, ...] | None = None
    modes: frozenset[str] = frozenset(("llm", "tool"))
    kinds: frozenset[str] | None = None
    fail_closed: bool = False
    strict: bool = False
    flat_context: bool = False
    media_folder: Path | None = None
    limits: ProcessLimits = field(default_factory=ProcessLimits)

    def environment(self) -> dict[str, str]:
        """Return the process's environment variables."""
        return {**inherited(BASE_ENVIRONMENT if self.inherit is None else self.inherit), **self.env}

    @property
    def methods(self) -> tuple[str, ...]:
        """The hook methods of its modes."""
        return tuple(method for mode in MODES if mode in self.modes for method in METHODS_OF[mode])


_EXCERPT: Final = 200
NO_REPLY: Final = "a line that is not a reply"
"""Begins the description of an unreadable line that no call waits for."""

_TOO_LONG: Final = "a line that is too long (max_line_bytes)"


class PendingReplies(PendingRequests[Any]):
    """The calls of a process. Late, duplicate and unknown replies are dropped.

    ``stray`` is called with a description of each line that is not a reply; ``redact`` replaces secrets in what is quoted.
    """

    def __init__(self, stray: Callable[[str], object], redact: Redactor) -> None:
        super().__init__()
        self._stray = stray
        self._redact = redact

    def receive(self, line: bytes | Overlong) -> bool:
        """Handle a line; return whether a call waited for it."""
        if isinstance(line, Overlong):
            error = HookReplyError(f"it answered with {_TOO_LONG}")
            return self._fail_call(id_in_head(line.head.lstrip()), error, f"{_TOO_LONG}: {self._excerpt(line.head)}")
        line = line.strip()
        if line[:1] != b"{":  # not worth the decoder's time
            if line:
                self._stray(self._excerpt(line))
            return False
        try:
            reply = read_reply(line)
        except UndecodableError as error:
            excerpt = self._excerpt(line)
            return self._fail_call(error.reply_id, UnreadableReplyError(str(error), excerpt), f"{NO_REPLY}: {error}: {excerpt}")
        if reply.error is None:
            return self.resolve(reply.id, reply.result)
        return self.resolve(
            reply.id, HookReplyError(f"it answered with an error: {escape_controls(self._redact.text(reply.error)):.500}")
        )

    def _fail_call(self, request_id: int | None, error: HookReplyError, words: str) -> bool:
        """Fail the call that a line seems to answer."""
        is_reply = self.resolve(request_id, error)
        if not is_reply:
            self._stray(words)
        return is_reply

    def _excerpt(self, text: bytes) -> str:
        text = self._redact(text)  # before it is cut: half a secret would not be found
        excerpt = text[:_EXCERPT].decode("utf-8", "replace")
        return f"{excerpt}..." if len(text) > _EXCERPT else excerpt


WINDOW: Final = 0.1
MOST_BYTES: Final = 4 * 1024 * 1024
MOST_LINES: Final = 2000
"""Bounds of unexpected output within ``WINDOW`` seconds."""


class LineStream:
    """An output stream read line by line, with bounded effort: a process that prints without end is paused for a moment.

    ``on_line`` is called with each line and returns whether a call waited for it; such lines do not count.
    """

    def __init__(self, limit: int, on_line: Callable[[bytes | Overlong], bool]) -> None:
        self.is_open = True
        self._reader = LineReader(limit)
        self._lines: deque[bytes | Overlong] = deque()
        self._on_line = on_line
        self._pipe: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._bytes = self._unexpected = 0
        self._is_paused = False

    def connect(self, pipe: Any) -> None:
        """Set the transport to pause and resume."""
        self._pipe = pipe

    def feed(self, data: bytes) -> None:
        """Read a piece."""
        self._lines += self._reader.feed(data)
        self._bytes += len(data)
        self._read()

    def end(self) -> None:
        """Read what is left at the end of the stream."""
        self.stop()
        if self.is_open:
            self.is_open = False
            for line in (*self._lines, *self._reader.close()):
                self._on_line(line)
            self._lines.clear()

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read(self) -> None:
        lines = self._lines
        while lines and self._unexpected < MOST_LINES:
            if self._on_line(lines.popleft()):
                self._bytes = 0
            else:
                self._unexpected += 1
        if (self._unexpected or self._bytes) and self._timer is None and self.is_open:
            self._timer = asyncio.get_running_loop().call_later(WINDOW, self._start_window)
        if self._pipe is not None:
            self._pause(lines or self._bytes > MOST_BYTES)

    def _start_window(self) -> None:
        self._timer = None
        self._bytes = self._unexpected = 0
        self._read()

    def _pause(self, wanted: Any) -> None:
        if bool(wanted) != self._is_paused and not self._pipe.is_closing():
            self._is_paused = bool(wanted)
            (self._pipe.pause_reading if wanted else self._pipe.resume_reading)()


STDERR_LINE: Final = 4096
"""Longer lines on standard error are cut."""

_EXIT_CODE: Final = 0.2
"""Seconds to wait for the exit code after a pipe has ended: it makes the better message."""

_LAST_WORDS: Final = 0.5
"""Seconds to read the last output of an ended process whose pipes another process holds open."""

_UNKILLABLE: Final = 5.0
"""Seconds to wait for a killed process; one stuck in the kernel is left behind."""


class HookProcess(ChildProcess):
    """A process of ``spec``: ``start`` it, ``call`` it, and always ``close`` it.

    ``stray`` is called with each line on standard output that is not a reply, ``stderr`` with each line on standard error.
    Belongs to the event loop that it is created in.
    """

    def __init__(self, spec: ProcessSpec, *, stray: Callable[[str], object], stderr: Callable[[str], object]) -> None:
        super().__init__()
        self.dropped = 0
        """Number of notifications that were not sent because the process does not read."""
        self._spec = spec
        self._limits = spec.limits
        self._dead: asyncio.Future[str] = self._loop.create_future()
        self._stdin: Any = None
        protect(*secret_values(spec.env))
        self._redact = Redactor(values_of_environment(spec.env))
        self._calls = PendingReplies(stray, self._redact)
        self._stdout = LineStream(spec.limits.line, self._calls.receive)
        self._stderr = LineStream(STDERR_LINE, self._receive_stderr)
        self._on_stderr = stderr
        self.last_words = ""
        """The last line on standard error: usually why the process has ended."""
        self._is_blocked = False
        self._stuck: asyncio.TimerHandle | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._closing: asyncio.Task[None] | None = None

    @property
    def end(self) -> str | None:
        """Why it can no longer be called, None while it can."""
        return self._dead.result() if self._dead.done() else None

    @property
    def exit(self) -> str | None:
        """Description of its end ("exit status 0", "ended by SIGKILL"), None while it runs."""
        return describe_exit(self.exited.result(), "exit status") if self.exited.done() else None

    async def start(self) -> None:
        """Start the process. Raises HookProcessError."""
        try:
            await self.spawn(self._spec.command, cwd=self._spec.folder, env=self._spec.environment())
        except (OSError, ValueError) as error:
            self._mark_dead(f"it cannot be started: {error}")
            raise HookProcessError(f"it cannot be started: {error}") from None

    async def call(self, method: str, params: Any) -> Any:
        """Send a request, and return the ``result``. Raises HookProcessError, HookReplyError."""
        if asyncio.get_running_loop() is not self._loop:
            raise HookProcessError("it was started in another event loop than this one")
        if self._stdin is None or self._stdin.is_closing():
            raise HookProcessError(await self.ended())  # in a moment it is known why
        request_id = self._calls.next_number()
        self.write(request_line(request_id, method, params))
        try:
            return await self._calls.wait_for(request_id)
        except asyncio.CancelledError:
            if self._is_blocked:
                self._start_stuck_timer()
            raise

    def notify(self, method: str, params: Any) -> None:
        """Send a notification; it is dropped while the process does not read. Raises HookProcessError."""
        if self._is_blocked:
            self.dropped += 1
        else:
            self.write(notification_line(method, params))

    def write(self, line: bytes) -> None:
        """Send a line. Raises HookProcessError if the process has gone or does not read."""
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

    async def ended(self) -> str:
        """Wait until it can no longer be called, and return why."""
        return await asyncio.shield(self._dead)

    async def close(self) -> None:
        """End the process and its group, and free everything. May be called at any time and again.

        Cancelling the wait does not stop the ending.
        """
        self._mark_dead("it was closed")
        if self._transport is None:
            return
        if self._closing is None:
            self._closing = self._loop.create_task(self._end(self._transport))
        await asyncio.shield(self._closing)

    async def _end(self, transport: asyncio.SubprocessTransport) -> None:
        try:
            limits = self._limits
            await self.terminate(eof_grace=limits.eof_grace, term_grace=limits.term_grace, kill_grace=_UNKILLABLE)
            # The pipes end with the last process that holds them; one outside of the group may never end.
            await asyncio.wait({self.pipes_closed}, timeout=_LAST_WORDS)
        finally:
            if not self.exited.done():
                self.signal_group()
            if self._stdin is not None:
                self._stdin.abort()  # with what the process has not read
            transport.close()
            self._stdout.stop()
            self._stderr.stop()
            self._stop_stuck_timer()
            for timer in self._timers:
                timer.cancel()
        await asyncio.wait({self.pipes_closed}, timeout=_LAST_WORDS)

    def _mark_dead(self, why: str) -> None:
        """Fail pending and later calls."""
        if not self._dead.done():
            self._dead.set_result(why)
            self._calls.fail_all(lambda: HookProcessError(why))

    def _mark_dead_in(self, seconds: float, why: str) -> None:
        self._timers.append(self._loop.call_later(seconds, self._mark_dead, why))

    def _start_stuck_timer(self) -> None:
        """Refuse more calls after one was cancelled while the pipe was full; end the process if it does not read again."""
        if self._stuck is None:
            seconds = self._limits.stuck_after
            self._stuck = self._loop.call_later(seconds, self._mark_dead, f"it has read nothing for {seconds:g} s")

    def _stop_stuck_timer(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _receive_stderr(self, line: bytes | Overlong) -> bool:
        line = line.head + b"..." if isinstance(line, Overlong) else line
        text = self._redact(line.rstrip(b"\r")).decode("utf-8", "replace")
        self.last_words = text.strip() or self.last_words
        self._on_stderr(text)
        return False

    # asyncio.SubprocessProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect the pipes."""
        super().connection_made(transport)
        self._stdin = self.pipe(0)
        self._stdout.connect(self.pipe(1))
        self._stderr.connect(self.pipe(2))

    def pause_writing(self) -> None:
        """Implement asyncio.SubprocessProtocol: the pipe is full."""
        self._is_blocked = True

    def resume_writing(self) -> None:
        """Implement asyncio.SubprocessProtocol: the process reads again."""
        self._is_blocked = False
        self._stop_stuck_timer()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Implement asyncio.SubprocessProtocol."""
        (self._stdout if fd == 1 else self._stderr).feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Implement asyncio.SubprocessProtocol: without input or output the process is of no use."""
        del exc
        if fd == 2:
            self._stderr.end()
            return
        if fd == 0:
            self._stdin = None
        else:
            self._stdout.end()
            if self.exited.done():
                self._mark_dead(describe_exit(self.exited.result(), "exit status"))
        if not self._dead.done():
            self._mark_dead_in(_EXIT_CODE, f"it has closed its standard {'output' if fd == 1 else 'input'}")

    def process_exited(self) -> None:
        """Fail pending calls, after its last output was read."""
        super().process_exited()
        assert self.exit is not None
        if self._stdout.is_open:  # it may have answered before it exited
            self._mark_dead_in(_LAST_WORDS, self.exit)
        else:
            self._mark_dead(self.exit)

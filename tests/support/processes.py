"""Python processes forked from a template process that has already imported Patchbay.

Such a process behaves like a new interpreter, with its own signals, files and exit status, but saves the imports, which take a second
of CPU time. Not for tests of the start itself (imports, ``PYTHON…`` variables but ``PYTHONPATH``, ``-I``), nor for other programs.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from patchbay.cli import children

TEMPLATE = Path(__file__).with_name("template.py")


class Process:
    """A running Python program, with the part of ``subprocess.Popen`` that tests use. ``command`` begins with ``sys.executable``."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        start_new_session: bool = False,
    ) -> None:
        assert sys.executable == command[0]
        with contextlib.ExitStack() as theirs:

            def end(standard: int, wanted: int | IO[Any] | None) -> tuple[int, IO[Any] | None]:
                """The descriptor for the process, and our end where it is a pipe."""
                if wanted is None:
                    return standard, None
                if wanted == subprocess.DEVNULL:
                    null = os.open(os.devnull, os.O_RDWR)
                    theirs.callback(os.close, null)
                    return null, None
                if wanted != subprocess.PIPE:
                    return (wanted if isinstance(wanted, int) else wanted.fileno()), None
                reading, writing = os.pipe()
                kept, given = (writing, reading) if standard == 0 else (reading, writing)
                theirs.callback(os.close, given)
                mode = ("w" if standard == 0 else "r") + ("" if text else "b")
                return given, open(kept, mode, encoding="utf-8" if text else None)  # noqa: PTH123  (closed by its user)

            input_end, self.stdin = end(0, stdin)
            output_end, self.stdout = end(1, stdout)
            error_end, self.stderr = (output_end, None) if stderr == subprocess.STDOUT else end(2, stderr)
            self._status, status = os.pipe()
            theirs.callback(os.close, status)
            self.args = command
            self.returncode: int | None = None
            self.pid = _template().fork(
                {
                    "command": [*map(str, command[1:])],
                    "environment": dict(os.environ if env is None else env),
                    "folder": str(cwd or Path.cwd()),
                    "new_session": start_new_session,
                },
                [input_end, output_end, error_end, status],
            )

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = int(os.read(self._status, 16))
            os.close(self._status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired([*self.args], timeout or 0.0)
        found = self.poll()
        assert found is not None
        return found

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and its status is on the way
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:  # noqa: A002  (as subprocess)
        """Write, read to the end, and wait."""
        end = None if timeout is None else time.monotonic() + timeout
        found: dict[IO[Any], Any] = {}
        readers = [
            threading.Thread(target=lambda stream=stream: found.update({stream: stream.read()}), daemon=True)
            for stream in (self.stdout, self.stderr)
            if stream is not None and not stream.closed
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                if input is not None:
                    self.stdin.write(input)
                self.stdin.close()
        for reader in readers:
            reader.join(None if end is None else max(0.0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired([*self.args], timeout or 0.0)
        self.wait(None if end is None else max(0.0, end - time.monotonic()))
        for stream in found:
            stream.close()
        return (found.get(self.stdout) if self.stdout else None, found.get(self.stderr) if self.stderr else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self.wait()


class _Template:
    """The process that forks, for as long as this one runs."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        command = [sys.executable, str(TEMPLATE), str(theirs.fileno())]
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # each request has its own
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=own)
        atexit.register(self._close)

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            return int(self._socket.recv(64))

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def _template() -> _Template:
    return _Template()


def listening(
    command: Sequence[str], *, name: str, timeout: float = 60.0, environment: Mapping[str, str | None] = {}
) -> contextlib.AbstractContextManager[children.Child]:
    """Run a server of a command that begins with ``sys.executable`` during the block, without the variables that are None."""

    def start(command: Sequence[str], *, env: dict[str, str], **options: Any) -> Process:
        own = {name: value for name, value in {**env, **environment}.items() if value is not None}
        return Process(command, env=own, **options)

    return children.listening(command, name=name, timeout=timeout, start=start)


def run_process(
    command: Sequence[str],
    *,
    input: Any = None,  # noqa: A002  (as subprocess)
    capture_output: bool = False,
    timeout: float | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end, as ``subprocess.run`` does."""
    streams = {name: subprocess.PIPE for name in ("stdout", "stderr") if capture_output}
    with Process(command, stdin=subprocess.DEVNULL if input is None else subprocess.PIPE, **{**streams, **options}) as process:
        try:
            out, err = process.communicate(input, timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess([*command], process.wait(), out, err)

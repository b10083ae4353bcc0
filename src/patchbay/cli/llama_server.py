"""llama.cpp's server in a process of its own for ``patchbay local``: watched, started again when it ends, and always stopped.

``python -m patchbay.cli.llama_server`` is that process. It reads its parameters from standard input, and ends when that does.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

from patchbay._backoff import Backoff
from patchbay._flags import flag
from patchbay._redaction import protect
from patchbay._subprocess import describe_exit
from patchbay._text import one_line
from patchbay.cli.children import Child, ChildError, listening
from patchbay.errors import ConfigurationError, PatchbayError

_logger = logging.getLogger(__name__)

_NAME: Final = "llama.cpp's server"
_START_SECONDS: Final = 600.0
"""A model of many gigabytes is read from a disk."""
_STOP_SECONDS: Final = 5.0
_LOG_PREFIX: Final = re.compile(r"^[0-9.]+ [A-Z] +(?:srv|cmn)? *")
_LAST_LINES: Final = 5
_MOST_CHARS: Final = 600

NOT_INSTALLED: Final = (
    "patchbay local needs xllamacpp, which is llama.cpp's server: pip install 'patchbay-tools[local]'. There are packages of it "
    "for Linux with glibc and macOS 13 or newer; elsewhere start a model server yourself, and use patchbay proxy."
)


_NO_OPENMP: Final = ": install OpenMP's library (Debian: apt install libgomp1)"


class LlamaError(PatchbayError, RuntimeError):
    """llama.cpp's server cannot be started, or ends again and again."""

    code = "llama_server"
    exit_status = 1


@dataclass(frozen=True, kw_only=True)
class LlamaSettings:
    """How llama.cpp runs a model, with the flags of ``patchbay local``. Memory grows with ``context`` times ``slots``."""

    context: int = field(
        default=8192, metadata=flag("Most tokens of a request and its answer together.", metavar="TOKENS", min=256)
    )
    slots: int = field(default=1, metadata=flag("Requests that are answered at a time; others wait.", metavar="N", min=1, max=64))
    threads: int = field(
        default=1, metadata=flag("Threads that write an answer: up to the number of idle cores.", metavar="N", min=1, max=512)
    )
    prompt_threads: int = field(default=2, metadata=flag("Threads that read a prompt.", metavar="N", min=1, max=512))
    prompt_cache: int = field(
        default=64, metadata=flag("Memory for prompts of other conversations than the last one.", metavar="MIB", min=0)
    )


@dataclass(frozen=True)
class ModelServer:
    """The address of a running server, with /v1, and the key that it requires."""

    url: str
    key: str = field(repr=False)


def require_llama() -> None:
    """Raise ConfigurationError if llama.cpp's server is not installed."""
    if find_spec("xllamacpp") is None:
        raise ConfigurationError(NOT_INSTALLED)


class LlamaServer:
    """A server of llama.cpp, whose address is known before it is started: a context manager, in whose block it may ``run``.

    Its key keeps other programs of this machine and web pages away from it. The port is kept by a socket that does not listen, so
    that no other program gets it while the server is started again.
    """

    def __init__(self) -> None:
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._port.bind(("127.0.0.1", 0))
        self.upstream = ModelServer(f"http://127.0.0.1:{self._port.getsockname()[1]}/v1", secrets.token_urlsafe(32))
        protect(self.upstream.key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._port.close()

    @contextmanager
    def run(self, model: Path, settings: LlamaSettings, *, alias: str) -> Iterator[None]:
        """Run the server during the block; ``alias`` is the model's name for clients.

        Raises LlamaError if it cannot be started, also at the end of the block. Where it ends again and again, this process gets
        SIGTERM.
        """
        parameters = {
            "model": str(model),
            "alias": alias,
            "port": self._port.getsockname()[1],
            "key": self.upstream.key,
            **asdict(settings),
        }
        supervisor = _Supervisor(json.dumps(parameters))
        supervisor.start()
        try:
            supervisor.ready.result()
            yield
        finally:
            supervisor.stop()
            if supervisor.failure is not None:
                raise supervisor.failure


class _Supervisor(threading.Thread):
    """Starts the process, waits for its end, and starts it again, until ``stop``. ``ready`` is done when it first listens."""

    def __init__(self, parameters: str) -> None:
        super().__init__(name="supervisor of llama.cpp", daemon=True)
        self.ready: Future[None] = Future()
        self.failure: LlamaError | None = None
        self._parameters = parameters
        self._stopping = threading.Event()
        self._child: Child | None = None

    def stop(self) -> None:
        """End the process."""
        self._stopping.set()
        if self._child is not None and (stdin := self._child.process.stdin) is not None:
            stdin.close()
        self.join(_STOP_SECONDS)  # one that still loads its model ends with its standard input

    def run(self) -> None:
        backoff = Backoff(0.25, 10.0, retries=4, healthy_after=60.0)
        while not self._stopping.is_set():
            started = time.monotonic()
            problem = self._run_once()
            if self._stopping.is_set():
                return
            delay = backoff.fail(lasted=time.monotonic() - started)
            if not self.ready.done():
                self.ready.set_exception(LlamaError(problem))
                return
            if backoff.is_exhausted:
                self.failure = LlamaError(f"{problem}. It ended {backoff.failures} times in a row")
                os.kill(os.getpid(), signal.SIGTERM)
                return
            _logger.warning("%s. It is started again in %.1f s", problem, delay)
            self._stopping.wait(delay)

    def _run_once(self) -> str:
        """Run the process to its end, and return why it ended."""
        command = [sys.executable, "-P", "-m", __name__]
        try:
            with listening(command, name=_NAME, timeout=_START_SECONDS, start=self._start) as child:
                self._child = child
                if self._stopping.is_set():
                    return ""
                if self.ready.done():
                    _logger.info("%s runs again", _NAME)
                else:
                    self.ready.set_result(None)
                status = child.process.wait()
            lines = [line for line in child.printed[-_LAST_LINES:] if child.url not in line]
            return f"{_NAME}: {describe_exit(status, 'exit status')}{_as_reason(lines)}"
        except ChildError as error:
            return f"{_NAME} did not start{_as_reason(error.printed)}"
        except OSError as error:
            return f"{_NAME} cannot be started: {error}"

    def _start(self, command: list[str], **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, **options)  # noqa: S603  (no shell)
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and its output says why
            os.write(process.stdin.fileno(), self._parameters.encode() + b"\n")
        return process


def _as_reason(lines: Iterable[str]) -> str:
    """Return the lines of a log, each once and without its time, as the end of a message."""
    texts = dict.fromkeys(_LOG_PREFIX.sub("", line).strip() for line in lines)
    texts.pop("", None)
    return f": {one_line('; '.join(texts), _MOST_CHARS)}" if texts else ""


def main() -> None:
    """Serve a model until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which lets running requests finish
    given = json.loads(sys.stdin.readline())
    # Threads that wait in a loop for one that has lost its core take ten times as long as those that sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        import xllamacpp
    except ImportError as error:
        sys.exit(f"xllamacpp cannot be loaded: {error}{_NO_OPENMP if 'libgomp' in str(error) else ''}")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = given["model"]
    parameters.model_alias = {given["alias"]}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = given["port"]
    parameters.reuse_port = True
    parameters.api_keys = [given["key"]]
    parameters.ui = False
    parameters.n_parallel = given["slots"]
    parameters.n_ctx = given["context"] * given["slots"]
    parameters.cpuparams.n_threads = given["threads"]
    parameters.cpuparams_batch.n_threads = given["prompt_threads"]
    parameters.cache_ram_mib = given["prompt_cache"]
    parameters.verbosity = 1  # errors
    try:
        server = xllamacpp.Server(parameters)
    except RuntimeError:
        sys.exit(1)  # its log has the reason
    # A signal to the whole group is for the parent, too: it closes standard input once the running requests are answered.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(server.listening_address, flush=True)
    sys.stdin.read()
    os._exit(0)  # its threads may be generating


if __name__ == "__main__":
    main()

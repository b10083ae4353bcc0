"""``patchbay serve`` and ``patchbay proxy`` in a thread of this process, for tests that need no process of their own."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

from patchbay.server import runtime
from support.cli import run_cli

BOUND = 60.0
"""Seconds that a start or a stop may take."""


class _Server(runtime._Server):
    """Tells of itself, so that it can be stopped without a signal."""

    last: _Server

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        _Server.last = self


@contextlib.contextmanager
def served_here(*arguments: str, **environment: str) -> Iterator[tuple[str, str]]:
    """Run ``patchbay ARGUMENTS``, a command that serves, on a free port. Return its URL and what it printed.

    It handles requests as a process does, but has no signals, and its log is the log of this process.
    """
    found: list[Any] = []

    def take(make_app: Any, options: Any, *, ready: Any, stopping: Any = None) -> int:
        found.append((make_app(), options, ready, stopping))
        return 0

    with mock.patch("patchbay.server.runtime.serve", take):
        done = run_cli(*arguments, "--port", "0", **environment)
    assert found, done.stderr
    app, options, ready, stopping = found[0]
    listener = runtime.listen_on(options.host, 0)
    up = threading.Event()

    def run() -> None:
        try:
            runtime.run_server(app, listener, drain_timeout=options.drain_timeout, ready=up.set, stopping=stopping)
        finally:
            up.set()

    with mock.patch.object(runtime, "_settle_collector"), mock.patch.object(runtime, "_Server", _Server):
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert up.wait(BOUND)
    server = _Server.last
    url = runtime.url_of(listener)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            ready(url)
        yield url, printed.getvalue()
    finally:
        server.should_exit = True
        thread.join(BOUND)
        assert not thread.is_alive()
        listener.close()

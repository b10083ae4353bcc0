"""One process per core: a parent that holds the sockets, and workers that serve them.

Each worker has a socket of its own on the shared port (SO_REUSEPORT), so that the kernel spreads the connections. The parent
keeps all of them open: what arrives while a dead worker is being replaced waits in its socket's queue. POSIX only.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from patchbay.server.serve import LEVELS, AsgiApp, listen_on, log_to_stderr, run_server, url_of
from patchbay.server.settings import ServeOptions

_logger = logging.getLogger("patchbay.proxy")
_TOO_SOON = 2.0
_TOO_OFTEN = 3


def serve(
    make_app: Callable[[], AsgiApp],
    options: ServeOptions,
    *,
    ready: Callable[[str], None],
    stopping: Callable[[int], object] | None = None,
) -> int:
    """Serve until told to stop; return the exit status. Raises ConfigurationError where the address cannot be had.

    ``make_app`` is called in the process that serves; ``ready`` once, with the URL, when requests are served; ``stopping`` of one
    process, with the number of requests that a stop waits for. Raises the PatchbayError that keeps one process from starting.
    """
    log_to_stderr(LEVELS[options.log])
    for number in (signal.SIGTERM, signal.SIGINT):  # handlers end before the process does, and one more would be what it died of
        atexit.register(signal.signal, number, signal.SIG_IGN)
    listener = listen_on(options.host, options.port)
    if options.workers == 1:
        url = url_of(listener)
        run_server(make_app(), listener, drain_timeout=options.drain_timeout, ready=lambda: ready(url), stopping=stopping)
        return 0
    # The first socket proved that the port is free, which a shared one cannot; its number may have been chosen just now.
    port: int = listener.getsockname()[1]
    listener.close()
    listeners = [listen_on(options.host, port, shared=True) for _ in range(options.workers)]
    return _Crew(make_app, listeners, options, ready).run()


class _Crew:
    """The workers, by process id; replaces those that die, and hands a stop on to all."""

    def __init__(
        self,
        make_app: Callable[[], AsgiApp],
        listeners: list[socket.socket],
        options: ServeOptions,
        ready: Callable[[str], None],
    ) -> None:
        self._make_app = make_app
        self._listeners = listeners
        self._options = options
        self._ready = ready
        self._places: dict[int, tuple[int, float]] = {}
        self._early_deaths = 0
        self._stopping = False

    def run(self) -> int:
        """Start the workers, wait until all are gone, and return the exit status."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        for place in range(len(self._listeners)):
            self._start(place, announce=place == 0)
        failed = False
        while self._places:
            pid, status = os.wait()
            place, started = self._places.pop(pid, (-1, 0.0))
            if place < 0 or self._stopping:
                continue
            self._early_deaths = self._early_deaths + 1 if time.monotonic() - started < _TOO_SOON else 0
            code = os.waitstatus_to_exitcode(status)
            if self._early_deaths >= _TOO_OFTEN:
                _logger.error("Workers end at once (status %s); giving up.", code)
                failed = True
                self._stop()
            else:
                _logger.error("A worker ended (status %s); starting another.", code)
                self._start(place, announce=False)
        return 1 if failed else 0

    def _stop(self, *_signal: object) -> None:
        self._stopping = True
        for listener in self._listeners:  # the workers' own copies are theirs to close
            listener.close()
        for pid in list(self._places):
            os.kill(pid, signal.SIGTERM)

    def _start(self, place: int, *, announce: bool) -> None:
        # Blocked until the worker is in the table and has its own handlers: a stop in between would miss it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        try:
            if self._stopping:
                return
            pid = os.fork()
            if pid == 0:
                self._work(place, announce=announce)
            self._places[pid] = (place, time.monotonic())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _work(self, place: int, *, announce: bool) -> NoReturn:
        """Be a worker: never returns into the parent's code."""
        status = 1
        try:
            parent = os.getppid()
            # Ctrl-C reaches the whole group; the parent hands on what is to be done about it.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            listener = self._listeners[place]
            for other in self._listeners:
                if other is not listener:
                    other.close()
            app = self._make_app()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
            url = url_of(listener)
            run_server(
                app,
                listener,
                drain_timeout=self._options.drain_timeout,
                ready=(lambda: self._ready(url)) if announce else _nothing,
                still_wanted=lambda: os.getppid() == parent,
                signals=(signal.SIGTERM,),
            )
            status = 0
        except BaseException:
            _logger.exception("A worker failed")  # and must not run on as a second parent
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def _nothing() -> None:
    """Announce nothing: one worker speaks for all."""

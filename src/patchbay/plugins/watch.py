"""The end of a plugin's process when nothing else ends it.

What lives here: a thread that notices when the host is gone, and the last resort. What does not: the orderly end (``child``).

A thread, because the event loop may be stuck in what the plugin does; and the pipe, because the kernel closes the host's end of
it however the host ends.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

GONE_CODE = 70
"""The exit code of a process whose host is gone."""


class HostWatch:
    """Calls ``on_gone``, from a thread, when the other end of ``fd`` is closed; ``grace`` seconds later the process is no more.

    ``grace`` may be set as long as the host is there.
    """

    def __init__(self, fd: int, on_gone: Callable[[], None]) -> None:
        self.grace = 5.0
        self.is_gone = False
        self._fd = fd
        self._on_gone = on_gone

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, name="patchbay-host-watch", daemon=True).start()

    def _watch(self) -> None:
        try:
            while os.read(self._fd, 1024):
                pass
        except OSError:
            pass
        self.is_gone = True
        end_within(self.grace, GONE_CODE, last=end_group)
        self._on_gone()


def end_within(seconds: float, code: int, *, last: Callable[[], object] = lambda: None) -> None:
    """End the process in ``seconds`` whatever it does then (threads, atexit functions, endless loops), ``last`` before that."""

    def end() -> None:
        last()
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def end_group() -> None:
    """End what the plugin has started, where this process leads a group of its own; and this process with it."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)

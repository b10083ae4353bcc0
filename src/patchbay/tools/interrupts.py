"""A Ctrl-C, told from an exception that somebody's code has raised."""

from __future__ import annotations

import threading


def is_users_interrupt(error: BaseException) -> bool:
    """Whether this is a Ctrl-C: those reach the main thread only, so in any other a tool or hook raised it by itself."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()

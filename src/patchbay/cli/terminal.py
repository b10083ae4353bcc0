"""Terminal input and output shared by commands: errors, colour, escape sequences, closed pipes, times and sizes."""

from __future__ import annotations

import io
import math
import os
import re
import select
import sys
import threading
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from patchbay._redaction import Redactor
from patchbay._text import escape_controls
from patchbay.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

USAGE_ERROR: Final = 2
"""Exit status of a command with invalid flags."""

STDOUT_CLOSED: Final = 1
"""Exit status after standard output was closed, the same as after a failed write."""

_UNITS: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|m|h|d|w)")

_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]*m")


def fail(message: str, status: int) -> NoReturn:
    """Print an error on one line of stderr and exit."""
    print(f"patchbay: {Redactor().text(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(status)


def supports_colour(stream: TextIO) -> bool:
    """Return True for a terminal with colours, unless ``NO_COLOR`` is set."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def make_console(stream: TextIO) -> Console:
    """Return a console of rich, which wraps no line, and has no styles where the terminal has no colours."""
    from rich.console import Console  # only for commands that print lines of several colours

    return Console(file=stream, soft_wrap=True, color_system="standard" if supports_colour(stream) else None)


def styles(stream: TextIO) -> tuple[str, str, str]:
    """Return the codes for bold, dim and plain text, empty without colour."""
    return ("\x1b[1m", "\x1b[2m", "\x1b[0m") if supports_colour(stream) else ("", "", "")


def escape_unencodable() -> None:
    """Write characters that the terminal's encoding lacks as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def exit_when_stdout_closes() -> None:
    """Exit as soon as standard output is closed, for read-only commands that may print nothing for hours.

    Where the system does not report it (Windows), only the next write fails.
    """
    if not hasattr(select, "poll"):
        return
    try:
        fd = sys.stdout.fileno()
    except (OSError, ValueError):  # captured inside this process
        return
    threading.Thread(target=_exit_with, args=(fd,), name="patchbay-stdout", daemon=True).start()


def _exit_with(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, 0)  # only errors and hang-ups, which are always reported
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll()):
        os._exit(STDOUT_CLOSED)  # the main thread may be in a read that never returns


def plain(line: str) -> str:
    """Return a line without colours, its other control characters escaped."""
    return escape_controls(_COLOUR.sub("", line))


def parse_time(text: str, now: float, flag: str) -> float:
    """Parse ``2h`` (before ``now``) or ``2026-05-01T12:00`` (local time by default) as seconds since 1970.

    Raises ConfigurationError.
    """
    if (match := _DURATION.fullmatch(text.strip())) is not None:
        return now - float(match[1]) * _UNITS[match[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ConfigurationError(
            f"Invalid {flag} {text!r}: use a time ago, such as 30s, 15m, 2h, 7d, or a date, such as 2026-05-01T12:00."
        ) from None


def format_clock(seconds: float) -> str:
    """Format the time of day with milliseconds."""
    return f"{datetime.fromtimestamp(seconds).astimezone():%H:%M:%S}.{int(seconds % 1 * 1000):03d}"


def format_datetime(seconds: float) -> str:
    """Format the date and time of day."""
    try:
        return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def format_duration(seconds: float) -> str:
    """Format a duration in two or three digits: ``0.4 ms``, ``12 ms``, ``3.1 s``, ``4 min``."""
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    if seconds < 0.9995:
        milliseconds = seconds * 1000
        return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def print_json(value: Any, **options: Any) -> None:
    """Print a value as indented JSON."""
    import json

    print(json.dumps(value, indent=2, **options))

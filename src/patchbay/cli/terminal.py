"""Terminal input and output shared by commands: errors, colour, escape sequences, closed pipes, times and sizes."""

from __future__ import annotations

import io
import math
import os
import queue
import re
import select
import sys
import threading
from datetime import datetime
from typing import Any, Final, NoReturn, TextIO

from patchbay._redaction import Redactor
from patchbay._text import plural
from patchbay.errors import ConfigurationError

USAGE_ERROR: Final = 2
"""Exit status of a command with invalid flags."""

STDOUT_CLOSED: Final = 1
"""Exit status after standard output was closed, the same as after a failed write."""

_UNITS: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|m|h|d|w)")

COLOUR_CODE: Final = re.compile(r"\x1b\[[0-9;:]*m")
_RESET: Final = "\x1b[0m"

# In this order: strings (a title, a link) with their ends, sequences (CSI), other escapes, and remaining single controls.
# Of a string without an end only the introducer matches: it must not hide the rest of the line.
_CONTROLS: Final = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]*m)"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)
_UNFINISHED: Final = re.compile(
    r"(?:(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*\x1b?"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*"
    r"|\x1b[ -/]*)\Z"
)
_LONGEST_ESCAPE: Final = 1_024

_MAX_LINES: Final = 10_000
_FLUSH_SECONDS: Final = 2.0


def fail(message: str, status: int) -> NoReturn:
    """Print an error on one line of stderr and exit."""
    print(f"patchbay: {Redactor().text(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(status)


def supports_colour(stream: TextIO) -> bool:
    """Return True for a terminal with colours, unless ``NO_COLOR`` is set."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def styles(stream: TextIO) -> tuple[str, str, str]:
    """Return the codes for bold, dim and plain text, empty without colour."""
    return ("\x1b[1m", "\x1b[2m", _RESET) if supports_colour(stream) else ("", "", "")


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


class LineWriter:
    """Writes lines to standard output in a thread, so that a slow reader does not block an event loop.

    Past 10,000 waiting lines the rest is dropped, and their number printed. Lines for a closed pipe are dropped.
    """

    def __init__(self) -> None:
        self._fd = sys.stdout.fileno()
        self._encoding = sys.stdout.encoding or "utf-8"
        self._lines: queue.Queue[str | None] = queue.Queue(_MAX_LINES)
        self._dropped = 0
        # A daemon that bypasses sys.stdout: a blocked write delays neither the exit nor the last flush.
        self._thread = threading.Thread(target=self._write, name="patchbay-lines", daemon=True)
        self._thread.start()

    def print(self, line: str) -> None:
        """Queue a line and return at once."""
        if self._dropped:
            line = f"... ({plural(self._dropped, 'line')} left out)\n{line}"
        try:
            self._lines.put_nowait(line)
            self._dropped = 0
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write what is queued, for at most a few seconds."""
        try:
            self._lines.put(None, timeout=_FLUSH_SECONDS)
        except queue.Full:
            return
        self._thread.join(_FLUSH_SECONDS)

    def _write(self) -> None:
        is_closed = False
        while (line := self._lines.get()) is not None:
            data = f"{line}\n".encode(self._encoding, "backslashreplace")
            try:
                while data and not is_closed:
                    data = data[os.write(self._fd, data) :]
            except OSError:
                is_closed = True


def sanitize_ansi(line: str) -> str:
    """Return a line without control characters except tabs and colours (SGR), which are reset at its end."""
    if line.isprintable():
        return line
    clean = _CONTROLS.sub(lambda found: found["colour"] or "", line)
    return clean + _RESET if COLOUR_CODE.search(clean) and not clean.endswith(_RESET) else clean


def split_unfinished_escape(text: str) -> tuple[str, str]:
    """Split a piece of a stream before the escape sequence that is unfinished at its end ("" if there is none).

    Sequences longer than 1,024 characters count as text, so that the pending part is bounded.
    """
    unfinished = _UNFINISHED.search(text, max(0, len(text) - _LONGEST_ESCAPE))
    return (text, "") if unfinished is None else (text[: unfinished.start()], unfinished[0])


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

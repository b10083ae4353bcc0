"""Times and sizes as people write and read them at a terminal."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Final

from patchbay.errors import ConfigurationError

_UNITS: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_SPAN: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|m|h|d|w)")


def read_time(text: str, now: float, flag: str) -> float:
    """Read ``2h`` (before ``now``) or ``2026-05-01T12:00`` (this machine's time, unless it says another) as seconds since 1970.

    Raises ConfigurationError.
    """
    if (match := _SPAN.fullmatch(text.strip())) is not None:
        return now - float(match[1]) * _UNITS[match[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ConfigurationError(
            f"{flag} is {text!r}: write how long ago, as 30s, 15m, 2h, 7d, or when, as 2026-05-01T12:00."
        ) from None


def clock(seconds: float) -> str:
    """Return the time of day, in milliseconds."""
    return f"{datetime.fromtimestamp(seconds).astimezone():%H:%M:%S}.{int(seconds % 1 * 1000):03d}"


def moment(seconds: float) -> str:
    """Return the day and the time of day."""
    try:
        return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def span(seconds: float) -> str:
    """Return how long something took, in two or three digits: ``0.4 ms``, ``12 ms``, ``3.1 s``, ``4 min``."""
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    if seconds < 0.9995:
        milliseconds = seconds * 1000
        return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: ``1 call``, ``2 calls``."""
    return f"{number:,} {one}" if number == 1 else f"{number:,} {many or f'{one}s'}"

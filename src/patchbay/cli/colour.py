"""Whether a command may write in colour. What lives here: that rule alone."""

from __future__ import annotations

import os
from typing import TextIO


def in_colour(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that shows colours, and its user has nothing against them (``NO_COLOR``)."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"

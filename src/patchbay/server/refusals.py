"""WebSockets that are not opened, as the log has them: as many lines as a person can read.

Whoever reaches the port can have one refused as often as they like, before they have shown anything. What lives here: that bound.
What does not: who is refused (``tools.guard``), and openings that cannot be read (``sockets``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from patchbay.legible import printable
from patchbay.valve import Valve

_LONGEST: Final = 500

_logger = logging.getLogger(__name__)


class Refusals:
    """Lines for ``_logger``. Those that are too many are counted, and the next line says how many they were."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._valve = Valve(lambda line: _logger.warning("%s", line), clock)

    def tell(self, what: str) -> None:
        """Log what was refused, and why."""
        self._valve.put(printable(what[:_LONGEST]))


REFUSALS: Final = Refusals()
"""Those of this process: there is one log."""

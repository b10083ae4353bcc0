"""One line in the log for each refused or failed request, rate-limited: a client can cause them as often as it likes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from patchbay.legible import one_line, printable
from patchbay.server.routes import own_path
from patchbay.valve import Valve

_LONGEST: Final = 500
_LONGEST_PATH: Final = 200

_logger = logging.getLogger(__name__)


class Refusals:
    """Writes the lines. Those beyond the rate are counted, and the next line says how many they were."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._valve = Valve(lambda line: _logger.warning("%s", line), clock)

    def tell(self, what: str) -> None:
        """Log one line."""
        self._valve.put(printable(one_line(what, _LONGEST)))

    def report(self, scope: Mapping[str, Any], status: int, reason: str) -> None:
        """Log that the HTTP request of ``scope`` was answered with the error ``status``. ``reason`` must hold no secret."""
        client = scope.get("client")
        path = own_path(scope)[:_LONGEST_PATH]
        self.tell(f"{scope['method']} {path} from {client[0] if client else '?'}: HTTP {status}, {reason}")


REFUSALS: Final = Refusals()
"""The one of this process: there is one log."""

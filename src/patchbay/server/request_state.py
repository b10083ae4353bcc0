"""The state of a request while the proxy answers it, and the record of it afterwards."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from patchbay._redaction import Redactor
from patchbay.errors import PatchbayError
from patchbay.frontends import Frontend
from patchbay.models.exchange import Exchange
from patchbay.models.request_record import RequestRecord
from patchbay.server.http import ResponseWriter
from patchbay.server.request_log import mark_recorded

if TYPE_CHECKING:
    from patchbay.server.chat.turn import ToolChatTurn

RequestObserver = Callable[[RequestRecord], object]
"""Called with the record of each finished request to a model. It must neither block nor raise."""

_USAGE: Final = re.compile(rb'"(prompt_tokens|completion_tokens|total_tokens)": ?([0-9]{1,12})\b')


@dataclass(slots=True)
class RequestState:
    """State of a request, for its errors, log lines and record. For a front-end ``scope`` is the converted chat request's."""

    scope: Any
    path: str
    reply: ResponseWriter
    redact: Redactor
    id: str = ""
    frontend: Frontend | None = None
    exchange: Exchange[bytes] | ToolChatTurn | None = None
    protocol: str = ""
    """That of a request to a model; "" for other requests, which have no record."""
    failure: PatchbayError | None = None
    began: float = 0.0
    """By ``time.perf_counter``; 0 where there are no observers."""

    @property
    def takes_events(self) -> bool:
        """Whether an error can be an event of the response."""
        return self.exchange is not None and self.exchange.client_streams and self.reply.pausable

    def observe(self) -> None:
        """Begin to collect what the record needs."""
        self.began, self.reply.ending = time.perf_counter(), b""

    def record(self, observers: Iterable[RequestObserver]) -> None:
        """Send the record of the finished request to the observers."""
        reply, failure, exchange = self.reply, self.failure, self.exchange
        ended: dict[str, Any] = {
            "id": self.id,
            "time": time.time(),
            "protocol": self.protocol,
            "seconds": time.perf_counter() - self.began,
            "status": reply.status or (failure.status if failure is not None else 0),
            "error": self.redact.text(f"{failure.code}: {failure}") if failure is not None else "",
        }
        usage = _passed_usage(reply.ending) if reply.ending else None
        record = RequestRecord(**ended) if exchange is None else exchange.record(usage, **ended)
        for observe in observers:
            observe(record)
        mark_recorded(self.scope)


def _passed_usage(ending: bytes) -> dict[str, int] | None:
    """Return the usage that stands in the last bytes of an answer that was passed on; None without one."""
    return {name.decode(): int(count) for name, count in _USAGE.findall(ending)} or None

"""The state of a request while the proxy answers it, and the record of it afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from patchbay._redaction import Redactor
from patchbay.errors import PatchbayError
from patchbay.frontends import Frontend
from patchbay.models.exchange import Exchange
from patchbay.models.request_record import RequestRecord
from patchbay.server.http import ResponseWriter
from patchbay.server.request_log import mark_recorded
from patchbay.server.turns import Turn, record_of
from patchbay.server.usage import UsageCounters

if TYPE_CHECKING:
    from patchbay.server.chat.turn import ToolChatTurn

RequestObserver = Callable[[RequestRecord], object]
"""Called with the record of each finished request to a model. It must neither block nor raise."""


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
    turn: Turn | None = None
    """What is kept of a request to a model, once it was read."""
    began: float = field(default_factory=time.perf_counter)

    @property
    def takes_events(self) -> bool:
        """Whether an error can be an event of the response."""
        return self.exchange is not None and self.exchange.client_streams and self.reply.pausable

    def end(self, observers: Sequence[RequestObserver], usage: UsageCounters) -> None:
        """End the turn, count it, and send the record of the finished request to the observers."""
        reply, failure, turn = self.reply, self.failure, self.turn
        seconds = time.perf_counter() - self.began
        status = reply.status or (failure.status if failure is not None else 0)
        error = self.redact.text(f"{failure.code}: {failure}") if failure is not None else ""
        if turn is not None:
            turn.end(seconds, status=status, error=error, ending=reply.ending)
            usage.add_turn(turn)
        else:
            usage.add_refusal(self.protocol, status, seconds)
        if observers:
            record = (
                RequestRecord(id=self.id, time=time.time(), protocol=self.protocol, seconds=seconds, status=status, error=error)
                if turn is None
                else record_of(turn)
            )
            for observe in observers:
                observe(record)
            mark_recorded(self.scope)

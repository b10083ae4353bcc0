"""The short way of a streamed piece: from the upstream's socket to the client's within one callback of the network.

A task that is woken for each piece costs more than all that is done with the piece. It is woken only for the end, for an error,
and where the client reads slower than the upstream writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

if TYPE_CHECKING:
    from patchbay.server.chat import ChatExchange
    from patchbay.server.journal import Capture
    from patchbay.server.watch import Watch


class EnoughError(Exception):
    """The exchange wants nothing more of the upstream's stream."""


def direct_sink(send: Any, exchange: ChatExchange, watch: Watch, capture: Capture | None) -> Callable[[bytes], bool] | None:
    """Return what feeds a piece and writes what comes of it; False where it can not be written now, and was not fed.

    None where ``send`` is not uvicorn's own: what stands between is to see each piece. The head must have been sent. It raises
    what ``feed`` raises, and EnoughError.
    """
    cycle = getattr(send, "__self__", None)
    if type(cycle) is not RequestResponseCycle or not cycle.chunked_encoding:
        return None
    flow, write = cycle.flow, cycle.transport.write
    feed, passed = exchange.feed, watch.passed

    def sink(piece: bytes) -> bool:
        if flow.write_paused or cycle.disconnected:
            return False
        out = feed(piece)
        if out:
            write(b"%x\r\n%b\r\n" % (len(out), out))
            if capture is not None:
                capture.add(out)
        passed(out)
        if exchange.finished:
            raise EnoughError
        return True

    return sink

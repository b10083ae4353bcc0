"""The short way to the client's socket, past ASGI's messages, where uvicorn's own ``send`` is what would take them.

A streamed piece goes from the upstream's socket to the client's within one callback of the network. A task that is woken for each
costs more than all that is done with it: it is woken only for the end, for an error, and where the client reads slower than the
upstream writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HEADER_VALUE_RE, STATUS_LINE, RequestResponseCycle

if TYPE_CHECKING:
    from patchbay.server.chat import ChatExchange
    from patchbay.server.headers import Headers
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


def write_whole(send: Any, status: int, headers: Headers, body: bytes) -> bool:
    """Write an answer that is complete, its Content-Length among ``headers``, in one system call. False: it was not written."""
    cycle = getattr(send, "__self__", None)
    if (
        type(cycle) is not RequestResponseCycle
        or cycle.response_started
        or cycle.disconnected
        or cycle.flow.write_paused
        or cycle.access_log
        or cycle.scope["method"] == "HEAD"
    ):
        return False
    head = STATUS_LINE[status]
    for name, value in (*cycle.default_headers, *headers):
        if HEADER_VALUE_RE.search(value) is not None:
            return False
        head += b"%b: %b\r\n" % (name, value)
    keep_alive = cycle.keep_alive
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.transport.write(b"%b%b\r\n%b" % (head, b"" if keep_alive else b"connection: close\r\n", body))
    cycle.message_event.set()
    if not keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True

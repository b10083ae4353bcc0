"""An Exchange driven over anything that answers a chat-completions body with chunks: for servers with a wire of their own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from patchbay.errors import UpstreamError
from patchbay.models.exchange import Exchange
from patchbay.models.sse import SseDecoder
from patchbay.models.wire import decode, encode, event

Ask = Callable[[Any], AsyncGenerator[dict[str, Any], None]]


async def driven(exchange: Exchange, ask: Ask) -> AsyncGenerator[Any, None]:
    """The chunks of the client's answer; ``ask`` is called for each attempt. Raises what it raises, and what the exchange does.

    The exchange's body must ask for a stream.
    """
    reader = SseDecoder()
    again = True
    while again:
        try:
            async with aclosing(ask(decode(exchange.request))) as chunks:
                async for chunk in chunks:
                    for data in reader.feed(exchange.feed(event(encode(chunk)))):
                        if data != b"[DONE]":
                            yield decode(data)
                    if exchange.finished:
                        break
            out, again = exchange.end()
        except UpstreamError as error:
            if error.upstream_status is not None and exchange.refused(error.upstream_status, f"{error} {error.body}"):
                continue
            saved = exchange.rescue()
            if saved is None:
                raise
            out, again = saved, False
        for data in reader.feed(out):
            if data != b"[DONE]":
                yield decode(data)

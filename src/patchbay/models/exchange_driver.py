"""Drives an Exchange over a server: sends its requests, feeds it the responses, and yields the bytes of the client's answer.

``Exchange.steps`` makes all decisions; this is only the I/O.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any, Protocol

from patchbay.errors import PatchbayError
from patchbay.models.exchange import Rejection, Step


class Steppable(Protocol):
    """The part of Exchange that a driver uses; see there."""

    request: bytes
    streaming: bool
    finished: bool
    complete: bool
    fell_back: bool

    def steps(self) -> Generator[Step | bytes, Rejection | bytes | None, None]:
        """Yield the next step, or bytes to write."""

    def feed(self, data: bytes, /) -> bytes:
        """Read a piece of the upstream's stream; return bytes to write."""


class AsyncUpstream(Protocol):
    """A server. Over a blocking client these methods block and never suspend (``wrap``)."""

    async def send(self, body: bytes, /) -> Rejection | bytes | None:
        """Send a request; return an error status, a whole answer, or None for a stream to read."""

    async def read(self) -> bytes:
        """Read the next piece of the stream; b"" at its end."""

    async def close(self) -> None:
        """Close the last response, if there is one."""


async def drive_async(
    exchange: Steppable, upstream: AsyncUpstream, failures: tuple[type[Exception], ...] = (PatchbayError,)
) -> AsyncGenerator[bytes, None]:
    """Yield the client's answer. Raises what the exchange and the upstream raise, unless there is an earlier answer.

    ``failures`` are the errors that fail one attempt; any other ends the exchange.
    """
    steps = exchange.steps()
    response: Rejection | bytes | None = None
    failure: Exception | None = None
    attempts = 0
    try:
        while not exchange.complete:
            step: Any = steps.send(response) if failure is None else steps.throw(failure)
            response = failure = None
            try:
                if step is Step.SEND:
                    if attempts:
                        await upstream.close()
                    attempts += 1
                    response = await upstream.send(exchange.request)
                elif step is Step.RECEIVE:
                    while not exchange.finished and (data := await upstream.read()):
                        if out := exchange.feed(data):
                            yield out
            except failures as error:
                failure = error
            if type(step) is bytes:
                yield step
    finally:
        await upstream.close()

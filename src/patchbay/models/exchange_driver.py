"""Drives an Exchange over one server: sends its requests, feeds it what comes, and yields the bytes of the client's answer.

What is asked next, and whether an error is the client's answer, is decided by ``Exchange.steps``; here is only the I/O.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any, Protocol

from patchbay.errors import PatchbayError
from patchbay.models.exchange import Rejection, Step


class Steppable(Protocol):
    """What a driver needs of an Exchange: see there for the meaning of each."""

    request: bytes
    streaming: bool
    finished: bool
    complete: bool
    fell_back: bool

    def steps(self) -> Generator[Step | bytes, Rejection | bytes | None, None]:
        """What to do next."""

    def feed(self, data: bytes, /) -> bytes:
        """Take a piece of the upstream's stream; return what to write."""


class AsyncUpstream(Protocol):
    """A server that is asked. Over a blocking client none of these waits for anything else (``wrap``)."""

    async def send(self, body: bytes, /) -> Rejection | bytes | None:
        """Send a request; return an error status, a whole answer, or None for a stream to read."""

    async def read(self) -> bytes:
        """Read the next piece of the stream; b"" at its end."""

    async def close(self) -> None:
        """Close the response that was read last, if there is one."""


async def drive_async(
    exchange: Steppable, upstream: AsyncUpstream, failures: tuple[type[Exception], ...] = (PatchbayError,)
) -> AsyncGenerator[bytes, None]:
    """Yield the client's answer. Raises what the exchange and the upstream raise, unless an earlier answer can be given.

    ``failures`` are the errors of one attempt; any other ends the exchange.
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

"""A small HTTP/1.1 client for the way to one upstream: asyncio protocols around httptools' parser, which is written in C.

What lives here: connections, their pool, requests and answers, as bytes. What does not: what any of them means, and the proxy's
words for a failure (``server.upstream``). No redirects, cookies, proxies from the environment, decompression or HTTP/2: who asks
gets what came. It exists because a general client costs more than all the rest of a streamed event
(docs/project/dependencies.md).
"""

from patchbay.server.client.answer import Answer
from patchbay.server.client.client import HttpClient
from patchbay.server.client.errors import (
    BrokenOffError,
    ClientError,
    ConnectError,
    ConnectTimeoutError,
    DisconnectedError,
    NotHttpError,
    UnsendableError,
)
from patchbay.server.client.origin import Origin

__all__ = [
    "Answer",
    "BrokenOffError",
    "ClientError",
    "ConnectError",
    "ConnectTimeoutError",
    "DisconnectedError",
    "HttpClient",
    "NotHttpError",
    "Origin",
    "UnsendableError",
]

"""Calls that come again: which idempotency keys are under way, and what those were answered with that are over.

What lives here: the memory, without I/O and within bounds. What does not: carrying out calls, and waiting for them (``calls``).

A caller that did not hear the answer of a call sends it again under the same key, and must not have it carried out twice. So a
key stands for one call of one plugin: while that is under way the repetition joins it, and for a while afterwards it gets the
same answer. What is kept ends with the host's process; a handler that must not do a thing twice over that too has the key itself.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from patchbay.plugins import envelope

NOT_KEPT: Final = envelope.failure(
    "this call was carried out already, and its answer was too long to be kept", error="ANSWER_NOT_KEPT", code="answer_not_kept"
).encode()
"""The answer in the place of one that was let go for its size. The call is not carried out again all the same."""


class KeyReusedError(Exception):
    """The key stands for another call."""


@dataclass(slots=True)
class _Over:
    """A call that is over. ``body`` is its answer, ``since`` when it was given."""

    digest: bytes
    body: bytes
    since: float


class Repeats:
    """Keeps for each key what became of its call: the last ``most`` that are over, for ``seconds``, with so much of answers.

    Those under way are always kept: whoever begins them bounds them. What is too old is let go when the next call comes.
    """

    def __init__(self, *, most: int, bytes_most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._bytes_most = bytes_most
        self._seconds = seconds
        self._clock = clock
        self._under_way: dict[str, tuple[bytes, str]] = {}
        self._over: OrderedDict[str, _Over] = OrderedDict()  # in the order of their ends
        self._with_body: OrderedDict[str, None] = OrderedDict()  # those whose answer is kept, in the same order
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._under_way) + len(self._over)

    def find(self, key: str, digest: bytes) -> str | bytes | None:
        """Return what there is of a call: the id of its request while that is under way, then its answer; None for a new one.

        Raises KeyReusedError where the key is that of a call with another digest.
        """
        self._let_go()
        if (under_way := self._under_way.get(key)) is not None:
            known, found = under_way[0], under_way[1]
            return _same(known, digest, found)
        if (over := self._over.get(key)) is not None:
            return _same(over.digest, digest, over.body)
        return None

    def begin(self, key: str, digest: bytes, req_id: str) -> None:
        """Note that a call of a new key is under way."""
        self._under_way[key] = (digest, req_id)

    def end(self, key: str, body: bytes | None) -> None:
        """Note how a call has ended: its answer, or None for one that never ran, which may come again."""
        under_way = self._under_way.pop(key, None)
        if under_way is None or body is None:
            return
        self._over[key] = _Over(under_way[0], body, self._clock())
        self._with_body[key] = None
        self._bytes += len(body)
        self._let_go()

    def _let_go(self) -> None:
        while self._over:
            oldest = next(iter(self._over))
            if len(self._over) <= self._most and self._clock() - self._over[oldest].since <= self._seconds:
                break
            if oldest in self._with_body:
                self._drop_body(oldest)
            del self._over[oldest]
        while self._bytes > self._bytes_most:
            # The newest goes first where it alone is too much: it would take all others with it.
            newest = next(reversed(self._with_body))
            alone = len(self._over[newest].body) > self._bytes_most
            self._drop_body(newest if alone else next(iter(self._with_body)))

    def _drop_body(self, key: str) -> None:
        over = self._over[key]
        self._bytes -= len(over.body)
        over.body = NOT_KEPT
        del self._with_body[key]


def digest_of(name: str, args: str) -> bytes:
    """Return what tells one call from another: its tool and its arguments, byte for byte."""
    return hashlib.blake2b(f"{name}\n{args}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def reused(plugin_id: str, key: str) -> bytes:
    """Return the answer of a call whose key stands for another call."""
    message = (
        f"the idempotency key {key!r} stands for another call of plugin {plugin_id!r}: this one did not run. "
        "A key is for one call, and for the same call when it is sent again"
    )
    return envelope.failure(message, error="IDEMPOTENCY_KEY_REUSED", code="idempotency_key_reused", ran="no").encode()


def _same(known: bytes, digest: bytes, found: str | bytes) -> str | bytes:
    if known != digest:
        raise KeyReusedError
    return found

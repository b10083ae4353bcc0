"""Stored responses of the Responses API: the stores, and responses that are made in the background."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from typing_extensions import override

from patchbay.cache import SizedCache
from patchbay.database import reason_of
from patchbay.errors import PatchbayError
from patchbay.frontends.responses import StoredResponse
from patchbay.models.wire import encode

LEASE_SECONDS: Final = 60.0
"""Lease of a response in progress: it counts as failed unless its server renews this."""
RENEW_SECONDS: Final = 5.0
"""Interval in which a server renews its leases, and notices that a response was cancelled on another server."""
MAX_RUNNING: Final = 100
"""Maximum responses that a process makes in the background at a time."""
MAX_STREAM_IDS: Final = 32
"""Maximum different ``stream_id`` values of one WebSocket."""

_MOST: Final = 1000
_MOST_BYTES: Final = 64 * 1024 * 1024
_CLOSING: Final = 5.0
_STOPPED: Final = "The server stopped before this response was complete; send the request again."
_FAILED: Final = "The server failed on this response; its operator finds the reason in its output."

_logger = logging.getLogger(__name__)


class TooManyResponsesError(PatchbayError):
    """Too many responses are being made in the background."""

    code = "too_many_responses"
    status = 503
    retryable = True


class ResponseStore(Protocol):
    """A store of responses, by their keys (``StoredResponse.key``)."""

    async def open(self) -> None:
        """Open the store. Raises ConfigurationError."""

    async def get(self, key: str) -> StoredResponse | None:
        """Return a response, None if it is not stored."""

    async def put(self, stored: StoredResponse) -> None:
        """Store a new response."""

    async def settle(self, stored: StoredResponse) -> bool:
        """Replace a response in progress; return False, without a change, if it is not in progress."""

    async def delete(self, key: str) -> bool:
        """Delete a response; return False if there was none."""

    async def renew(self, keys: Iterable[str]) -> set[str]:
        """Extend the leases of those responses that are still in progress by ``LEASE_SECONDS``, and return their keys."""

    async def close(self) -> None:
        """Close the store."""


class ResponseRuns(Protocol):
    """Runs that make responses in the background, and go on when the server that began them has gone."""

    async def end_of(self, response: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the fields with which a response has ended, {} while its run goes on, None if it has no run."""

    async def cancel(self, response: Mapping[str, Any]) -> None:
        """Cancel the run of a response, if it has one."""


class MemoryResponses(ResponseStore):
    """The last 1,000 responses of this process, at most 64 MiB of them; the oldest go first."""

    def __init__(self, keep: float | None) -> None:
        self._keep = keep
        self._responses: SizedCache[str, StoredResponse] = SizedCache(most=_MOST, most_bytes=_MOST_BYTES)

    @override
    async def open(self) -> None:
        pass

    @override
    async def get(self, key: str) -> StoredResponse | None:
        stored = self._responses.get(key)
        if stored is not None and self._keep is not None and stored.response["created_at"] + self._keep < time.time():
            self._responses.pop(key)
            return None
        return stored

    @override
    async def put(self, stored: StoredResponse) -> None:
        self._responses.put(stored.key, stored, _size(stored))

    @override
    async def settle(self, stored: StoredResponse) -> bool:
        known = self._responses.get(stored.key)
        if known is None or known.lease is None:
            return False
        await self.put(stored)
        return True

    @override
    async def delete(self, key: str) -> bool:
        return self._responses.pop(key) is not None

    @override
    async def renew(self, keys: Iterable[str]) -> set[str]:
        known = {each: self._responses.get(each) for each in keys}
        running = {each: stored for each, stored in known.items() if stored is not None and stored.lease is not None}
        for stored in running.values():
            await self.put(replace(stored, lease=time.time() + LEASE_SECONDS))
        return set(running)

    @override
    async def close(self) -> None:
        pass


class ConnectionResponses:
    """The last responses of one connection, also of requests with ``store: false``: of all connections the last 1,000, 64 MiB."""

    def __init__(self, shared: SizedCache[tuple[int, str], StoredResponse], number: int) -> None:
        self._shared = shared
        self._number = number
        self._last: dict[str, None] = {}
        self.latest = ""
        """The id of the response that was put last."""

    def get(self, response_id: str) -> StoredResponse | None:
        """Return a response of this connection."""
        return self._shared.get((self._number, response_id))

    def put(self, stored: StoredResponse) -> None:
        """Store a response: the last one of each stream can be continued."""
        self.latest = stored.response["id"]
        self._last[self.latest] = None
        self._shared.put((self._number, self.latest), stored, _size(stored))
        while len(self._last) > MAX_STREAM_IDS + 1:
            self.forget(next(iter(self._last)))

    def forget(self, response_id: str) -> None:
        """Drop a response, as OpenAI does when a request that continues it fails."""
        self._last.pop(response_id, None)
        self._shared.pop((self._number, response_id))

    def close(self) -> None:
        """Drop all."""
        for response_id in [*self._last]:
            self.forget(response_id)


def connection_cache() -> SizedCache[tuple[int, str], StoredResponse]:
    """Return what the ConnectionResponses of one server share."""
    return SizedCache(most=_MOST, most_bytes=_MOST_BYTES)


def _size(stored: StoredResponse) -> int:
    return len(encode(stored.items)) + (stored.size or len(encode(stored.response)))


class BackgroundResponses:
    """The responses that this process makes in the background, for clients that ask for them later; some of them by ``runs``."""

    def __init__(self, store: ResponseStore, redact: Callable[[str], str], runs: ResponseRuns | None = None) -> None:
        self._store = store
        self._runs = runs
        self._redact = redact
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._renewing: asyncio.Task[None] | None = None

    async def begin_response(
        self, stored: StoredResponse, make: Callable[[], Awaitable[StoredResponse]], ended: Callable[[str], None]
    ) -> dict[str, Any]:
        """Store a response as queued, start ``make``, and return the response object. Raises TooManyResponsesError.

        ``ended`` is called with its key once its end is stored.
        """
        if len(self._tasks) >= MAX_RUNNING:
            raise TooManyResponsesError(f"{MAX_RUNNING} responses are being made in the background already. Try again later.")
        queued = replace(stored, response={**stored.response, "status": "queued"}, lease=time.time() + LEASE_SECONDS)
        key = queued.key
        await self._store.put(queued)
        task = self._tasks[key] = asyncio.create_task(self._make(queued, make))
        task.add_done_callback(lambda _: self._tasks.pop(key, None))
        task.add_done_callback(lambda _: ended(key))
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew())
        return queued.response

    async def get(self, key: str) -> StoredResponse | None:
        """Return a response; one with an expired lease has failed, unless it has a run."""
        stored = await self._store.get(key)
        if stored is None or stored.lease is None or stored.lease > time.time():
            return stored
        await self._settle_left(stored)
        return await self._store.get(key)

    async def _settle_left(self, stored: StoredResponse, why: str = _STOPPED) -> None:
        """Store the end of a response that no server makes, unless its run goes on."""
        end = await self._runs.end_of(stored.response) if self._runs is not None else None
        if end is None:
            await self._store.settle(failed(stored, "server_error", why))
        elif end:
            await self._store.settle(replace(stored, response={**stored.response, **end}, lease=None))
        else:
            await self._store.settle(replace(stored, lease=time.time()))  # any server may look for its end

    async def cancel(self, stored: StoredResponse) -> StoredResponse | None:
        """Cancel a response, whichever server makes it, and return its final state."""
        await self._store.settle(_ended(stored, "cancelled"))
        await self._stop(stored)
        return await self._store.get(stored.key)

    async def delete(self, stored: StoredResponse) -> None:
        """Delete a response, and stop making it."""
        await self._store.delete(stored.key)
        await self._stop(stored)

    async def close(self) -> None:
        """Stop all responses, which are stored as failed, and close the store."""
        tasks = [*self._tasks.values(), *([] if self._renewing is None else [self._renewing])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSING)
        await self._store.close()

    async def _stop(self, stored: StoredResponse) -> None:
        """Stop making a response, whichever process does."""
        if (task := self._tasks.get(stored.key)) is not None:
            task.cancel()
        if self._runs is not None and stored.lease is not None:
            if task is not None:
                await asyncio.wait((task,))  # it may be adding the run
            await self._runs.cancel(stored.response)

    async def _make(self, queued: StoredResponse, make: Callable[[], Awaitable[StoredResponse]]) -> None:
        """Make one response and store its end, unless it was cancelled or deleted meanwhile.

        Where the end cannot be stored, the lease expires: then the response has failed, unless it has a run.
        """
        begun = replace(queued, response={**queued.response, "status": "in_progress"})
        try:
            if await self._store.settle(begun):
                await self._make_begun(begun, make)
        except asyncio.CancelledError:
            await self._settle_left(begun)
            raise
        except Exception as error:  # noqa: BLE001  (the database is away)
            _logger.warning("The end of a response in the background could not be stored: %s", reason_of(error))

    async def _make_begun(self, begun: StoredResponse, make: Callable[[], Awaitable[StoredResponse]]) -> None:
        try:
            done = await make()
        except PatchbayError as error:
            message = self._redact(str(error))
            _logger.warning("A response in the background failed: %s", message)
            await self._store.settle(failed(begun, error.code, message))
        except Exception:
            _logger.exception("A response in the background failed")
            await self._settle_left(begun, _FAILED)
        else:
            await self._store.settle(done)

    async def _renew(self) -> None:
        while self._tasks:
            await asyncio.sleep(RENEW_SECONDS)
            ours = list(self._tasks)
            try:
                still = await self._store.renew(ours)
            except Exception as error:  # noqa: BLE001  (the next time)
                _logger.warning("The responses in the background could not be renewed: %s", reason_of(error))
                continue
            for key in set(ours) - still:
                if (task := self._tasks.get(key)) is not None:
                    task.cancel()


def failed(stored: StoredResponse, code: str, message: str) -> StoredResponse:
    """Return a response that has failed."""
    return _ended(stored, "failed", error={"code": code, "message": message})


def _ended(stored: StoredResponse, status: str, **fields: Any) -> StoredResponse:
    return replace(stored, response={**stored.response, "status": status, **fields}, lease=None)

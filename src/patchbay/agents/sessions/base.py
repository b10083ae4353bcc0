"""The base class of session services, independent of the storage, and the locks of runs."""

from __future__ import annotations

import asyncio
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from patchbay.agents.content import Event
from patchbay.agents.json_copy import json_copy
from patchbay.agents.sessions.log import Record, Session, apply_changes, lasting_changes, record, session_key, temporary_changes
from patchbay.agents.view import PastTurns
from patchbay.errors import InvalidRequestError
from patchbay.tools import well_formed
from patchbay.tools.result_store import MemoryResultStore, ResultStore
from patchbay.tools.threads import run_in_thread

if TYPE_CHECKING:
    from patchbay.media import MediaStore


_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class RunLocks:
    """One lock for each key that is in use."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._queues: dict[Hashable, deque[_Waiter]] = {}  # held keys, with their waiters

    @asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        """Wait for the lock of ``key``, and hold it within the block."""
        await self.acquire(key)
        try:
            yield
        finally:
            self.release(key)

    async def acquire(self, key: Hashable) -> None:
        """Wait for the lock of ``key``; it must be released."""
        with self._guard:
            queue = self._queues.get(key)
            if queue is None:
                self._queues[key] = deque()
                return
            loop = asyncio.get_running_loop()
            turn: asyncio.Future[None] = loop.create_future()
            queue.append((loop, turn))
        try:
            await turn
        except BaseException:
            with self._guard:
                waiting = (loop, turn) in queue
                if waiting:
                    queue.remove((loop, turn))
            if not waiting:
                self.release(key)  # the lock was assigned just before the cancellation
            raise

    def release(self, key: Hashable) -> None:
        """Release the lock, to the first waiter if there is one."""
        with self._guard:
            queue = self._queues[key]
            while queue:
                loop, turn = queue.popleft()
                try:
                    loop.call_soon_threadsafe(_wake, turn)
                except RuntimeError:  # its loop was closed while it waited
                    continue
                return
            del self._queues[key]


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


class BaseSessionService(ABC):
    """Stores sessions, by application, user and id.

    Events are append-only, and numbered by the service, so concurrent writers to one session get one order. Use it as an async
    context manager, or ``close()`` it.
    """

    def __init__(self) -> None:
        self._locks = RunLocks()
        self._stores: weakref.WeakSet[MediaStore] = weakref.WeakSet()
        self.past_turns = PastTurns()
        """The cached messages of past turns, for the agents' runs."""

    @abstractmethod
    async def create_session(
        self,
        app_name: str,
        user_id: str,
        *,
        agent_name: str = "",
        session_id: str | None = None,
        state: Mapping[str, Any] | None = None,
        title: str | None = None,
    ) -> Session:
        """Create a session; ``session_id`` defaults to a new one. Raises SessionExistsError if the id is taken."""

    @abstractmethod
    async def get_session(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        """Return a current copy of the session, or None."""

    async def get_session_for_run(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        """Return the session for a run, or None; a service may load the beginning of a long log later."""
        return await self.get_session(app_name, user_id, session_id)

    async def list_sessions(self, app_name: str, user_id: str, agent_name: str | None = None) -> list[Session]:
        """Return a user's sessions, the last used first, without their events and states; of one agent with ``agent_name``."""
        sessions = await self.list_all_sessions(app_name, user_id)
        return [session for session in sessions if agent_name is None or session.agent_name == agent_name]

    @abstractmethod
    async def list_all_sessions(self, app_name: str, user_id: str) -> list[Session]:
        """Return a user's sessions with all agents, as ``list_sessions`` does."""

    async def delete_session(self, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with its events, results, files and own state; ``user:`` and ``app:`` keys stay.

        Does nothing for an unknown session. Its files are released from the process's media store and those of ``release_from``.
        """
        await self._delete(app_name, user_id, session_id)
        from patchbay.media.store import stores_in_use  # here: most programs have no files

        if stores := stores_in_use(self._stores):
            key = session_key(app_name, user_id, session_id)
            await run_in_thread(lambda: [store.release_session(key) for store in stores])

    @abstractmethod
    async def _delete(self, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session from the storage."""

    def release_from(self, store: MediaStore) -> None:
        """Release the files of deleted sessions from this store too; a Runner registers its own."""
        self._stores.add(store)

    @abstractmethod
    async def update_title(self, app_name: str, user_id: str, session_id: str, title: str) -> None:
        """Set the title. Raises SessionNotFoundError."""

    @abstractmethod
    async def update_last_agent(self, app_name: str, user_id: str, session_id: str, agent_name: str) -> None:
        """Set the agent of the last answer. Raises SessionNotFoundError."""

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append ``event`` to the log, apply its changes of the state, and update ``session``; return ``event``.

        Atomic and idempotent: an event whose id is in the log already is not appended again. Partial events are ignored.
        ``session`` also gets the events that others have appended. ``temp:`` keys are only set in ``session.state``. Values that
        JSON cannot express are converted. Raises SessionNotFoundError for a deleted session, InvalidRequestError for an event
        whose fields are of wrong types.
        """
        if event.partial:
            return event
        check_names(event.id)
        entry = record(event)
        session.follow(await self._append(session, entry))
        if event.actions.state_delta:
            apply_changes(temporary_changes(event.actions.state_delta), session.state)
        return event

    @abstractmethod
    async def _append(self, session: Session, entry: Record) -> list[tuple[int, bytes | str | Event]]:
        """Store the entry; return the numbered entries that ``session`` does not have, this one included, in order."""

    def results(self, session: Session) -> ResultStore:  # noqa: ARG002  (subclasses use it)
        """Return the store of the session's long results, which lasts until the session is deleted.

        It holds the newest results, up to ``patchbay.tools.result_store.KEPT_CHARS`` characters. ``keep`` sets
        ``session.has_results``, and raises SessionNotFoundError for a deleted session. By default the results last as long as the
        returned object.
        """
        return MemoryResultStore()

    def lock(self, app_name: str, user_id: str, session_id: str) -> AbstractAsyncContextManager[None]:
        """Return the lock of a session's runs, which are sequential and in order.

        Acquire it before reading the session, which need not exist yet.
        """
        return self._locks.hold((app_name, user_id, session_id))

    async def close(self) -> None:  # noqa: B027  (memory needs no closing)
        """Close files and connections."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def check_names(*names: str) -> None:
    """Raise InvalidRequestError for an id or name that a database cannot store unchanged."""
    for name in names:
        if not isinstance(name, str) or "\0" in name or not (name.isascii() or well_formed(name) == name):
            raise InvalidRequestError(f"An id or name must be text without null bytes and lone surrogates, not {name!r}.")


def storable(text: str) -> str:
    """Return a text with the characters replaced that a database cannot store."""
    return well_formed(text).replace("\0", "\ufffd")


def initial_state(state: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the part of a new session's state that is stored, as JSON types."""
    given = json_copy({key: value for key, value in lasting_changes(state or {}).items() if value is not None})
    return given if isinstance(given, dict) else {}

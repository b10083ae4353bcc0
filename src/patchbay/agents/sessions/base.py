"""What every session service does: the interface, the locks of runs, and the parts that do not depend on the storage."""

from __future__ import annotations

import asyncio
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Mapping
from contextlib import AbstractAsyncContextManager
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


class _LockScope:
    """One lock for the length of a block. A class, since a generator would cost three times as much."""

    __slots__ = ("_key", "_locks")

    def __init__(self, locks: RunLocks, key: Hashable) -> None:
        self._locks = locks
        self._key = key

    async def __aenter__(self) -> None:
        await self._locks.acquire(self._key)

    async def __aexit__(self, *_: object) -> None:
        self._locks.release(self._key)


class RunLocks:
    """One lock for each key that is in use."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._queues: dict[Hashable, deque[_Waiter]] = {}  # held keys, with those who wait

    def hold(self, key: Hashable) -> _LockScope:
        """Return what waits for the lock of ``key`` and holds it for the length of an ``async with`` block."""
        return _LockScope(self, key)

    async def acquire(self, key: Hashable) -> None:
        """Wait for the lock of ``key``; every one that is got must be released."""
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
                self.release(key)  # the turn had been handed over just as the waiter gave up
            raise

    def release(self, key: Hashable) -> None:
        """Hand the lock over to the first who waits, if anybody does."""
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
    """Keeps sessions, by application, user and id.

    Events are only ever appended, and numbered by the service: two writers to one session get one order, whatever their clocks
    say. Use it as an async context manager, or ``close()`` it.
    """

    def __init__(self) -> None:
        self._locks = RunLocks()
        self._stores: weakref.WeakSet[MediaStore] = weakref.WeakSet()
        self.past_turns = PastTurns()
        """What models are shown of past turns, for the agents' runs."""

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
        """Begin a session; without ``session_id`` it gets a new one. Raises SessionExistsError where this id is taken."""

    @abstractmethod
    async def get_session(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        """Return the session as it is now, a copy of the caller's own, or None."""

    async def get_session_for_run(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        """Return the session as ``get_session`` does, for a run; a service may read the beginning of a long log later."""
        return await self.get_session(app_name, user_id, session_id)

    async def list_sessions(self, app_name: str, user_id: str, agent_name: str | None = None) -> list[Session]:
        """Return a user's sessions, the one used last first, without their events and states.

        ``agent_name`` leaves only those that were begun with this agent.
        """
        sessions = await self.list_all_sessions(app_name, user_id)
        return [session for session in sessions if agent_name is None or session.agent_name == agent_name]

    @abstractmethod
    async def list_all_sessions(self, app_name: str, user_id: str) -> list[Session]:
        """Return a user's sessions with all agents, as ``list_sessions`` does."""

    async def delete_session(self, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with its events, results, files and own state; ``user:`` and ``app:`` keys stay.

        No session, no error. Of its files those go that the process's own media store has, and the stores of ``release_from``.
        """
        await self._delete(app_name, user_id, session_id)
        from patchbay.media.store import stores_in_use  # here: most programs have no files

        if stores := stores_in_use(self._stores):
            key = session_key(app_name, user_id, session_id)
            await run_in_thread(lambda: [store.release_session(key) for store in stores])

    @abstractmethod
    async def _delete(self, app_name: str, user_id: str, session_id: str) -> None:
        """Delete what is kept of a session."""

    def release_from(self, store: MediaStore) -> None:
        """Let the files of a session that is deleted go from this store too. A Runner does so with its own."""
        self._stores.add(store)

    @abstractmethod
    async def update_title(self, app_name: str, user_id: str, session_id: str, title: str) -> None:
        """Set the title. Raises SessionNotFoundError."""

    @abstractmethod
    async def update_last_agent(self, app_name: str, user_id: str, session_id: str, agent_name: str) -> None:
        """Set which agent spoke last. Raises SessionNotFoundError."""

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append ``event`` to the log, make its changes of the state, and bring ``session`` up to date; returns ``event``.

        It is all kept or nothing of it, and once: an event whose id is in the log already is not appended again. A partial event
        is not kept. ``session`` also takes up what others have appended meanwhile. ``temp:`` keys go into ``session.state`` and
        nowhere else. Values without JSON are kept as the nearest thing that has it. Raises SessionNotFoundError where the session
        has been deleted, InvalidRequestError for an event whose fields are of wrong types.
        """
        if event.partial:
            return event
        readable(event.id)
        entry = record(event)
        session.follow(await self._append(session, entry))
        if event.actions.state_delta:
            apply_changes(temporary_changes(event.actions.state_delta), session.state)
        return event

    @abstractmethod
    async def _append(self, session: Session, entry: Record) -> list[tuple[int, bytes | str | Event]]:
        """Keep the entry; return what ``session`` has not heard of, this entry included, with its numbers, in order."""

    def results(self, session: Session) -> ResultStore:  # noqa: ARG002  (others have use for it)
        """Return what keeps the results of ``session`` that were too long to be shown, until the session is deleted.

        Of each session the newest characters are kept, ``patchbay.tools.result_store.KEPT_CHARS`` of them. ``keep`` sets
        ``session.has_results``, and raises SessionNotFoundError where the session has been deleted. A service that does not say
        otherwise keeps them as long as what this returns is held.
        """
        return MemoryResultStore()

    def lock(self, app_name: str, user_id: str, session_id: str) -> AbstractAsyncContextManager[None]:
        """Return the lock that a run holds, so that two runs on one session come one after the other, in the order they asked.

        Take it before the session is read. The session need not exist yet.
        """
        return self._locks.hold((app_name, user_id, session_id))

    async def close(self) -> None:  # noqa: B027  (what is in memory has nothing to close)
        """Let go of files and connections; nothing is left to be written."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def readable(*names: str) -> None:
    """Raise InvalidRequestError for an id or name that no database could hold as it is."""
    for name in names:
        if not isinstance(name, str) or "\0" in name or not (name.isascii() or well_formed(name) == name):
            raise InvalidRequestError(f"An id or name must be text without null bytes and lone surrogates, not {name!r}.")


def shown(text: str) -> str:
    """Return a text that is only shown, with what a database cannot hold replaced."""
    return well_formed(text).replace("\0", "\ufffd")


def initial_state(state: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the part of a new session's state that is kept, made safe."""
    given = json_copy({key: value for key, value in lasting_changes(state or {}).items() if value is not None})
    return given if isinstance(given, dict) else {}

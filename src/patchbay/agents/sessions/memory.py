"""Sessions in memory; callers get copies."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from typing_extensions import override

from patchbay.agents.content import Event, new_id
from patchbay.agents.json_copy import json_copy
from patchbay.agents.sessions.base import BaseSessionService, check_names, initial_state, storable
from patchbay.agents.sessions.log import APP_PREFIX, USER_PREFIX, EventLog, Record, Session, apply_changes
from patchbay.errors import SessionExistsError, SessionNotFoundError
from patchbay.tools.result_store import MemoryResultStore, ResultStore

_Key = tuple[str, str, str]


@dataclass
class _StoredSession:
    """A stored session: ``about`` has everything but state and events."""

    about: Session
    state: dict[str, Any] = field(default_factory=dict)
    bodies: list[bytes] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    results: MemoryResultStore | None = None


class InMemorySessionService(BaseSessionService):
    """Stores sessions in memory; returns copies."""

    def __init__(self) -> None:
        super().__init__()
        self._sessions: dict[_Key, _StoredSession] = {}
        self._users: dict[tuple[str, str], dict[str, Any]] = {}
        self._apps: dict[str, dict[str, Any]] = {}

    @override
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
        key = (app_name, user_id, new_id() if session_id is None else session_id)
        check_names(*key, agent_name)
        if key in self._sessions:
            raise SessionExistsError(key[2])
        about = Session(key[2], app_name, user_id, agent_name, storable(title or ""), agent_name)
        about.last_update_time = about.created_at
        stored = self._sessions[key] = _StoredSession(about)
        if state:
            self._change(stored, initial_state(state))
        return self._copy(stored)

    @override
    async def get_session(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        stored = self._sessions.get((app_name, user_id, session_id))
        return None if stored is None else self._copy(stored)

    @override
    async def list_all_sessions(self, app_name: str, user_id: str) -> list[Session]:
        listed = [stored.about for key, stored in self._sessions.items() if key[:2] == (app_name, user_id)]
        listed.sort(key=lambda about: about.last_update_time, reverse=True)
        return [replace(about, state={}, events=EventLog(), seq=0) for about in listed]

    async def _delete(self, app_name: str, user_id: str, session_id: str) -> None:
        self._sessions.pop((app_name, user_id, session_id), None)

    @override
    async def update_title(self, app_name: str, user_id: str, session_id: str, title: str) -> None:
        self._find((app_name, user_id, session_id)).about.title = storable(title)

    @override
    async def update_last_agent(self, app_name: str, user_id: str, session_id: str, agent_name: str) -> None:
        self._find((app_name, user_id, session_id)).about.last_agent = storable(agent_name)

    @override
    def results(self, session: Session) -> ResultStore:
        return _Results(self._sessions, session)

    async def _append(self, session: Session, entry: Record) -> list[tuple[int, bytes | str | Event]]:
        stored, event = self._find((session.app_name, session.user_id, session.id)), entry.event
        if event.id not in stored.ids:
            stored.ids.add(event.id)
            stored.bodies.append(entry.body)
            stored.about.last_update_time = time.time()
            if event.actions.state_delta:
                self._change(stored, json_copy(event.actions.state_delta))
            if session.seq == len(stored.bodies) - 1:
                return [(len(stored.bodies), event)]  # the usual case: no other writer
        known = session.seq
        return [(known + number, body) for number, body in enumerate(stored.bodies[known:], 1)]

    def _find(self, key: _Key) -> _StoredSession:
        stored = self._sessions.get(key)
        if stored is None:
            raise SessionNotFoundError(key[2])
        return stored

    def _change(self, stored: _StoredSession, delta: dict[str, Any]) -> None:
        about = stored.about
        for key, value in delta.items():
            if key.startswith(APP_PREFIX):
                target = self._apps.setdefault(about.app_name, {})
            elif key.startswith(USER_PREFIX):
                target = self._users.setdefault((about.app_name, about.user_id), {})
            else:
                target = stored.state
            apply_changes({key: value}, target)

    def _copy(self, stored: _StoredSession) -> Session:
        about = stored.about
        shared = self._apps.get(about.app_name), self._users.get((about.app_name, about.user_id))
        state = {**(shared[0] or {}), **(shared[1] or {}), **stored.state}
        return replace(
            about,
            state=json_copy(state) if state else state,
            events=EventLog(stored.bodies),
            seq=len(stored.bodies),
            has_results=stored.results is not None,
        )


class _Results:
    """The long results of ``session``, while it is in ``sessions``."""

    __slots__ = ("_session", "_sessions")

    def __init__(self, sessions: Mapping[_Key, _StoredSession], session: Session) -> None:
        self._sessions = sessions
        self._session = session

    async def keep(self, text: str) -> str:
        if (stored := self._stored()) is None:
            raise SessionNotFoundError(self._session.id)
        if stored.results is None:
            stored.results = MemoryResultStore()
        self._session.has_results = True
        return await stored.results.keep(text)

    async def read(self, result_id: str) -> str | None:
        stored = self._stored()
        return None if stored is None or stored.results is None else await stored.results.read(result_id)

    def _stored(self) -> _StoredSession | None:
        return self._sessions.get((self._session.app_name, self._session.user_id, self._session.id))

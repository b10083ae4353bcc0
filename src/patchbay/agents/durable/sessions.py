"""The session of a durable run: a copy in memory, whose new events are appended to the stored session when the run is over."""

from __future__ import annotations

import msgspec
from typing_extensions import override

from patchbay.agents.content import Event
from patchbay.agents.sessions.base import BaseSessionService
from patchbay.agents.sessions.log import Session
from patchbay.agents.sessions.memory import InMemorySessionService
from patchbay.tools.result_store import ResultStore


class RunSessions(InMemorySessionService):
    """The copy of ``stored``, a session of ``service``; every attempt of a run begins with it, as it was before the run."""

    def __init__(self, service: BaseSessionService, stored: Session) -> None:
        super().__init__()
        self._service = service
        self._stored_session = stored
        self._begun_with = 0

    @classmethod
    async def of_run(
        cls, service: BaseSessionService, *, app_name: str, user_id: str, session_id: str, agent: str, title: str, run_id: str
    ) -> RunSessions:
        """Return the copy for a run; the stored session is created if there is none."""
        stored = await service.get_session(app_name, user_id, session_id)
        if stored is None:
            stored = await service.create_session(app_name, user_id, agent_name=agent, session_id=session_id, title=title)
        sessions = cls(service, stored)
        about = {"agent_name": stored.agent_name, "session_id": session_id, "title": stored.title}
        await sessions.create_session(app_name, user_id, state=stored.state, **about)
        copied = sessions._sessions[app_name, user_id, session_id]
        copied.about.last_agent = stored.last_agent
        for event in stored.events:
            if event.invocation_id != run_id:  # those of an attempt that was killed while it appended them
                copied.bodies.append(msgspec.json.encode(event))
                copied.ids.add(event.id)
        sessions._begun_with = len(copied.bodies)
        return sessions

    @override
    async def get_session(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        session = await super().get_session(app_name, user_id, session_id)
        if session is not None:
            session.has_results = self._stored_session.has_results
        return session

    @override
    def results(self, session: Session) -> ResultStore:
        """Return the store of the stored session: the next attempt reads there too."""
        return self._service.results(self._stored_session)

    def new_events(self) -> list[Event]:
        """Return the events of the run."""
        stored = self._stored_session
        bodies = self._sessions[stored.app_name, stored.user_id, stored.id].bodies[self._begun_with :]
        return [msgspec.json.decode(body, type=Event) for body in bodies]

    async def append_to_stored(self, events: list[Event]) -> None:
        """Append the run's events to the stored session, without those that it has."""
        stored, service = self._stored_session, self._service
        async with service.lock(stored.app_name, stored.user_id, stored.id):
            for event in events:
                await service.append_event(stored, event)
            last = self._sessions[stored.app_name, stored.user_id, stored.id].about.last_agent
            if last != stored.last_agent:
                await service.update_last_agent(stored.app_name, stored.user_id, stored.id, last)

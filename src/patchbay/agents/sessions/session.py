"""A session as a run holds it: who talks, the state, and the log so far.

What lives here: the object, and how it follows the log. What does not: keeping it (the session services). It is a copy: what is
changed in it by hand stays in it; what is to be kept goes through ``append_event``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from patchbay.agents.content import Event
from patchbay.agents.sessions import scopes
from patchbay.agents.sessions.encoding import EventLog


def session_key(app_name: str, user_id: str, session_id: str) -> str:
    """Return ``Session.key`` of the session of this name. A colon in one of the three is written as ``%3A``."""
    return ":".join([each.replace("%", "%25").replace(":", "%3A") for each in (app_name, user_id, session_id)])


@dataclass
class Session:
    """One conversation of a user with an application.

    ``state`` has the session's own keys and those of its user (``user:``) and application (``app:``), as they were when it was
    read, and the run's ``temp:`` keys. ``seq`` is the number of the last event in ``events``; they count from 1.
    ``has_results`` is whether long results of it are kept (the service's ``results``). Times are in seconds since the epoch.
    """

    id: str
    app_name: str
    user_id: str
    agent_name: str = ""
    title: str = ""
    last_agent: str = ""
    created_at: float = field(default_factory=time.time)
    last_update_time: float = field(default_factory=time.time)
    state: dict[str, Any] = field(default_factory=dict)
    events: EventLog = field(default_factory=EventLog)
    seq: int = 0
    has_results: bool = False

    @property
    def key(self) -> str:
        """What the session is called where all of an installation's are: ``app:user:id``, and no other session so."""
        return session_key(self.app_name, self.user_id, self.id)

    def follow(self, entries: Iterable[tuple[int, bytes | str | Event]]) -> None:
        """Take up (number, event) entries of the log, in order; those that are here already are passed over.

        For session services: this is how a session hears of what others wrote into it meanwhile.
        """
        for number, entry in entries:
            if number > self.seq:
                event = self.events.add(entry)
                if delta := event.actions.state_delta:
                    scopes.apply(delta, self.state)
                self.last_update_time = max(self.last_update_time, event.timestamp)
                self.seq = number

"""Session services against a reference model, for any sequence of operations: scopes of keys, order, copies, deletion, listing."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from patchbay.agents import DatabaseSessionService, InMemorySessionService
from patchbay.agents.content import new_id
from support.repeated import examples

from .event_builders import state_event

KEYS = st.sampled_from(["app:k", "user:k", "temp:k", "k", "app:l", "l", "user:", "temp:"])
DELTAS = st.dictionaries(KEYS, st.none() | st.integers(0, 9) | st.lists(st.integers(0, 9), max_size=2), max_size=4)


class Sessions(RuleBasedStateMachine):
    """The model: plain dicts for what is shared, for each session its own, and the ids of its events."""

    sessions = Bundle("sessions")

    def __init__(self, url: str | None = None) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.url = url if url is not None else Path(self.folder.name, "s.db")
        self.service: Any = self.open()
        self.prefix = new_id()
        self.apps: dict[str, dict] = {}
        self.users: dict[tuple[str, str], dict] = {}
        self.own: dict[str, dict] = {}
        self.logs: dict[str, list[str]] = {}
        self.live: dict[str, list] = {}

    def open(self) -> Any:
        return DatabaseSessionService(self.url)

    def do(self, work):
        return self.loop.run_until_complete(asyncio.wait_for(work, 30))

    def change(self, who, delta) -> None:
        for key, value in delta.items():
            if key.startswith("temp:"):
                continue
            home = self.own[who[2]]
            if key.startswith("app:"):
                home = self.apps.setdefault(who[0], {})
            elif key.startswith("user:"):
                home = self.users.setdefault(who[:2], {})
            if value is None:
                home.pop(key, None)
            else:
                home[key] = value

    def state(self, who) -> dict:
        return {**self.apps.get(who[0], {}), **self.users.get(who[:2], {}), **self.own[who[2]]}

    @rule(target=sessions, app=st.sampled_from("AB"), user=st.sampled_from(["x", ""]), state=DELTAS)
    def begin(self, app, user, state):
        session = self.do(self.service.create_session(self.prefix + app, user, state=state))
        who = (session.app_name, user, session.id)
        self.own[session.id], self.logs[session.id], self.live[session.id] = {}, [], [session]
        self.change(who, {key: value for key, value in state.items() if value is not None})
        assert self.state(who) == session.state
        return who

    @rule(who=sessions)
    def read_once_more(self, who):
        self.live[who[2]].append(self.do(self.service.get_session(*who)))

    @rule(who=sessions, which=st.integers(0, 9), delta=DELTAS, timestamp=st.floats(0, 2e9), twice=st.booleans())
    def append(self, who, which, delta, timestamp, twice):
        readers = self.live[who[2]]
        session = readers[which % len(readers)]
        event = state_event(delta, timestamp=timestamp)
        for _ in range(1 + twice):
            self.do(self.service.append_event(session, event))
        self.change(who, delta)
        self.logs[who[2]].append(event.id)
        assert self.logs[who[2]] == [kept.id for kept in session.events]
        assert len(session.events) == session.seq

    @rule(who=sessions, delta=DELTAS)
    def append_a_partial_event(self, who, delta):
        self.do(self.service.append_event(self.live[who[2]][0], state_event(delta, partial=True)))

    @rule(who=consumes(sessions))
    def delete(self, who):
        self.do(self.service.delete_session(*who))
        assert self.do(self.service.get_session(*who)) is None
        del self.own[who[2]], self.logs[who[2]], self.live[who[2]]

    @precondition(lambda self: isinstance(self.service, DatabaseSessionService))
    @rule()
    def reopen(self):
        self.do(self.service.close())
        self.service = self.open()

    @invariant()
    def what_is_kept_is_what_the_model_says(self):
        for app in "AB":
            for user in ("x", ""):
                for listed in self.do(self.service.list_all_sessions(self.prefix + app, user)):
                    who = (self.prefix + app, user, listed.id)
                    found = self.do(self.service.get_session(*who))
                    assert self.state(who) == found.state
                    assert self.logs[listed.id] == [event.id for event in found.events]
                    assert len(found.events) == found.seq
                    assert ([], {}) == (listed.events, listed.state)
                    for event in found.events:
                        assert not any(key.startswith("temp:") for key in event.actions.state_delta)

    def teardown(self):
        self.do(self.service.close())
        self.loop.close()
        self.folder.cleanup()


class SessionsInMemory(Sessions):
    def open(self) -> Any:
        return InMemorySessionService()


@pytest.mark.parametrize(("kind", "count"), [("memory", 10), ("sqlite", 4), ("postgres", 2)])
def test_a_session_service_does_what_the_model_says(kind, count, request):
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else None
    machine = SessionsInMemory if kind == "memory" else Sessions
    run_state_machine_as_test(
        lambda: machine(url), settings=settings(max_examples=examples(count), stateful_step_count=12 if url else 20)
    )

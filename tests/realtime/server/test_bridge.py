"""The live-sessions application without a server: clients that read nothing or disconnect at any moment, and busy roles."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Any, Self

import pytest

from patchbay.errors import UpstreamError
from patchbay.loop import TextEvent
from patchbay.realtime import ConnectionEvent, DroppedEvent, ErrorEvent, IdleEvent, RealtimeLimits, RealtimeSettings
from patchbay.realtime.event_queue import EventQueue
from patchbay.server import Governance
from patchbay.server.live_sessions.app import LiveSessionsApp
from patchbay.server.live_sessions.bridge import SessionBridge, SessionLog, Socket
from patchbay.server.live_sessions.protocol import LiveSessionsSettings
from patchbay.server.websocket import CloseInfo
from patchbay.testing.realtime import Answer, FakeOpenAI, FakeRealtime, Pause, Say
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from patchbay.tools.registry import ToolRegistry
from support.realtime_fakes import FakeGemini


class SessionsUnderTest:
    """The live-sessions application in front of a fake, which is started if it does not run. Closed at the end."""

    def __init__(
        self, fake: FakeRealtime, roles: tuple[str, ...] = ("ann",), *, url: str = "", reconnects: int = 8, **settings: Any
    ) -> None:
        self.fake = fake
        self._running = contextlib.ExitStack()
        if not hasattr(fake, "url"):
            self._running.enter_context(fake)
        registry = ToolRegistry(roles)
        self.managers = {role: LLMSessionManager(role, registry, retry_delays=()) for role in roles}
        self.governance = Governance()
        limits = RealtimeLimits(connect=60.0, first_pause=0.01, reconnects=reconnects)
        realtime = RealtimeSettings(model=f"{fake.provider}/m", url=url or fake.url, api_key="k", limits=limits, output="text")
        self.app = LiveSessionsApp(self.managers, self.governance, LiveSessionsSettings(realtime=realtime, **settings))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._running:
            await self.close()

    async def close(self) -> None:
        await self.app.aclose()
        await self.governance.aclose()
        assert [(None, None)] * len(self.managers) == [(each.active, each.pending) for each in self.managers.values()]


class Client:
    """A client, as the application sees it.

    ``takes``: the number of frames that it reads, then none; ``refuses``: the number after which sending raises.
    """

    def __init__(
        self,
        sessions: SessionsUnderTest,
        role: str = "ann",
        query: str = "",
        *,
        takes: int | None = None,
        refuses: int | None = None,
    ) -> None:
        self.sent: list[Any] = []
        self._takes = takes
        self._refuses = refuses
        self._incoming: asyncio.Queue[Any] = asyncio.Queue()
        self._incoming.put_nowait({"type": "websocket.connect"})
        self._news = asyncio.Event()
        scope = {
            "type": "websocket",
            "path": f"/api/sessions/{role}",
            "query_string": query.encode(),
            "headers": [],
            "subprotocols": [],
        }
        self.task = asyncio.ensure_future(sessions.app(scope, self._incoming.get, self._take))

    async def _take(self, message: Any) -> None:
        if self._takes is not None and len(self.sent) >= self._takes:
            await asyncio.Event().wait()
        if self._refuses is not None and len(self.sent) >= self._refuses:
            raise RuntimeError("Unexpected ASGI message 'websocket.send', after sending 'websocket.close'.")
        self.sent.append(message)
        self._news.set()

    @property
    def frames(self) -> list[Any]:
        return [json.loads(each["text"]) for each in self.sent if each.get("text")]

    def text(self, text: str) -> None:
        self._incoming.put_nowait({"type": "websocket.receive", "text": json.dumps({"type": "text", "text": text})})

    def leave(self) -> None:
        self._incoming.put_nowait({"type": "websocket.disconnect", "code": 1006})

    async def until(self, kind: str, *, times: int = 1) -> None:
        while [frame["type"] for frame in self.frames].count(kind) < times:
            self._news.clear()
            await self._news.wait()

    async def accepted(self) -> None:
        """Wait until the handshake is accepted; a client of a busy role is waiting then."""
        while not self.sent:
            self._news.clear()
            await self._news.wait()

    async def code(self) -> int:
        await self.task
        return int(self.sent[-1].get("code", 0))


@pytest.mark.parametrize("how", [{"takes": 2}, {"refuses": 3}], ids=["reads nothing", "is closed by the server"])
async def test_client_that_takes_no_frames_is_closed_and_its_role_freed(how):
    async with SessionsUnderTest(FakeOpenAI(["Hello."]), send_timeout=0.05) as sessions:
        client = Client(sessions, **how)
        client.text("Hi.")
        await client.task
        assert [None, None] == [sessions.managers["ann"].active, sessions.managers["ann"].pending]


@pytest.mark.parametrize("moment", range(12))
async def test_a_client_may_be_cut_off_at_any_moment(moment: int):
    async with SessionsUnderTest(FakeOpenAI([Answer((Say("One two three."), Pause(30)))])) as sessions:
        client = Client(sessions)
        client.text("Count.")
        for _ in range(moment**2):
            await asyncio.sleep(0.0005)
        client.task.cancel()
        await asyncio.wait([client.task])


async def test_takeover_waits_a_bounded_time_for_idle():
    async with SessionsUnderTest(FakeOpenAI([Answer((Say("One two three."), Pause(60)))]), swap_wait=0.1) as sessions:
        first = Client(sessions)
        first.text("Count.")
        await first.until("text")
        second = Client(sessions, query="takeover=1")
        await second.until("ready")
        assert 4410 == await first.code()
        third = Client(sessions)
        assert 4409 == await third.code()
    assert 1001 == await second.code()
    assert 1001 == await Client(sessions).code()


async def test_session_of_the_program_is_taken_over_only_on_request():
    class Own:
        updates = 0

        async def use_tools(self, snapshot: Any) -> None:
            self.updates += 1

    async with SessionsUnderTest(FakeOpenAI(), free_wait=0.05) as sessions:
        manager, own = sessions.managers["ann"], Own()
        await manager.prepare(own)
        await manager.swap()
        assert 4409 == await Client(sessions).code()
        taking = Client(sessions, query="takeover=1")
        await taking.until("ready")
        updates = own.updates
        await manager.register_tool_and_sync(ToolDefinition("added", handler=lambda _arguments: "done"))
        assert (updates, ["added"]) == (own.updates, sessions.fake.tools)


async def test_disconnected_client_does_not_take_over():
    async with SessionsUnderTest(FakeOpenAI([Answer((Say("One two three."), Pause(0.3))), "Four."])) as sessions:
        first = Client(sessions)
        first.text("Count.")
        await first.until("text")
        ghost = Client(sessions, query="takeover=1")
        await sessions.fake.until(lambda: sessions.fake.connections == 2)
        ghost.text("Hello?")
        ghost.leave()
        await ghost.task
        await first.until("idle")
        assert sessions.managers["ann"].pending is None
        first.text("Go on.")
        await first.until("idle", times=2)
        assert ["Count.", "Go on."] == [outcome.text for outcome in sessions.fake.heard if outcome.kind == "user"]


async def test_client_that_leaves_during_open_frees_its_role():
    opening, over = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def never_opens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opening.release()
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()
        over.release()

    silent = await asyncio.start_server(never_opens, "127.0.0.1", 0)
    with FakeOpenAI() as fake:
        port = silent.sockets[0].getsockname()[1]
        sessions = SessionsUnderTest(fake, url=f"ws://127.0.0.1:{port}/", free_wait=0.05)
        for _ in range(2):
            client = Client(sessions)
            await opening.acquire()
            client.leave()
            await client.task
            assert [None, None] == [sessions.managers["ann"].active, sessions.managers["ann"].pending]
            await over.acquire()
        await sessions.close()
    silent.close()


async def test_concurrent_takeovers_happen_in_order():
    async with SessionsUnderTest(FakeOpenAI(["Hello."]), free_wait=0.05) as sessions:
        clients = [Client(sessions, query="takeover=1") for _ in range(3)]  # at one instant
        await clients[-1].until("ready")
        assert [4410, 4410] == [await client.code() for client in clients[:2]]
        clients[-1].text("Hi.")
        await clients[-1].until("response_end")


async def test_takeover_behind_a_stuck_takeover_times_out():
    async with SessionsUnderTest(FakeOpenAI([Answer((Say("One two three."), Pause(60)))]), swap_wait=0.3) as sessions:
        first = Client(sessions)
        first.text("Count.")
        await first.until("text")
        manager = sessions.managers["ann"]

        class Unhurried:
            async def use_tools(self, snapshot: Any) -> None:
                pass

        await manager.prepare(Unhurried())  # the program's own, which does not come to it
        late = Client(sessions, query="takeover=1")
        assert 4409 == await late.code()
        assert "Another client is taking over" in late.frames[0]["error"]["message"]
        manager.leave(manager.pending)


@pytest.mark.parametrize(("removed", "code", "errors"), [(False, 1001, []), (True, 4404, ["unknown_role"])])
async def test_client_waiting_for_a_role_is_closed_with_the_server_or_the_role(removed, code, errors):
    async with SessionsUnderTest(FakeOpenAI(), ("ann", "ben"), free_wait=60) as sessions:
        first, other = Client(sessions), Client(sessions, "ben")
        await first.until("ready")
        await other.until("ready")
        second = Client(sessions)
        await second.accepted()
        registry = sessions.managers["ann"].registry
        if removed:
            await asyncio.to_thread(registry.remove_role, "ann")
        else:
            sessions.app.stopping()
        assert (code, code) == (await first.code(), await second.code())
        assert errors == [frame["error"]["code"] for frame in second.frames]
        assert 2 == sessions.fake.attempts
        if removed:
            assert 4404 == await Client(sessions).code()
            registry.add_role("ann")
            await Client(sessions).until("ready")
            assert not other.task.done()


async def test_failed_takeover_closes_its_client_and_the_other_continues():
    with FakeOpenAI([Answer((Say("One two three."), Pause(60)))]) as fake:
        sessions = SessionsUnderTest(fake, swap_wait=60, reconnects=0)
        first = Client(sessions)
        first.text("Count.")
        await first.until("text")
        second = Client(sessions, query="takeover=1")
        manager = sessions.managers["ann"]
        while not getattr(manager.pending, "is_open", False):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(fake.drop)  # the last connection that was opened
        assert 4502 == await second.code()
        assert "closed" in [frame.get("state") for frame in second.frames]
        assert "ready" not in [frame["type"] for frame in second.frames]
        assert not first.task.done()
        assert (True, None) == (manager.active is not None, manager.pending)
        await sessions.close()


class ScriptedSession:
    """A session whose events a test puts into its queue, and its client."""

    def __init__(self, *, idle: bool, takes: bool = True) -> None:
        self.idle = idle
        self._takes = takes
        self.feed = EventQueue(100)
        self.events = self.feed.read
        self.client: asyncio.Queue[Any] = asyncio.Queue()
        self.frames: list[Any] = []
        self.held = SessionBridge(self, Socket(self._take, 3_600), SessionLog("ann", "monday"))  # type: ignore[arg-type]

    async def run(self) -> CloseInfo:
        return await self.held.pass_messages(self.client.get)

    async def _take(self, message: Any) -> None:
        if not self._takes:
            await asyncio.Event().wait()
        self.frames.append(json.loads(message["text"]))


@pytest.mark.parametrize("takes", [True, False], ids=["reads", "reads nothing"])
async def test_session_with_a_continuous_model_ends_whether_or_not_its_client_reads(takes):
    session = ScriptedSession(idle=False, takes=takes)

    async def talk() -> None:
        while True:
            session.feed.put(TextEvent("la "))
            await asyncio.sleep(0)

    talking = asyncio.ensure_future(talk())
    session.held.end_session(4410, "another client has taken over")
    assert CloseInfo(4410, "another client has taken over") == await session.run()
    assert takes == bool(session.frames)
    talking.cancel()
    await asyncio.wait([talking])


async def test_immediate_end_sends_queued_events_only():
    session = ScriptedSession(idle=False)
    for delta in ("One", " two"):
        session.feed.put(TextEvent(delta))
    session.held.end_session(4404, "the role is no more")
    async with asyncio.timeout(1):  # its last words have two seconds
        assert CloseInfo(4404, "the role is no more") == await session.run()
    assert ["One", " two"] == [frame["delta"] for frame in session.frames]


async def test_delayed_idle_event_is_sent_once_and_last():
    session = ScriptedSession(idle=True)

    def late() -> None:
        session.feed.put(TextEvent("two"))
        session.feed.put(IdleEvent())

    session.feed.put(TextEvent("One, "))
    running = asyncio.ensure_future(session.run())
    await asyncio.sleep(0)  # its task for what happens comes next
    asyncio.get_running_loop().call_soon(late)
    while "idle" not in [frame["type"] for frame in session.frames]:
        await asyncio.sleep(0)
    session.held.end_session(1001, "the server stops", when_idle=True)
    assert CloseInfo(1001, "the server stops") == await running
    assert ["text", "text", "idle"] == [frame["type"] for frame in session.frames]


@pytest.mark.parametrize(
    ("happens", "expected"),
    [
        ([ConnectionEvent("lost", "it broke"), ConnectionEvent("open")], []),
        ([ErrorEvent(UpstreamError("It is away."))], []),
        ([TextEvent("One"), IdleEvent()], ["idle"]),
        ([DroppedEvent("events", count=3)], ["idle"]),  # word of an end may have been among them
    ],
)
async def test_client_gets_idle_only_after_pending_work(happens: list[Any], expected: list[str]):
    session = ScriptedSession(idle=True)
    for event in happens:
        session.feed.put(event)
    session.held.end_session(1001, "the server stops", when_idle=True)
    assert CloseInfo(1001, "the server stops") == await session.run()
    assert expected == [frame["type"] for frame in session.frames if frame["type"] == "idle"]


async def test_renewal_of_an_idle_connection_is_neither_an_end_nor_a_warning(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "patchbay.server"), FakeGemini(["Hello."]) as fake:
        sessions = SessionsUnderTest(fake)
        client = Client(sessions)
        client.text("Hi.")
        await client.until("idle")
        await asyncio.to_thread(fake.go_away, 30)
        await asyncio.to_thread(fake.wait_until, lambda: fake.connections == 2)
        while 2 != [frame.get("state") for frame in client.frames].count("open"):
            await asyncio.sleep(0.01)
        sessions.app.stopping()
        assert 1001 == await client.code()
        assert [1] == [frame["heard"] for frame in client.frames if frame["type"] == "idle"]
        assert [True] == [frame["planned"] for frame in client.frames if frame.get("state") == "lost"]
        await sessions.close()
    (line,) = [record for record in caplog.records if record.name.startswith("patchbay.server")]
    assert (logging.INFO, True) == (line.levelno, "is renewed" in line.getMessage())


async def test_stopping_server_completes_current_answers_and_accepts_no_new_input():
    async with SessionsUnderTest(FakeOpenAI([Answer((Say("One"), Pause(0.5), Say(" two.")))]), ("ann", "ben")) as sessions:
        idle, talking = Client(sessions, "ben"), Client(sessions)
        await idle.until("ready")
        talking.text("Count.")
        await talking.until("text")
        sessions.app.stopping()
        assert 1001 == await idle.code()
        talking.text("More.")
        assert 1001 == await talking.code()
        assert "One two." == "".join(frame.get("delta", "") for frame in talking.frames)
        assert ["server_stopping"] == [frame["error"]["code"] for frame in talking.frames if frame["type"] == "error"]
    assert [] == sessions.fake.violations

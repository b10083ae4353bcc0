"""A random course of a session: what the server, the user and the program do, drawn completely before it is played.

What lives here: the drawing, the playing, and what must be true of any course when it is over. Nothing is drawn while it is
played: what happens then depends on the machine, and a course that fails is to be played again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, TypeAlias

from patchbay.errors import PatchbayError, ToolSyncError, UpstreamError
from patchbay.executor import ToolExecution
from patchbay.hooks import HookManager
from patchbay.loop import TextEvent, ToolCallEvent, ToolResultEvent
from patchbay.realtime import (
    AudioEvent,
    ConnectionEvent,
    DroppedEvent,
    ErrorEvent,
    IdleEvent,
    RealtimeEvent,
    RealtimeSession,
    RealtimeSettings,
    TranscriptEvent,
)
from patchbay.testing.realtime import Answer, FakeRealtime, Faults, Interrupt
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from realtime.core.playing import Played, connected, limits
from realtime.random_scripts import random_script
from support.realtime_fakes import FakeGemini

BOUND = 90.0
"""Seconds within which any course is over; on a quiet machine one takes a few hundredths."""

What: TypeAlias = Literal["text", "interrupt", "audio", "speak", "drop", "change", "take_back", "go_away"]
TOOLS = ("get_weather", "look_up", "registered")


@dataclass(frozen=True)
class Act:
    """An action ``after`` so many seconds, concurrent with everything else."""

    what: What
    after: float


@dataclass(frozen=True)
class Course:
    """``turns`` are the actions in each turn of the user, after the text that begins it. ``newer``: Gemini as of 2026."""

    provider: type[FakeRealtime]
    script: Sequence[Answer]
    faults: Faults
    turns: Sequence[Sequence[Act]]
    tool_seconds: Sequence[float]
    slow_after: float | None
    newer: bool


def drawn(chance: Random, provider: type[FakeRealtime], *, newer: bool = False) -> Course:
    """Draw a course."""
    script, faults = random_script(chance, provider=provider, tools=TOOLS, turns=3, late=0.01)
    fates = [chance.choice(("ok", "ok", "refuse", "silent")) for _ in range(3)] if chance.random() < 0.3 else []
    whats: tuple[What, ...] = ("text", "interrupt", "audio", "speak", "drop", "change", "change")
    if provider is FakeGemini:
        whats = (*whats, "take_back", "go_away")
    turns = [
        [Act(chance.choice(whats), chance.choice((0.0, 0.001, 0.004, 0.012))) for _ in range(chance.choice((0, 0, 1, 2, 3)))]
        for _ in range(3)
    ]
    return Course(
        provider,
        script,
        replace(faults, updates=("ok", *fates)),
        turns,
        [chance.choice((0.0, 0.0, 0.002, 0.02)) for _ in range(4)],
        chance.choice((None, 0.005, 5.0)),
        newer,
    )


class Watching(HookManager):
    """Hook manager that records the events of each turn."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, list[str]] = {}
        self.mount("watching", self)
        self.events.tell = self._tell  # type: ignore[method-assign]

    async def on_runtime_event(self, event: object) -> None:
        """Make this an observer."""

    def _tell(self, kind: str, meta: Any, *_about: Any, **_more: Any) -> None:
        self.told.setdefault(meta.turn_id, []).append(kind)


class Playing:
    """A course that is being played."""

    def __init__(self, course: Course, fake: FakeRealtime) -> None:
        self.course = course
        self.fake = fake
        self.results: list[str] = []
        """Results of tools, each unique."""
        self._seconds = itertools.cycle(course.tool_seconds)
        self._numbers = itertools.count()
        self._manager = LLMSessionManager("ann", retry_delays=(0.01,))
        self._manager.register_tool(ToolDefinition("registered", handler=self._slow))
        self._hooks = Watching()

    async def get_weather(self, city: str) -> str:
        """Tell the weather."""
        await asyncio.sleep(next(self._seconds))
        return self._result(city)

    async def _slow(self, _arguments: object) -> str:
        await asyncio.sleep(next(self._seconds))
        if (number := next(self._numbers)) % 5 == 4:
            raise ValueError(f"failed for the {number}. time")
        return self._result("registered")

    def _look_up(self, _arguments: object) -> str:
        return self._result("looked up")

    def _result(self, about: str) -> str:
        self.results.append(f"<{next(self._numbers)}> {about!r}")
        return self.results[-1]

    async def play(self) -> None:
        """Play the course and check the laws."""
        session = await self._connected()
        played = Played(session)
        reader = asyncio.ensure_future(played.read())
        try:
            async with asyncio.timeout(BOUND):
                for number, acts in enumerate(self.course.turns):
                    await session.send_text(f"Question {number}")
                    for act in acts:
                        await asyncio.sleep(act.after)
                        await self._do(act.what, session)
                    if number % 2:
                        await self._rest(played)
                while session.unread:  # until the reader has all events
                    await asyncio.sleep(0)
                self.fake.script.clear()  # the model quotes its input from here on
                before = len(played.events)
                await session.send_text("And now?")  # also where the program has interrupted: then nothing is asked
                await self._rest(played, last="And now?", before=before)
        except TimeoutError:
            raise AssertionError(f"{self._state(session)}; {played.events[-20:]}") from None
        finally:
            await session.close()
            await reader
        self._judge(played)
        last = played.events[before:]
        # The last text is answered. Where the user is heard as well, the server's answer to that may be ended in its stead: a wish to
        # end the one before may come too late, and names none with most providers.
        received = any(isinstance(event, TranscriptEvent) and event.role == "user" for event in last)
        # Gemini's protocol drops a result that crosses with a text that cancels its call: then an error says that no answer began.
        is_told = self.course.provider is FakeGemini and any(isinstance(event, ErrorEvent) for event in last)
        assert received or is_told or any(map(_is_said, last)), last
        # One idle event, and no event of a turn after it. Speech begins turns, too;
        # and Gemini does not say whether one answer is to both of two texts.
        assert isinstance([event for event in last if not isinstance(event, _BESIDE)][-1], IdleEvent), last
        if not self._is_spoken and self.course.provider is not FakeGemini:
            assert 1 == sum(isinstance(event, IdleEvent) for event in last), last

    async def _connected(self) -> RealtimeSession:
        """Open the session."""
        course, fake = self.course, self.fake
        # Long enough for a busy machine, where a client that has given an answer up would seem to break a rule. With Gemini, which
        # takes calls back without a word of what comes then, this is waited for, and no rule depends on it.
        created = 0.3 if fake.provider == "gemini" else 5.0
        slow = course.slow_after
        bounds = limits(connect=0.6, created=created, done=0.4, cancel=5.0, update=0.2, slow_after=slow, reconnects=1000)
        model = "gemini-3.1-live" if course.newer else "m"  # whose generation selects the text frame
        settings = RealtimeSettings(model=model, provider=fake.provider, url=fake.url, api_key="a-secret-key", limits=bounds)
        own = ToolDefinition("look_up", handler=self._look_up)
        return await connected(settings, tools=[self.get_weather, own], snapshot=self._manager.snapshot(), hooks=self._hooks)

    async def _do(self, what: What, session: RealtimeSession) -> None:
        fake = self.fake
        try:
            if what == "text":
                await session.send_text("And another thing.")
            elif what == "interrupt":
                await session.interrupt()
            elif what == "audio":
                await session.send_audio(bytes(3200))
            elif what == "speak":
                await asyncio.to_thread(fake.speak, "No, wait.")
            elif what == "drop":
                await asyncio.to_thread(fake.drop)
            elif what == "take_back":
                await asyncio.to_thread(fake.cancel)
            elif what == "go_away":
                await asyncio.to_thread(fake.go_away, 0.05)
            else:
                self._change(session)
        except RuntimeError as error:
            if "connection is over" not in str(error):  # by the server's own doing, meanwhile
                raise

    def _change(self, session: RealtimeSession) -> None:
        """Change the registry, perhaps removing a running tool, and sync the session in the background."""
        if next(self._numbers) % 2:
            self._manager.register_tool(ToolDefinition(f"extra_{next(self._numbers)}", handler=self._slow))
        elif "registered" in self._manager.snapshot().tools:
            self._manager.unregister_tool("registered")
        else:
            self._manager.register_tool(ToolDefinition("registered", handler=self._slow))
        self._telling = asyncio.ensure_future(self._tell(session))

    async def _tell(self, session: RealtimeSession) -> None:
        try:
            await session.use_tools(self._manager.snapshot())
        except ToolSyncError:
            pass

    async def _rest(self, played: Played, *, last: str = "", before: int = 0) -> None:
        """Wait until both ends are idle and each call has its result.

        Where ``last`` was said, behind so many events, the model was also asked to go on, and the server has heard that text (or its
        connection was lost). A server that is behind is idle as long as it has not heard it, and so may the session be: with Gemini,
        an answer to what was said before may be one to both.
        """
        fake, session = self.fake, played.session
        quiet = 0
        while quiet < 3:
            at_rest = session.idle and fake.idle and not fake.unanswered
            if last:
                is_heard = any(last in outcome.text for outcome in tuple(fake.heard))
                is_lost = any(isinstance(event, ConnectionEvent) for event in played.events[before:])
                at_rest = at_rest and not fake.unasked and (is_heard or is_lost)
            quiet = quiet + 1 if at_rest else 0
            await asyncio.sleep(0.003)

    def _state(self, session: RealtimeSession) -> str:
        fake = self.fake
        ends = f"session idle: {session.idle}, server idle: {fake.idle}"
        return f"{ends}, unanswered: {fake.unanswered}, unasked: {fake.unasked}, violations: {fake.violations}"

    def _judge(self, played: Played) -> None:
        fake = self.fake
        assert [] == fake.violations, fake.violations
        assert [] == [call.call_id for call in fake.calls if len(call.results) > 1]
        wrong = [str(event.error) for event in played.of(ErrorEvent) if not _expected(event.error)]
        assert [] == wrong, wrong
        assert "closed" == played.of(ConnectionEvent)[-1].state, played.of(ConnectionEvent)
        # Each call that began has ended in the eyes of who watches: with a result, or with word that it came too late.
        begun = [event.tool_call.id for event in played.of(ToolCallEvent)]
        ended = [event.execution.call.id for event in played.of(ToolResultEvent)]
        dropped = [event.call_id for event in played.of(DroppedEvent)]
        assert len(begun) == len(set(begun)), begun
        assert sorted(begun) == sorted(ended + dropped), (begun, ended, dropped)
        # Each turn has one start, which is its first event, and one end.
        for kinds in self._hooks.told.values():
            bounds = [kind for kind in kinds if kind.startswith("agent.turn.")]
            assert ("agent.turn.start", ["agent.turn.start", "agent.turn.end"]) == (kinds[0], bounds), kinds
            behind = set(kinds[kinds.index("agent.turn.end") + 1 :])  # of tools that were reported as running
            assert behind <= {"agent.tool.exec_start", "agent.tool.exec_end", "agent.tool.exec_skipped", "agent.user_output"}, (
                kinds
            )
        # No result is lost: each result event reached the model, on this connection or the next.
        outcome = " ".join(each.text for each in fake.heard)
        results = [each.execution for each in played.of(ToolResultEvent) if not self._unwanted(each.execution)]
        assert [] == [each.content for each in results if not _within(each.content, outcome)], outcome

    def _unwanted(self, execution: ToolExecution) -> bool:
        """True if the result of a call may be lost without a fault."""
        course, calls = self.course, self.fake.calls
        if any(call.call_id == execution.call.id and call.why == "taken back" for call in calls):
            return True
        # A call without an id is taken back where the user interrupts: it cannot be named then.
        if any(call.name == execution.call.name and call.why == "interrupted" and call.open for call in calls):
            return True
        # Nothing on Gemini's wire says whether it has heard a text, or answers what was spoken at that moment.
        return course.provider is FakeGemini and self._is_spoken

    @property
    def _is_spoken(self) -> bool:
        """True if the course contains speech of the user."""
        parts = (part for answer in self.course.script for part in (*answer.parts, *answer.then))
        acts = (act for acts in self.course.turns for act in acts)
        return any(isinstance(part, Interrupt) for part in parts) or any(act.what == "speak" for act in acts)


_BESIDE = (ConnectionEvent, DroppedEvent, ErrorEvent)


def _is_said(event: RealtimeEvent) -> bool:
    """True for output of the model."""
    return isinstance(event, (TextEvent, AudioEvent)) or (isinstance(event, TranscriptEvent) and event.role == "assistant")


def _within(content: str, told: str) -> bool:
    return content in told or json.dumps(content, ensure_ascii=False)[1:-1] in told  # as a line has it


def _expected(error: PatchbayError) -> bool:
    """True for errors that failing servers cause."""
    return isinstance(error, UpstreamError) and "went wrong here" not in str(error)


async def played_out(course: Course) -> None:
    """Play a course against its fake."""
    options: dict[str, Any] = {"newer": course.newer} if course.provider is FakeGemini else {}
    # On a busy machine ten sessions may be behind by seconds; on a quiet one no course lasts as long.
    with course.provider(course.script, faults=course.faults, crossing=10.0, **options) as fake:
        await Playing(course, fake).play()

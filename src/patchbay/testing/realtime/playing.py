"""The playing of one answer of a script: its parts in order, cut where the user or the client cuts it. It knows no provider.

What lives here: when each part of a response is said, and where its connection is killed. What does not: how it is said (the
provider's file), and what else happens on the connection (``talk``).

An answer that is cut is not cancelled but ends at its next frame: a message in fragments is never left half.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from websockets.exceptions import ConnectionClosed

from patchbay.testing.realtime.book import Issued, Told
from patchbay.testing.realtime.script import (
    Answer,
    Call,
    Cancel,
    Drop,
    Frame,
    GoAway,
    Interrupt,
    Part,
    Pause,
    Point,
    Quote,
    Say,
    Status,
)

if TYPE_CHECKING:
    from patchbay.testing.realtime.talk import Talk


@dataclass
class Playing:
    """A response. ``asked``: by the client. ``begun``: its beginning was sent, and something of the items at ``sent``."""

    response_id: str
    answer: Answer
    told: Sequence[Told]
    asked: bool
    begun: bool = False
    status: Status | None = None
    calls: list[Issued] = field(default_factory=list)
    sent: set[int] = field(default_factory=set)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    ended_at: float | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended, or was cut."""
        return self.status is not None


class _OverError(Exception):
    """The answer that is being played was cut."""


async def play(talk: Talk, playing: Playing) -> None:
    """Play an answer to its end, and what the script has behind that."""
    player = _Player(talk, playing)
    try:
        await player.answer()
        await player.at("running")
        for part in playing.answer.then:
            await player.aside(part)
    except (_OverError, ConnectionClosed):
        return


class _Player:
    def __init__(self, talk: Talk, playing: Playing) -> None:
        self._talk = talk
        self._playing = playing
        self._half = playing.answer.kill == "deltas"

    async def answer(self) -> None:
        """Play the response itself."""
        talk, playing = self._talk, self._playing
        answer = playing.answer
        await self.at("asked")
        await self._wait(answer.late)
        self._go_on()
        playing.begun = True
        await self._emit(talk.beginning(playing))
        await self.at("created")
        if "stale" in answer.faults:
            await self._emit(talk.stale(playing))
        for are_calls, parts in itertools.groupby(answer.parts, lambda part: isinstance(part, Call)):
            if are_calls:
                made = [(part, self._issue(part)) for part in parts if isinstance(part, Call)]
                await self._emit(talk.calling(playing, made), half=self._half)
            else:
                for part in parts:
                    await self._part(part)
        if self._half:
            await talk.kill()
        await self.at("calls")
        self._go_on()
        playing.status = answer.status
        if answer.status == "completed":
            for call in playing.calls:
                call.wanted = "must"
        await talk.send_all(talk.ending(playing))
        await talk.is_over(playing)

    async def at(self, point: Point) -> None:
        """Kill the connection if it is to be killed here."""
        if self._playing.answer.kill == point:
            await self._talk.kill()

    async def aside(self, part: Part) -> None:
        """Do what is no part of what the model says."""
        talk = self._talk
        if isinstance(part, Interrupt):
            await talk.user_speaks(part.text)
        elif isinstance(part, Cancel):
            await talk.cancel_calls(part.ids)
        elif isinstance(part, Frame):
            await talk.send(part.frame)
        elif isinstance(part, Pause):
            await asyncio.sleep(part.seconds)
        elif isinstance(part, GoAway):
            await talk.go_away(part.seconds)
        elif isinstance(part, Drop):
            await talk.kill()

    async def _part(self, part: Part) -> None:
        talk, playing = self._talk, self._playing
        if isinstance(part, Quote):
            heard = [told.text for told in playing.told if told.kind != "assistant"]
            part = Say(part.lead + (" | ".join(heard) or "nothing"))
        if isinstance(part, Say):
            audio = b"\x00\x01" * (240 * len(part.text)) if part.audio is None else part.audio
            await self._emit(talk.saying(playing, part.text, audio, part.piece), half=self._half, gap=part.gap)
        elif isinstance(part, Pause):
            await self._wait(part.seconds)
        else:
            await self.aside(part)
        self._go_on()

    def _issue(self, call: Call) -> Issued:
        talk, playing = self._talk, self._playing
        call_id = talk.fake.new_id("call") if call.call_id is None else call.call_id
        issued = Issued(
            call_id=call_id,
            name=call.name,
            arguments=call.text,
            connection=talk.number,
            response_id=playing.response_id,
            order=len(playing.calls),
            told_id=call_id,
        )
        playing.calls.append(issued)
        talk.calls.add(issued)
        talk.fake.book.issue(issued)
        return issued

    async def _emit(self, frames: Sequence[Mapping[str, Any]], *, half: bool = False, gap: float = 0.0) -> None:
        talk, playing = self._talk, self._playing
        for number, frame in enumerate(frames):
            if half and number >= len(frames) // 2:
                await talk.kill()
            self._go_on()
            talk.sending(playing, frame)
            await talk.send(frame, fragments="fragments" in playing.answer.faults)
            if gap:
                await self._wait(gap)

    async def _wait(self, seconds: float) -> None:
        if seconds:
            try:
                async with asyncio.timeout(seconds):
                    await self._playing.ended.wait()
            except TimeoutError:
                pass
            self._go_on()

    def _go_on(self) -> None:
        if self._playing.over or self._talk.playing is not self._playing:
            raise _OverError

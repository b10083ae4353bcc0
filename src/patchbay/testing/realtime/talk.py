"""What is said on one connection of a fake: the responses, one after another, and what happens of its own accord.

What lives here: when something is said. What does not: how it is said and which frames are right (``family``, ``gemini``), how an
answer is played (``playing``), and the socket (``line``).

What a client sends is read while an answer is played.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from websockets.asyncio.server import ServerConnection
from websockets.protocol import State

from patchbay.testing.realtime.book import Calls, Issued, Told
from patchbay.testing.realtime.line import Line
from patchbay.testing.realtime.playing import Playing, play
from patchbay.testing.realtime.script import Call

if TYPE_CHECKING:
    from patchbay.testing.realtime.fake import FakeRealtime

Cut = Literal["turn_detected", "client_cancelled"]


class Talk(Line):
    """A connection and what is said on it. ``calls`` are those of its session that the model has made.

    ``buffered`` is how much audio of the user came since the last turn (bytes).
    """

    def __init__(self, fake: FakeRealtime, socket: ServerConnection, number: int) -> None:
        super().__init__(fake, socket, number)
        self.calls = Calls()
        self.told: list[Told] = []
        self.playing: Playing | None = None
        self.buffered = 0

    # What a provider's file says

    @abstractmethod
    def beginning(self, playing: Playing) -> list[dict[str, Any]]:
        """Return the frames that begin a response."""

    @abstractmethod
    def saying(self, playing: Playing, text: str, audio: bytes, piece: int) -> list[dict[str, Any]]:
        """Return the frames that say a text, as audio where the session has it."""

    @abstractmethod
    def calling(self, playing: Playing, calls: Sequence[tuple[Call, Issued]]) -> list[dict[str, Any]]:
        """Return the frames that call tools in parallel."""

    @abstractmethod
    def stale(self, playing: Playing) -> list[dict[str, Any]]:
        """Return pieces of another, older response."""

    @abstractmethod
    def ending(self, playing: Playing) -> list[dict[str, Any]]:
        """Return the frames that end a response as its ``status`` says."""

    @abstractmethod
    def cutting(self, playing: Playing, why: Cut) -> list[dict[str, Any]]:
        """Return the frames that end a response in its midst."""

    @abstractmethod
    def hearing(self, text: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the frames that say that the user begins to speak, and those that say that and what was heard."""

    @abstractmethod
    def cancelling(self, calls: Sequence[Issued]) -> list[dict[str, Any]]:
        """Return the frames that take calls back."""

    @abstractmethod
    def leaving(self, seconds: float) -> list[dict[str, Any]]:
        """Return the frames that say that the connection will end."""

    @property
    @abstractmethod
    def detects_turns(self) -> bool:
        """Whether the server is to hear by itself when the user has ended."""

    async def ended(self, playing: Playing) -> None:
        """Do what follows the end of a response."""

    @property
    def unasked(self) -> str:
        """The response whose results are all there, and the model was not asked to go on; "" if there is none."""
        return ""

    def hear(self, kind: str, text: str, call_id: str = "") -> None:
        """Tell the model something, for its next answer."""
        told = Told(kind, text, self.number, call_id)
        self.told.append(told)
        self.fake.heard.append(told)

    @property
    def idle(self) -> bool:
        """Whether nothing is being said, and nothing is waited for; so too when the connection is gone."""
        waited = any(call.wanted == "must" for call in self.calls.open)
        return not self.alive or not (self.busy or waited)

    # Answers

    def respond(self, *, asked: bool) -> None:
        """Begin the next answer of the script."""
        if self.socket.state is not State.OPEN:
            return
        playing = Playing(self.fake.new_id("resp"), self.fake.next_answer(), tuple(self.told), asked)
        self.told.clear()
        self.playing = playing
        self.spawn(play(self, playing))

    def sending(self, playing: Playing, frame: Mapping[str, Any]) -> None:
        """Note of which item a frame tells."""
        place = frame.get("output_index")
        if isinstance(place, int) and frame.get("response_id") == playing.response_id:
            playing.sent.add(place)

    async def is_over(self, playing: Playing) -> None:
        """A response has ended, or was cut."""
        playing.ended_at = time.monotonic()
        playing.ended.set()
        self.fake.changed()
        await self.ended(playing)

    async def cut(self, why: Cut) -> None:
        """End the response that is under way, if there is one."""
        playing = self.playing
        if playing is None or playing.over:
            return
        playing.status = "cancelled"
        if not playing.begun:
            playing.begun = True
            await self.send_all(self.beginning(playing))
        await self.send_all(self.cutting(playing, why))
        await self.is_over(playing)

    async def result_came(self, call: Issued) -> None:
        """Kill the connection if the answer with ``call`` says so."""
        playing = self.playing
        if playing is None or call not in playing.calls:
            return
        if playing.answer.kill == "result" or (playing.answer.kill == "results" and not any(each.open for each in playing.calls)):
            await self.kill()

    # What happens of its own accord

    async def user_speaks(self, text: str) -> None:
        """The user speaks, as the server hears it: what is said ends, and the next answer begins."""
        self.buffered = 0
        begins, heard = self.hearing(text)
        await self.send_all(begins)
        await self.cut("turn_detected")
        await self.send_all(heard)
        self.hear("user", text)
        self.respond(asked=False)

    async def sounds(self, data: bytes) -> None:
        """Audio of the user came. Where turns are detected, every ``utterance`` bytes are heard as the next of ``hears``."""
        self.buffered += len(data)
        self.fake.audio_bytes += len(data)
        size = self.fake.utterance
        if size is not None and self.detects_turns and self.buffered >= size:
            await self.user_speaks(self.fake.next_utterance())

    async def cancel_calls(self, ids: Sequence[str] | None) -> None:
        """Take calls back that have no result, those of ``ids`` or all, and go on where there is something to go on with."""
        if await self.take_back(ids):
            await self.taken_back()

    async def take_back(self, ids: Sequence[str] | None) -> bool:
        """Take calls back that have no result: those of ``ids``, or all. Return whether there were any."""
        calls = [call for call in self.calls.open if call.told_id and call.wanted != "not"]
        calls = [call for call in calls if ids is None or call.call_id in ids]
        frames = self.cancelling(calls)
        if not calls or not frames:
            return False
        for call in calls:
            self.fake.book.void(call, "taken back")
        await self.send_all(frames)
        return True

    async def taken_back(self) -> None:
        """Do what follows when calls were taken back, and the user said nothing."""

    async def go_away(self, seconds: float) -> None:
        """Say that the connection ends, and end it ``seconds`` later."""
        await self.send_all(self.leaving(seconds))
        self.spawn(self._leave(seconds))

    async def _leave(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.abort()

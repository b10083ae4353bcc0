"""One session of a fake provider: its connection, its script, and the response that it plays."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from patchbay.testing.realtime.records import Calls, FakeState, Issued, ModelInput
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

_BARRIER_SECONDS = 2.0
_FRAGMENT = 7
"""Bytes of a fragment: odd, so that cuts fall within characters."""


@dataclass
class ActiveResponse:
    """A response. ``asked``: by the client. ``begun``: its beginning was sent, and something of the items at ``sent``."""

    response_id: str
    answer: Answer
    inputs: Sequence[ModelInput]
    asked: bool
    begun: bool = False
    status: Status | None = None
    calls: list[Issued] = field(default_factory=list)
    sent: set[int] = field(default_factory=set)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    ended_at: float | None = None

    @property
    def over(self) -> bool:
        """True if it has ended, or was cut."""
        return self.status is not None


class _CutError(Exception):
    """The answer that is being played was cut."""


class _Player:
    def __init__(self, connection: FakeConnection, playing: ActiveResponse) -> None:
        self._connection = connection
        self._playing = playing
        self._half = playing.answer.kill == "deltas"

    async def play(self) -> None:
        """Play a response and the parts after its end."""
        try:
            await self.answer()
            await self._kill_at("running")
            for part in self._playing.answer.then:
                await self._act(part)
        except (_CutError, ConnectionClosed):
            return

    async def answer(self) -> None:
        """Play the response itself."""
        connection, playing = self._connection, self._playing
        answer = playing.answer
        await self._kill_at("asked")
        await self._wait(answer.late)
        self._check_active()
        playing.begun = True
        await self._emit(connection.begin_frames(playing))
        await self._kill_at("created")
        if "stale" in answer.faults:
            await self._emit(connection.stale_frames(playing))
        for are_calls, parts in itertools.groupby(answer.parts, lambda part: isinstance(part, Call)):
            if are_calls:
                made = [(part, self._issue(part)) for part in parts if isinstance(part, Call)]
                await self._emit(connection.call_frames(playing, made), half=self._half)
            else:
                for part in parts:
                    await self._play_part(part)
        if self._half:
            await connection.kill()
        await self._kill_at("calls")
        self._check_active()
        playing.status = answer.status
        if answer.status == "completed":
            for call in playing.calls:
                call.wanted = "must"
        await connection.send_all(connection.end_frames(playing))
        await connection.finish_response(playing)

    async def _kill_at(self, point: Point) -> None:
        """Kill the connection if the script says so at this point."""
        if self._playing.answer.kill == point:
            await self._connection.kill()

    async def _act(self, part: Part) -> None:
        """Execute a step that is not model output."""
        connection = self._connection
        if isinstance(part, Interrupt):
            await connection.user_speaks(part.text)
        elif isinstance(part, Cancel):
            await connection.cancel_calls(part.ids)
        elif isinstance(part, Frame):
            await connection.send(part.frame)
        elif isinstance(part, Pause):
            await asyncio.sleep(part.seconds)
        elif isinstance(part, GoAway):
            await connection.go_away(part.seconds)
        elif isinstance(part, Drop):
            await connection.kill()

    async def _play_part(self, part: Part) -> None:
        connection, playing = self._connection, self._playing
        if isinstance(part, Quote):
            heard = [each.text for each in playing.inputs if each.kind != "assistant"]
            part = Say(part.lead + (" | ".join(heard) or "nothing"))
        if isinstance(part, Say):
            audio = b"\x00\x01" * (240 * len(part.text)) if part.audio is None else part.audio
            await self._emit(connection.say_frames(playing, part.text, audio, part.piece), half=self._half, gap=part.gap)
        elif isinstance(part, Pause):
            await self._wait(part.seconds)
        else:
            await self._act(part)
        self._check_active()

    def _issue(self, call: Call) -> Issued:
        connection, playing = self._connection, self._playing
        call_id = connection.fake.new_id("call") if call.call_id is None else call.call_id
        issued = Issued(
            call_id=call_id,
            name=call.name,
            arguments=call.text,
            connection=connection.number,
            response_id=playing.response_id,
            order=len(playing.calls),
            sent_id=call_id,
        )
        playing.calls.append(issued)
        connection.calls.add(issued)
        connection.fake.calls.append(issued)
        return issued

    async def _emit(self, frames: Sequence[Mapping[str, Any]], *, half: bool = False, gap: float = 0.0) -> None:
        connection, playing = self._connection, self._playing
        for number, frame in enumerate(frames):
            if half and number >= len(frames) // 2:
                await connection.kill()
            self._check_active()
            connection.on_send(playing, frame)
            await connection.send(frame, fragments="fragments" in playing.answer.faults)
            if gap:
                await self._wait(gap)

    async def _wait(self, seconds: float) -> None:
        if seconds:
            try:
                async with asyncio.timeout(seconds):
                    await self._playing.ended.wait()
            except TimeoutError:
                pass
            self._check_active()

    def _check_active(self) -> None:
        if self._playing.over or self._connection.playing is not self._playing:
            raise _CutError


Cut = Literal["turn_detected", "client_cancelled"]


class FakeConnection(ABC):
    """A connection, numbered from 1, ``alive`` until it has ended. ``calls`` are those of its session that the model has made.

    ``buffered`` is how much audio of the user came since the last turn (bytes).
    """

    def __init__(self, fake: FakeState, socket: ServerConnection, number: int) -> None:
        self.fake = fake
        self.socket = socket
        self.number = number
        self.alive = True
        self.calls = Calls()
        self.inputs: list[ModelInput] = []
        self.playing: ActiveResponse | None = None
        self.buffered = 0
        self._handling = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._noise = itertools.cycle(self.noise_frames()) if fake.faults.noise else None
        self._sent = 0

    # Overridden by providers

    async def greet(self) -> None:  # noqa: B027  (optional)
        """Send what the server says first: nothing."""

    @abstractmethod
    async def handle_frame(self, frame: dict[str, Any]) -> None:
        """Handle a frame of the client."""

    @abstractmethod
    def noise_frames(self) -> list[dict[str, Any]]:
        """Return frames without effect."""

    @abstractmethod
    def on_closed(self) -> None:
        """Handle the end of the connection."""

    def begin_frames(self, playing: ActiveResponse) -> list[dict[str, Any]]:  # noqa: ARG002  (for subclasses)
        """Return the frames that begin a response: none."""
        return []

    @abstractmethod
    def say_frames(self, playing: ActiveResponse, text: str, audio: bytes, piece: int) -> list[dict[str, Any]]:
        """Return the frames of a text, as audio if the session has it."""

    @abstractmethod
    def call_frames(self, playing: ActiveResponse, calls: Sequence[tuple[Call, Issued]]) -> list[dict[str, Any]]:
        """Return the frames that call tools in parallel."""

    @abstractmethod
    def stale_frames(self, playing: ActiveResponse) -> list[dict[str, Any]]:
        """Return frames of an older response."""

    @abstractmethod
    def end_frames(self, playing: ActiveResponse) -> list[dict[str, Any]]:
        """Return the frames that end a response with its ``status``."""

    @abstractmethod
    def cut_frames(self, playing: ActiveResponse, why: Cut) -> list[dict[str, Any]]:
        """Return the frames that interrupt a response."""

    @abstractmethod
    def speech_frames(self, text: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the frames for the start of speech, and those for its end with the transcript."""

    def cancel_frames(self, calls: Sequence[Issued]) -> list[dict[str, Any]]:  # noqa: ARG002  (for subclasses)
        """Return the frames that cancel calls: none where the protocol has none."""
        return []

    def leave_frames(self, seconds: float) -> list[dict[str, Any]]:  # noqa: ARG002  (for subclasses)
        """Return the frames that announce the end of the connection: none where the protocol has none."""
        return []

    @property
    @abstractmethod
    def detects_turns(self) -> bool:
        """True if the server detects the end of the user's turn."""

    async def on_response_ended(self, playing: ActiveResponse) -> None:  # noqa: B027  (optional)
        """Handle the end of a response."""

    @property
    def unasked(self) -> str:
        """The id of a response that has all its results without a request to continue, "" if there is none."""
        return ""

    def add_input(self, kind: str, text: str, call_id: str = "") -> None:
        """Add an input of the model, for its next response."""
        heard = ModelInput(kind, text, self.number, call_id)
        self.inputs.append(heard)
        self.fake.heard.append(heard)

    @property
    def idle(self) -> bool:
        """True if no response is in progress and no result expected; also when the connection is gone."""
        waited = any(call.wanted == "must" for call in self.calls.open)
        return not self.alive or not (self.busy or waited)

    # Answers

    def respond(self, *, asked: bool) -> None:
        """Begin the next answer of the script."""
        if self.socket.state is not State.OPEN:
            return
        playing = ActiveResponse(self.fake.new_id("resp"), self.fake.next_answer(), tuple(self.inputs), asked)
        self.inputs.clear()
        self.playing = playing
        self.spawn(_Player(self, playing).play())

    def on_send(self, playing: ActiveResponse, frame: Mapping[str, Any]) -> None:
        """Record the item of a frame that is about to be sent."""
        place = frame.get("output_index")
        if isinstance(place, int) and frame.get("response_id") == playing.response_id:
            playing.sent.add(place)

    async def finish_response(self, playing: ActiveResponse) -> None:
        """Record the end of a response."""
        playing.ended_at = time.monotonic()
        playing.ended.set()
        self.fake.changed()
        await self.on_response_ended(playing)

    async def cut(self, why: Cut) -> None:
        """End the response in progress, if any."""
        playing = self.playing
        if playing is None or playing.over:
            return
        playing.status = "cancelled"
        if not playing.begun:
            playing.begun = True
            await self.send_all(self.begin_frames(playing))
        await self.send_all(self.cut_frames(playing, why))
        await self.finish_response(playing)

    async def on_result(self, call: Issued) -> None:
        """Kill the connection if the answer with ``call`` says so."""
        playing = self.playing
        if playing is None or call not in playing.calls:
            return
        if playing.answer.kill == "result" or (playing.answer.kill == "results" and not any(each.open for each in playing.calls)):
            await self.kill()

    # Server-initiated

    async def user_speaks(self, text: str) -> None:
        """Speak as the user: the response in progress ends, and the next one begins."""
        self.buffered = 0
        begins, heard = self.speech_frames(text)
        await self.send_all(begins)
        await self.cut("turn_detected")
        await self.send_all(heard)
        self.add_input("user", text)
        self.respond(asked=False)

    async def receive_audio(self, data: bytes) -> None:
        """Record user audio. If turns are detected, every ``utterance`` bytes are the next text of ``hears``."""
        self.buffered += len(data)
        self.fake.audio_bytes += len(data)
        size = self.fake.utterance
        if size is not None and self.detects_turns and self.buffered >= size:
            await self.user_speaks(self.fake.next_utterance())

    async def cancel_calls(self, ids: Sequence[str] | None) -> None:
        """Cancel calls without a result, those of ``ids`` or all, and continue if possible."""
        if await self.withdraw_calls(ids):
            await self.on_calls_withdrawn()

    async def withdraw_calls(self, ids: Sequence[str] | None) -> bool:
        """Cancel calls without a result: those of ``ids``, or all. Return whether there were any."""
        calls = [call for call in self.calls.open if call.sent_id and call.wanted != "not"]
        calls = [call for call in calls if ids is None or call.call_id in ids]
        frames = self.cancel_frames(calls)
        if not calls or not frames:
            return False
        for call in calls:
            self.fake.void(call, "taken back")
        await self.send_all(frames)
        return True

    async def on_calls_withdrawn(self) -> None:  # noqa: B027  (optional)
        """Handle that calls were cancelled without new input."""

    async def go_away(self, seconds: float) -> None:
        """Announce the end of the connection, and abort it ``seconds`` later."""
        await self.send_all(self.leave_frames(seconds))
        self.spawn(self._leave(seconds))

    async def _leave(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.abort()

    # The socket

    async def serve(self) -> None:
        """Serve until the connection ends."""
        try:
            await self.greet()
            while True:
                async with asyncio.timeout(self.fake.faults.idle):
                    message = await self.socket.recv()
                await self._handle(message)
        except ConnectionClosed:
            pass
        except TimeoutError:
            await self.socket.close(1001, "The session was idle for too long.")
        finally:
            self.alive = False
            for task in self._tasks:
                task.cancel()
            self.on_closed()

    async def _handle(self, message: str | bytes) -> None:
        try:
            frame = json.loads(message)
        except ValueError:
            frame = None
        if not isinstance(frame, dict):
            self.violate(f"a message that is not a JSON object: {message[:80]!r}")
            await self.refuse_message()
            return
        self._handling = True
        try:
            self.fake.record_frame(self.number, frame)
            await self.handle_frame(frame)
        finally:
            self._handling = False
        self.fake.changed()

    async def refuse_message(self) -> None:
        """Answer a message that is not a JSON object."""
        await self.socket.close(1007, "Invalid JSON payload received.")

    async def send(self, frame: Mapping[str, Any], *, fragments: bool = False) -> None:
        """Send a frame, and noise now and then."""
        if self._noise is not None:
            self._sent += 1
            if self._sent % 3 == 0:
                await self.socket.send(json.dumps(next(self._noise)))
        text = json.dumps(frame, ensure_ascii=False)
        if fragments:
            data = text.encode()
            pieces = [data[start : start + _FRAGMENT] for start in range(0, len(data), _FRAGMENT)]
            await self.socket.send(pieces, text=True)
        else:
            await self.socket.send(text)
        self.fake.changed()

    async def send_all(self, frames: Iterable[Mapping[str, Any]]) -> None:
        """Send frames one after another."""
        for frame in frames:
            await self.send(frame)

    def abort(self) -> None:
        """End the connection at once, without a close frame."""
        self.socket.transport.abort()

    async def drop(self) -> None:
        """Abort, and wait for the end: later sends fail."""
        self.abort()
        await self.socket.wait_closed()

    async def kill(self) -> None:
        """Abort once the client's end has received what was sent."""
        try:
            async with asyncio.timeout(_BARRIER_SECONDS):
                await (await self.socket.ping())
        except (TimeoutError, ConnectionClosed):
            pass
        await self.drop()

    def violate(self, text: str) -> None:
        """Record a violation by the client."""
        self.fake.violate(self.number, text)
        self.fake.changed()

    @property
    def busy(self) -> bool:
        """True while a frame is handled or a background task runs."""
        return self._handling or bool(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background task until the connection ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.violate(f"the fake itself has failed: {error!r}")
        self.fake.changed()

"""What servers say that speak as OpenAI does: events with a ``type``, by their names of 2024 and by those of the release of 2025.

What lives here: reading. What does not: what they are sent (``events``), and what one of them does otherwise (its file).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, ClassVar, Final, Literal, TypeAlias
from uuid import uuid4

from patchbay.realtime.calls import MOST_CALLS, MOST_CHARS
from patchbay.realtime.dialect import Dialect, tool_names
from patchbay.realtime.dialects import reading
from patchbay.realtime.dialects.callkeys import CallKeys, Known, Named
from patchbay.realtime.news import (
    CallPiece,
    Configured,
    Heard,
    News,
    Opened,
    Refused,
    ResponseBegan,
    ResponseEnded,
    Said,
    Sounded,
    Status,
    UserSpeaks,
    UserStops,
    WholeCall,
)
from patchbay.realtime.settings import RealtimeSettings

MADE: Final = "response-made-here-"
"""So begins the id of a response that came without one."""

OURS: Final = "patchbay-"
"""So begin the ids of our frames; what a frame is about comes next."""

_About: TypeAlias = Literal["session", "response", "item", ""]

_STATUS: Final[Mapping[str, Status]] = {
    "": "completed",  # GLM's documentation has an end without one
    "completed": "completed",
    "cancelled": "cancelled",
    "incomplete": "incomplete",
}
_RESPONSES: Final = 4
"""Of so many responses it is remembered which calls they have; calls of older ones are told as new."""

_SESSION_WORDS: Final = re.compile(r"session\.|tools|turn_detection", re.IGNORECASE)
_ITEM_WORDS: Final = re.compile(r"call_id|conversation\.item|function_call_output|\bitem\b", re.IGNORECASE)
_BUSY: Final = re.compile(r"already has an active response|conversation_already_has_active_response", re.IGNORECASE)
_ONLY_READ: Final = 2_000
"""So much of an error's message is looked at for words."""
_ABOUT: Final[Mapping[str, _About]] = {"session": "session", "item": "item", "response": "response"}

_Reader: TypeAlias = Callable[["EventReader", dict[str, Any]], list[News]]
_READERS: Final[dict[str, _Reader]] = {}


def _reads(*types: str) -> Callable[[_Reader], _Reader]:
    """Have events of these types read by a method."""

    def register(reader: _Reader) -> _Reader:
        _READERS.update(dict.fromkeys(types, reader))
        return reader

    return register


class EventReader(Dialect):
    """The half of a dialect that listens."""

    output_rate: ClassVar[int] = 24_000

    def __init__(self, settings: RealtimeSettings) -> None:
        super().__init__(settings)
        self.confirmed = False
        """Whether the server has confirmed a ``session.update``."""
        self._unconfirmed = 0
        self._expected: frozenset[str] | None = None
        self._response = ""
        self._under_way = False
        self._calls: OrderedDict[str, CallKeys] = OrderedDict()

    def read(self, frame: Any) -> list[News]:
        """Events are read by their ``type``; those that are not known here say nothing to us."""
        if not isinstance(frame, dict):
            return []
        kind = frame.get("type")
        reader = _READERS.get(kind) if isinstance(kind, str) else None
        return [] if reader is None else reader(self, frame)

    @_reads("session.created")
    def _opened(self, _frame: dict[str, Any]) -> list[News]:
        return [Opened()]

    @_reads("session.updated", "session.update")  # the latter is what GLM's documentation has
    def _configured(self, frame: dict[str, Any]) -> list[News]:
        names = tool_names(reading.member(frame, "session").get("tools"))
        self._settled(all_of_them=names is not None and names == self._expected)
        self.confirmed = True
        own = tool_names(self.settings.extra.get("tools"))  # those that the provider has itself
        return [Configured(None if names is None else names - (own or frozenset()))]

    def expect(self, tools: object) -> None:
        """A ``session.update`` with these tools goes out, to be confirmed."""
        self._unconfirmed += 1
        self._expected = tool_names(tools)

    def _settled(self, *, all_of_them: bool = False) -> None:
        self._unconfirmed = 0 if all_of_them else max(0, self._unconfirmed - 1)

    @_reads("response.created")
    def _began(self, frame: dict[str, Any]) -> list[News]:
        response = reading.member(frame, "response")
        response_id = reading.text(response, "id") or reading.text(frame, "response_id") or f"{MADE}{uuid4().hex}"
        if response_id == self._response:
            return []
        self._response, self._under_way = response_id, True
        return [ResponseBegan(response_id)]

    @_reads("response.done")
    def _ended(self, frame: dict[str, Any]) -> list[News]:
        response = reading.member(frame, "response")
        status = reading.text(response, "status")
        if status == "in_progress":  # so GLM's documentation has the beginning of a response
            return self._began(frame)
        response_id = self._of(reading.text(response, "id") or reading.text(frame, "response_id"))
        if response_id == self._response:
            if not self._under_way:
                return []
            self._under_way = False
        details = reading.member(response, "status_details")
        error = reading.member(details, "error")
        reason = reading.text(details, "reason")
        reason = reason or ": ".join(filter(None, (reading.text(error, "code"), reading.text(error, "message"))))
        counted = reading.usage(response, "usage") or reading.usage(frame, "usage")
        # A word that is not known, or none at all, is no reason to run anything.
        ending: Status = _STATUS.get(status or ("" if response.get("status") is None else "?"), "failed")
        return [ResponseEnded(response_id, ending, self._whole_calls(response_id, response), counted, reason)]

    def _whole_calls(self, response_id: str, response: dict[str, Any]) -> tuple[WholeCall, ...]:
        items = ((place, item) for place, item in reading.elements(response, "output") if item.get("type") == "function_call")
        listed = [self._named(item, place=place, whole=True) for place, item in islice(items, MOST_CALLS)]
        if not listed:
            return ()
        return tuple(
            WholeCall(known.key, self.call_id(known), named.name, named.arguments)
            for known, named in self._calls_of(response_id).find_all(listed)
        )

    def _id(self, frame: dict[str, Any]) -> str:
        """The response that a frame is of."""
        return self._of(reading.text(frame, "response_id"))

    def _of(self, response_id: str) -> str:
        """The response of this id; without one, or where it began without one, the one that is under way."""
        return self._response if not response_id or self._response.startswith(MADE) else response_id

    def _calls_of(self, response_id: str) -> CallKeys:
        calls = self._calls.get(response_id)
        if calls is None:
            calls = self._calls[response_id] = CallKeys(response_id)
            if len(self._calls) > _RESPONSES:
                self._calls.popitem(last=False)
        return calls

    @_reads("response.output_text.delta", "response.text.delta")
    def _text(self, frame: dict[str, Any]) -> list[News]:
        piece = reading.text(frame, "delta")
        return [Said(self._id(frame), piece)] if piece else []

    @_reads("response.output_audio_transcript.delta", "response.audio_transcript.delta")
    def _transcript(self, frame: dict[str, Any]) -> list[News]:
        piece = reading.text(frame, "delta")
        # Who wanted no audio is not told of any, so this is the answer itself.
        return [Said(self._id(frame), piece, spoken=self.settings.output == "audio")] if piece else []

    @_reads("response.output_audio.delta", "response.audio.delta")
    def _audio(self, frame: dict[str, Any]) -> list[News]:
        piece = reading.audio(frame, "delta") if self.settings.output == "audio" else b""
        return [Sounded(self._id(frame), piece, self.output_rate)] if piece else []

    @_reads("input_audio_buffer.speech_started")
    def _speech(self, _frame: dict[str, Any]) -> list[News]:
        return [UserSpeaks()]

    @_reads("input_audio_buffer.speech_stopped")
    def _silence(self, _frame: dict[str, Any]) -> list[News]:
        return [UserStops()]

    @_reads("conversation.item.input_audio_transcription.completed")
    def _heard(self, frame: dict[str, Any]) -> list[News]:
        whole = reading.text(frame, "transcript") if self.settings.transcribe else ""
        return [Heard(whole)] if whole else []

    @_reads("conversation.item.input_audio_transcription.delta")
    def _heard_piece(self, frame: dict[str, Any]) -> list[News]:
        piece = reading.text(frame, "delta") if self.settings.transcribe else ""
        return [Heard(piece, whole=False)] if piece else []

    @_reads("response.output_item.added")
    def _item_added(self, frame: dict[str, Any]) -> list[News]:
        return self._item_told(frame, done=False)

    @_reads("response.output_item.done")
    def _item_done(self, frame: dict[str, Any]) -> list[News]:
        return self._item_told(frame, done=True)

    def _item_told(self, frame: dict[str, Any], *, done: bool) -> list[News]:
        item = reading.member(frame, "item")
        if item.get("type") != "function_call":
            return []
        whole = done and reading.text(item, "status") != "incomplete"
        return self._piece(frame, self._named(item, place=reading.place(frame, "output_index"), whole=whole))

    @_reads("response.function_call_arguments.delta")
    def _arguments_piece(self, frame: dict[str, Any]) -> list[News]:
        named = self._named_in(frame, whole=False)
        return self._piece(frame, named, delta=reading.text(frame, "delta"))

    @_reads("response.function_call_arguments.done")
    def _arguments_done(self, frame: dict[str, Any]) -> list[News]:
        return self._piece(frame, self._named_in(frame, whole=True))

    def _named_in(self, frame: dict[str, Any], *, whole: bool) -> Named:
        """What a frame about arguments says of the call: it is as an item, but for the item's id."""
        named = self._named(frame, place=reading.place(frame, "output_index"), whole=whole)
        named.item = reading.text(frame, "item_id")
        return named

    def _named(self, holder: dict[str, Any], *, place: int | None, whole: bool) -> Named:
        return Named(
            item=reading.text(holder, "id"),
            call_id=reading.text(holder, "call_id"),
            place=place,
            name=self.named(reading.text(holder, "name")),
            whole=whole,
            arguments=(reading.arguments(holder, "arguments") or "")[: MOST_CHARS + 1] if whole else "",
        )

    def _piece(self, frame: dict[str, Any], named: Named, *, delta: str = "") -> list[News]:
        response_id = self._id(frame)
        known = self._calls_of(response_id).find(named)
        return [
            CallPiece(
                response_id,
                known.key,
                call_id=self.call_id(known),
                name=named.name,
                delta=delta,
                arguments=named.arguments or None,
                done=named.whole,
            )
        ]

    # What a provider may say otherwise.

    def named(self, name: str) -> str:
        """Return a tool's name where a frame has ``name``, which may be none."""
        return name

    def call_id(self, known: Known) -> str:
        """Return the id of a call, as far as it was said."""
        return known.said.call_id

    @_reads("error")
    def _refused(self, frame: dict[str, Any]) -> list[News]:
        error = reading.member(frame, "error") or frame
        short = frame.get("error")
        message = reading.text(error, "message") or (reading.text(frame, "error") if isinstance(short, str) else "")
        number = reading.place(error, "code")
        code = reading.text(error, "code") or ("" if number is None else str(number))
        param = reading.text(error, "param")
        event_id = reading.text(error, "event_id") if error is not frame else ""
        words = f"{code} {message[:_ONLY_READ]}"
        if "response_cancel_not_active" in words or "no active response" in words:
            return []  # what should have been cancelled was over: nothing is wrong
        busy = _BUSY.search(words) is not None
        about: _About = "response" if busy else self._about(event_id, param, words)
        if about == "session":
            self._settled()
        if code == "" and error is not frame:
            code = reading.text(error, "type")
        return [Refused(message or "The server tells of an error.", code, param, event_id, about, busy)]

    def _about(self, event_id: str, param: str, words: str) -> _About:
        """What is refused: by the id of our frame, else the parameter, else by words, else what waits for an answer."""
        if event_id.startswith(OURS):
            return _ABOUT.get(event_id.removeprefix(OURS).partition("-")[0], "")
        if param.partition(".")[0] in ("session", "item", "response"):
            return _ABOUT[param.partition(".")[0]]
        if _ITEM_WORDS.search(words):
            return "item"
        if "response.create" in words:
            return "response"
        return "session" if self._unconfirmed or _SESSION_WORDS.search(words) else ""

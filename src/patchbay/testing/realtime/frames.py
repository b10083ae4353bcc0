"""Frames of the OpenAI event protocol: validation of a client's, and the events of a server."""

from __future__ import annotations

import base64
import itertools
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from typing_extensions import override
from websockets.asyncio.server import ServerConnection

from patchbay.testing.realtime.records import FakeState, Issued
from patchbay.testing.realtime.script import Call
from patchbay.testing.realtime.session import ActiveResponse, FakeConnection

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True)
class Problem:
    """Why a frame is refused. ``violation``: a correct client could have avoided it."""

    message: str
    code: str = "invalid_value"
    param: str | None = None
    violation: bool = True


def missing(place: str) -> Problem:
    """Return the problem of a missing member."""
    return Problem(f"Missing required parameter: '{place}'.", "missing_required_parameter", place)


def unknown(members: Iterable[str], known: frozenset[str], place: str) -> Problem | None:
    """Return the problem of unknown members."""
    if strange := sorted(set(members) - known):
        return Problem(f"Unknown parameter: '{place}.{strange[0]}'.", "unknown_parameter", f"{place}.{strange[0]}")
    return None


def tool_definition(tool: Mapping[str, Any], *, nested: bool) -> Mapping[str, Any]:
    """Return the object with name, description and parameters of a tool; ``nested`` as in ``EventProtocolConnection``."""
    inner = tool.get("function") if nested else tool
    return inner if isinstance(inner, Mapping) else {}


def tools_problem(tools: Any, *, nested: bool) -> Problem | None:
    """Return the problem of a list of tools: shapes, names, duplicates."""
    if tools is None:
        return None
    if not isinstance(tools, list):
        return Problem("Invalid type for 'session.tools': expected an array.", "invalid_type", "session.tools")
    seen: set[str] = set()
    for number, tool in enumerate(tools):
        place = f"session.tools[{number}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            return missing(f"{place}.type")
        if nested != ("function" in tool):
            return missing(f"{place}.{'function' if nested else 'name'}")
        function = tool_definition(tool, nested=nested)
        known = frozenset({"name", "description", "parameters"} | (set() if nested else {"type"}))
        if strange := unknown(function, known, f"{place}.function" if nested else place):
            return strange
        name = function.get("name")
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            wanted = "a string that matches the pattern '^[a-zA-Z0-9_-]{1,64}$'"
            return Problem(f"Invalid '{place}.name': expected {wanted}, not {name!r}.", param=f"{place}.name")
        if name in seen:
            return Problem(f"Invalid '{place}.name': there are two tools {name!r}.", param=f"{place}.name")
        seen.add(name)
        parameters = function.get("parameters", {"type": "object"})
        if not isinstance(parameters, dict) or parameters.get("type") != "object":
            text = f"Invalid schema for function {name!r}: schema must be a JSON Schema of 'type: \"object\"'."
            return Problem(text, "invalid_function_parameters", f"{place}.parameters")
    return None


def content_problem(content: Any, kinds: Sequence[str]) -> Problem | None:
    """Return the problem of a message's content, whose parts must have these types."""
    if not isinstance(content, list) or not content:
        return missing("item.content")
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else part
        if not isinstance(part, dict) or kind not in kinds or not isinstance(part.get("text"), str):
            known = ", ".join(map(repr, kinds))
            return Problem(f"Invalid value: {kind!r}. Supported are: {known}.", param=f"item.content[{number}].type")
    return None


Event: TypeAlias = dict[str, Any]

_AUDIO_PIECE = 4800
"""Bytes of an audio event: 100 ms at 24 kHz."""


@dataclass(frozen=True)
class Wire:
    """Differences between providers in the events of a response.

    ``text``, ``audio``, ``transcript`` begin the names of the events of a message's pieces, ``text_type`` and ``audio_type`` are
    the types of its content. ``items`` are the events about new items of the conversation, at their beginning and end ("": none).
    ``deltas``: the arguments of a call come in pieces; ``call_ids``: it has an id; ``heralds``: there are ``output_item`` events.
    """

    text: str = "response.text"
    audio: str = "response.audio"
    transcript: str = "response.audio_transcript"
    text_type: str = "text"
    audio_type: str = "audio"
    items: tuple[str, str] = ("conversation.item.created", "")
    deltas: bool = True
    call_ids: bool = True
    heralds: bool = True


class EventConnection(FakeConnection):
    """The events of the responses of one connection."""

    wire: ClassVar[Wire]

    def __init__(self, fake: FakeState, socket: ServerConnection, number: int) -> None:
        super().__init__(fake, socket, number)
        self._output: dict[str, list[Event]] = {}
        self._places: dict[int, int] = {}

    # Overridden by providers

    @property
    @abstractmethod
    def speaks(self) -> bool:
        """True if the model answers with audio."""

    @property
    @abstractmethod
    def transcribes(self) -> bool:
        """True if the user's speech is transcribed."""

    def modalities(self) -> Event:
        """Return the members of a response that describe its output."""
        return {"modalities": ["text", "audio"] if self.speaks else ["text"]}

    def stamp(self, event: Event) -> Event:
        """Add the members of all events of the provider."""
        return {"event_id": self.fake.new_id("event"), **event}

    # Events

    def response(self, kind: str, playing: ActiveResponse, *, status: str, details: Event | None) -> Event:
        """Return the event that begins or ends a response."""
        over = status != "in_progress"
        body = {
            "id": playing.response_id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": self._output.pop(playing.response_id, []) if over else [],
            "conversation_id": "conv_000001",
            **self.modalities(),
            "metadata": None,
            "usage": _USAGE if over else None,
        }
        return self.stamp({"type": kind, "response": body})

    @override
    def say_frames(self, playing: ActiveResponse, text: str, audio: bytes, piece: int) -> list[Event]:
        item: Event = {"id": self.fake.new_id("item"), "object": "realtime.item", "type": "message", "status": "in_progress"}
        item |= {"role": "assistant", "content": []}
        index = self._place(playing)
        wire = self.wire
        where = {"response_id": playing.response_id, "item_id": item["id"], "output_index": index, "content_index": 0}
        pieces = [text[start : start + piece] for start in range(0, len(text), piece)]
        events: list[Event] = []
        if not self.speaks:
            part: Event = {"type": "text", "text": ""}
            events += [{"type": f"{wire.text}.delta", **where, "delta": each} for each in pieces]
            events.append({"type": f"{wire.text}.done", **where, "text": text})
            whole = {**part, "text": text}
            content = {"type": wire.text_type, "text": text}
        else:
            part = {"type": "audio", "transcript": ""}
            sounds = [audio[start : start + _AUDIO_PIECE] for start in range(0, len(audio), _AUDIO_PIECE)]
            for word, sound in itertools.zip_longest(pieces, sounds):
                if word is not None:
                    events.append({"type": f"{wire.transcript}.delta", **where, "delta": word})
                if sound is not None:
                    events.append({"type": f"{wire.audio}.delta", **where, "delta": base64.b64encode(sound).decode()})
            events.append({"type": f"{wire.audio}.done", **where})
            events.append({"type": f"{wire.transcript}.done", **where, "transcript": text})
            whole = {**part, "transcript": text}
            content = {"type": wire.audio_type, "transcript": text}
        done = {**item, "status": "completed", "content": [content]}
        self._keep(playing, done)
        begin = {"type": "response.content_part.added", **where, "part": part}
        end = {"type": "response.content_part.done", **where, "part": whole}
        return self._item_events(playing, index, item, done, [begin, *events, end])

    def call_frames(self, playing: ActiveResponse, calls: Sequence[tuple[Call, Issued]]) -> list[Event]:
        """Return the events of calls, one call after another, or interleaved."""
        each = [self._call(playing, call, issued) for call, issued in calls]
        if "mixed" in playing.answer.faults:
            return [event for events in itertools.zip_longest(*each) for event in events if event is not None]
        return list(itertools.chain.from_iterable(each))

    def _call(self, playing: ActiveResponse, call: Call, issued: Issued) -> list[Event]:
        item: Event = {
            "id": self.fake.new_id("item"),
            "object": "realtime.item",
            "type": "function_call",
            "status": "in_progress",
        }
        item["name"] = call.name
        if self.wire.call_ids and issued.call_id:
            item["call_id"] = issued.call_id
        else:
            issued.sent_id = ""
        item["arguments"] = ""
        index = self._place(playing)
        where: Event = {"response_id": playing.response_id, "output_index": index}
        if self.wire.call_ids:
            where["item_id"] = item["id"]
        if "call_id" in item and "no_call_id" not in call.faults:
            where["call_id"] = item["call_id"]
        events: list[Event] = []
        if self.wire.deltas:
            events += [{"type": _DELTA, **where, "delta": delta} for delta in call.deltas]
        end: Event = {"type": _DONE, **where, "arguments": call.text}
        if "no_name" not in call.faults:
            end["name"] = call.name
        events.append(end)
        if "done_twice" in call.faults:
            events.append(dict(end))
        done = {**item, "status": "completed", "arguments": call.text}
        self._keep(playing, done)
        self._places[id(issued)] = index
        if "only_in_response_done" in call.faults:
            playing.sent.add(index)
            return []
        if "unheralded" in call.faults:
            return [self.stamp(event) for event in events]
        return self._item_events(playing, index, item, done, events)

    @override
    def stale_frames(self, playing: ActiveResponse) -> list[Event]:
        where: Event = {"response_id": "resp_of_old", "output_index": 0}
        if self.wire.call_ids:
            where |= {"item_id": "item_of_old", "call_id": "call_of_old"}
        name = next((part.name for part in playing.answer.parts if isinstance(part, Call)), "tool_of_old")
        events = [{"type": _DELTA, **where, "delta": "{"}] if self.wire.deltas else []
        return [self.stamp(event) for event in [*events, {"type": _DONE, **where, "name": name, "arguments": "{}"}]]

    def cut_items(self, playing: ActiveResponse) -> list[Event]:
        """Return the ends of those items of a cancelled response that were begun; the others are dropped."""
        kept: list[Event] = []
        events: list[Event] = []
        for index, item in enumerate(self._output.get(playing.response_id, [])):
            if index not in playing.sent:
                continue
            kept.append({**item, "status": "incomplete"})
            where: Event = {"response_id": playing.response_id, "output_index": index}
            if item["type"] == "function_call":
                ids = {"item_id": item["id"]} if self.wire.call_ids else {}
                ids |= {"call_id": item["call_id"]} if "call_id" in item else {}
                events.append({"type": _DONE, **where, **ids, "name": item["name"], "arguments": item["arguments"]})
            if self.wire.heralds:
                events.append({"type": "response.output_item.done", **where, "item": kept[-1]})
        self._output[playing.response_id] = kept
        return [self.stamp(event) for event in events]

    def was_sent(self, playing: ActiveResponse, call: Issued) -> bool:
        """True if anything of a call was sent."""
        return self._places.get(id(call)) in playing.sent

    def utterance(self, text: str, item_id: str = "") -> list[Event]:
        """Return the events of the user's speech."""
        item_id = item_id or self.fake.new_id("item")
        events: list[Event] = [{"type": "input_audio_buffer.committed", "previous_item_id": None, "item_id": item_id}]
        item: Event = {"id": item_id, "object": "realtime.item", "type": "message", "status": "completed", "role": "user"}
        item["content"] = [{"type": "input_audio", "transcript": None}]
        events += [{"type": kind, "previous_item_id": None, "item": item} for kind in self.wire.items if kind]
        if self.transcribes:
            usage = {"type": "duration", "seconds": 0.5}
            events.append({"type": _HEARD, "item_id": item_id, "content_index": 0, "transcript": text, "usage": usage})
        return [self.stamp(event) for event in events]

    @override
    def speech_frames(self, text: str) -> tuple[list[Event], list[Event]]:
        item_id = self.fake.new_id("item")
        begins = self.stamp({"type": "input_audio_buffer.speech_started", "audio_start_ms": 0, "item_id": item_id})
        ends = self.stamp({"type": "input_audio_buffer.speech_stopped", "audio_end_ms": 500, "item_id": item_id})
        return [begins], [ends, *self.utterance(text, item_id)]

    def _item_events(self, playing: ActiveResponse, index: int, item: Event, done: Event, events: Sequence[Event]) -> list[Event]:
        where = {"response_id": playing.response_id, "output_index": index}
        begin, end = self.wire.items
        head = [{"type": "response.output_item.added", **where, "item": item}] if self.wire.heralds else []
        tail = [{"type": "response.output_item.done", **where, "item": done}] if self.wire.heralds else []
        head += [{"type": begin, "previous_item_id": None, "item": item}] if begin else []
        tail += [{"type": end, "previous_item_id": None, "item": done}] if end else []
        return [self.stamp(event) for event in [*head, *events, *tail]]

    def _place(self, playing: ActiveResponse) -> int:
        return len(self._output.setdefault(playing.response_id, []))

    def _keep(self, playing: ActiveResponse, item: Event) -> None:
        self._output.setdefault(playing.response_id, []).append(item)


_DELTA = "response.function_call_arguments.delta"
_DONE = "response.function_call_arguments.done"
_HEARD = "conversation.item.input_audio_transcription.completed"

_USAGE: Event = {
    "total_tokens": 20,
    "input_tokens": 12,
    "output_tokens": 8,
    "input_token_details": {"text_tokens": 12, "audio_tokens": 0, "cached_tokens": 0},
    "output_token_details": {"text_tokens": 8, "audio_tokens": 0},
}

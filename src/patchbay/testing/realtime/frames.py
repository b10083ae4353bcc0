"""Frames of the OpenAI event protocol: validation of what a client sends, and the events that a server sends."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from patchbay.testing.realtime.records import Issued
from patchbay.testing.realtime.script import Call
from patchbay.testing.realtime.session import Playing

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True)
class Problem:
    """Why something is refused. ``violation``: a client must not do it (else it could not know better)."""

    message: str
    code: str = "invalid_value"
    param: str | None = None
    violation: bool = True


def missing(place: str) -> Problem:
    """Return the refusal of something that lacks a member."""
    return Problem(f"Missing required parameter: '{place}'.", "missing_required_parameter", place)


def unknown(members: Iterable[str], known: frozenset[str], place: str) -> Problem | None:
    """Return the refusal of members that are not known."""
    if strange := sorted(set(members) - known):
        return Problem(f"Unknown parameter: '{place}.{strange[0]}'.", "unknown_parameter", f"{place}.{strange[0]}")
    return None


def in_tool(tool: Mapping[str, Any], *, nested: bool) -> Mapping[str, Any]:
    """Return where name, description and parameters of a tool stand; ``nested`` says which shape tools have."""
    inner = tool.get("function") if nested else tool
    return inner if isinstance(inner, Mapping) else {}


def in_tools(tools: Any, *, nested: bool) -> Problem | None:
    """Return what is wrong with tools: their shape, their names, two of one name."""
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
        function = in_tool(tool, nested=nested)
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


def in_content(content: Any, kinds: Sequence[str]) -> Problem | None:
    """Return what is wrong with the content of a message, whose parts are of these kinds."""
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
    """What differs in how a provider tells a response.

    ``text``, ``audio``, ``transcript`` begin the names of the events of a message's pieces, ``said`` and ``spoken`` are the types
    of its content. ``items`` are the events about new items of the conversation, at their beginning and end ("": none).
    ``deltas``: the arguments of a call come in pieces; ``call_ids``: it has an id; ``heralds``: there are ``output_item`` events.
    """

    text: str = "response.text"
    audio: str = "response.audio"
    transcript: str = "response.audio_transcript"
    said: str = "text"
    spoken: str = "audio"
    items: tuple[str, str] = ("conversation.item.created", "")
    deltas: bool = True
    call_ids: bool = True
    heralds: bool = True


class Frames:
    """Makes the events of the responses of one connection. ``stamp`` gives each what all events of the provider have."""

    def __init__(self, wire: Wire, stamp: Callable[[Event], Event], new_id: Callable[[str], str]) -> None:
        self.wire = wire
        self._stamp = stamp
        self._new_id = new_id
        self._output: dict[str, list[Event]] = {}
        self._places: dict[int, int] = {}

    def response(self, kind: str, playing: Playing, *, status: str, details: Event | None, modalities: Event) -> Event:
        """Return the event that begins or ends a response."""
        over = status != "in_progress"
        body = {
            "id": playing.response_id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": self._output.pop(playing.response_id, []) if over else [],
            "conversation_id": "conv_000001",
            **modalities,
            "metadata": None,
            "usage": _USAGE if over else None,
        }
        return self._stamp({"type": kind, "response": body})

    def message(self, playing: Playing, text: str, audio: bytes | None, piece: int) -> list[Event]:
        """Return the events of a message; ``audio`` None: as text."""
        item: Event = {"id": self._new_id("item"), "object": "realtime.item", "type": "message", "status": "in_progress"}
        item |= {"role": "assistant", "content": []}
        index = self._place(playing)
        wire = self.wire
        where = {"response_id": playing.response_id, "item_id": item["id"], "output_index": index, "content_index": 0}
        pieces = [text[start : start + piece] for start in range(0, len(text), piece)]
        events: list[Event] = []
        if audio is None:
            part: Event = {"type": "text", "text": ""}
            events += [{"type": f"{wire.text}.delta", **where, "delta": each} for each in pieces]
            events.append({"type": f"{wire.text}.done", **where, "text": text})
            whole = {**part, "text": text}
            content = {"type": wire.said, "text": text}
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
            content = {"type": wire.spoken, "transcript": text}
        done = {**item, "status": "completed", "content": [content]}
        self._keep(playing, done)
        begin = {"type": "response.content_part.added", **where, "part": part}
        end = {"type": "response.content_part.done", **where, "part": whole}
        return self._told(playing, index, item, done, [begin, *events, end])

    def calls(self, playing: Playing, calls: Sequence[tuple[Call, Issued]]) -> list[Event]:
        """Return the events of calls, one call after the other, or all of them mixed."""
        each = [self._call(playing, call, issued) for call, issued in calls]
        if "mixed" in playing.answer.faults:
            return [event for events in itertools.zip_longest(*each) for event in events if event is not None]
        return list(itertools.chain.from_iterable(each))

    def _call(self, playing: Playing, call: Call, issued: Issued) -> list[Event]:
        item: Event = {"id": self._new_id("item"), "object": "realtime.item", "type": "function_call", "status": "in_progress"}
        item["name"] = call.name
        if self.wire.call_ids and issued.call_id:
            item["call_id"] = issued.call_id
        else:
            issued.told_id = ""
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
            return [self._stamp(event) for event in events]
        return self._told(playing, index, item, done, events)

    def stale(self, playing: Playing) -> list[Event]:
        """Return the end of a call that another response made long ago."""
        where: Event = {"response_id": "resp_of_old", "output_index": 0}
        if self.wire.call_ids:
            where |= {"item_id": "item_of_old", "call_id": "call_of_old"}
        name = next((part.name for part in playing.answer.parts if isinstance(part, Call)), "tool_of_old")
        events = [{"type": _DELTA, **where, "delta": "{"}] if self.wire.deltas else []
        return [self._stamp(event) for event in [*events, {"type": _DONE, **where, "name": name, "arguments": "{}"}]]

    def cut(self, playing: Playing) -> list[Event]:
        """Return the ends of the items of a response that is cut, as far as they were begun; the others are forgotten."""
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
        return [self._stamp(event) for event in events]

    def was_told(self, playing: Playing, call: Issued) -> bool:
        """Whether anything of a call was sent."""
        return self._places.get(id(call)) in playing.sent

    def utterance(self, text: str, *, transcribed: bool, item_id: str = "") -> list[Event]:
        """Return the events of what the user has said by voice."""
        item_id = item_id or self._new_id("item")
        events: list[Event] = [{"type": "input_audio_buffer.committed", "previous_item_id": None, "item_id": item_id}]
        item: Event = {"id": item_id, "object": "realtime.item", "type": "message", "status": "completed", "role": "user"}
        item["content"] = [{"type": "input_audio", "transcript": None}]
        events += [{"type": kind, "previous_item_id": None, "item": item} for kind in self.wire.items if kind]
        if transcribed:
            usage = {"type": "duration", "seconds": 0.5}
            events.append({"type": _HEARD, "item_id": item_id, "content_index": 0, "transcript": text, "usage": usage})
        return [self._stamp(event) for event in events]

    def speech(self, text: str, *, transcribed: bool) -> list[Event]:
        """Return the events of speech that the server hears by itself; the first says that it begins."""
        item_id = self._new_id("item")
        begins = self._stamp({"type": "input_audio_buffer.speech_started", "audio_start_ms": 0, "item_id": item_id})
        ends = self._stamp({"type": "input_audio_buffer.speech_stopped", "audio_end_ms": 500, "item_id": item_id})
        return [begins, ends, *self.utterance(text, transcribed=transcribed, item_id=item_id)]

    def _told(self, playing: Playing, index: int, item: Event, done: Event, events: Sequence[Event]) -> list[Event]:
        where = {"response_id": playing.response_id, "output_index": index}
        begin, end = self.wire.items
        head = [{"type": "response.output_item.added", **where, "item": item}] if self.wire.heralds else []
        tail = [{"type": "response.output_item.done", **where, "item": done}] if self.wire.heralds else []
        head += [{"type": begin, "previous_item_id": None, "item": item}] if begin else []
        tail += [{"type": end, "previous_item_id": None, "item": done}] if end else []
        return [self._stamp(event) for event in [*head, *events, *tail]]

    def _place(self, playing: Playing) -> int:
        return len(self._output.setdefault(playing.response_id, []))

    def _keep(self, playing: Playing, item: Event) -> None:
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

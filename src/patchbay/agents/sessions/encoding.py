"""Events and values as the log keeps them: JSON, whatever tools and callbacks put into them.

What has JSON is written as it is (bytes as base64, sets as lists, dates in ISO format); the rest is brought into it as tools'
results are. An event is read back before it is kept, so the log never holds one that cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import msgspec
from msgspec.structs import replace as _but

from patchbay.agents.content import Event, FunctionCall, FunctionResponse, Part
from patchbay.agents.plain import plain
from patchbay.agents.sessions.scopes import kept
from patchbay.errors import InvalidRequestError
from patchbay.tools import well_formed

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


@dataclass(frozen=True, slots=True)
class Record:
    """An event as it is kept: its JSON, what that reads as, and the changes of the state that outlive the run."""

    body: bytes
    event: Event

    @property
    def id(self) -> str:
        """The event's id: an event is kept once, however often it is handed in."""
        return self.event.id

    @property
    def delta(self) -> dict[str, Any]:
        """The changes of the state, as they are kept."""
        return self.event.actions.state_delta


def record(event: Event) -> Record:
    """Return what is kept of ``event``; it is not changed. Raises InvalidRequestError where its fields are of wrong types."""
    delta = event.actions.state_delta
    if delta and len(lasting := kept(delta)) != len(delta):
        event = msgspec.structs.replace(event, actions=msgspec.structs.replace(event.actions, state_delta=lasting))
    try:
        body = _encoder.encode(event)
        return Record(body, _decoder.decode(body))
    except Exception:  # noqa: BLE001, S110  (values without JSON fail as they like; what is wrong for good fails again below)
        pass
    try:
        body = _encoder.encode(_made_safe(event))
        return Record(body, _decoder.decode(body))
    except Exception as error:
        raise InvalidRequestError(f"An event that cannot be kept: {error}") from error


class EventLog(Sequence[Event]):
    """The events of a session in their order, read from their JSON when they are first looked at.

    A long session costs nothing until its events are used, and every session object has events of its own. It is read as a list
    is; only the session service adds to it.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Sequence[bytes | str | Event] = ()) -> None:
        self._entries: list[bytes | str | Event] = list(entries)

    def add(self, entry: bytes | str | Event) -> Event:
        """Append an event, or the JSON of one, and return it. For session services."""
        event: Event = entry if isinstance(entry, Event) else _decoder.decode(entry)
        self._entries.append(event)
        return event

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, at: int) -> Event: ...
    @overload
    def __getitem__(self, at: slice) -> list[Event]: ...
    def __getitem__(self, at: int | slice) -> Event | list[Event]:
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self._entries)))]
        entry = self._entries[at]
        if not isinstance(entry, Event):
            entry = self._entries[at] = _decoder.decode(entry)
        return entry

    def __iter__(self) -> Iterator[Event]:
        index = 0
        while index < len(self._entries):
            yield self[index]
            index += 1

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, EventLog | list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return f"<EventLog of {len(self)} events>"


def _made_safe(event: Event) -> Event:
    actions, content = event.actions, event.content
    return _but(
        event,
        content=content
        and _but(content, parts=[_safe_part(part) for part in content.parts], extra_content=_safe(content.extra_content)),
        actions=_but(actions, state_delta=_object(actions.state_delta, "delta")),
        error_message=_text(event.error_message),
    )


def _safe_part(part: Part) -> Part:
    call, response = part.function_call, part.function_response
    return _but(
        part,
        text=_text(part.text),
        function_call=call
        and FunctionCall(well_formed(call.name), _object(call.args, "arguments"), well_formed(call.id), _text(call.written)),
        function_response=response
        and FunctionResponse(
            well_formed(response.name), _object(response.response, "result"), well_formed(response.id), _text(response.shown)
        ),
        extra_content=_safe(part.extra_content),
    )


def _text(text: str | None) -> str | None:
    return None if text is None else well_formed(text)


def _safe(value: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if value is None else _object(value, "extra")


def _object(value: Any, name: str) -> dict[str, Any]:
    safe = plain(value)
    return safe if isinstance(safe, dict) else {name: safe}

"""A session as a run holds it: its state, and its log of events in JSON, read when they are first used.

What has JSON is written as it is (bytes as base64, sets as lists, dates in ISO format); the rest is converted as tools' results
are. An event is read back before it is stored, so the log never holds one that cannot be read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, overload

import msgspec
from msgspec.structs import replace as _but

from patchbay.agents.content import Event, FunctionCall, FunctionResponse, Part
from patchbay.agents.json_copy import json_copy
from patchbay.errors import InvalidRequestError
from patchbay.tools import well_formed

APP_PREFIX: Final = "app:"
USER_PREFIX: Final = "user:"
TEMP_PREFIX: Final = "temp:"


def lasting_changes(delta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that outlive their run."""
    return {key: value for key, value in delta.items() if not str(key).startswith(TEMP_PREFIX)}


def temporary_changes(delta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that are the run's own."""
    return {key: value for key, value in delta.items() if str(key).startswith(TEMP_PREFIX)}


def apply_changes(delta: Mapping[str, Any], state: MutableMapping[str, Any]) -> None:
    """Make the changes; None deletes a key."""
    for key, value in delta.items():
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


class _Id(msgspec.Struct):
    id: str = ""


_ids = msgspec.json.Decoder(_Id)


class Record(msgspec.Struct, frozen=True):
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
    if delta and len(lasting := lasting_changes(delta)) != len(delta):
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


Entry: TypeAlias = bytes | str | Event
"""An event of a log, or its JSON."""


class EventLog(Sequence[Event]):
    """The events of a session in their order, read from their JSON when they are first looked at.

    A long session costs nothing until its events are used, and every session object has events of its own. It is read as a list
    is; only the session service adds to it. ``older`` events come before ``entries``: ``load`` returns them when one is needed.
    """

    __slots__ = ("_entries", "_load", "_older", "_touched")

    def __init__(
        self, entries: Sequence[Entry] = (), *, older: int = 0, load: Callable[[], Sequence[Entry]] | None = None
    ) -> None:
        self._entries: list[Entry] = list(entries)
        self._older = older
        self._load = load
        self._touched: int | None = None

    @property
    def first_touched(self) -> int:
        """The place of the first event that anybody was given, and may have changed; behind the last one if there is none."""
        return len(self) if self._touched is None else self._touched

    def peek(self, at: int) -> Event:
        """Return the event at a place, to look at only. What was not looked at before stays as it is kept."""
        entry = self._entry(at)
        return entry if isinstance(entry, Event) else _decoder.decode(entry)

    def id_at(self, at: int) -> str:
        """Return the id of the event at a place."""
        entry = self._entry(at)
        return entry.id if isinstance(entry, Event) else _ids.decode(entry).id

    def _entry(self, at: int) -> Entry:
        if at < self._older and self._load is not None:
            self._entries[:0] = self._load()
            self._older, self._load = 0, None
        return self._entries[at - self._older]

    def add(self, entry: Entry) -> Event:
        """Append an event, or the JSON of one, and return it. For session services."""
        event: Event = entry if isinstance(entry, Event) else _decoder.decode(entry)
        self._entries.append(event)
        return event

    def __len__(self) -> int:
        return self._older + len(self._entries)

    @overload
    def __getitem__(self, at: int) -> Event: ...
    @overload
    def __getitem__(self, at: slice) -> list[Event]: ...
    def __getitem__(self, at: int | slice) -> Event | list[Event]:
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        place = at + len(self) if at < 0 else at
        if not 0 <= place < len(self):
            raise IndexError("There is no such event.")
        event = self.peek(place)
        self._entries[place - self._older] = event
        self._touched = place if self._touched is None else min(place, self._touched)
        return event

    def __iter__(self) -> Iterator[Event]:
        index = 0
        while index < len(self):
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
    safe = json_copy(value)
    return safe if isinstance(safe, dict) else {name: safe}


def session_key(app_name: str, user_id: str, session_id: str) -> str:
    """Return ``Session.key`` of the session of this name. A colon in one of the three is written as ``%3A``."""
    return ":".join([each.replace("%", "%25").replace(":", "%3A") for each in (app_name, user_id, session_id)])


@dataclass
class Session:
    """One conversation of a user with an application.

    ``state`` has the session's own keys and those of its user (``user:``) and application (``app:``), as they were when it was
    read, and the run's ``temp:`` keys. ``seq`` is the number of the last event in ``events``; they count from 1.
    ``has_results`` is whether long results of it are kept (the service's ``results``). Times are in seconds since the epoch.
    """

    id: str
    app_name: str
    user_id: str
    agent_name: str = ""
    title: str = ""
    last_agent: str = ""
    created_at: float = field(default_factory=time.time)
    last_update_time: float = field(default_factory=time.time)
    state: dict[str, Any] = field(default_factory=dict)
    events: EventLog = field(default_factory=EventLog)
    seq: int = 0
    has_results: bool = False

    @property
    def key(self) -> str:
        """What the session is called where all of an installation's are: ``app:user:id``, and no other session so."""
        return session_key(self.app_name, self.user_id, self.id)

    def follow(self, entries: Iterable[tuple[int, bytes | str | Event]]) -> None:
        """Take up (number, event) entries of the log, in order; those that are here already are passed over.

        For session services: this is how a session hears of what others wrote into it meanwhile.
        """
        for number, entry in entries:
            if number > self.seq:
                event = self.events.add(entry)
                if delta := event.actions.state_delta:
                    apply_changes(delta, self.state)
                self.last_update_time = max(self.last_update_time, event.timestamp)
                self.seq = number

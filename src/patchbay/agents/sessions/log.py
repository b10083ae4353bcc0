"""A session in a run: its state, and its log of JSON events, parsed on first use.

Values that JSON cannot express are converted (bytes to base64, sets to lists, dates to ISO format, the rest as tools' results
are). An event is parsed again before it is stored, so the log only has valid ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, overload

import msgspec

from patchbay.agents.content import Event
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
    """Apply changes; None deletes a key."""
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
    """An event to be stored: its JSON, and the event parsed from it, without ``temp:`` changes."""

    body: bytes
    event: Event


def record(event: Event) -> Record:
    """Return the record of ``event``, which is not changed. Raises InvalidRequestError if its fields are of wrong types."""
    delta = event.actions.state_delta
    if delta and len(lasting := lasting_changes(delta)) != len(delta):
        event = msgspec.structs.replace(event, actions=msgspec.structs.replace(event.actions, state_delta=lasting))
    try:
        body = _encoder.encode(event)
        return Record(body, _decoder.decode(body))
    except Exception:  # noqa: BLE001, S110  (values may raise anything; an invalid event fails again below)
        pass
    try:
        body = _encoder.encode(_safe(event))
        return Record(body, _decoder.decode(body))
    except Exception as error:
        raise InvalidRequestError(f"An event that cannot be stored: {error}") from error


Entry: TypeAlias = bytes | str | Event
"""An event of a log, or its JSON."""


class EventLog(Sequence[Event]):
    """The events of a session in order, parsed from their JSON on first access.

    Read it as a list; only the session service adds to it. Every session object has its own events. ``older`` is the number of
    events before ``entries``, which ``load`` returns when one is needed.
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
        """The index of the first event that was handed out, and so may have changed; the length if there is none."""
        return len(self) if self._touched is None else self._touched

    def peek(self, at: int) -> Event:
        """Return the event at an index, for reading only; it stays in its stored form."""
        entry = self._entry(at)
        return entry if isinstance(entry, Event) else _decoder.decode(entry)

    def id_at(self, at: int) -> str:
        """Return the id of the event at an index."""
        entry = self._entry(at)
        return entry.id if isinstance(entry, Event) else _ids.decode(entry).id

    def _entry(self, at: int) -> Entry:
        if at < self._older and self._load is not None:
            self._entries[:0] = self._load()
            self._older, self._load = 0, None
        return self._entries[at - self._older]

    def add(self, entry: Entry) -> Event:
        """Append an event, or its JSON, and return it. For session services."""
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
            raise IndexError("event index out of range")
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


_OBJECTS: Final = {"state_delta": "delta", "args": "arguments", "response": "result", "extra_content": "extra"}
"""The members of events that are JSON objects, each with the name under which another value is wrapped."""


def _safe(value: Any, member: str = "") -> Any:
    """Return a copy of an event, or of a part of it, that JSON can express; values of wrong types stay."""
    if isinstance(value, msgspec.Struct):
        return type(value)(**{name: _safe(getattr(value, name), name) for name in value.__struct_fields__})
    if member in _OBJECTS and value is not None:
        copied = json_copy(value)
        return copied if isinstance(copied, dict) else {_OBJECTS[member]: copied}
    if isinstance(value, list | tuple):
        return [_safe(each) for each in value]
    return well_formed(value) if isinstance(value, str) else value


def session_key(app_name: str, user_id: str, session_id: str) -> str:
    """Return the ``Session.key`` of a session. A colon in one of the three becomes ``%3A``."""
    return ":".join([each.replace("%", "%25").replace(":", "%3A") for each in (app_name, user_id, session_id)])


@dataclass
class Session:
    """One conversation of a user with an application.

    ``state`` has the session's own keys, those of its user (``user:``) and application (``app:``) when it was read, and the run's
    ``temp:`` keys. ``seq`` is the number of the last event in ``events``; they count from 1. ``has_results``: it has stored long
    results (the service's ``results``). Times are in seconds since the epoch.
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
        """The session's unique key in an installation: ``app:user:id``."""
        return session_key(self.app_name, self.user_id, self.id)

    def follow(self, entries: Iterable[tuple[int, bytes | str | Event]]) -> None:
        """Append (number, event) entries of the log, in order, ignoring those that it has. For session services."""
        for number, entry in entries:
            if number > self.seq:
                event = self.events.add(entry)
                if delta := event.actions.state_delta:
                    apply_changes(delta, self.state)
                self.last_update_time = max(self.last_update_time, event.timestamp)
                self.seq = number

"""The messages of a session's past turns, kept as JSON from run to run: a run reads and writes only what is new in the log.

What a model is shown of past turns follows from the log, which only grows, so it is made once. It is made anew where the window
has moved on, a turn was taken back, a late response answers a call of a past turn, or copies of past events that the session has
were handed out and may have been changed.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from patchbay.agents.content import Content
from patchbay.agents.messages import to_messages, without_old_files
from patchbay.agents.sessions.encoding import EventLog
from patchbay.agents.view import Placed, has_strays, is_question, is_visible, settle, visible, visible_window, window_begin
from patchbay.cache import SizedCache
from patchbay.models.wire import decode, encode
from patchbay.types import Message

_MOST: Final = 1000
_MOST_BYTES: Final = 32 * 1024 * 1024

Key = tuple[tuple[str, str, str], str, str | None, int | None]
"""The session (its application, user and id), the agent, its branch and the limit of the window."""


@dataclass(frozen=True)
class _Past:
    """What a model is shown of the events before ``end``, which is the place of a question; ``last`` is the id of the one before.

    ``body`` are the messages, an array of JSON without its brackets. ``places`` are those of the window and of one event before
    it, if there is one, ``questions`` those of them where the user speaks, ``begin`` that of the first that is shown. ``taken``
    are the ids that calls have.
    """

    tools: Container[str]
    begin: int
    end: int
    last: str
    places: list[int]
    questions: list[int]
    taken: dict[str, int]
    body: bytes

    def is_of(self, events: EventLog) -> bool:
        """Whether this was made of the beginning of ``events``, which nobody can have changed since."""
        return self.end <= events.first_touched and self.last == events.id_at(self.end - 1)


class PastTurns:
    """What is kept of the past turns of a service's sessions."""

    def __init__(self) -> None:
        self._kept: SizedCache[Key, _Past] = SizedCache(most=_MOST, most_bytes=_MOST_BYTES)

    def messages(self, key: Key, events: EventLog, tools: Container[str]) -> list[Message]:
        """Return the messages of a session as ``settled_contents`` and ``to_messages`` make them of ``events``."""
        _, _, branch, limit = key
        if len(events) == 1:  # nothing is past
            return to_messages(settle([said for _, said in visible(events, branch)], {}), tools)
        past = self._kept.get(key)
        if past is not None and past.tools is tools and past.is_of(events):
            new = _since(past, events, branch)
            if new is not None and not has_strays([said for _, said in new]):
                places, questions = _window(past, new, limit)
                if _begin(places, questions, limit) == past.begin:
                    return self._extend(key, past, new, events, places, questions)
        shown, places = visible_window(events, limit, branch)
        questions = [place for place, (content, _) in shown if is_question(content)]
        begin = shown[0][0] if shown else -1
        if begin < 0 or begin != _begin(places, questions, limit):
            return to_messages(without_old_files(settle([said for _, said in shown], {})), tools)
        nothing = _Past(tools, begin, begin, "", [], [], {}, b"")
        return self._extend(key, nothing, shown, events, places, questions)

    def _extend(
        self, key: Key, past: _Past, new: list[Placed], events: EventLog, places: list[int], questions: list[int]
    ) -> list[Message]:
        """Return the messages of ``past`` and of ``new``, and keep those before the last question."""
        end = questions[-1] if questions else past.end
        older = [said for place, said in new if place < end]
        turn = [said for place, said in new if place >= end]
        if has_strays(turn):
            turn, older, end = older + turn, [], past.end
        taken = dict(past.taken)
        body = past.body
        if older and (more := to_messages(without_old_files([*settle(older, taken), Content("user")])[:-1], past.tools)):
            body = b",".join([body, encode(more)[1:-1]]) if body else encode(more)[1:-1]
        if 0 < end <= events.first_touched:
            places, questions = [at for at in places if at < end], [at for at in questions if at < end]
            kept = _Past(past.tools, past.begin, end, events.id_at(end - 1), places, questions, taken, body)
            self._kept.put(key, kept, len(body) + 64 * (len(places) + len(taken)))
        messages: list[Message] = decode(b"[" + body + b"]")
        return messages + to_messages(without_old_files(settle(turn, dict(taken))), past.tools)


def _since(past: _Past, events: EventLog, branch: str | None) -> list[Placed] | None:
    """What was said since ``past`` and is seen from ``branch``; None where a turn was taken back."""
    new: list[Placed] = []
    for place in range(past.end, len(events)):
        event = events.peek(place)
        content = event.content
        if event.actions.rewind_before_invocation_id is not None:
            return None
        if content is not None and content.parts and not event.partial and is_visible(event.branch, from_branch=branch):
            new.append((place, (content, event.branch)))
    return new


def _window(past: _Past, new: list[Placed], limit: int | None) -> tuple[list[int], list[int]]:
    """The places of the window, and those of the questions in it."""
    places = past.places + [place for place, _ in new]
    questions = past.questions + [place for place, (content, _) in new if is_question(content)]
    if limit is not None:
        places = places[-limit - 1 :]
        questions = [place for place in questions if place >= places[0]]
    return places, questions


def _begin(places: list[int], questions: list[int], limit: int | None) -> int:
    """The place of the first that is shown; -1 where there is none, or only the log can tell."""
    if limit is None or len(places) <= limit:  # all of it
        return places[0] if places else -1
    begin = window_begin(places)
    return next((place for place in questions if place >= begin), -1)

"""The session's log as messages for a model: every call with exactly one response, right after it.

The log is append-only, even if a run was killed between a call and its result; the view adds what is missing (laws 1 and 7).
``PastTurns`` caches the messages of past turns as JSON from run to run, so that a run only processes new events.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

import msgspec

from patchbay.agents.content import Content, Event, FunctionCall, FunctionResponse, Part
from patchbay.agents.convert import is_question, to_messages, without_old_files
from patchbay.agents.sessions.log import EventLog
from patchbay.cache import SizedCache
from patchbay.models.wire import decode, encode
from patchbay.transcript import Pairs, pair_results
from patchbay.types import Message

NO_RESULT: Final = (
    "No result: the run was interrupted before this call's result was recorded. It may or may not have been carried out: "
    "look before you call it again."
)
"""The result of a call without one."""

_STEPS: Final = 4
"""The window advances by this part of its size: one that moved with every event would invalidate the prompt cache each turn."""

_LOOK_BACK: Final = 1000
"""The number of events before the window in which the user's last message is searched."""

_MOST_SESSIONS: Final = 1000
_MOST_BYTES: Final = 32 * 1024 * 1024

BranchContent = tuple[Content, str | None]
"""An event's content and branch."""

PlacedContent = tuple[int, BranchContent]
"""The same with its index in the log."""

_Key = tuple[str | None, str]
"""Pairs a call and its response: the branch and the id, or the name where there is no id."""


def model_contents(events: Sequence[Event], *, limit: int | None = None, branch: str | None = None) -> list[Content]:
    """Return the contents of ``events`` for a model, oldest first; contents that need no change are the log's own.

    Partial events and those without content are left out, and so are those of parallel branches beside ``branch``, and of
    rewound runs (``EventActions.rewind_before_invocation_id``). Of the rest the last ``limit`` events count (None: all). If there
    are more, up to a quarter of them is left out too: the window begins at the same event until a quarter of the limit has
    followed, so that a prompt cache holds meanwhile. It begins with a user's message, since servers reject a conversation that
    begins with a call; the last turn is always complete, even if it has more events than the limit.

    A call without a response gets one that says so, a second response and one without a call are left out, and responses that
    were recorded separately are in one content, in the order of their calls. Parts after a response in its event, such as an
    image, follow all responses, in the same order. An id that an earlier call has too gets a number, and its response the same:
    branches, and turns that did not see each other, may have used the same ids.
    """
    window, _ = visible_window(events, limit, branch)
    return complete_calls([item for _, item in window], {})


def complete_calls(window: Sequence[BranchContent], taken: dict[str, int], pairs: Pairs[_Key] | None = None) -> list[Content]:
    """Return the contents with each call's response after it; the ids of calls are added to ``taken``.

    ``pairs`` are those of ``window``, or of a longer one that begins with it, if known.
    """
    if len(window) == 1 and _is_text(window[0][0]):  # usually the user's message alone is new
        return [window[0][0]]
    results = (pairs if pairs is not None else _pair(window)).results
    moved = set(results.values())
    contents: list[Content] = []
    for at, (content, _) in enumerate(window):
        if _is_text(content):
            contents.append(content)
            continue
        calls = [part.function_call for part in content.parts if part.function_call is not None]
        ids = [_own_id(call, taken) for call in calls]
        parts = _without_responses(content, at, moved, ids)
        if parts:
            contents.append(Content(content.role, parts, content.extra_content))
        if calls:
            responses: list[Part] = []
            attached: list[Part] = []
            for index, (call, own_id) in enumerate(zip(calls, ids, strict=True)):
                if (place := results.get((at, index))) is None:
                    responses.append(Part(function_response=FunctionResponse(call.name, {"error": NO_RESULT}, own_id)))
                    continue
                response, following = _responses(window[place[0]][0])[place[1]]
                named = FunctionResponse(call.name, response.response, own_id, response.shown)
                responses.append(Part(function_response=named))
                attached += following
            contents.append(Content("user", responses))
            if attached:
                contents.append(Content("user", attached))
    return contents


def _is_text(content: Content) -> bool:
    """Whether a content is a single text, as most are."""
    return len(content.parts) == 1 and content.parts[0].text is not None


def _pair(window: Sequence[BranchContent]) -> Pairs[_Key]:
    """Pair calls and responses by id within a branch, since parallel branches may use the same ids."""
    return pair_results([((), ()) if _is_text(content) else _keys(content, branch) for content, branch in window])


def _keys(content: Content, branch: str | None) -> tuple[list[_Key], list[_Key]]:
    calls = [(branch, call.id or call.name) for part in content.parts if (call := part.function_call) is not None]
    responses = [(branch, each.id or each.name) for part in content.parts if (each := part.function_response) is not None]
    return calls, responses


def _without_responses(content: Content, at: int, moved: set[tuple[int, int]], ids: Sequence[str]) -> list[Part]:
    """Return the parts of a content that stay in place: not responses, nor the parts after one that is moved."""
    parts: list[Part] = []
    number = 0
    moves = False
    own = iter(ids)
    for part in content.parts:
        if part.function_response is not None:
            moves = (at, number) in moved
            number += 1
        elif (call := part.function_call) is not None:
            moves = False
            own_id = next(own)
            if own_id != call.id:
                part = msgspec.structs.replace(part, function_call=msgspec.structs.replace(call, id=own_id))  # noqa: PLW2901
            parts.append(part)
        elif not moves:
            parts.append(part)
    return parts


def _responses(content: Content) -> list[tuple[FunctionResponse, list[Part]]]:
    """Return the responses in a content, each with the parts that follow it."""
    responses: list[tuple[FunctionResponse, list[Part]]] = []
    following: list[Part] | None = None
    for part in content.parts:
        if part.function_response is not None:
            following = []
            responses.append((part.function_response, following))
        elif part.function_call is not None:
            following = None
        elif following is not None:
            following.append(part)
    return responses


def is_visible(branch: str | None, *, from_branch: str | None) -> bool:
    """Whether events of ``branch`` are visible from ``from_branch``: if one is the other, its ancestor or its descendant."""
    if branch is None or from_branch is None or branch == from_branch:
        return True
    return from_branch.startswith(f"{branch}.") or branch.startswith(f"{from_branch}.")


def visible_window(events: Sequence[Event], limit: int | None, branch: str | None) -> tuple[list[PlacedContent], list[int]]:
    """Return the contents of ``model_contents``' window, the oldest first, and the places of the last ``limit`` visible ones.

    The places begin with that of the next older one, if there is one.
    """
    backward = visible(events, branch)
    newest = list(islice(backward, limit))
    places = [place for place, _ in reversed(newest)]
    if newest and (older := next(backward, None)) is not None:
        places.insert(0, older[0])
        begin = window_begin(places)
        window = _from_question([item for item in newest if item[0] >= begin])
        newest = window or _last_turn(chain(newest, [older], islice(backward, _LOOK_BACK))) or newest
    return newest[::-1], places


def window_begin(places: Sequence[int]) -> int:
    """Return the earliest place where the window may begin; ``places`` are one more than the limit."""
    step = max(1, (len(places) - 1) // _STEPS)
    return -(-places[1] // step) * step


def visible(events: Sequence[Event], branch: str | None) -> Iterator[PlacedContent]:
    """Yield the contents that are visible from ``branch``, the newest first, each with its place in the log."""
    rewound: str | None = None
    look = events.peek if isinstance(events, EventLog) else events.__getitem__
    for place in range(len(events) - 1, -1, -1):
        event = look(place)
        if (run := event.actions.rewind_before_invocation_id) is not None:
            rewound = run
        if (rewound is None or event.invocation_id != rewound) and (content := _visible_content(event, branch)) is not None:
            yield place, (content, event.branch)


def _visible_content(event: Event, branch: str | None) -> Content | None:
    """Return the content that a model on ``branch`` is sent of an event; None if there is none."""
    content = event.content
    if content is None or not content.parts or event.partial:
        return None
    # Most events have no branch, and need no further call.
    return content if event.branch is None or is_visible(event.branch, from_branch=branch) else None


def _from_question(backward: list[PlacedContent]) -> list[PlacedContent]:
    """Return the contents from the user's first message on; none if there is no such message."""
    for count in range(len(backward), 0, -1):
        if is_question(backward[count - 1][1][0]):
            return backward[:count]
    return []


def _last_turn(backward: Iterable[PlacedContent]) -> list[PlacedContent]:
    """Return the contents back to the user's last message; none if there is no such message."""
    turn: list[PlacedContent] = []
    for item in backward:
        turn.append(item)
        if is_question(item[1][0]):
            return turn
    return []


def _own_id(call: FunctionCall, taken: dict[str, int]) -> str:
    """Return the call's id, made unique in the view; "" if the call has none, and its name is used instead."""
    wanted = call.id or call.name
    if wanted not in taken:
        taken[wanted] = 1
        return call.id
    while (own := f"{wanted}_{taken[wanted] + 1}") in taken:
        taken[wanted] += 1
    taken[wanted] += 1
    taken[own] = 1
    return own


CacheKey = tuple[tuple[str, str, str], str, str | None, int | None]
"""The session (its application, user and id), the agent, its branch and the limit of the window."""


@dataclass(frozen=True)
class _CachedTurns:
    """The messages of the events before ``end``, the place of a user's message; ``last`` is the id of the event before it.

    ``body`` is the JSON array of the messages without its brackets. ``places`` are those of the window and of one event before
    it, if there is one, ``questions`` those of the user's messages, ``begin`` is the first place of the window. ``taken`` are the
    ids of calls.
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
        """Return whether this was made from the beginning of ``events``, which is unchanged."""
        return self.end <= events.first_touched and self.last == events.id_at(self.end - 1)


class PastTurns:
    """Caches the messages of the past turns of a service's sessions."""

    def __init__(self) -> None:
        self._cache: SizedCache[CacheKey, _CachedTurns] = SizedCache(most=_MOST_SESSIONS, most_bytes=_MOST_BYTES)

    def messages(self, key: CacheKey, events: EventLog, tools: Container[str]) -> list[Message]:
        """Return the messages that ``model_contents`` and ``to_messages`` make of ``events``."""
        _, _, branch, limit = key
        if len(events) == 1:
            return to_messages(complete_calls([item for _, item in visible(events, branch)], {}), tools)
        past = self._cache.get(key)
        if past is not None and past.tools is tools and past.is_of(events):
            new = _since(past, events, branch)
            pairs = _pair([item for _, item in new]) if new is not None else None
            if new is not None and pairs is not None and not pairs.early:
                places, questions = _window(past, new, limit)
                if _begin(places, questions, limit) == past.begin:
                    return self._extend(key, past, new, pairs, events, places, questions)
        window, places = visible_window(events, limit, branch)
        questions = [place for place, (content, _) in window if is_question(content)]
        begin = window[0][0] if window else -1
        if begin < 0 or begin != _begin(places, questions, limit):
            return to_messages(without_old_files(complete_calls([item for _, item in window], {})), tools)
        nothing = _CachedTurns(tools, begin, begin, "", [], [], {}, b"")
        return self._extend(key, nothing, window, None, events, places, questions)

    def _extend(
        self,
        key: CacheKey,
        past: _CachedTurns,
        new: list[PlacedContent],
        pairs: Pairs[_Key] | None,
        events: EventLog,
        places: list[int],
        questions: list[int],
    ) -> list[Message]:
        """Return the messages of ``past`` and of ``new``, and cache those before the user's last message."""
        end = questions[-1] if questions else past.end
        older = [item for place, item in new if place < end]
        turn = [item for place, item in new if place >= end]
        if len(turn) > 1 and _pair(turn).early:
            turn, older, end = older + turn, [], past.end
        taken = dict(past.taken)
        body = past.body
        if older and (
            more := to_messages(without_old_files([*complete_calls(older, taken, pairs), Content("user")])[:-1], past.tools)
        ):
            body = b",".join([body, encode(more)[1:-1]]) if body else encode(more)[1:-1]
        if 0 < end <= events.first_touched:
            places, questions = [at for at in places if at < end], [at for at in questions if at < end]
            cached = _CachedTurns(past.tools, past.begin, end, events.id_at(end - 1), places, questions, taken, body)
            self._cache.put(key, cached, len(body) + 64 * (len(places) + len(taken)))
        messages: list[Message] = decode(b"[" + body + b"]")
        return messages + to_messages(without_old_files(complete_calls(turn, dict(taken))), past.tools)


def _since(past: _CachedTurns, events: EventLog, branch: str | None) -> list[PlacedContent] | None:
    """Return the contents since ``past`` that are visible from ``branch``; None if a run was rewound."""
    new: list[PlacedContent] = []
    for place in range(past.end, len(events)):
        event = events.peek(place)
        if event.actions.rewind_before_invocation_id is not None:
            return None
        if (content := _visible_content(event, branch)) is not None:
            new.append((place, (content, event.branch)))
    return new


def _window(past: _CachedTurns, new: list[PlacedContent], limit: int | None) -> tuple[list[int], list[int]]:
    """Return the places of the window, and those of the user's messages in it."""
    places = past.places + [place for place, _ in new]
    questions = past.questions + [place for place, (content, _) in new if is_question(content)]
    if limit is not None:
        places = places[-limit - 1 :]
        questions = [place for place in questions if place >= places[0]]
    return places, questions


def _begin(places: list[int], questions: list[int], limit: int | None) -> int:
    """Return the first place of the window; -1 if there is none, or it is not in ``places``."""
    if limit is None or len(places) <= limit:  # all of it
        return places[0] if places else -1
    begin = window_begin(places)
    return next((place for place in questions if place >= begin), -1)

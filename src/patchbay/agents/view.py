"""A session's log as a model is shown it: every call with exactly one response, right behind it.

What lives here: the view. The log is append-only and stays as it is, also where a run was killed between a call and its result;
the view settles what it left dangling (laws 1 and 7). What is returned is a copy all through: whoever edits a request does not
edit history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from patchbay.agents.content import Content, Event, FunctionCall, FunctionResponse, Part
from patchbay.agents.sessions.encoding import EventLog

NO_RESULT = (
    "No result: the run was interrupted before this call's result was recorded. It may or may not have been carried out: "
    "look before you call it again."
)
"""What stands for the result of a call that never got one."""

_STEPS = 4
"""The window moves on by this part of it: one that moved with every event would have no prompt cache hold for a single turn."""

_LOOK_BACK = 1000
"""How far before the window what the user said is looked for."""

Said = tuple[Content, str | None]
"""What an event says, and its branch."""

Placed = tuple[int, Said]
"""The same with its place in the log."""

_Answer = tuple[FunctionResponse | None, list[Part]]
"""A response, and what stands behind it in its event."""

_NOTHING: _Answer = (None, [])

_Key = tuple[str | None, str]
"""What a call and its response have in common: the branch and the id, or the name where there is none."""


def settled_contents(events: Sequence[Event], *, limit: int | None = None, branch: str | None = None) -> list[Content]:
    """Return what was said in ``events``, oldest first, for a model.

    Partial events and those that say nothing are left out, and so is what parallel branches beside ``branch`` said, and all of
    a run that was taken back (``EventActions.rewind_before_invocation_id``). Of the rest
    the last ``limit`` events count (None: all). Where there are more, some of them, up to a quarter, are left out too: what is
    shown begins at the same event until a quarter of the limit has come behind it, so that a prompt cache holds meanwhile. It
    begins with what the user said, since servers refuse a conversation that begins with a call; the last turn is shown from there
    on in any case, if that takes more events than the limit.

    A call without a response gets one that says so, a second response and one without a call are left out, and responses that
    were recorded one by one stand in one content, in the order of their calls. What stands behind a response in its event, such
    as an image, stands behind all of them, in the same order. An id that an earlier call has too gets a number, and
    that of its response too: branches, and turns that did not see each other, may have used the same.
    """
    shown, _ = visible_window(events, limit, branch)
    return settle([said for _, said in shown], {})


def settle(window: Sequence[Said], taken: dict[str, int]) -> list[Content]:
    """Return what was said with each call's response behind it; ``taken`` are the ids that earlier calls have, and grows."""
    answers, moved = _match(window)
    contents: list[Content] = []
    for at, (content, _) in enumerate(window):
        calls = [part.function_call for part in content.parts if part.function_call is not None]
        ids = [_own_id(call, taken) for call in calls]
        own = iter(ids)
        said = [_part(part, own) for part in content.parts if part.function_response is None and id(part) not in moved]
        if said:
            contents.append(Content(content.role, said, _copied(content.extra_content)))
        if calls:
            found = [answers.get((at, place), _NOTHING) for place in range(len(calls))]
            settled = [_settled(call.name, own_id, answer) for call, own_id, (answer, _) in zip(calls, ids, found, strict=True)]
            contents.append(Content("user", settled))
            if beside := [_part(part, own) for _, parts in found for part in parts]:
                contents.append(Content("user", beside))
    return contents


def is_visible(branch: str | None, *, from_branch: str | None) -> bool:
    """Whether what was said in ``branch`` is seen from ``from_branch``: on the same way, before or behind; not beside it."""
    if branch is None or from_branch is None or branch == from_branch:
        return True
    return from_branch.startswith(f"{branch}.") or branch.startswith(f"{from_branch}.")


def visible_window(events: Sequence[Event], limit: int | None, branch: str | None) -> tuple[list[Placed], list[int]]:
    """Return the last contents, as ``settled_contents`` says, the oldest first, and the places of the last ``limit``.

    Before these stands that of the next older one, if there is one.
    """
    backward = visible(events, branch)
    newest = list(islice(backward, limit))
    places = [place for place, _ in reversed(newest)]
    if newest and (older := next(backward, None)) is not None:
        places.insert(0, older[0])
        # By places in the log, which never change.
        begin = window_begin(places)
        shown = _from_a_question([said for said in newest if said[0] >= begin])
        newest = shown or _last_turn(chain(newest, [older], islice(backward, _LOOK_BACK))) or newest
    return newest[::-1], places


def window_begin(places: Sequence[int]) -> int:
    """Return the place where what is shown may begin at the earliest: ``places`` are one more than the limit."""
    step = max(1, (len(places) - 1) // _STEPS)
    return -(-places[1] // step) * step


def visible(events: Sequence[Event], branch: str | None) -> Iterator[Placed]:
    """Yield what was said and is seen from ``branch``, the newest first, each with its place in the log."""
    taken_back: str | None = None
    look = events.peek if isinstance(events, EventLog) else events.__getitem__
    for place in range(len(events) - 1, -1, -1):
        event = look(place)
        content = event.content
        if (run := event.actions.rewind_before_invocation_id) is not None:
            taken_back = run
        if taken_back is not None and event.invocation_id == taken_back:
            continue
        if content is not None and content.parts and not event.partial and is_visible(event.branch, from_branch=branch):
            yield place, (content, event.branch)


def _from_a_question(backward: list[Placed]) -> list[Placed]:
    """Return these without the oldest that come before the first thing the user said; none where that is not among them."""
    for count in range(len(backward), 0, -1):
        if is_question(backward[count - 1][1][0]):
            return backward[:count]
    return []


def _last_turn(backward: Iterable[Placed]) -> list[Placed]:
    """Return these up to the last thing the user said; none where that is nowhere."""
    gone: list[Placed] = []
    for item in backward:
        gone.append(item)
        if is_question(item[1][0]):
            return gone
    return []


def is_question(content: Content) -> bool:
    """Whether the user says something here."""
    return content.role == "user" and all(part.function_response is None for part in content.parts)


def has_strays(window: Sequence[Said]) -> bool:
    """Whether a response in ``window`` may belong to a call before it."""
    waiting: set[_Key] = set()
    for content, branch in window:
        responses = [part.function_response for part in content.parts if part.function_response is not None]
        if any(_key(response, branch) not in waiting for response in responses):
            return True
        waiting |= {_key(part.function_call, branch) for part in content.parts if part.function_call is not None}
    return False


def _match(window: Sequence[Said]) -> tuple[dict[tuple[int, int], _Answer], set[int]]:
    """Which response answers which call, by (content, place of the call in it); and the ids of the parts that go with responses.

    A response belongs to the last call before it with its id in its branch: servers that count from 0 use ids again, also at the
    same time.
    """
    answers: dict[tuple[int, int], _Answer] = {}
    moved: set[int] = set()
    waiting: dict[_Key, list[tuple[int, int]]] = {}
    for at, (content, branch) in enumerate(window):
        fresh: dict[_Key, list[tuple[int, int]]] = {}
        place = 0
        beside: list[Part] | None = None
        for part in content.parts:
            if part.function_call is not None:
                fresh.setdefault(_key(part.function_call, branch), []).append((at, place))
                place += 1
                beside = None
            elif part.function_response is not None:
                beside = None
                if queue := waiting.get(_key(part.function_response, branch)):
                    beside = []
                    answers[queue.pop(0)] = part.function_response, beside
            elif beside is not None:
                beside.append(part)
                moved.add(id(part))
        waiting |= fresh
    return answers, moved


def _key(of: FunctionCall | FunctionResponse, branch: str | None) -> _Key:
    return branch, of.id or of.name


def _own_id(call: FunctionCall, taken: dict[str, int]) -> str:
    """Return the call's id, or one made of it where an earlier call of the view has it; "" where its name stands for it."""
    wanted = call.id or call.name
    if wanted not in taken:
        taken[wanted] = 1
        return call.id
    while (own := f"{wanted}_{taken[wanted] + 1}") in taken:
        taken[wanted] += 1
    taken[wanted] += 1
    taken[own] = 1
    return own


def _settled(name: str, call_id: str, answer: FunctionResponse | None) -> Part:
    if answer is None:
        return Part(function_response=FunctionResponse(name, {"error": NO_RESULT}, call_id))
    return Part(function_response=FunctionResponse(name, _copied(answer.response), call_id, answer.shown))


def _part(part: Part, ids: Iterator[str]) -> Part:
    """Return a copy; a call takes the next of ``ids``."""
    call = part.function_call
    return Part(
        part.text,
        None if call is None else FunctionCall(call.name, _copied(call.args), next(ids), call.written),
        None,
        part.thought,
        _copied(part.extra_content),
        part.inline_data,
    )


def _copied(value: Any) -> Any:
    """Return a copy of JSON: what is no dict or list cannot be changed in place."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value

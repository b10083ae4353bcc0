"""A session's log as a model is shown it: every call with exactly one response, right behind it.

What lives here: the view. The log is append-only and stays as it is, also where a run was killed between a call and its result;
the view settles what it left dangling (laws 1 and 7). What is returned is a copy all through: whoever edits a request does not
edit history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from patchbay.agents.content import Content, Event, FunctionCall, FunctionResponse, Part

NO_RESULT = (
    "No result: the run was interrupted before this call's result was recorded. It may or may not have been carried out: "
    "look before you call it again."
)
"""What stands for the result of a call that never got one."""

_LOOK_BACK = 1000
"""How far before the window a response's call is looked for; they stand side by side unless someone has meddled with the log."""

_Said = tuple[Content, str | None]
"""What an event says, and its branch."""

_Answer = tuple[FunctionResponse | None, list[Part]]
"""A response, and what stands behind it in its event."""

_NOTHING: _Answer = (None, [])

_Key = tuple[str | None, str]
"""What a call and its response have in common: the branch and the id, or the name where there is none."""


def settled_contents(events: Sequence[Event], *, limit: int | None = None, branch: str | None = None) -> list[Content]:
    """Return what was said in ``events``, oldest first, for a model.

    Partial events and those that say nothing are left out, and so is what parallel branches beside ``branch`` said. Of the rest
    the last ``limit`` events count (None: all); where that would part a response from its call, the window begins at the call.
    A call without a response gets one that says so, a second response and one without a call are left out, and responses that
    were recorded one by one stand in one content, in the order of their calls. What stands behind a response in its event, such
    as an image, stands behind all of them, in the same order.
    """
    window = _window(events, limit, branch)
    answers, moved = _match(window)
    contents: list[Content] = []
    for at, (content, _) in enumerate(window):
        said = [_part(part) for part in content.parts if part.function_response is None and id(part) not in moved]
        if said:
            contents.append(Content(content.role, said, _copied(content.extra_content)))
        calls = [part.function_call for part in content.parts if part.function_call is not None]
        if calls:
            found = [answers.get((at, place), _NOTHING) for place in range(len(calls))]
            settled = [_settled(call, answer) for call, (answer, _) in zip(calls, found, strict=True)]
            contents.append(Content("user", settled))
            if beside := [_part(part) for _, parts in found for part in parts]:
                contents.append(Content("user", beside))
    return contents


def is_visible(branch: str | None, *, from_branch: str | None) -> bool:
    """Whether what was said in ``branch`` is seen from ``from_branch``: on the same way, before or behind; not beside it."""
    if branch is None or from_branch is None or branch == from_branch:
        return True
    return from_branch.startswith(f"{branch}.") or branch.startswith(f"{from_branch}.")


def _window(events: Sequence[Event], limit: int | None, branch: str | None) -> list[_Said]:
    """The last ``limit`` contents, and before them what it takes to have the call of every response."""
    window: list[_Said] = []
    missing: set[_Key] = set()
    complete = 0
    for event in reversed(events):
        if limit is not None and len(window) >= limit and (not missing or len(window) >= limit + _LOOK_BACK):
            break
        content = event.content
        if content is None or not content.parts or event.partial or not is_visible(event.branch, from_branch=branch):
            continue
        window.append((content, event.branch))
        for part in reversed(content.parts):
            if part.function_response is not None:
                missing.add(_key(part.function_response, event.branch))
            elif part.function_call is not None:
                missing.discard(_key(part.function_call, event.branch))
        if not missing or limit is None or len(window) <= limit:
            complete = len(window)
    del window[complete:]  # a response whose call is nowhere is no reason to show everything
    window.reverse()
    return window


def _match(window: Sequence[_Said]) -> tuple[dict[tuple[int, int], _Answer], set[int]]:
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


def _settled(call: FunctionCall, answer: FunctionResponse | None) -> Part:
    if answer is None:
        return Part(function_response=FunctionResponse(call.name, {"error": NO_RESULT}, call.id))
    return Part(function_response=FunctionResponse(call.name, _copied(answer.response), call.id, answer.shown))


def _part(part: Part) -> Part:
    call = part.function_call
    return Part(
        part.text,
        None if call is None else FunctionCall(call.name, _copied(call.args), call.id, call.written),
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

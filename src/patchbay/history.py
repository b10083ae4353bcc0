"""Views of a conversation for a model that only knows text: calls and results are written the way its format writes them.

The history itself is never changed. In the view every call has exactly one result, in call order: a result that is missing is
said to be missing, a second one for the same call is left out, one that stands before its call is shown behind it, and one
without a call stays where it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from patchbay.formats.contract import DEFAULT_CALL_TAG, DEFAULT_RESULT_TAG
from patchbay.formats.rows import Format
from patchbay.formats.writing import Writer, writer_for
from patchbay.types import Message, ToolCall, ToolResult

NO_RESULT = "(No result: the call was not carried out.)"


@dataclass(frozen=True)
class _Answer:
    """A result as it is in the history; ``content`` may have parts."""

    call_id: str
    name: str
    content: Any


def flatten_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    format: str | Format = "auto",  # noqa: A002 - the name the API fixes
    tool_call_tag: str = DEFAULT_CALL_TAG,
    tool_result_tag: str = DEFAULT_RESULT_TAG,
) -> list[Message]:
    """The same conversation without tool roles, as ``render_contract`` with these options teaches it.

    Assistant messages with ``tool_calls`` (or ``function_call``) become text with the calls in it; ``tool`` and ``function``
    messages become frames in one user message, which nothing in a result can close. Images in results are kept as parts. Content
    made of plain text parts only is joined by line breaks; what a user wrote to look like a result's frame is defused; every
    other message is passed on as it is. Raises ConfigurationError for an unknown format.
    """
    writer = writer_for(format, tool_call_tag=tool_call_tag, tool_result_tag=tool_result_tag)
    view: list[Message] = []
    results: list[_Answer] = []
    called = [_calls_of(message) if message.get("role") == "assistant" else [] for message in messages]
    answers, seen = _match_results(messages, called)
    count = 0

    def flush() -> None:
        view.append(_result_message(results, writer))
        results.clear()

    for at, message in enumerate(messages):
        role = message.get("role")
        if role in ("tool", "function"):
            if at not in seen:
                call_id = str(message.get("tool_call_id") or message.get("name") or "")
                results.append(_Answer(call_id, str(message.get("name") or "tool"), message.get("content")))
            continue
        if results:
            flush()
        given = called[at]
        if not given:
            view.append(_plain(message, writer))
            continue
        calls = [
            ToolCall(writer.call_id(count + number, name, call_id), name, raw)
            for number, (call_id, name, raw) in enumerate(given)
        ]
        count += len(calls)
        view.append({"role": "assistant", "content": writer.turn(text_of(message.get("content")), calls)})
        results += [_Answer(call.id, call.name, answers.get((at, position), NO_RESULT)) for position, call in enumerate(calls)]
    if results:
        flush()
    return view


def _calls_of(message: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(id, name, arguments as text) of each call of an assistant message; malformed ones are passed over."""
    given, legacy = message.get("tool_calls"), message.get("function_call")
    if not given and legacy is None:
        return []
    calls = []
    for call in given if isinstance(given, list | tuple) else ():
        function = call.get("function") if type(call) is dict or isinstance(call, Mapping) else None
        if (type(function) is dict or isinstance(function, Mapping)) and isinstance(function.get("name"), str):
            calls.append((str(call.get("id") or ""), function["name"], _arguments_text(function.get("arguments"))))
    if not calls and isinstance(legacy, Mapping) and isinstance(legacy.get("name"), str):
        calls.append((legacy["name"], legacy["name"], _arguments_text(legacy.get("arguments"))))
    return calls


def _arguments_text(arguments: Any) -> str:
    if arguments is None:
        return "{}"
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _match_results(
    messages: Sequence[Mapping[str, Any]], called: Sequence[list[tuple[str, str, str]]]
) -> tuple[dict[tuple[int, int], Any], set[int]]:
    """Which result answers which call: by (message, place of the call), and the messages that are shown with their call.

    A result belongs to the last call before it with its id (ids may come again in later turns), however much was said between
    them. One that stands before all calls with its id belongs to the first, if that has no other. A second result for one call is
    matched too, and not shown.
    """
    answers: dict[tuple[int, int], Any] = {}
    seen: set[int] = set()
    waiting: dict[str, list[tuple[int, int]]] = {}  # the calls of one id that have no result yet, in the latest message with it
    first: dict[str, list[tuple[int, int]]] = {}  # all calls of one id in the first message with it
    early: list[tuple[int, str]] = []
    for at, message in enumerate(messages):
        role = message.get("role")
        if role == "assistant":
            fresh: dict[str, list[tuple[int, int]]] = {}
            for position, (call_id, _, _) in enumerate(called[at]):
                fresh.setdefault(call_id, []).append((at, position))
            for call_id, places in fresh.items():
                first.setdefault(call_id, places.copy())
            waiting |= fresh
        elif role in ("tool", "function"):
            call_id = str(message.get("tool_call_id") or message.get("name") or "")
            queue = waiting.get(call_id)
            if queue is None:
                early.append((at, call_id))
                continue
            seen.add(at)
            if queue:
                answers[queue.pop(0)] = message.get("content")
    for at, call_id in early:
        place = next((place for place in first.get(call_id, ()) if place not in answers), None)
        if place is not None:
            seen.add(at)
            answers[place] = messages[at].get("content")
    return answers, seen


def _result_message(answers: Sequence[_Answer], writer: Writer) -> Message:
    results: list[ToolResult] = []
    parts: list[Any] = []
    for answer in answers:
        text = text_of(answer.content)
        attached = [part for part in answer.content if not _is_text_part(part)] if isinstance(answer.content, list) else []
        if attached:
            note = f"({len(attached)} attachment{'s' if len(attached) > 1 else ''}, see below)"
            text = f"{text}\n{note}" if text else note
            parts += attached
        results.append(ToolResult(answer.call_id, answer.name, text))
    joined = writer.results(results)
    return {"role": "user", "content": [{"type": "text", "text": joined}, *parts] if parts else joined}


def _plain(message: Mapping[str, Any], writer: Writer) -> Message:
    """The message as it is, but for plain text parts (joined) and what a user wrote to look like a result's frame (defused)."""
    content = message.get("content")
    if isinstance(content, list) and content and all(_is_bare_text(part) for part in content):
        content = "\n".join(part["text"] for part in content)
    if message.get("role") == "user":
        content = _said(content, writer)
    if content is message.get("content"):
        return dict(message)
    return {**message, "content": content}


def _said(content: Any, writer: Writer) -> Any:
    """A user's content, defused; the same object where nothing had to be."""
    if isinstance(content, str):
        return writer.said_by_user(content)
    if not isinstance(content, list):
        return content
    said = [{**part, "text": writer.said_by_user(part["text"])} if _is_text_part(part) else part for part in content]
    return content if said == content else said


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or its text parts joined by line breaks."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if _is_text_part(part))
    return "" if content is None else json.dumps(content, ensure_ascii=False, default=str)


def _is_text_part(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in ("text", "input_text") and isinstance(part.get("text"), str)


def _is_bare_text(part: Any) -> bool:
    return _is_text_part(part) and part.keys() == {"type", "text"}

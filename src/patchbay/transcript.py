"""Views of a conversation in OpenAI's messages: calls paired with their results, and a view for models that only know text.

A conversation itself is never changed. In a view every call has exactly one result, in call order (law 1).
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from patchbay.formats.contract import DEFAULT_CALL_TAG, DEFAULT_RESULT_TAG
from patchbay.formats.render import Writer, writer_for
from patchbay.formats.spec import Format
from patchbay.types import Message, ToolCall, ToolResult

NO_RESULT: Final = "(No result: the call was not carried out.)"
"""The result that a text model gets for a call without one."""

NOT_SHOWN: Final = "(The result of this call is not shown.)"
"""The content of a result that a hook or a client left out."""

KeyT = TypeVar("KeyT", bound=Hashable)
Place = tuple[int, int]
"""An entry of a conversation, and the position of the call or result in it."""


@dataclass(frozen=True, slots=True)
class Pairs(Generic[KeyT]):
    """``results`` maps each call to its result. ``early`` are the places and keys of results without an earlier call."""

    results: dict[Place, Place]
    early: list[tuple[Place, KeyT]]


def pair_results(entries: Sequence[tuple[Sequence[KeyT], Sequence[KeyT]]]) -> Pairs[KeyT]:
    """Pair calls with their results. An entry has the keys (ids) of its calls and of its results.

    A result belongs to the last entry before it that has a call with its key (ids may be used again in later turns), however
    many entries are between them; of several such calls in it, to the first without a result. A second result for a call is left
    out of both.
    """
    paired: dict[Place, Place] = {}
    early: list[tuple[Place, KeyT]] = []
    open_calls: dict[KeyT, list[Place]] = {}
    for at, (calls, results) in enumerate(entries):
        for index, key in enumerate(results):
            if key not in open_calls:
                early.append(((at, index), key))
            elif places := open_calls[key]:
                paired[places.pop(0)] = at, index
        if calls:
            fresh: dict[KeyT, list[Place]] = {}
            for index, key in enumerate(calls):
                fresh.setdefault(key, []).append((at, index))
            open_calls |= fresh
    return Pairs(paired, early)


def normalize(messages: Sequence[Message]) -> list[Message]:
    """Return ``messages`` with results after their calls, in call order: none missing, none twice, none without a call."""
    called = [_usable_calls(message) for message in messages]
    entries = [
        ([call["id"] for call in calls], [message.get("tool_call_id")] if message.get("role") == "tool" else [])
        for message, calls in zip(messages, called, strict=True)
    ]
    results = pair_results(entries).results
    view: list[Message] = []
    for at, (message, calls) in enumerate(zip(messages, called, strict=True)):
        if message.get("role") == "tool":
            continue
        if not message.get("tool_calls"):
            view.append(message)
        elif not calls:
            rest = {name: value for name, value in message.items() if name != "tool_calls"}
            view.append({**rest, "content": message.get("content") or ""})
        else:
            view.append(message if calls == message["tool_calls"] else {**message, "tool_calls": calls})
            for index, call in enumerate(calls):
                place = results.get((at, index))
                missing = {"role": "tool", "tool_call_id": call["id"], "content": NOT_SHOWN}
                view.append(missing if place is None else messages[place[0]])
    return view


def _usable_calls(message: Message) -> list[Mapping[str, Any]]:
    """Return the calls of a message that have an id and a function."""
    return [call for call in tool_calls(message) if isinstance(call.get("id"), str) and isinstance(call.get("function"), Mapping)]


def tool_calls(message: Any) -> list[Mapping[str, Any]]:
    """Return the calls of a message, without those that are not objects."""
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list | tuple) else []


def insert_results(messages: Sequence[Message], results: Sequence[Message]) -> list[Message]:
    """Return a conversation with ``results`` added to those of its last message with calls, all in call order.

    ``results`` are ``tool`` messages. One for an unknown call comes last: the model's server reports it to the client.
    """
    begin = next((index for index in range(len(messages) - 1, -1, -1) if tool_calls(messages[index])), -1) + 1
    end = begin
    while end < len(messages) and messages[end].get("role") == "tool":
        end += 1
    order = {call.get("id"): place for place, call in enumerate(tool_calls(messages[begin - 1]) if begin else ())}
    known = [*messages[begin:end], *results]
    known.sort(key=lambda result: order.get(result.get("tool_call_id"), len(order)))  # (stable)
    return [*messages[:begin], *known, *messages[end:]]


def flatten_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    format: str | Format = "auto",  # noqa: A002 - the name the API fixes
    tool_call_tag: str = DEFAULT_CALL_TAG,
    tool_result_tag: str = DEFAULT_RESULT_TAG,
    text_tools: frozenset[str] = frozenset(),
) -> list[Message]:
    """Return the conversation without tool roles, as ``render_contract`` with these options describes it.

    ``text_tools`` are the tools whose calls the fenced contract writes as plain text (see ``ToolSpec.text_parameter``).

    Assistant messages with ``tool_calls`` (or ``function_call``) become text with the calls in it; ``tool`` and ``function``
    messages become frames in one user message, which nothing in a result can close. Images in results stay parts. Plain text
    parts are joined by line breaks; a user's text that looks like a result's frame is escaped; other messages do not change.
    Raises ConfigurationError for an unknown format.

    A missing result is reported as missing, a second result for a call is dropped, a result before its call is moved after it,
    and one without a call keeps its place.
    """
    writer = writer_for(format, tool_call_tag=tool_call_tag, tool_result_tag=tool_result_tag, text_tools=text_tools)
    called: dict[int, list[tuple[str, str, str]]] = {}
    entries: list[tuple[Sequence[str], Sequence[str]]] = []
    for at, message in enumerate(messages):
        role = message.get("role")
        if role == "assistant" and (calls := _read_calls(message)):
            called[at] = calls
            entries.append(([call_id for call_id, _, _ in calls], ()))
        else:
            entries.append(((), (_result_id(message),)) if role in _RESULT_ROLES else _NEITHER)
    paired, strays = _pair_all(entries)
    view: list[Message] = []
    results: list[ToolResult] = []
    attached: list[Any] = []
    count = 0

    def flush() -> None:
        text = writer.results(results)
        view.append({"role": "user", "content": [{"type": "text", "text": text}, *attached] if attached else text})
        results.clear()
        attached.clear()

    for at, message in enumerate(messages):
        if message.get("role") in _RESULT_ROLES:
            if at in strays:
                name, content = str(message.get("name") or "tool"), message.get("content")
                results.append(ToolResult(_result_id(message), name, _result_text(content, attached)))
            continue
        if results:
            flush()
        if at not in called:
            view.append(_plain(message, writer))
            continue
        written: list[ToolCall] = []
        for index, (call_id, name, arguments) in enumerate(called[at]):
            call = ToolCall(writer.call_id(count, name, call_id), name, arguments)
            place = paired.get((at, index))
            content = NO_RESULT if place is None else messages[place[0]].get("content")
            results.append(ToolResult(call.id, name, _result_text(content, attached)))
            written.append(call)
            count += 1
        view.append({"role": "assistant", "content": writer.turn(text_of(message.get("content")), written)})
    if results:
        flush()
    return view


_RESULT_ROLES: Final = ("tool", "function")  # (a role of a client may be unhashable)
_NEITHER: Final[tuple[Sequence[str], Sequence[str]]] = ((), ())


def _result_id(message: Mapping[str, Any]) -> str:
    return str(message.get("tool_call_id") or message.get("name") or "")


def _pair_all(entries: Sequence[tuple[Sequence[str], Sequence[str]]]) -> tuple[dict[Place, Place], set[int]]:
    """Pair the results of a client's messages, early ones too; return the pairs, and the indexes of results without a call.

    An early result belongs to the first message with its call, unless that has another one.
    """
    pairs = pair_results(entries)
    if not pairs.early:
        return pairs.results, set()
    first: dict[str, list[Place]] = {}
    for at, (calls, _) in enumerate(entries):
        for index, key in enumerate(calls):
            places = first.setdefault(key, [])
            if not places or places[0][0] == at:
                places.append((at, index))
    strays: set[int] = set()
    for place, key in pairs.early:
        call = next((call for call in first.get(key, ()) if call not in pairs.results), None)
        if call is None:
            strays.add(place[0])
        else:
            pairs.results[call] = place
    return pairs.results, strays


def _read_calls(message: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (id, name, arguments as text) of each call of an assistant message; invalid ones are skipped."""
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


def _result_text(content: Any, attached: list[Any]) -> str:
    """Return the text of a result; other parts, such as images, are added to ``attached`` and mentioned in the text."""
    if isinstance(content, str):
        return content
    text = text_of(content)
    others = [part for part in content if not _is_text_part(part)] if isinstance(content, list) else ()
    if not others:
        return text
    attached += others
    note = f"({len(others)} attachment{'s' if len(others) > 1 else ''}, see below)"
    return f"{text}\n{note}" if text else note


def _plain(message: Mapping[str, Any], writer: Writer) -> Message:
    """Return a message with its plain text parts joined, and a user's text that looks like a result's frame escaped."""
    content = message.get("content")
    if isinstance(content, list) and content and all(_is_bare_text(part) for part in content):
        content = "\n".join(part["text"] for part in content)
    if message.get("role") == "user":
        if isinstance(content, str):
            content = writer.escape_user_text(content)
        elif isinstance(content, list):
            content = [
                {**part, "text": writer.escape_user_text(part["text"])} if _is_text_part(part) else part for part in content
            ]
    return {**message, "content": content} if "content" in message else dict(message)


def text_of(content: Any) -> str:
    """Return the text of a message's content: a string, or its text parts joined by line breaks."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if _is_text_part(part))
    return "" if content is None else json.dumps(content, ensure_ascii=False, default=str)


def _is_text_part(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in ("text", "input_text") and isinstance(part.get("text"), str)


def _is_bare_text(part: Any) -> bool:
    return _is_text_part(part) and part.keys() == {"type", "text"}

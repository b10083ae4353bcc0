"""Views of a conversation for a model that only knows text: calls and results become blocks of the contract.

The history itself is never changed. In the view every call has exactly one result, in call order: a result that is missing is
said to be missing, a second one for the same call is left out, one without a call stays where it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from patchbay.formats.contract import DEFAULT_CALL_TAG, DEFAULT_RESULT_TAG, render_call, render_result
from patchbay.types import Message

NO_RESULT = "(No result: the call was not carried out.)"


def flatten_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    tool_call_tag: str = DEFAULT_CALL_TAG,
    tool_result_tag: str = DEFAULT_RESULT_TAG,
) -> list[Message]:
    """The same conversation without tool roles.

    Assistant messages with ``tool_calls`` (or ``function_call``) become text with one call block per call; ``tool`` and
    ``function`` messages become result blocks in one user message. Results stand verbatim in frames that nothing in them can
    close. Images in results are kept as parts. Content made of plain text parts only is joined by line breaks; every other
    message is passed on as it is.
    """
    forged = _forged(tool_result_tag)
    view: list[Message] = []
    results: list[Message] = []
    answers, seen = _match_results(messages)

    def flush() -> None:
        if results:
            view.append(_result_message(results, tool_result_tag))
            results.clear()

    for at, message in enumerate(messages):
        role = message.get("role")
        if role in ("tool", "function"):
            if at not in seen:
                call_id = str(message.get("tool_call_id") or message.get("name") or "")
                results.append({"name": str(message.get("name") or "tool"), "id": call_id, "content": message.get("content")})
            continue
        flush()
        calls = _calls_of(message) if role == "assistant" else []
        if not calls:
            view.append(_plain(message, forged if role == "user" else None))
            continue
        blocks = [text_of(message.get("content"))] if text_of(message.get("content")) else []
        blocks += [render_call(name, raw, tag=tool_call_tag) for _, name, raw in calls]
        view.append({"role": "assistant", "content": "\n\n".join(blocks)})
        for position, (call_id, name, _) in enumerate(calls):
            results.append({"name": name, "id": call_id, "content": answers.get((at, position), NO_RESULT)})
    flush()
    return view


@lru_cache(maxsize=64)
def _forged(tag: str) -> re.Pattern[str]:
    """Finds what looks like the opener of a result's frame."""
    # Possessive, and only from the run's first character: otherwise a long run is read again from each of its places.
    return re.compile(rf"((?<!`)`{{3,}}+|(?<!~)~{{3,}}+)([ \t]*+{re.escape(tag)})", re.IGNORECASE)


def _calls_of(message: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(id, name, arguments as text) of each call of an assistant message; malformed ones are passed over."""
    calls = []
    given = message.get("tool_calls")
    for call in given if isinstance(given, list | tuple) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            calls.append((str(call.get("id") or ""), function["name"], _arguments_text(function.get("arguments"))))
    legacy = message.get("function_call")
    if not calls and isinstance(legacy, Mapping) and isinstance(legacy.get("name"), str):
        calls.append((legacy["name"], legacy["name"], _arguments_text(legacy.get("arguments"))))
    return calls


def _arguments_text(arguments: Any) -> str:
    if arguments is None:
        return "{}"
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _match_results(messages: Sequence[Mapping[str, Any]]) -> tuple[dict[tuple[int, int], Any], set[int]]:
    """Which result answers which call: by (message, place of the call), and the messages that are shown with their call.

    A result belongs to the last call before it with its id (ids may come again in later turns), however much was said between
    them. A second result for one call is matched too, and not shown.
    """
    answers: dict[tuple[int, int], Any] = {}
    seen: set[int] = set()
    waiting: dict[str, list[tuple[int, int]]] = {}  # the calls of one id that have no result yet, in the latest message with it
    for at, message in enumerate(messages):
        role = message.get("role")
        if role == "assistant":
            fresh: dict[str, list[tuple[int, int]]] = {}
            for position, (call_id, _, _) in enumerate(_calls_of(message)):
                fresh.setdefault(call_id, []).append((at, position))
            waiting |= fresh
        elif role in ("tool", "function"):
            queue = waiting.get(str(message.get("tool_call_id") or message.get("name") or ""))
            if queue is None:
                continue
            seen.add(at)
            if queue:
                answers[queue.pop(0)] = message.get("content")
    return answers, seen


def _result_message(results: Sequence[Message], tag: str) -> Message:
    frames, parts = [], []
    for result in results:
        content = result["content"]
        text = text_of(content)
        attached = [part for part in content if not _is_text_part(part)] if isinstance(content, list) else []
        if attached:
            note = f"({len(attached)} attachment{'s' if len(attached) > 1 else ''}, see below)"
            text = f"{text}\n{note}" if text else note
            parts += attached
        frames.append(render_result(result["name"], result["id"], text, tag=tag))
    joined = "\n\n".join(frames)
    return {"role": "user", "content": [{"type": "text", "text": joined}, *parts] if parts else joined}


def _plain(message: Mapping[str, Any], forged: re.Pattern[str] | None) -> Message:
    """The message as it is, but for plain text parts (joined) and what a user wrote to look like a result's frame (defused)."""
    content = message.get("content")
    if isinstance(content, list) and content and all(_is_bare_text(part) for part in content):
        content = "\n".join(part["text"] for part in content)
    if forged is not None and isinstance(content, str):
        content = forged.sub("\\1\u200b\\2", content)
    elif (
        forged is not None
        and isinstance(content, list)
        and any(forged.search(part["text"]) for part in content if _is_text_part(part))
    ):
        content = [
            {**part, "text": forged.sub("\\1\u200b\\2", part["text"])} if _is_text_part(part) else part for part in content
        ]
    if content is message.get("content"):
        return dict(message)
    return {**message, "content": content}


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

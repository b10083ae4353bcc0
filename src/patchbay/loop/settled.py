"""Messages that somebody else has put together, as a server takes them: each call with one result, right behind it (law 1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from patchbay.types import Message

NOT_SHOWN: Final = "(The result of this call is not shown.)"
"""What stands for a result that was left out."""


def settled(messages: Sequence[Message]) -> list[Message]:
    """Return ``messages`` with the results in call order behind their calls: none missing, none twice, none without a call."""
    results: dict[Any, deque[tuple[int, Message]]] = {}
    for place, message in enumerate(messages):
        if message.get("role") == "tool" and isinstance(call_id := message.get("tool_call_id"), str):
            results.setdefault(call_id, deque()).append((place, message))
    shown: list[Message] = []
    for place, message in enumerate(messages):
        if message.get("role") == "tool":
            continue
        calls = message.get("tool_calls")
        if not calls:
            shown.append(message)
            continue
        called = [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
        own = [call for call in called if isinstance(call.get("id"), str) and isinstance(call.get("function"), Mapping)]
        if own:
            shown.append(message if own == calls else {**message, "tool_calls": own})
            shown += [_result(call["id"], results.get(call["id"]), place) for call in own]
        else:
            rest = {name: value for name, value in message.items() if name != "tool_calls"}
            shown.append({**rest, "content": message.get("content") or ""})
    return shown


def _result(call_id: str, candidates: deque[tuple[int, Message]] | None, behind: int) -> Message:
    while candidates:
        place, message = candidates.popleft()
        if place > behind:
            return message
    return {"role": "tool", "tool_call_id": call_id, "content": NOT_SHOWN}

"""The messages of a fake of Gemini Live: what an answer looks like on the wire. Pure.

What lives here: what the server says, in the spelling of JSON. What does not: what a client sends (``geminisetup``), and when
what is said (``gemini``).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from patchbay.testing.realtime.book import Issued
from patchbay.testing.realtime.geminisetup import Message
from patchbay.testing.realtime.script import Call, Status

USAGE: Final[Message] = {"usageMetadata": {"promptTokenCount": 12, "responseTokenCount": 8, "totalTokenCount": 20}}


def content(**members: Any) -> Message:
    """Return a message of what the model says."""
    return {"serverContent": members}


def written(text: str, piece: int) -> list[Message]:
    """Return a text, in pieces of so many characters."""
    return [content(modelTurn={"role": "model", "parts": [{"text": each}]}) for each in _pieces(text, piece)]


def spoken(text: str, audio: bytes, piece: int, *, transcribed: bool) -> list[Message]:
    """Return audio in as many pieces as its text has, and then the text as its transcript, where that is wished for."""
    pieces = _pieces(text, piece)
    size = max(2, len(audio) // max(1, len(pieces)) // 2 * 2)
    messages: list[Message] = []
    for start in range(0, len(audio), size):
        data = base64.b64encode(audio[start : start + size]).decode()
        blob = {"inlineData": {"mimeType": "audio/pcm;rate=24000", "data": data}}
        messages.append(content(modelTurn={"role": "model", "parts": [blob]}))
    return messages + ([content(outputTranscription={"text": each}) for each in pieces] if transcribed else [])


def called(calls: Sequence[tuple[Call, Issued]]) -> list[Message]:
    """Return one message with all calls; twice, if one is to be told twice. A call that is told no id is noted as one."""
    listed: list[Message] = []
    for call, issued in calls:
        each = {"name": call.name, "args": _object(call.text)}
        if "no_call_id" in call.faults or not issued.call_id:
            issued.told_id = ""
        else:
            each = {"id": issued.call_id, **each}
        listed.append(each)
    message = {"toolCall": {"functionCalls": listed}}
    return [message] * (2 if any("done_twice" in call.faults for call, _ in calls) else 1)


def taken_back(call_ids: Iterable[str]) -> Message:
    """Return that no results are wanted for these calls."""
    return {"toolCallCancellation": {"ids": list(call_ids)}}


def over(status: Status) -> list[Message]:
    """Return the end of a turn."""
    if status == "completed":
        head = [content(generationComplete=True)]
    else:
        head = [content(interrupted=True)] if status == "cancelled" else []
    reason = {} if status in ("completed", "cancelled") else {"turnCompleteReason": "RESPONSE_REJECTED"}
    return [*head, {**content(turnComplete=True, **reason), **USAGE}]


def cut() -> list[Message]:
    """Return the end of a turn that is interrupted."""
    return [content(interrupted=True), content(turnComplete=True)]


def _pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _object(text: str) -> Any:
    """Return arguments as a value: they cannot be broken here."""
    try:
        return json.loads(text)
    except ValueError:
        return {"_raw": text}

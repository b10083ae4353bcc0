"""The shape of a stream's content events: the bytes before and behind the content, which are the same in each.

Nearly all events of a stream hold one piece of content and differ in nothing else. Once the shape is known such an event is
recognised by comparing bytes, and a run of them (a burst, several events in one read) is decoded and parsed at one blow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from patchbay.models.wire import decode

_CONTENT = re.compile(rb'"content":\s*"')
_INSIDE_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*')
_MARKER = re.compile(rb"[`~<>\[\]{(]|\\[^n]|\xe2\x9c\xbf|\xe2\x97\x81")
"""What markers and calls that nothing marks hold: brackets, an escape other than a line break's, a flower, a triangle. The words
that some markers begin with say nothing, for one of these follows them."""
_LINE_FEED = 0x0A  # looked for as a number: bytes in bytes cost ten times as much
_STAND_IN = "\u2603"


class ContentShape:
    """What stands around the content."""

    __slots__ = ("_after", "_before", "_begin", "_between", "_end", "_head", "_tail")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before = before
        self._after = after
        self._head = b"data: " + before
        self._tail = after + b"\n\n"
        self._between = self._tail + self._head
        self._begin, self._end = len(self._head), -len(self._tail)

    def only_content(self, data: bytes) -> str | None:
        """The content of a read that is nothing but such events, with no escape in it; None for any other read."""
        if not (data.startswith(self._head) and data.endswith(self._tail)):
            return None
        content = data[self._begin : self._end]  # empty where the two overlap
        if _LINE_FEED in content:
            content = content.replace(self._between, b"")
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return None
        return None if not text or '"' in text or "\\" in text or "\n" in text else text

    def pieces(self, events: Sequence[bytes], at: int) -> list[bytes]:
        """The content, as JSON escapes it, of each event from ``at`` on as long as they have this shape."""
        before, after = self._before, self._after
        inner, first, last = len(before) + len(after), len(before), -len(after)
        found = []
        for position in range(at, len(events)):
            data = events[position]
            if len(data) <= inner or not data.startswith(before) or not data.endswith(after):
                break
            piece = data[first:last]
            if (b'"' in piece or b"\\" in piece) and _INSIDE_STRING.fullmatch(piece) is None:
                break
            found.append(piece)
        return found


def quiet_ends(pieces: Sequence[bytes]) -> list[int]:
    """For each piece, the end of the prose from there on that may be fed at one blow, or its own place if it may not.

    No marker begins in that prose, and no line break ends it: a parser holds one back until it knows what follows, so it would
    not come out as it came in.
    """
    ends = [0] * len(pieces)
    end = 0  # of the prose that the next piece begins
    for at in range(len(pieces) - 1, -1, -1):
        if _MARKER.search(pieces[at]) is not None:
            end = at
        elif end <= at + 1:
            end = at if pieces[at].endswith(b"\\n") else at + 1
        ends[at] = end
    return ends


def decode_content(pieces: Sequence[bytes]) -> str:
    """The text of pieces that follow each other; raises ValueError for half a surrogate pair or broken UTF-8."""
    return msgspec.json.decode(b'"' + b"".join(pieces) + b'"', type=str)


def learn_shape(data: bytes, content: str) -> ContentShape | None:
    """The shape of an event with this content, or None if it holds more than the content, or more than one shape would fit."""
    marker = _CONTENT.search(data)
    if marker is None:
        return None
    raw = content.encode("utf-8", "surrogatepass")
    before, rest = data[: marker.end()], data[marker.end() :]
    if not rest.startswith(raw + b'"') or b"\n" in data:
        return None
    after = rest[len(raw) :]
    try:
        changed = decode(before + _STAND_IN.encode() + after)
    except ValueError:
        return None
    return ContentShape(before, after) if _only_content(changed) else None


def _only_content(chunk: Any) -> bool:
    """Whether a chunk is one choice whose delta is the stand-in and nothing else that would have to be looked at."""
    if not isinstance(chunk, dict) or chunk.get("usage") or chunk.get("error"):
        return False
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return False
    choice = choices[0]
    delta = choice.get("delta")
    if choice.get("index", 0) != 0 or choice.get("finish_reason") or choice.get("logprobs") or not isinstance(delta, dict):
        return False
    others = [value for key, value in delta.items() if key not in ("content", "role")]
    return delta.get("content") == _STAND_IN and not any(value is not None for value in others)

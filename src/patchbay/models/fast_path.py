"""Fast path for content events: nearly all events of a stream have the same bytes before and after their content.

Once these are known, an event is recognised by comparing bytes, and a run of events is decoded and parsed at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from patchbay.models.wire import decode

_CONTENT = re.compile(rb'"content":\s*"')
_INSIDE_STRINGS = re.compile(rb'[^"\\]*(?:\\[^\0][^"\\]*)*')
BETWEEN = b"\0"
"""Separator of pieces of content: JSON cannot contain it."""
_MOST_AT_ONCE = 256
"""Maximum of events compared together: if they differ in shape, each is compared again."""
_MARKER = re.compile(rb"[`~<>\[\]{(]|\\[^n]|\xe2\x9c\xbf|\xe2\x97\x81")
"""Characters of markers and of unmarked calls: brackets, an escape other than a line break's, a flower, a triangle. Markers that
begin with words have one of these after them."""
_LINE_FEED = 0x0A  # (searching for a number is ten times as fast as for bytes)
_STAND_IN = "\u2603"


class ChunkTemplate:
    """The bytes around the content of an event."""

    __slots__ = ("_after", "_before", "_begin", "_between", "_end", "_first", "_head", "_inner", "_join", "_last", "_tail")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before = before
        self._after = after
        self._head = b"data: " + before
        self._tail = after + b"\n\n"
        self._between = self._tail + self._head
        self._first, self._last, self._inner = len(before), -len(after), len(before) + len(after)
        self._join = (after + before).join
        self._begin, self._end = len(self._head), -len(self._tail)

    def only_content(self, data: bytes) -> str | None:
        """Return the content of data that consists of such events, without escapes; None for any other data."""
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

    def pieces(self, events: Sequence[bytes]) -> bytes:
        """Return the JSON-escaped content of the leading events that match, joined by ``BETWEEN``.

        Empty if the first does not match.
        """
        if not self._has(events[0]):
            return b""
        events = events[:_MOST_AT_ONCE]
        count = len(events)
        while not self._has(events[count - 1]):  # the end of a stream has other shapes
            count -= 1
        found = [event[self._first : self._last] for event in events[:count]]
        if self._before + self._join(found) + self._after != b"".join(events[:count]) or not all(found):
            found = found[: next(at for at, event in enumerate(events) if not self._has(event))]
        run = BETWEEN.join(found)
        if run.count(BETWEEN) >= len(found):
            return b""
        inside = _INSIDE_STRINGS.match(run)
        if inside is not None and inside.end() < len(run):
            run = run[: max(run.rfind(BETWEEN, 0, inside.end()), 0)]
        return run

    def _has(self, event: bytes) -> bool:
        """Whether an event has this template's bytes around its content."""
        return event.startswith(self._before) and event.endswith(self._after) and len(event) > self._inner


def plain_prose_end(pieces: bytes, begin: int) -> int:
    """Return the end of the prose from ``begin`` on that may be fed at once; ``begin`` if its first piece may not.

    No marker begins in that prose, and no line break ends it: a parser holds back a line break until it knows what follows.
    """
    marker = _MARKER.search(pieces, begin)
    end = len(pieces) if marker is None else pieces.rfind(BETWEEN, begin, marker.start())
    while end > begin and pieces.endswith(b"\\n", begin, end):
        end = pieces.rfind(BETWEEN, begin, end)
    return max(end, begin)


def decode_content(pieces: bytes) -> str:
    """Decode consecutive pieces; raises ValueError for half a surrogate pair or broken UTF-8."""
    return msgspec.json.decode(b'"' + pieces.replace(BETWEEN, b"") + b'"', type=str)


def learn_template(data: bytes, content: str) -> ChunkTemplate | None:
    """Return the template of an event with this content; None if it contains more than that, or is ambiguous."""
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
    return ChunkTemplate(before, after) if _only_content(changed) else None


def _only_content(chunk: Any) -> bool:
    """Whether a chunk is one choice whose delta is only the placeholder for the content."""
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

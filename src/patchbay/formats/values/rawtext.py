"""Text that stands as it is between tags, without quotes or escapes: read up to its end, and passed on while it arrives.

Where such a text ends is not said by the text: what looks like its closer may belong to it. So each place that may be its end is
shown to the format, which looks ahead a bounded way and decides.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from patchbay.formats.engine.source import CutOff, Source, Steps
from patchbay.formats.values.literals import json_string


class End(Enum):
    """What stands at a place in a text."""

    NONE = auto()
    """More of it."""
    CLOSED = auto()
    """Its closer, which is read now."""
    BROKEN = auto()
    """What can only follow it: its closer was left out."""


def escaped(text: str) -> str:
    """The inside of the JSON string that says ``text``."""
    return json_string(text)[1:-1]


def verbatim(text: str) -> str:
    """The text itself."""
    return text


def read_text(
    source: Source,
    sink: list[str],
    end: Callable[[], Steps[End]],
    *,
    mark: str = "<",
    spell: Callable[[str], str] = verbatim,
    lines: bool = False,
) -> Steps[None]:
    """Read a text into ``sink``, spelled by ``spell``; raises CutOff where the text ends before its end.

    ``end`` is asked at each ``mark`` and reads nothing but a closer. ``lines``: where a line break stands before the text, that
    and one behind the text are markup. So is a line break behind a text without a closer: it is the next tag's.
    """
    if lines:
        lines = (yield from source.peek()) == "\n"
        source.pos += lines
    passes = _passing(mark) if spell is escaped else None
    while True:
        buf, pos = source.buf, source.pos
        at = buf.find(mark, pos)
        stop = at if at >= 0 else len(buf)
        held = stop > pos and buf[stop - 1] == "\n"
        if stop - held > pos:
            sink.append(spell(buf[pos : stop - held]))
        if at < 0:
            source.pos = stop - held
            if source.ended:
                raise CutOff
            source.live = None if held else passes
            yield
            source.live = None
            continue
        source.pos = at
        found = yield from end()
        if held and not (lines if found is End.CLOSED else found is End.BROKEN):
            sink.append(spell("\n"))
        if found is not End.NONE:
            return
        sink.append(mark)
        source.pos += 1


def _passing(mark: str) -> Callable[[str], str | None]:
    """What passes a chunk on that needs no look: it holds no mark, and no line break that may be markup."""
    return lambda chunk: None if mark in chunk or chunk[-1] == "\n" else json_string(chunk)[1:-1]

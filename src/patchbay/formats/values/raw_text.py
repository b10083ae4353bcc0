"""Arguments written without types: raw text up to a closer, and members typed by the tool's schema."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from enum import Enum, auto

from patchbay.formats.emitter import CallSink
from patchbay.formats.source import Source, Steps, Truncated
from patchbay.formats.values.coerce import ANYTHING, container_json
from patchbay.formats.values.json_strict import escaped, json_string
from patchbay.formats.values.tool_names import ToolTypes


class Boundary(Enum):
    """Classification of a position in a text."""

    NONE = auto()
    """The text goes on."""
    CLOSED = auto()
    """The text's closer, which has been read."""
    BROKEN = auto()
    """Something that can only follow the text: its closer was left out."""


def verbatim(text: str) -> str:
    """Return the text unchanged."""
    return text


def read_text(
    source: Source,
    sink: list[str],
    end: Callable[[], Steps[Boundary]],
    *,
    marks: str = "<",
    encode: Callable[[str], str] = verbatim,
    lines: bool = False,
) -> Steps[None]:
    """Read a text into ``sink``, encoded by ``encode``; raises Truncated if the text ends before its end.

    ``end``: called at each of the characters ``marks``; it classifies the position and reads nothing but a closer. ``lines``: a
    line break before the text, and one behind it, are markup. A line break behind a text without a closer is markup too: it
    belongs to the next tag.
    """
    if lines:
        lines = (yield from source.peek()) == "\n"
        source.pos += lines
    next_mark = _search_for(marks)
    fast_argument = _fast_path(next_mark) if encode is escaped else None
    while True:
        buf, pos = source.buf, source.pos
        mark = next_mark(buf, pos)
        stop = mark.start() if mark else len(buf)
        break_held = stop > pos and buf[stop - 1] == "\n"
        if stop - break_held > pos:
            sink.append(encode(buf[pos : stop - break_held]))
        if mark is None:
            source.pos = stop - break_held
            if source.ended:
                raise Truncated
            source.fast_argument = None if break_held else fast_argument
            yield
            source.fast_argument = None
            continue
        source.pos = stop
        found = yield from end()
        if break_held and not (lines if found is Boundary.CLOSED else found is Boundary.BROKEN):
            sink.append(encode("\n"))
        if found is not Boundary.NONE:
            return
        sink.append(encode(mark[0]))
        source.pos += 1


class QuotedCalls:
    """Calls that a raw text quotes as markup: their openers are counted, and their closers are text.

    ``kind``: spelling of an opener and its closer.
    """

    def __init__(self) -> None:
        self._open: list[str] = []
        self._open_of_kind: Counter[str] = Counter()
        self._open_values = [0]
        """Number of open values in the text itself, and in each open call."""
        self._all_open_values = 0

    @property
    def any_open(self) -> bool:
        """True if a quoted call is open."""
        return bool(self._open)

    def open_call(self, kind: str = "") -> None:
        """Count the opener of a call, or of markup around calls."""
        self._open.append(kind)
        self._open_of_kind[kind] += 1
        self._open_values.append(0)

    def close_call(self, kind: str = "") -> bool:
        """Count a closer, and close what is open inside; return False if no quoted call of the kind is open."""
        if not self._open_of_kind[kind]:
            return False
        while self._leave_call() != kind:
            pass
        return True

    def _leave_call(self) -> str:
        kind = self._open.pop()
        self._open_of_kind[kind] -= 1
        self._all_open_values -= self._open_values.pop()
        return kind

    def open_value(self) -> None:
        """Count the opener of a value."""
        self._open_values[-1] += 1
        self._all_open_values += 1

    def close_value(self) -> bool:
        """Count the closer of a value, and close what is open inside; return False if it closes no quoted value."""
        if not self._all_open_values:
            return False
        while not self._open_values[-1]:
            self._leave_call()
        self._open_values[-1] -= 1
        self._all_open_values -= 1
        return True


def start_text_call(calls: CallSink, name: str, key: str) -> list[str]:
    """Begin a call whose only argument is a text; the inside of its JSON is appended to the list that is returned."""
    pieces = calls.start(name)
    pieces.append(f'{{{json_string(key)}: "')
    return pieces


def end_text_call(calls: CallSink, pieces: list[str]) -> None:
    """End a call begun by ``start_text_call``."""
    pieces.append('"}')
    calls.end()


def _search_for(marks: str) -> Callable[..., re.Match[str] | None]:
    return re.compile("|".join(map(re.escape, marks))).search


def _fast_path(next_mark: Callable[[str], object]) -> Callable[[str], str | None]:
    """Return the fast path for chunks without a mark, and without a line break at the end that may be markup."""
    return lambda chunk: None if next_mark(chunk) or chunk[-1] == "\n" else json_string(chunk)[1:-1]


_HOLDS_ALL = frozenset({"arguments", "parameters", "properties", "input", "params", "args"})
"""Parameters that models invent to hold all the arguments as one object."""

_MAY_HOLD_TAGS = frozenset({"string", "object", "array"})


class UntypedArguments:
    """Emits one call of the tool ``name`` to ``calls``. ``keys``: the parameters read so far."""

    def __init__(self, calls: CallSink, name: str, types: ToolTypes, note: Callable[[str], None]) -> None:
        self.name = name
        self.types = types
        self.keys: set[str] = set()
        self._calls = calls
        self._note = note
        self._pieces: list[str] | None = None
        self._empty = True
        self._waiting: dict[str, str] = {}
        self._all: str | None = None

    @property
    def complete(self) -> bool:
        """True if all required parameters are there."""
        return self.keys.issuperset(self.types.required)

    def may_hold_all(self, key: str) -> bool:
        """True if the value of ``key`` may hold all the arguments."""
        return key in _HOLDS_ALL and key not in (self.types.keys or ())

    def is_streamable(self, key: str) -> bool:
        """True if the value of ``key`` is certainly a string, which can be emitted as it arrives."""
        return self.types.is_text(key) and not self.may_hold_all(key)

    def is_scalar(self, key: str) -> bool:
        """True if the value of ``key`` is a number or the like, in which no tag can stand."""
        return self.types.expected(key).types.isdisjoint(_MAY_HOLD_TAGS)

    def begin_text(self, key: str) -> list[str]:
        """Begin a string; the inside of its JSON is appended to the list that is returned. Call ``end_text`` afterwards."""
        self._record_key(key)
        self._waiting.pop(key, None)
        pieces = self._emit_waiting()
        pieces.append(f'{self._comma()}{json_string(key)}: "')
        return pieces

    def end_text(self) -> None:
        """End the string."""
        if self._pieces is not None:
            self._pieces.append('"')

    def add(self, key: str, value: str, text: str = "") -> None:
        """Add a complete value, as JSON. ``text``: as it was written, in case it holds all the arguments."""
        if self.may_hold_all(key):
            self._all = container_json(text.strip(), ANYTHING)
        self._record_key(key)
        self._waiting[key] = value

    def emit(self) -> None:
        """Emit the rest of the call."""
        if self._all and self._all.startswith("{") and len(self._waiting) <= 1 and self._pieces is None:
            if self._waiting:
                self._note("wrapped_arguments")
            self._calls.start(self.name).append(self._all)
        else:
            self._emit_waiting().append("}")
        self._calls.end()

    def _emit_waiting(self) -> list[str]:
        if self._pieces is None:
            self._pieces = self._calls.start(self.name)
            self._pieces.append("{")
        for key, value in self._waiting.items():
            self._pieces.append(f"{self._comma()}{json_string(key)}: {value}")
        self._waiting.clear()
        return self._pieces

    def _comma(self) -> str:
        comma = "" if self._empty else ", "
        self._empty = False
        return comma

    def _record_key(self, key: str) -> None:
        if key in self.keys:
            self._note("duplicate_key")
        self.keys.add(key)

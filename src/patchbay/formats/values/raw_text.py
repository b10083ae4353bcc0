"""Arguments that are written without types: raw text up to a closer, and members typed by the tool's schema."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from patchbay.formats.emitter import CallSink
from patchbay.formats.source import Source, Steps, Truncated
from patchbay.formats.values.coerce import ANYTHING, Expected, container_json
from patchbay.formats.values.json_strict import escaped, json_string
from patchbay.formats.values.tool_names import ToolTypes


class Boundary(Enum):
    """What stands at a place in a text."""

    NONE = auto()
    """More of it."""
    CLOSED = auto()
    """Its closer, which is read now."""
    BROKEN = auto()
    """What can only follow it: its closer was left out."""


def verbatim(text: str) -> str:
    """The text itself."""
    return text


def read_text(
    source: Source,
    sink: list[str],
    end: Callable[[], Steps[Boundary]],
    *,
    mark: str = "<",
    spell: Callable[[str], str] = verbatim,
    lines: bool = False,
) -> Steps[None]:
    """Read a text into ``sink``, spelled by ``spell``; raises Truncated where the text ends before its end.

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
                raise Truncated
            source.live = None if held else passes
            yield
            source.live = None
            continue
        source.pos = at
        found = yield from end()
        if held and not (lines if found is Boundary.CLOSED else found is Boundary.BROKEN):
            sink.append(spell("\n"))
        if found is not Boundary.NONE:
            return
        sink.append(spell(mark))
        source.pos += 1


def start_text_call(calls: CallSink, name: str, key: str) -> list[str]:
    """Begin a call whose only argument is a text: the inside of its JSON is appended to the list that is returned."""
    pieces = calls.start(name)
    pieces.append(f'{{{json_string(key)}: "')
    return pieces


def end_text_call(calls: CallSink, pieces: list[str]) -> None:
    """End such a call."""
    pieces.append('"}')
    calls.end()


def _passing(mark: str) -> Callable[[str], str | None]:
    """What passes a chunk on that needs no look: it holds no mark, and no line break that may be markup."""
    return lambda chunk: None if mark in chunk or chunk[-1] == "\n" else json_string(chunk)[1:-1]


_ALL = frozenset({"arguments", "parameters", "properties", "input", "params", "args"})
"""Parameters that models invent to hold all the arguments as one object."""

_HOLDING = frozenset({"string", "object", "array"})


class UntypedArguments:
    """Emits one call of the tool ``name`` to ``calls``. ``keys``: the parameters that came so far."""

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
        """True if all that the tool needs is there."""
        return self.keys.issuperset(self.types.required)

    def holds_all(self, key: str) -> bool:
        """True if the value under ``key`` may be all the arguments."""
        return key in _ALL and key not in (self.types.keys or ())

    def passes(self, key: str) -> bool:
        """True if a text under ``key`` is a string whatever it says, and can be emitted as it arrives."""
        return self.types.is_text(key) and not self.holds_all(key)

    def is_plain(self, key: str) -> bool:
        """True if a value under ``key`` is a number or the like, in which no tag can stand."""
        return self.types.expected(key).types.isdisjoint(_HOLDING)

    def begin_text(self, key: str) -> list[str]:
        """A string begins: the inside of its JSON is appended to the list that is returned, then ``end_text`` is called."""
        self._count(key)
        self._waiting.pop(key, None)
        pieces = self._emit_waiting()
        pieces.append(f'{self._comma()}{json_string(key)}: "')
        return pieces

    def end_text(self) -> None:
        """The string that began is over."""
        if self._pieces is not None:
            self._pieces.append('"')

    def add(self, key: str, value: str, text: str = "") -> None:
        """A value that is complete, as JSON. ``text``: as it was written, should it be all the arguments."""
        if self.holds_all(key):
            self._all = container_json(text.strip(), ANYTHING, _as_it_is)
        self._count(key)
        self._waiting[key] = value

    def emit(self) -> None:
        """The call is complete."""
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

    def _count(self, key: str) -> None:
        if key in self.keys:
            self._note("duplicate_key")
        self.keys.add(key)


def _as_it_is(_text: str, _expected: Expected, _room: int) -> None:
    """Values inside of JSON keep the types that they were written with."""

"""The arguments of a call that are written without types: typed by the tool's schema, told member by member as they come.

A string that needs no look at its end is told while it arrives. Other values are kept until such a string follows or the call is
over, so that until then a later one can take an earlier one's place. What was told cannot be taken back: a key that comes again
is told again, and whoever reads the JSON takes its last value.
"""

from __future__ import annotations

from collections.abc import Callable

from patchbay.formats.engine.telling import CallSink
from patchbay.formats.values.expected import ANYTHING, Expected
from patchbay.formats.values.literals import container_json, json_string
from patchbay.formats.values.names import ToolTypes

_ALL = frozenset({"arguments", "parameters", "properties", "input", "params", "args"})
"""Parameters that models invent to hold all the arguments as one object."""

_HOLDING = frozenset({"string", "object", "array"})


class UntypedArguments:
    """Tells one call of the tool ``name`` to ``calls``. ``keys``: the parameters that came so far."""

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
        """Whether all that the tool needs is there."""
        return self.keys.issuperset(self.types.required)

    def holds_all(self, key: str) -> bool:
        """Whether the value under ``key`` may be all the arguments."""
        return key in _ALL and key not in (self.types.keys or ())

    def passes(self, key: str) -> bool:
        """Whether a text under ``key`` is a string whatever it says, and can be told as it arrives."""
        return self.types.is_text(key) and not self.holds_all(key)

    def is_plain(self, key: str) -> bool:
        """Whether a value under ``key`` is a number or the like, in which no tag can stand."""
        return self.types.expected(key).types.isdisjoint(_HOLDING)

    def begin_text(self, key: str) -> list[str]:
        """A string begins: the inside of its JSON is appended to the list that is returned, then ``end_text`` is called."""
        self._count(key)
        self._waiting.pop(key, None)
        pieces = self._tell_waiting()
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

    def replace(self, arguments: str, keys: set[str]) -> None:
        """All the arguments as one JSON object."""
        self._all, self.keys = arguments, keys

    def tell(self) -> None:
        """The call is complete."""
        if self._all and self._all.startswith("{") and len(self._waiting) <= 1 and self._pieces is None:
            if self._waiting:
                self._note("wrapped_arguments")
            self._calls.start(self.name).append(self._all)
        else:
            self._tell_waiting().append("}")
        self._calls.end()

    def _tell_waiting(self) -> list[str]:
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

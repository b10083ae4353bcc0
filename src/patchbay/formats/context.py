"""The parts that all readers of one text share: source, emitter, tool rules, JSON reader, fence lexer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

from patchbay.formats.emitter import CallEmitter, Emitter
from patchbay.formats.source import MarkerSet, Source, Steps
from patchbay.formats.values.json_stream import JsonReader
from patchbay.formats.values.tool_names import ToolRules

T = TypeVar("T")


class cached_attribute(Generic[T]):  # noqa: N801 - a decorator, in the place of functools.cached_property
    """A method whose value replaces it on the instance; unlike functools.cached_property before Python 3.12, without a lock."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    def __get__(self, owner: Any, _kind: type | None = None) -> T:
        """Compute the value and store it on the instance, where it is found first from now on."""
        value = owner.__dict__[self._name] = self._make(owner)
        return value


def forget_cached(*owners: object) -> None:
    """Delete the cached attributes of these objects; the next access computes them again."""
    for owner in owners:
        attributes, values = vars(type(owner)), vars(owner)
        for name in list(values):
            if type(attributes.get(name)) is cached_attribute:
                del values[name]


_LABEL = re.compile(r"[ \t]*[\w.-]*")
MAX_LABEL = 80
"""Maximum length of a label."""
RUN = {"`": re.compile("`+"), "~": re.compile("~+")}


def skip_label(source: Source) -> None:
    """Read the label at ``pos``, as far as it has arrived."""
    found = _LABEL.match(source.buf, source.pos)
    assert found is not None
    source.pos = found.end()


@lru_cache(maxsize=64)
def label_forms(tag: str) -> frozenset[str]:
    """Return all accepted spellings of a tag: any case, ``-`` or ``.`` for ``_``, with or without a final s."""
    plain = _normalized(tag)
    return frozenset({plain, plain + "s", plain.removesuffix("s")})


def _normalized(label: str) -> str:
    return label.lower().replace("-", "_").replace(".", "_")


class FenceLexer:
    """Reads fence runs and labels from ``source``. ``tag`` labels blocks that hold calls, ``result_tag`` those with results."""

    def __init__(self, source: Source, tag: str, result_tag: str) -> None:
        self.source = source
        self._labels = label_forms(tag)
        self._result_label = _normalized(result_tag)

    def is_tag(self, label: str) -> bool:
        """True if this label marks a block of calls."""
        return _normalized(label) in self._labels

    def is_result_tag(self, label: str) -> bool:
        """True if this label marks a block with a result."""
        return _normalized(label) == self._result_label

    def run(self, char: str) -> Steps[int]:
        """Read a run of fence characters; return its length."""
        source = self.source
        length = 0
        while True:
            found = RUN[char].match(source.buf, source.pos)
            if found:
                length += found.end() - source.pos
                source.pos = found.end()
            if source.pos < len(source.buf) or source.ended:
                return length
            yield

    def peek_label(self) -> Steps[str]:
        """Return the label after a run of fence characters, without reading it."""
        source = self.source
        size = yield from source.run(0, _LABEL, MAX_LABEL)
        return source.buf[source.pos : source.pos + size].lstrip(" \t")

    def is_opener(self) -> Steps[bool]:
        """True if the label after the run at ``pos`` opens a block: it is the tag, or the only word of its line."""
        source = self.source
        label = yield from self.peek_label()
        if self.is_tag(label):
            return True
        if not label or not source.buf.startswith(label, source.pos):
            return False
        while True:
            rest = source.buf[source.pos + len(label) : source.pos + len(label) + 2].lstrip(" \t")
            if rest or source.ended:
                return rest[:1] in ("\n", "\r")
            yield


@dataclass(eq=False)
class Context:
    """The objects and options that readers of one text share.

    ``tag``, ``result_tag``: the contract's labels. ``lenient``: blocks without the label may hold calls too. ``ends``: markers
    that end a value. ``named``: the format was given, not detected. ``reasoning``: emit reasoning as reasoning events. ``drops``:
    read calls of unknown tools and emit nothing. ``call_openers``, ``call_closers``: the markers around the call that is being
    read.
    """

    source: Source
    emitter: Emitter
    rules: ToolRules
    ends: MarkerSet
    tag: str
    result_tag: str
    lenient: bool
    named: bool = False
    reasoning: bool = True
    drops: bool = False
    call_openers: frozenset[str] = frozenset()
    call_closers: frozenset[str] = frozenset()

    @cached_attribute
    def calls(self) -> CallEmitter:
        """Emitter for calls."""
        offered = self.rules.offered
        return CallEmitter(self.emitter, (lambda name: offered(name) is None) if self.drops else None)

    @cached_attribute
    def json(self) -> JsonReader:
        """Reader for JSON values."""
        return JsonReader(self.source, self.emitter.note, self.ends)

    @cached_attribute
    def fences(self) -> FenceLexer:
        """Lexer for fence runs and labels."""
        return FenceLexer(self.source, self.tag, self.result_tag)


class Reader:
    """Base class of readers: a context's parts as attributes. ``note`` records a repair."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.source = context.source
        self.emitter = context.emitter
        self.calls = context.calls
        self.rules = context.rules
        self.note = context.emitter.note

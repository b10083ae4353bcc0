"""Which tools a request offers, what a written name means, and how each tool's arguments are typed.

A name is a tool's by what was agreed, never by likeness: exact, or one of the ways of writing it that lead back to one offered
tool only, or all of the last dotted part of just one. A wrong guess here would run a tool that the model did not call.
"""

from __future__ import annotations

import marshal
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any, Final, Literal

from patchbay.formats.values.coerce import ANYTHING, LIST, NUMBERS, TEXT, Expected, decoded_to, typed
from patchbay.formats.values.json_strict import strict_json
from patchbay.types import ToolSpec, read_specs

UnknownTools = Literal["text", "keep", "drop"]
"""What becomes of a marked call of a tool that was not offered: prose, a call like any other, or nothing."""

_NAMESPACES = ("functions.", "default_api.", "tools.")
"""Namespaces that a model may have been given for its tools. Any other prefix is a part of the name."""
_BEGINNING = re.compile(r"[^._\s][^._\s\\]{0,4}|.", re.DOTALL)
_BY_VALUE: Final = 2
"""The version of marshal's format that writes equal values as equal bytes."""
_MOST_CACHED: Final = 100_000
"""The rules of tools that take more bytes are not cached."""
_ANY_NAME = re.compile(r"[\w.-]{1,64}\n?(?:\Z|<)")
_ESCAPED = re.compile(r"(?<!\\)\\+_")


class ToolTypes:
    """How one tool's arguments are typed. ``parameters`` is its JSON Schema; None where the tool is not known: all are texts."""

    __slots__ = ("_expected", "_unquoted", "keys")

    def __init__(self, parameters: Mapping[str, Any] | None) -> None:
        self._expected = ANYTHING if parameters is None else Expected((parameters,), parameters)
        self.keys: tuple[str, ...] | None = None if parameters is None else self._expected.keys
        """The parameters' names in the schema's order; None where the tool is not known."""
        self._unquoted: frozenset[str] | None = None

    @property
    def unquoted(self) -> frozenset[str]:
        """The parameters that are never strings: one written in quotes is one that was encoded twice."""
        if self._unquoted is None:
            types = {key: self._expected.member(key).types for key in self.keys or ()}
            self._unquoted = frozenset(key for key, named in types.items() if "string" not in named)
        return self._unquoted

    @property
    def required(self) -> tuple[str, ...]:
        """The parameters that no call may leave out."""
        return self._expected.required

    def takes_null(self, key: str) -> bool:
        """True if null may stand for a parameter: where the schema says so, or does not know the parameter, or needs it."""
        return key not in (self.keys or ()) or key in self.required or "null" in self._expected.member(key).types

    def expected(self, key: str) -> Expected:
        """What is expected of a parameter, for a reader that types its parts itself."""
        return self._expected.member(key)

    def takes(self, keys: Collection[str]) -> bool:
        """True if a call with just these parameters may be this tool's: all are its own, and none that it needs is left out."""
        return self.keys is not None and set(self._expected.required) <= set(keys) <= set(self.keys)

    def json(self, key: str, text: str) -> str:
        """JSON for a value that was written without a type (``coerce`` says how). Never raises."""
        return typed(text, self._expected.member(key))

    def json_or_typed(self, key: str, text: str) -> str:
        """A value that should be JSON: as it stands if it is, else what the schema makes of it."""
        bare = text.strip()
        try:
            strict_json(bare)
        except (ValueError, RecursionError):
            return self.json(key, text)
        return bare

    def decoded(self, key: str, json_text: str) -> str:
        """The value in a JSON string, where the schema wants it and no string; else ``json_text`` as it is."""
        return decoded_to(json_text, self._expected.member(key))

    def is_text(self, key: str) -> bool:
        """True if the value is a string whatever it says, so that it may be emitted before it has ended."""
        return self._expected.member(key).types == TEXT

    def wants_text(self, key: str) -> bool:
        """True if the schema says that the value is a string."""
        expected = self._expected.member(key)
        return expected.names_types and expected.types == TEXT

    def is_text_list(self, key: str) -> bool:
        """True if the value is a list, and each of its items a string."""
        expected = self._expected.member(key)
        return expected.types == LIST and not expected.element(0).says_nothing and expected.element(0).types == TEXT

    def is_number_list(self, key: str) -> bool:
        """True if the value is a list, and each of its items a number."""
        expected = self._expected.member(key)
        return expected.types == LIST and expected.element(0).types <= NUMBERS


UNTYPED: Final = ToolTypes(None)
"""The types of a tool that is not known."""


class ToolRules:
    """The offered tools (None: not known, any name may be one's) and what is done with names that are none's."""

    def __init__(self, tools: Mapping[str, ToolSpec] | None, unknown_tools: UnknownTools = "text") -> None:
        self._tools: Mapping[str, ToolSpec] = tools or {}
        self._open = tools is None or unknown_tools != "text"
        self._types: dict[str, ToolTypes] = {}
        self.drops = unknown_tools == "drop"
        """A call of a tool that was not offered is read like any other, and left out."""

    def resolve(self, name: str) -> str | None:
        """The tool that a marked call of ``name`` calls; None: it is no tool's, and what was marked is prose."""
        found = self.offered(name)
        if found is not None or not self._open:
            return found
        return name.strip() or None

    def offered(self, name: str) -> str | None:
        """The offered tool that ``name`` means, None if it means none: for places where only a tool's name makes a call."""
        tools = self._tools
        if name in tools:
            return name
        if not tools:
            return None
        candidates = list(_readings(name))
        for candidate in candidates:
            if candidate in tools:
                return candidate
        meant = {self._spellings.get(folded) for folded in map(_folded, candidates) if folded in self._spellings}
        meant = (meant or {self._last_parts.get(candidate) for candidate in candidates}) - {None}
        return meant.pop() if len(meant) == 1 else None

    @cached_property
    def _spellings(self) -> Mapping[str, str | None]:
        """The tool of each name with its dots written as underscores; None where two tools would be written the same."""
        return _unambiguous((_folded(name), name) for name in self._tools)

    @cached_property
    def _last_parts(self) -> Mapping[str, str | None]:
        """The tool of each last dotted part (``get_rate`` for ``currency.get_rate``); None where several tools end in it."""
        return _unambiguous((name.rpartition(".")[2], name) for name in self._tools if "." in name and name[-1] != ".")

    @cached_property
    def _folded_names(self) -> list[str]:
        """All that is a tool's name, with its dots written as underscores, sorted."""
        return sorted({_folded(name) for name in (*self._tools, *self._last_parts)})

    @cached_property
    def _firsts(self) -> frozenset[str]:
        """What a name may begin with: its own first character, that of a namespace, or how either is spelt otherwise."""
        return frozenset("._\\").union(name[0] for name in (*self._tools, *self._last_parts, *_NAMESPACES) if name)

    @cached_property
    def beginnings(self) -> frozenset[str]:
        """What a word begins with that may mean an offered tool: few characters, up to where a name may be spelt otherwise."""
        if not self._tools:
            return frozenset()
        names = (*self._tools, *self._last_parts, *_NAMESPACES)
        return frozenset(_BEGINNING.match(name).group() for name in names if name)  # type: ignore[union-attr]

    def fitting(self, keys: Collection[str]) -> str | None:
        """The one offered tool that takes these parameters and no others; None where none does, or several do."""
        found = [name for name in self._tools if keys and self.types(name).takes(keys)]
        return found[0] if len(found) == 1 else None

    def beginning(self, text: str) -> list[str]:
        """The offered tools whose names ``text`` begins with, the longest first."""
        return sorted(filter(text.startswith, self._tools), key=len, reverse=True)

    def begins_name(self, text: str) -> bool:
        """True if an offered tool's name may come of ``text`` when more of it arrives."""
        names = self._folded_names
        for reading in _readings(text):
            folded = _folded(reading)
            at = bisect_left(names, folded)
            if at < len(names) and names[at].startswith(folded):
                return True
        return any(namespace.startswith(text) for namespace in _NAMESPACES)

    def may_begin(self, text: str) -> bool:
        """True if a text may begin with an offered tool's name (any, where the tools are not known), as far as it goes."""
        head = text.lstrip()
        if not head or head[0] in self._firsts:
            return True
        return self.any_name and _ANY_NAME.match(head) is not None

    def begins_marked_name(self, text: str) -> bool:
        """The same where a call is marked: any name may come of it where any may be a tool's."""
        return self._open or self.begins_name(text)

    def is_whole(self, name: str) -> bool:
        """True if no offered tool's name is longer and begins with ``name``."""
        return not any(other.startswith(name) and other != name for other in self._tools)

    def text_parameter(self, name: str) -> str | None:
        """The parameter of an offered tool that takes plain text; None for all others (see ``ToolSpec``)."""
        return self._tools[name].text_parameter if name in self._tools else None

    @property
    def has_tools(self) -> bool:
        """Tools were offered."""
        return bool(self._tools)

    @property
    def any_name(self) -> bool:
        """The tools are not known: any name may be one's."""
        return self._open and not self._tools

    def types(self, name: str) -> ToolTypes:
        """How the arguments of the tool ``name`` (as ``resolve`` gave it) are typed."""
        found = self._types.get(name)
        if found is None:
            if name not in self._tools:
                return UNTYPED
            found = self._types[name] = ToolTypes(self._tools[name].parameters)
        return found


def make_rules(tools: Iterable[Any] | ToolRules | None, unknown_tools: UnknownTools) -> ToolRules:
    """The rules for these tools (None: any name is a call), or those that were made before. Raises InvalidRequestError."""
    if isinstance(tools, ToolRules):
        return tools
    if tools is None:
        return _no_rules(unknown_tools)
    tools = list(tools)
    try:
        written = marshal.dumps(tools, _BY_VALUE)
    except ValueError:  # not only JSON: ToolSpec, mappings of other classes
        return _read(tools, unknown_tools)
    return _cached(written, unknown_tools) if len(written) <= _MOST_CACHED else _read(tools, unknown_tools)


def _read(tools: list[Any], unknown_tools: UnknownTools) -> ToolRules:
    return ToolRules({spec.name: spec for spec in read_specs(tools)}, unknown_tools)


@lru_cache(maxsize=32)
def _cached(written: bytes, unknown_tools: UnknownTools) -> ToolRules:
    """The rules of tools by their value: of a copy, which no caller changes."""
    return _read(marshal.loads(written), unknown_tools)  # noqa: S302 - bytes that were written right before


@lru_cache(maxsize=3)
def _no_rules(unknown_tools: UnknownTools) -> ToolRules:
    return ToolRules(None, unknown_tools)


def _readings(name: str) -> Iterator[str]:
    """What ``name`` may stand for: itself without white space and markdown's escapes, without a namespace, or said once."""
    name = _ESCAPED.sub("_", name.strip())
    yield name
    for namespace in _NAMESPACES:
        if name.startswith(namespace):
            yield name[len(namespace) :]
    half = len(name) // 2
    if name[half : half + 1] == "." and name[:half] == name[half + 1 :]:  # a namespace of one tool, named like it
        yield name[:half]


def _folded(name: str) -> str:
    return name.replace(".", "_")


def _unambiguous(written: Iterable[tuple[str, str]]) -> Mapping[str, str | None]:
    """The tool of each way of writing one; None where it may be several tools'."""
    found: dict[str, str | None] = {}
    for spelling, name in written:
        found[spelling] = None if spelling in found else name
    return found

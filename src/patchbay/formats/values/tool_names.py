"""The offered tools: what a written name means, and how each tool's arguments are typed.

A name means a tool only by fixed rules, never by similarity: it is exact, or a spelling that leads back to exactly one offered
tool, or the last dotted part of exactly one. A wrong guess would run a tool that the model did not call.
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
"""Treatment of a marked call of an unknown tool: prose, a call, or dropped."""

_NAMESPACES = ("functions.", "default_api.", "tools.")
"""Namespaces that a model may have been given for its tools. Any other prefix is part of the name."""
_BEGINNING = re.compile(r"[^._\s][^._\s\\]{0,4}|.", re.DOTALL)
_MARSHAL_VERSION: Final = 2
"""Version of marshal's format in which equal values have equal bytes."""
_MAX_CACHED: Final = 100_000
"""Maximum size in bytes of tools whose rules are cached."""
_ANY_NAME = re.compile(r"[\w.-]{1,64}\n?(?:\Z|<)")
_ESCAPED = re.compile(r"(?<!\\)\\+_")


class ToolTypes:
    """Types of one tool's arguments.

    ``parameters``: its JSON Schema; None for an unknown tool, all of whose arguments are texts.
    """

    __slots__ = ("_expected", "_unquoted", "keys")

    def __init__(self, parameters: Mapping[str, Any] | None) -> None:
        self._expected = ANYTHING if parameters is None else Expected((parameters,), parameters)
        self.keys: tuple[str, ...] | None = None if parameters is None else self._expected.keys
        """Names of the parameters in the schema's order; None for an unknown tool."""
        self._unquoted: frozenset[str] | None = None

    @property
    def unquoted(self) -> frozenset[str]:
        """Parameters that are never strings: a value in quotes was encoded twice."""
        if self._unquoted is None:
            types = {key: self._expected.member(key).types for key in self.keys or ()}
            self._unquoted = frozenset(key for key, named in types.items() if "string" not in named)
        return self._unquoted

    @property
    def required(self) -> tuple[str, ...]:
        """Required parameters."""
        return self._expected.required

    def takes_null(self, key: str) -> bool:
        """True if a parameter may be null: by the schema, or because it is unknown there or required."""
        return key not in (self.keys or ()) or key in self.required or "null" in self._expected.member(key).types

    def expected(self, key: str) -> Expected:
        """Return the expectations for a parameter, for readers that type its parts themselves."""
        return self._expected.member(key)

    def takes(self, keys: Collection[str]) -> bool:
        """True if a call may have exactly these parameters: all are known, and no required one is missing."""
        return self.keys is not None and set(self._expected.required) <= set(keys) <= set(self.keys)

    def json(self, key: str, text: str) -> str:
        """Return JSON for a value that was written without a type (see ``coerce``). Never raises."""
        return typed(text, self._expected.member(key))

    def json_or_typed(self, key: str, text: str) -> str:
        """Return a value that should be JSON: unchanged if it is, else typed by the schema."""
        bare = text.strip()
        try:
            strict_json(bare)
        except (ValueError, RecursionError):
            return self.json(key, text)
        return bare

    def decoded(self, key: str, json_text: str) -> str:
        """Return the value inside a JSON string if the schema wants that and no string; else ``json_text`` unchanged."""
        return decoded_to(json_text, self._expected.member(key))

    def is_text(self, key: str) -> bool:
        """True if the value is certainly a string, which may be emitted before it has ended."""
        return self._expected.member(key).types == TEXT

    def wants_text(self, key: str) -> bool:
        """True if the schema explicitly wants a string."""
        expected = self._expected.member(key)
        return expected.names_types and expected.types == TEXT

    def is_number_list(self, key: str) -> bool:
        """True if the value is a list of numbers."""
        expected = self._expected.member(key)
        return expected.types == LIST and expected.element(0).types <= NUMBERS


UNTYPED: Final = ToolTypes(None)
"""Types of an unknown tool."""


class ToolRules:
    """The offered tools (None: unknown, so any name may be a tool's), and how names are matched to them."""

    def __init__(self, tools: Mapping[str, ToolSpec] | None, unknown_tools: UnknownTools = "text") -> None:
        self._tools: Mapping[str, ToolSpec] = tools or {}
        self._accepts_any_name = tools is None or unknown_tools != "text"
        self._types: dict[str, ToolTypes] = {}

    def resolve(self, name: str) -> str | None:
        """Return the tool that a marked call of ``name`` calls; None if there is none, so that the call is prose."""
        found = self.offered(name)
        if found is not None or not self._accepts_any_name:
            return found
        return name.strip() or None

    def offered(self, name: str) -> str | None:
        """Return the offered tool that ``name`` means, None if none: for text that is a call only because of the tool's name."""
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
        """Tools by their names with dots as underscores; None if two tools share a spelling."""
        return _unambiguous((_folded(name), name) for name in self._tools)

    @cached_property
    def _last_parts(self) -> Mapping[str, str | None]:
        """Tools by their last dotted part (``get_rate`` for ``currency.get_rate``); None if several tools share it."""
        return _unambiguous((name.rpartition(".")[2], name) for name in self._tools if "." in name and name[-1] != ".")

    @cached_property
    def _folded_names(self) -> list[str]:
        """All tools' names and last parts with dots as underscores, sorted."""
        return sorted({_folded(name) for name in (*self._tools, *self._last_parts)})

    @cached_property
    def _firsts(self) -> frozenset[str]:
        """First characters of tools' names, of namespaces, and of other spellings of either."""
        return frozenset("._\\").union(name[0] for name in (*self._tools, *self._last_parts, *_NAMESPACES) if name)

    @cached_property
    def beginnings(self) -> frozenset[str]:
        """Beginnings of words that may mean an offered tool: a few characters, up to where spellings may differ."""
        if not self._tools:
            return frozenset()
        names = (*self._tools, *self._last_parts, *_NAMESPACES)
        return frozenset(_BEGINNING.match(name).group() for name in names if name)  # type: ignore[union-attr]

    def tool_with_parameters(self, keys: Collection[str]) -> str | None:
        """Return the only offered tool that takes exactly these parameters; None if none or several do."""
        found = [name for name in self._tools if keys and self.types(name).takes(keys)]
        return found[0] if len(found) == 1 else None

    def names_starting(self, text: str) -> list[str]:
        """Return the offered tools whose names ``text`` starts with, the longest first."""
        return sorted(filter(text.startswith, self._tools), key=len, reverse=True)

    def begins_name(self, text: str) -> bool:
        """True if ``text`` may become an offered tool's name when more of it arrives."""
        names = self._folded_names
        for reading in _readings(text):
            folded = _folded(reading)
            at = bisect_left(names, folded)
            if at < len(names) and names[at].startswith(folded):
                return True
        return any(namespace.startswith(text) for namespace in _NAMESPACES)

    def may_begin(self, text: str) -> bool:
        """True if a text may start with an offered tool's name (with any name if the tools are unknown), as far as it goes."""
        head = text.lstrip()
        if not head or head[0] in self._firsts:
            return True
        return self.any_name and _ANY_NAME.match(head) is not None

    def begins_marked_name(self, text: str) -> bool:
        """True if ``text`` may become the name in a marked call."""
        return self._accepts_any_name or self.begins_name(text)

    def is_whole(self, name: str) -> bool:
        """True if no offered tool has a longer name that starts with ``name``."""
        return not any(other.startswith(name) and other != name for other in self._tools)

    def text_parameter(self, name: str) -> str | None:
        """Return the parameter of an offered tool that takes plain text, None for other tools (see ``ToolSpec``)."""
        return self._tools[name].text_parameter if name in self._tools else None

    @property
    def has_tools(self) -> bool:
        """True if tools were offered."""
        return bool(self._tools)

    @property
    def any_name(self) -> bool:
        """True if the tools are unknown, so that any name may be a tool's."""
        return self._accepts_any_name and not self._tools

    def types(self, name: str) -> ToolTypes:
        """Return the types of the arguments of ``name``, a result of ``resolve``."""
        found = self._types.get(name)
        if found is None:
            if name not in self._tools:
                return UNTYPED
            found = self._types[name] = ToolTypes(self._tools[name].parameters)
        return found


def make_rules(tools: Iterable[Any] | ToolRules | None, unknown_tools: UnknownTools) -> ToolRules:
    """Return the rules for these tools (None: any name is a call), cached by value. Raises InvalidRequestError."""
    if isinstance(tools, ToolRules):
        return tools
    if tools is None:
        return _no_rules(unknown_tools)
    tools = list(tools)
    try:
        written = marshal.dumps(tools, _MARSHAL_VERSION)
    except ValueError:  # not only JSON: ToolSpec, mappings of other classes
        return _read(tools, unknown_tools)
    return _cached(written, unknown_tools) if len(written) <= _MAX_CACHED else _read(tools, unknown_tools)


def _read(tools: list[Any], unknown_tools: UnknownTools) -> ToolRules:
    return ToolRules({spec.name: spec for spec in read_specs(tools)}, unknown_tools)


@lru_cache(maxsize=32)
def _cached(written: bytes, unknown_tools: UnknownTools) -> ToolRules:
    """Return the cached rules of serialized tools: of a copy, which no caller changes."""
    return _read(marshal.loads(written), unknown_tools)  # noqa: S302 - bytes that were written right before


@lru_cache(maxsize=3)
def _no_rules(unknown_tools: UnknownTools) -> ToolRules:
    return ToolRules(None, unknown_tools)


def _readings(name: str) -> Iterator[str]:
    """Yield readings of ``name``: without white space and Markdown's escapes, without a namespace, and without a repetition."""
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
    """Map each spelling to its tool, or to None if several tools share it."""
    found: dict[str, str | None] = {}
    for spelling, name in written:
        found[spelling] = None if spelling in found else name
    return found

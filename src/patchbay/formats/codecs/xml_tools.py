"""Calls as tags that the caller names: ``<bash>ls</bash>`` for the tool that ``xml_tools`` maps ``bash`` to.

A tag counts if it begins a line outside of fences, and ends at the first closing tag that ends its line. Between the two stands a
JSON object of the arguments (or a whole call), elements named like the tool's parameters, or the text of the only parameter that
the tool requires or has. Anything else stays prose, and so do several elements on one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from patchbay.errors import ConfigurationError
from patchbay.formats.codecs.json import emit_call_text, object_text
from patchbay.formats.context import Context, Reader
from patchbay.formats.scanner import RegionReader
from patchbay.formats.source import NoMatch, Steps, discard, marker_set
from patchbay.formats.values.json_strict import strict_json
from patchbay.formats.values.raw_text import UntypedArguments

_TAG = re.compile(r"[A-Za-z_][\w.-]{0,63}")
_ELEMENT = re.compile(r"\s*<([\w.-]{1,64})>(.*?)</\1>\s*", re.DOTALL)
_BLANKS = " \t\r"


def check_xml_tools(xml_tools: Mapping[str, str] | None) -> dict[str, str]:
    """Return the tools by their opening tags. Raises ConfigurationError."""
    if xml_tools is None:
        return {}
    if not isinstance(xml_tools, Mapping):
        raise ConfigurationError(f"xml_tools is {xml_tools!r}: use a mapping from tags to names of tools.")
    for tag, tool in xml_tools.items():
        if not isinstance(tag, str) or _TAG.fullmatch(tag) is None or not isinstance(tool, str) or not tool:
            raise ConfigurationError(f"xml_tools has {tag!r}: {tool!r}: use a tag such as 'bash' and the name of a tool.")
    return {f"<{tag}>": tool for tag, tool in xml_tools.items()}


class XmlTools(Reader):
    """Reads the calls of ``tools``, a mapping from opening tags to tools. ``others``: all other markers."""

    def __init__(self, context: Context, tools: Mapping[str, str], others: Iterable[str]) -> None:
        super().__init__(context)
        self._tools = tools
        self.markers = tuple(dict.fromkeys((*others, *tools)))

    def reader_of(self, marker: str) -> RegionReader | None:
        """Return the reader of an opening tag, None for other markers."""
        return self.read if marker in self._tools else None

    def read(self, marker: str) -> Steps[bool]:
        """Read from an opening tag on; return False if it is not a call."""
        source, emitter = self.source, self.emitter
        name = self.rules.resolve(self._tools[marker])
        if name is None or not emitter.at_line_start or emitter.in_blockquote or emitter.turn_ended:
            return False
        begin = source.offset
        source.pos += len(marker)
        try:
            inside = yield from self._inside(f"</{marker[1:]}")
        except NoMatch:
            return False
        if inside is None:
            self.calls.name = name
            self.calls.cut(source.since(begin))
            return True
        if marker in inside.partition(f"</{marker[1:]}")[2]:
            return False  # "<bash>ls</bash> or <bash>pwd</bash>"
        return self._emit(name, inside)

    def _inside(self, closer: str) -> Steps[str | None]:
        """Read up to and including the closing tag; return the text before it, None if the text ends first.

        Raises NoMatch if every closing tag is followed by words on its line.
        """
        source = self.source
        closed = False
        begin = source.offset
        while (yield from source.read_to(marker_set((closer,)), discard)):
            inside = source.offset
            source.pos += len(closer)
            closed = True
            behind = source.offset
            if (yield from source.space(_BLANKS)) in ("", "\n"):
                source.rewind_to(behind)
                return source.since(begin)[: inside - begin]
        if closed:
            raise NoMatch
        return None

    def _emit(self, name: str, inside: str) -> bool:
        """Emit the call in a tag; return False if it holds none."""
        types, note = self.rules.types(name), self.emitter.note
        text = inside.strip()
        if text.startswith("{"):
            arguments = object_text(text, note)
            try:
                value = strict_json(arguments)
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict):
                emit_call_text(self.calls, self.rules, name, _own_arguments(arguments), note)
                return True
        untyped = UntypedArguments(self.calls, name, types, note)
        elements = _elements(inside, types.keys or ())
        wanted = types.required if len(types.required) == 1 else types.keys or ()
        if elements is None and text and len(wanted) == 1:
            elements = [(wanted[0], inside)]
        if elements is None and text:
            return False
        for key, written in elements or ():
            value_text = written.removeprefix("\r").removeprefix("\n").removesuffix("\n").removesuffix("\r")
            untyped.add(key, types.json(key, value_text), value_text)
        untyped.emit()
        return True


def _own_arguments(written: str) -> str:
    """Return the arguments in an object that is a whole call, else the object itself, as it was written."""
    value = json.loads(written)
    key = next((key for key in ("arguments", "parameters") if key in value), None)
    if key is None or not isinstance(value.get("name"), str):
        return written
    return json.dumps({} if value[key] is None else value[key], ensure_ascii=False)


def _elements(inside: str, keys: Iterable[str]) -> list[tuple[str, str]] | None:
    """Return the elements that a text consists of, if all are named like ``keys``; None otherwise."""
    found, at = [], 0
    while at < len(inside):
        element = _ELEMENT.match(inside, at)
        if element is None or element[1] not in keys:
            return None
        found.append((element[1], element[2]))
        at = element.end()
    return found or None

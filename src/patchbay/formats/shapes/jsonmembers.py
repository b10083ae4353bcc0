"""A call's arguments as one JSON object, with the members put right that hold their JSON in a string.

Some models write a list as the string of its JSON, where the schema wants a list. Such a member is held back until it is
complete; the others, and every argument of a tool that takes strings only, go out as they arrive.
"""

from __future__ import annotations

from collections.abc import Callable

from patchbay.formats.engine.source import CutOff, Source, Steps
from patchbay.formats.engine.telling import CallSink
from patchbay.formats.values.jsonreader import JsonReader
from patchbay.formats.values.names import ToolRules, ToolTypes


def tell_object(reader: JsonReader, calls: CallSink, rules: ToolRules, name: str) -> Steps[None]:
    """Tell a call of the tool ``name`` whose arguments begin at the reader's place. Raises CutOff, with the call begun."""
    types = rules.types(name)
    yield from reader.value(calls.start(name), types if types.unquoted else None)
    calls.end()


def tell_text(calls: CallSink, rules: ToolRules, name: str, arguments: str) -> None:
    """Tell a call whose arguments were read before its name, or out of a string."""
    types = rules.types(name)
    calls.start(name).append((_value(arguments, _no_note, types) or arguments) if types.unquoted else arguments)
    calls.end()


def object_text(text: str, note: Callable[[str], None]) -> str:
    """What a string that holds arguments says: an object made valid JSON if it nearly is, else the text as it stands."""
    text = text.strip()
    return (_value(text, note) if text.startswith("{") else None) or text


def _value(text: str, note: Callable[[str], None], types: ToolTypes | None = None) -> str | None:
    """The JSON of a text that is one value; None if it is cut off, or more than one."""
    source = Source()
    source.push(text)
    source.ended = True
    sink: list[str] = []
    try:
        for _ in JsonReader(source, note).value(sink, types):
            pass
    except CutOff:
        return None
    return None if source.buf[source.pos :].strip() else "".join(sink)


def _no_note(_kind: str) -> None:
    pass

"""A call's arguments as one JSON object, with the members put right that hold their JSON in a string.

Some models write a list as the string of its JSON, where the schema wants a list. Such a member is held back until it is
complete; the others, and every argument of a tool that takes strings only, go out as they arrive.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from patchbay.formats.engine.source import CutOff, Source, Steps
from patchbay.formats.engine.telling import CallSink
from patchbay.formats.values.jsonreader import JsonReader
from patchbay.formats.values.literals import json_string
from patchbay.formats.values.names import ToolRules, ToolTypes


def _no_note(_kind: str) -> None:
    pass


def no_constant(name: str) -> None:
    """Refuse what Python would read and JSON does not know: NaN, Infinity."""
    raise ValueError(f"{name} is not JSON")


strict_json: Callable[[str], object] = json.JSONDecoder(parse_constant=no_constant, parse_int=str).decode
"""The value of a JSON text, its integers as they are written; raises ValueError, RecursionError."""


def tell_object(reader: JsonReader, calls: CallSink, rules: ToolRules, name: str) -> Steps[None]:
    """Tell a call of the tool ``name`` whose arguments begin at the reader's place. Raises CutOff, with the call begun."""
    types = rules.types(name)
    yield from reader.value(calls.start(name), types if types.unquoted else None)
    calls.end()


def tell_text(calls: CallSink, rules: ToolRules, name: str, arguments: str, note: Callable[[str], None] = _no_note) -> None:
    """Tell a call whose arguments, JSON or a text, were read before its name, or out of a string."""
    types = rules.types(name)
    pieces = calls.start(name)
    if not _is_object(arguments):
        note("arguments_not_object")
        arguments = _as_value(arguments, types)
    elif types.unquoted:
        arguments = _value(arguments, _no_note, types) or arguments
    pieces.append(arguments)
    calls.end()


def _is_object(text: str) -> bool:
    try:
        return isinstance(strict_json(text), dict)
    except ValueError:
        return False
    except RecursionError:
        return text.lstrip().startswith("{")


def _as_value(text: str, types: ToolTypes) -> str:
    """JSON for arguments that are no object: words are the value of the tool's only parameter, if that takes any text."""
    try:
        strict_json(text)
    except ValueError:
        keys = types.keys or ()
        words = not text.lstrip().startswith(("{", "["))  # else they are JSON that is broken beyond repair
        said = json_string(text)
        return f"{{{json_string(keys[0])}: {said}}}" if words and len(keys) == 1 and types.is_text(keys[0]) else said
    except RecursionError:
        pass
    return text


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

"""Values and arguments of a Python call, and their JSON by the tool's schema."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from patchbay.formats.source import NoMatch
from patchbay.formats.values.json_strict import json_text
from patchbay.formats.values.python_text import amount_json
from patchbay.formats.values.tool_names import ToolTypes

_WORD = re.compile(r"[^\W\d][\w ,-]*")
_F_STRING = re.compile(r"[fF]['\"]")
_JSON_DUMPS = re.compile(r"json\.dumps\((\w+)\)")
_ESCAPED = re.compile(r"""\\(?=[_*'"])""")
_DIGITS = frozenset("-0123456789")
_NAMES = re.compile(r"[^\W\d]\w*")
_WRAPPERS = frozenset({"arguments", "parameters", "args", "kwargs", "params", "input"})


@dataclass(frozen=True, slots=True)
class PythonValue:
    """A value. ``json``: its JSON, None if it is not a literal (a name, a call, words). ``text``: as it was written.

    ``nearest``: JSON that the schema may prefer to the text: a list or dict with bare words, each taken as a string.
    ``computed``:
    ``json`` is the result of arithmetic. ``fields``: a dict's values by key. Inside of another value, except directly in a dict,
    ``text`` may be missing.
    """

    json: str | None
    text: str = ""
    nearest: str | None = None
    computed: bool = False
    fields: dict[str, PythonValue] | None = None


NULL = PythonValue("null")


@dataclass(slots=True)
class PythonArguments:
    """The arguments of a call: ``positional`` in order, ``keywords`` by name (the last of equal names)."""

    positional: list[PythonValue] = field(default_factory=list)
    keywords: dict[str, PythonValue] = field(default_factory=dict)
    spread: list[PythonValue] = field(default_factory=list)
    """Arguments behind two asterisks that are not dicts: names."""


def array_of(items: list[PythonValue]) -> PythonValue:
    """Return a list of values."""
    nearest = _joined([item.json or item.nearest for item in items])
    written = f"[{nearest}]" if nearest is not None else None
    return PythonValue(written if all(item.json is not None for item in items) else None, nearest=written)


def object_of(fields: dict[str, PythonValue]) -> PythonValue:
    """Return a dict of values by key."""
    values = [value.json or value.nearest for value in fields.values()]
    nearest = _joined([value and f"{json_text(key)}: {value}" for key, value in zip(fields, values, strict=True)])
    written = f"{{{nearest}}}" if nearest is not None else None
    literal = all(value.json is not None for value in fields.values())
    return PythonValue(written if literal else None, nearest=written, fields=fields)


def _joined(parts: list[str | None]) -> str | None:
    known = [part for part in parts if part is not None]
    return ", ".join(known) if len(known) == len(parts) else None


def as_key(value: PythonValue) -> str:
    """Return a value as an object's key: a string's text, a word, or the JSON of anything else."""
    written = value.json or value.nearest or ""
    if not written.startswith('"'):
        return written
    text = str(json.loads(written))
    return unescaped(text) if value.json is None else text


def unescaped(text: str) -> str:
    """Remove the backslashes that Markdown puts before underscores and asterisks, and strings before quotes."""
    return _ESCAPED.sub("", text) if "\\" in text else text


def arguments_json(arguments: PythonArguments, types: ToolTypes) -> str:
    """Return the arguments as a JSON object, by the tool's schema.

    Positional values take the schema's parameters in order. A dict as the only one, or under a name like ``params``, holds the
    arguments. None is Python's way to omit a parameter: it is left out unless the schema allows null. If words stand without
    quotes, values have no types of their own, and the schema types them all. Raises NoMatch if positional values have no
    parameter to go to, or are the parameters' own names: a signature.
    """
    keys = types.keys
    known = frozenset(keys or ())
    positional, named = arguments.positional, arguments.keywords
    if arguments.spread:
        raise NoMatch
    if len(positional) == 1 and (fields := _as_arguments(positional[0], types)) is not None:
        positional, named = [], fields | named
    elif len(named) == 1 and not positional:
        (name, value), *_ = named.items()
        if name in _WRAPPERS and value.fields and name not in known and known.issuperset(value.fields):
            named = value.fields
    named = {_parameter_name(name, known): value for name, value in named.items()}
    free = [key for key in keys or () if key not in named]
    positional = [value for at, value in enumerate(positional) if at < len(free) or value.json != "null"]
    literal = any(value.json is not None for value in (*positional, *named.values()))
    if len(positional) > len(free) or (not literal and any(value.text in known for value in positional)):
        raise NoMatch
    given = dict(zip(free, positional, strict=False)) | named
    if known:
        given = {key: value for key, value in given.items() if value.json != "null" or types.takes_null(key)}
    words = [value.text for value in given.values() if value.json is None and _WORD.fullmatch(value.text)]
    untyped = bool(words)
    # a name alone may be a variable's, and beside strings in quotes it is one
    unquoted = (len(words) > 1 or "," in "".join(words)) and not any(
        (value.json or "").startswith('"') for value in given.values()
    )
    members = (
        f"{json_text(key)}: {(unquoted and _words_as_list(key, value, types)) or _typed(key, value, types, untyped=untyped)}"
        for key, value in given.items()
    )
    return "{" + ", ".join(members) + "}"


def substitute(arguments: PythonArguments, variables: Mapping[str, PythonValue | None]) -> PythonArguments:
    """Replace variables by their values; raises NoMatch if a value is unknown."""
    keywords = {key: _value_of(value, variables) for key, value in arguments.keywords.items()}
    spread: list[PythonValue] = []
    for value in arguments.spread:
        found = _value_of(value, variables)
        if found.fields is None:
            raise NoMatch
        keywords |= found.fields
    return PythonArguments([_value_of(value, variables) for value in arguments.positional], keywords, spread)


def _value_of(value: PythonValue, variables: Mapping[str, PythonValue | None]) -> PythonValue:
    """Return a value, or the value of the variable that it names."""
    if value.fields and value.json is None:
        return object_of({key: _value_of(item, variables) for key, item in value.fields.items()})
    if value.json is not None:
        if _F_STRING.match(value.text) and not variables.keys().isdisjoint(_NAMES.findall(value.text)):
            raise NoMatch
        return value
    dumped = _JSON_DUMPS.fullmatch(value.text)
    found = variables.get(dumped.group(1) if dumped else value.text)
    if found is None and not variables.keys().isdisjoint(_NAMES.findall(value.text or value.nearest or "")):
        raise NoMatch
    return found or value


def _as_arguments(value: PythonValue, types: ToolTypes) -> dict[str, PythonValue] | None:
    """Return the fields of a dict that holds the arguments, None if it is itself an argument."""
    fields, keys = value.fields, types.keys
    if fields is None or not keys or not fields or not frozenset(keys).isdisjoint(fields) or value.nearest is None:
        return fields
    return None if types.json(keys[0], value.nearest).startswith("{") else fields


def _parameter_name(name: str, known: frozenset[str]) -> str:
    """Return the parameter for a name, one of which was changed because it is a Python keyword."""
    if name in known or not keyword.iskeyword(name.strip("_")):
        return name
    bare = name.strip("_")
    return next((own for own in (bare, f"_{bare}", f"{bare}_") if own in known), name)


def _words_as_list(key: str, value: PythonValue, types: ToolTypes) -> str:
    """Return bare words as the list of texts that the schema wants, "" if it wants none."""
    if value.json is not None or not _WORD.fullmatch(value.text) or not types.is_text_list(key):
        return ""
    return f"[{', '.join(json_text(unescaped(word.strip())) for word in value.text.split(',') if word.strip())}]"


def _typed(key: str, value: PythonValue, types: ToolTypes, *, untyped: bool) -> str:
    known = key in (types.keys or ())
    if known and value.json is not None and types.is_text(key) and value.json[:1] not in ('"', "[", "{"):
        if untyped:
            return types.json(key, value.json)
        if value.json[:1] in _DIGITS and not value.computed and types.wants_text(key):
            return json_text(value.text.strip() or value.json)
    if value.json is not None and not value.computed:
        if value.json.startswith("[") and '"' in value.json and types.is_number_list(key):
            return types.json(key, value.json)
        return types.decoded(key, value.json) if value.json.startswith('"') else value.json
    if value.json is not None and not known:
        return value.json
    nearest = value.json or value.nearest
    if nearest is None or nearest.startswith('"'):
        nearest = amount_json(value.text)
    if nearest is not None:
        typed = types.json(key, nearest)
        if not typed.startswith('"'):
            return typed
    return types.json(key, unescaped(value.text))

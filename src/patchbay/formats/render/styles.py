"""Styles: how the parts of one call are encoded for the pattern that a family writes its calls by.

A style fills in the placeholders of ``FamilyWriter.call``, one call at a time. Markers in a value that has escapes are written as
escapes; a text without escapes stays as it is where the family's reader understands it (``ReservedText.raw``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from patchbay.formats.render.values import Notation, json_arguments, members, quoted, read_value
from patchbay.formats.render.writer import ReservedText
from patchbay.types import ToolCall

PYTHON = Notation("True", "False", "None", text=repr, key=repr)
PYTHON_WITH_JSON_WORDS = Notation("true", "false", "null", text=quoted, key=quoted)
PYTHON_IN_DOUBLE_QUOTES = Notation("True", "False", "None", text=quoted, key=quoted)


@dataclass(frozen=True)
class JsonStyle:
    """Arguments as JSON.

    Placeholders: ``{name}`` and ``{id}``, ``{json_name}`` and ``{json_id}`` as JSON strings, ``{arguments}`` as JSON,
    ``{json_arguments}``: that JSON inside of a string, and ``{object}``: an object with the name, and the arguments under the key
    ``key``.
    """

    key: str = "arguments"

    def __call__(self, call: ToolCall, _index: int, _markers: ReservedText) -> dict[str, Any]:
        """Encode one call."""
        name, written = quoted(call.name), json_arguments(call.raw_arguments)
        return {
            "name": call.name,
            "id": call.id,
            "json_name": name,
            "json_id": quoted(call.id),
            "arguments": written,
            "json_arguments": quoted(written),
            "object": f'{{"name": {name}, "{self.key}": {written}}}',
        }


EncodeValue = Callable[[str, ReservedText], str]
"""Encodes a value other than a text, given as JSON."""


def as_json(raw: str, markers: ReservedText) -> str:
    """Return the JSON text, with markers in its strings escaped."""
    return markers.escape_json(raw)


def as_json_with_python_booleans(raw: str, markers: ReservedText) -> str:
    """Return ``True`` and ``False`` at the top level, JSON otherwise."""
    return {"true": "True", "false": "False"}.get(raw) or markers.escape_json(raw)


def as_python(raw: str, markers: ReservedText) -> str:
    """Return a Python literal, except for ``null``."""
    return raw if raw == "null" else markers.escape_json(PYTHON.convert(raw))


def unchanged(text: str) -> str:
    """Return a text unchanged."""
    return text


def as_cdata(text: str) -> str:
    """Return a text, in a CDATA section unless it is one plain line."""
    return f"<![CDATA[{text}]]>" if any(mark in text for mark in "<&\n\r") or text != text.strip() else text


def in_attribute(name: str) -> str:
    """Return a name with the two escapes of Kimi K3's attributes."""
    return name.replace("&", "&amp;").replace('"', "&quot;")


@dataclass(frozen=True)
class Elements:
    """Each argument as an element, after the pattern ``value``.

    Its placeholders: ``{key}``, ``{value}``, ``{type}`` (the JSON type) and ``{string}`` ("true" or "false"). The call's
    placeholders: ``{name}``, ``{values}`` and ``{index}`` (from 1).
    """

    value: str
    encode: EncodeValue = as_json
    text: Callable[[str], str] = unchanged
    attribute: Callable[[str], str] = unchanged

    def __call__(self, call: ToolCall, index: int, markers: ReservedText) -> dict[str, Any]:
        """Encode one call."""
        values = "".join(self._member(key, raw, markers) for key, raw in members(call.raw_arguments).items())
        return {"name": self.attribute(call.name), "values": values, "index": index + 1}

    def _member(self, key: str, raw: str, markers: ReservedText) -> str:
        is_text = raw.startswith('"')
        return self.value.format(
            key=self.attribute(key),
            value=self.text(markers.raw(json.loads(raw))) if is_text else self.encode(raw, markers),
            type=JSON_TYPES.get(raw[0], "number"),
            string="true" if is_text else "false",
        )


JSON_TYPES = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}

M3 = "]<]minimax[>["
_M3_TOKEN = ReservedText((M3,))


@dataclass(frozen=True)
class NestedElements:
    """Members of objects and items of lists as elements too, with MiniMax M3's token before every tag: ``{name}``, ``{values}``.

    An empty list, an empty object and an empty text look alike; the schema distinguishes them.
    """

    def __call__(self, call: ToolCall, _index: int, markers: ReservedText) -> dict[str, Any]:
        """Encode one call."""
        values = "".join(m3_element(key, _m3_value(raw, markers)) for key, raw in members(call.raw_arguments).items())
        return {"name": call.name, "values": values}


def _m3_value(raw: str, markers: ReservedText) -> str:
    try:
        value = read_value(raw)
        return markers.raw(value) if isinstance(value, str) else _m3_inside(value)
    except RecursionError:
        return raw


def _m3_inside(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(m3_element(key, _m3_inside(item)) for key, item in value.items())
    if isinstance(value, list):
        return "".join(m3_element("item", _m3_inside(item)) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else _M3_TOKEN.escape(str(value))  # a tag in it would be another member


def m3_element(name: str, inside: str) -> str:
    """Return an element of MiniMax M3's markup."""
    return f"{M3}<{name}>{inside}{M3}</{name}>"


@dataclass(frozen=True)
class PythonStyle:
    """``{call}``: a call with keyword arguments, or with one dict if a key is not a Python name."""

    notation: Notation

    def __call__(self, call: ToolCall, _index: int, _markers: ReservedText) -> dict[str, Any]:
        """Encode one call."""
        given = members(call.raw_arguments)
        if all(key.isidentifier() for key in given):
            inside = ", ".join(f"{key}={self.notation.convert(raw)}" for key, raw in given.items())
        else:
            pairs = (f"{self.notation.text(key)}: {self.notation.convert(raw)}" for key, raw in given.items())
            inside = f"{{{', '.join(pairs)}}}"
        return {"call": f"{call.name}({inside})"}


_GEMMA_KEY = re.compile(r"[^\W_][\w.$-]*")


def gemma_key(key: str) -> str:
    """Return a key in Gemma's notation: in quotes if it could not be read without."""
    return key if _GEMMA_KEY.fullmatch(key) else quoted(key)


def gemma_notation(mark: str, encode: Callable[[str], str] = unchanged) -> Notation:
    """Return Gemma's notation: JSON with bare keys, and texts, encoded by ``encode``, between two marks."""
    return Notation("true", "false", "null", text=lambda text: mark + encode(text) + mark, key=gemma_key, comma=",", colon=":")


@dataclass(frozen=True)
class GemmaStyle:
    """``{name}``, and ``{arguments}`` in Gemma's notation. ``mark`` stands before and behind each text."""

    mark: str

    def __call__(self, call: ToolCall, _index: int, markers: ReservedText) -> dict[str, Any]:
        """Encode one call."""
        notation = gemma_notation(self.mark, markers.raw)
        inside = ",".join(f"{gemma_key(key)}:{notation.convert(value)}" for key, value in members(call.raw_arguments).items())
        return {"name": call.name, "arguments": f"{{{inside}}}"}

"""Styles: how the parts of one call are encoded for the pattern that a family writes its calls by.

A style fills in the placeholders of ``FamilyWriter.call``, one call at a time. Markers in a value that has escapes are written as
escapes; a text without escapes stays as it is where the family's reader understands it (``ReservedText.raw``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from patchbay.formats.render.values import Notation, json_arguments, members, quoted, read_value
from patchbay.formats.render.writer import ReservedText, Style
from patchbay.types import ToolCall

PYTHON = Notation("True", "False", "None", text=repr, key=repr)
PYTHON_WITH_JSON_WORDS = Notation("true", "false", "null", text=quoted, key=quoted)
PYTHON_IN_DOUBLE_QUOTES = Notation("True", "False", "None", text=quoted, key=quoted)


def json_style(arguments: str = "arguments") -> Style:
    """Arguments as JSON.

    Placeholders: ``{name}`` and ``{id}``, ``{json_name}`` and ``{json_id}`` as JSON strings, ``{arguments}`` as JSON,
    ``{json_arguments}``: that JSON inside of a string, and ``{object}``: an object with the name, and the arguments under the key
    ``arguments``.
    """

    def encode(call: ToolCall, _index: int, _markers: ReservedText) -> dict[str, Any]:
        name, written = quoted(call.name), json_arguments(call.raw_arguments)
        return {
            "name": call.name,
            "id": call.id,
            "json_name": name,
            "json_id": quoted(call.id),
            "arguments": written,
            "json_arguments": quoted(written),
            "object": f'{{"name": {name}, "{arguments}": {written}}}',
        }

    return encode


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
            type=_JSON_TYPES.get(raw[0], "number"),
            string="true" if is_text else "false",
        )


_JSON_TYPES = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}

M3 = "]<]minimax[>["
_M3_TOKEN = ReservedText((M3,))


def nested_elements(call: ToolCall, _index: int, markers: ReservedText) -> dict[str, Any]:
    """Members of objects and items of lists as elements too, with MiniMax M3's token before every tag: ``{name}``, ``{values}``.

    An empty list, an empty object and an empty text look alike; the schema distinguishes them.
    """
    values = "".join(_m3_element(key, _m3_value(raw, markers)) for key, raw in members(call.raw_arguments).items())
    return {"name": call.name, "values": values}


def _m3_value(raw: str, markers: ReservedText) -> str:
    try:
        value = read_value(raw)
        return markers.raw(value) if isinstance(value, str) else _m3_inside(value)
    except RecursionError:
        return raw


def _m3_inside(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(_m3_element(key, _m3_inside(item)) for key, item in value.items())
    if isinstance(value, list):
        return "".join(_m3_element("item", _m3_inside(item)) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else _M3_TOKEN.escape(str(value))  # a tag in it would be another member


def _m3_element(name: str, inside: str) -> str:
    return f"{M3}<{name}>{inside}{M3}</{name}>"


def python_style(notation: Notation) -> Style:
    """``{call}``: a call with keyword arguments, or with one dict if a key is not a Python name."""

    def encode(call: ToolCall, _index: int, _markers: ReservedText) -> dict[str, Any]:
        given = members(call.raw_arguments)
        if all(key.isidentifier() for key in given):
            inside = ", ".join(f"{key}={notation.convert(raw)}" for key, raw in given.items())
        else:
            pairs = (f"{notation.text(key)}: {notation.convert(raw)}" for key, raw in given.items())
            inside = f"{{{', '.join(pairs)}}}"
        return {"call": f"{call.name}({inside})"}

    return encode


def gemma_notation(mark: str, encode: Callable[[str], str] = unchanged) -> Notation:
    """Return Gemma's notation: JSON with bare keys, and texts, encoded by ``encode``, between two marks."""
    return Notation("true", "false", "null", text=lambda text: mark + encode(text) + mark, key=unchanged, comma=",", colon=":")


def gemma_style(mark: str) -> Style:
    """``{name}``, and ``{arguments}`` in Gemma's notation."""

    def encode(call: ToolCall, _index: int, markers: ReservedText) -> dict[str, Any]:
        notation = gemma_notation(mark, markers.raw)
        inside = ",".join(f"{key}:{notation.convert(value)}" for key, value in members(call.raw_arguments).items())
        return {"name": call.name, "arguments": f"{{{inside}}}"}

    return encode

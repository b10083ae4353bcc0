"""Families that write arguments as elements: XML with named parameters, and key/value tags (catalogue 2.3 and 2.4).

What lives here: the pattern that they share. The families are rows of ``xml_parameters`` and ``xml_keys``.

A text stands in its element as it is, without escapes, so one that holds a mark of the family cannot be written
(``FamilyWriter.holds``). Other values are JSON, or Python where the family's template writes that; ``null`` is always ``null``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from patchbay.formats.writing.family import WriteCalls
from patchbay.formats.writing.marks import Marks
from patchbay.formats.writing.values import PYTHON, members
from patchbay.types import ToolCall

Spell = Callable[[str, Marks], str]
"""Writes a value that is no text; it is given as JSON."""


def as_json(raw: str, marks: Marks) -> str:
    """The JSON text, marks in its strings escaped."""
    return marks.defused_json(raw)


def as_json_with_python_booleans(raw: str, marks: Marks) -> str:
    """``True`` and ``False`` at the top, JSON else."""
    return {"true": "True", "false": "False"}.get(raw) or marks.defused_json(raw)


def as_python(raw: str, marks: Marks) -> str:
    """A Python literal, but for ``null``."""
    return raw if raw == "null" else marks.defused_json(PYTHON.respell(raw))


def as_it_is(text: str) -> str:
    """A text without any change."""
    return text


def as_cdata(text: str) -> str:
    """A text in a CDATA section where it holds more than a plain line."""
    return f"<![CDATA[{text}]]>" if any(mark in text for mark in "<&\n\r") or text != text.strip() else text


def elements(
    *,
    call: str,
    value: str,
    block: tuple[str, str] = ("", ""),
    join: str = "\n",
    spell: Spell = as_json,
    text: Callable[[str], str] = as_it_is,
    attribute: Callable[[str], str] = as_it_is,
) -> WriteCalls:
    """Calls after two patterns, inside one block.

    ``call`` is filled in with ``{name}``, ``{values}`` and ``{index}`` (from 1), ``value`` with ``{key}``, ``{value}``,
    ``{type}`` (its JSON type) and ``{string}`` ("true" or "false").
    """

    def written(name: str, raw: str, marks: Marks) -> str:
        is_text = raw.startswith('"')
        return value.format(
            key=attribute(name),
            value=text(json.loads(raw)) if is_text else spell(raw, marks),
            type=_json_type(raw),
            string="true" if is_text else "false",
        )

    def write(calls: Sequence[ToolCall], marks: Marks) -> str:
        texts = []
        for index, each in enumerate(calls, 1):
            values = "".join(written(key, raw, marks) for key, raw in members(each.raw_arguments).items())
            texts.append(call.format(name=attribute(each.name), values=values, index=index))
        return block[0] + join.join(texts) + block[1]

    return write


def _json_type(raw: str) -> str:
    kinds = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}
    return kinds.get(raw[0], "number")

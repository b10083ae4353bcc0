"""Gemma's own way: JSON with bare keys and texts between a mark (catalogue 2.5)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from patchbay.formats.writing.family import FamilyWriter, Frames, Layout, Listing
from patchbay.formats.writing.marks import Marks
from patchbay.formats.writing.values import Number, Spelling, members
from patchbay.types import ToolCall, ToolSpec

_DEEPEST = 12
"""A schema may go on without end; what lies deeper is left out."""
_TEXT = "Keys stand bare, texts as they are between two {0}, everything else as JSON."


def _between(mark: str, text: str) -> str:
    return f"{mark}{text}{mark}"


def _bare(key: str) -> str:
    return key


def _spelling(mark: str) -> Spelling:
    return Spelling("true", "false", "null", text=partial(_between, mark), key=_bare, comma=",", colon=":")


def _family(
    name: str, *, mark: str, call: tuple[str, str], declaration: tuple[str, str], layout: Layout, frames: Frames
) -> FamilyWriter:
    spelling = _spelling(mark)

    def write(calls: Sequence[ToolCall], _marks: Marks) -> str:
        return "".join(f"{call[0]}call:{each.name}{_arguments(each.raw_arguments)}{call[1]}" for each in calls)

    def _arguments(raw: str) -> str:
        return "{" + ",".join(f"{key}:{spelling.respell(value)}" for key, value in members(raw).items()) + "}"

    def listing(specs: Sequence[ToolSpec], marks: Marks) -> str:
        return "\n".join(
            f"{declaration[0]}declaration:{marks.defused(spec.name)}{spelling.spell(_declared(spec, marks))}{declaration[1]}"
            for spec in specs
        )

    return FamilyWriter(
        format=name,
        by_name=False,
        write=write,
        listing_of=Listing("The tools, each with its description and the schema of its arguments:", listing),
        marks=(mark, *call, *declaration, "<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>"),
        layout=layout,
        frames=frames,
        rules=(_TEXT.format(mark),),
        raw=True,
    )


def _declared(spec: ToolSpec, marks: Marks) -> dict[str, Any]:
    described = {"description": marks.defused(spec.description)} if spec.description else {}
    return {**described, "parameters": _schema(spec.parameters, marks, 0)}


def _schema(value: Any, marks: Marks, depth: int, *, names: bool = False) -> Any:
    """A schema as Gemma was shown them: types in capitals. ``names``: the keys are parameters, "type" one like any other."""
    if isinstance(value, Mapping):
        if depth > _DEEPEST:
            return {}
        return {
            marks.defused(str(key)): _type_name(item, marks)
            if key == "type" and not names
            else _schema(item, marks, depth + 1, names=key == "properties" and not names)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_schema(item, marks, depth + 1) for item in value] if depth <= _DEEPEST else []
    if isinstance(value, str):
        return marks.defused(value)
    return value if value is None or isinstance(value, bool) else Number(json.dumps(value))


def _type_name(kinds: Any, marks: Marks) -> Any:
    if isinstance(kinds, list | tuple):
        return [marks.defused(str(kind).upper()) for kind in kinds]
    return marks.defused(str(kinds).upper())


GEMMA = (
    _family(
        "gemma4",
        mark='<|"|>',
        call=("<|tool_call>", "<tool_call|>"),
        declaration=("<|tool>", "<tool|>"),
        layout=Layout(("<|channel>thought\n", "\n<channel|>"), prose=("", "")),
        frames=Frames(
            '<|tool_response>response:{name}{{value:<|"|>{content}<|"|>}}<tool_response|>',
            join="",
            marks=("<|tool_response>", "<tool_response|>"),
        ),
    ),
    _family(
        "functiongemma",
        mark="<escape>",
        call=("<start_function_call>", "<end_function_call>"),
        declaration=("<start_function_declaration>", "<end_function_declaration>"),
        layout=Layout(prose=("", "")),
        frames=Frames(
            "<start_function_response>response:{name}{{value:<escape>{content}<escape>}}<end_function_response>",
            join="",
            marks=("<start_function_response>", "<end_function_response>"),
        ),
    ),
)

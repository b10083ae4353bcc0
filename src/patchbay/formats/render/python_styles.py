"""Families that write calls as Python, and Gemma's notation: JSON with bare keys and texts between tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patchbay.formats.render.tool_lists import json_lines, json_list
from patchbay.formats.render.writer import (
    CHATML,
    LLAMA,
    PYTHON,
    PYTHON_IN_DOUBLE_QUOTES,
    PYTHON_WITH_JSON_WORDS,
    SEVERAL_IN_BLOCK,
    SEVERAL_IN_LIST,
    TOOL_RESPONSE_JSON,
    FamilyWriter,
    Frames,
    Layout,
    Listing,
    Notation,
    NumberText,
    ReservedText,
    WriteCalls,
    members,
)
from patchbay.types import ToolCall, ToolSpec

_KEYWORDS = "Arguments are keyword arguments, their values Python literals."


def python_call(call: ToolCall, notation: Notation) -> str:
    """Return a call with keyword arguments, or with one dict if a key is not a Python name."""
    given = members(call.raw_arguments)
    if all(key.isidentifier() for key in given):
        return f"{call.name}({', '.join(f'{key}={notation.convert(raw)}' for key, raw in given.items())})"
    inside = ", ".join(f"{notation.text(key)}: {notation.convert(raw)}" for key, raw in given.items())
    return f"{call.name}({{{inside}}})"


def _calls(before: str, after: str, *, join: str = ", ", notation: Notation = PYTHON, each: str = "{call}") -> WriteCalls:
    def write(calls: Sequence[ToolCall], _markers: ReservedText) -> str:
        return before + join.join(each.format(call=python_call(call, notation)) for call in calls) + after

    return write


PYTHON_CALLS = (
    FamilyWriter(
        format="pythonic",
        write=_calls("[", "]"),
        listing_of=json_list(openai=False, indent=4),
        markers=LLAMA,
        frames=TOOL_RESPONSE_JSON,
        rules=(_KEYWORDS,),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="llama4_pythonic",
        by_name=False,
        write=_calls("<|python_start|>[", "]<|python_end|>"),
        listing_of=json_list(openai=False, indent=4),
        markers=("<|python_start|>", "<|python_end|>", "<|header_start|>", "<|eot|>", "<|eom|>"),
        frames=TOOL_RESPONSE_JSON,
        rules=(_KEYWORDS,),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="lfm2",
        by_name=False,
        write=_calls("<|tool_call_start|>[", "]<|tool_call_end|>", notation=PYTHON_IN_DOUBLE_QUOTES),
        listing_of=json_list("List of tools: <|tool_list_start|>", "<|tool_list_end|>", openai=False),
        markers=("<|tool_call_", "<|tool_list_", *CHATML),
        layout=Layout(("<think>", "</think>"), prose=("", "")),
        frames=Frames(
            "<|tool_response_start|>{content}<|tool_response_end|>", markers=("<|tool_response_start|>", "<|tool_response_end|>")
        ),
        rules=(_KEYWORDS,),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="olmo3",
        write=_calls("<function_calls>", "</function_calls>", join="\n", notation=PYTHON_WITH_JSON_WORDS),
        listing_of=json_list("<functions>", "</functions>", openai=False),
        markers=("<function_calls", *CHATML),
        layout=Layout(prose=("", "")),
        rules=("Arguments are keyword arguments, their values JSON.", "Each call stands on a line of its own."),
        several=SEVERAL_IN_BLOCK,
    ),
    FamilyWriter(
        format="tool_code",
        by_name=False,
        write=_calls("```tool_code\n", "\n```", join="\n", notation=PYTHON_IN_DOUBLE_QUOTES, each="print(default_api.{call})"),
        listing_of=json_lines("", "", openai=False),
        markers=("<start_of_turn>", "<end_of_turn>"),
        frames=Frames("```tool_output\n{json}\n```", markers=("```tool_output",)),
        rules=(_KEYWORDS,),
        several=SEVERAL_IN_BLOCK,
    ),
)


_MAX_DEPTH = 12
"""Maximum depth of a schema; what lies deeper is left out."""
_TEXT = "Keys stand bare, texts as they are between two {0}, everything else as JSON."


def _bare(key: str) -> str:
    return key


def _notation(mark: str, encode: Callable[[str], str] = _bare) -> Notation:
    """Return the notation with texts, encoded by ``encode``, between two marks."""
    return Notation("true", "false", "null", text=lambda text: mark + encode(text) + mark, key=_bare, comma=",", colon=":")


def _family(
    name: str, *, mark: str, call: tuple[str, str], declaration: tuple[str, str], layout: Layout, frames: Frames
) -> FamilyWriter:
    notation = _notation(mark)

    def write(calls: Sequence[ToolCall], markers: ReservedText) -> str:
        return "".join(f"{call[0]}call:{each.name}{_arguments(each.raw_arguments, markers)}{call[1]}" for each in calls)

    def _arguments(raw: str, markers: ReservedText) -> str:
        notation = _notation(mark, markers.raw)
        return "{" + ",".join(f"{key}:{notation.convert(value)}" for key, value in members(raw).items()) + "}"

    def listing(specs: Sequence[ToolSpec], markers: ReservedText) -> str:
        return "\n".join(
            f"{declaration[0]}declaration:{markers.escape(spec.name)}{notation.encode(_declared(spec, markers))}{declaration[1]}"
            for spec in specs
        )

    return FamilyWriter(
        format=name,
        by_name=False,
        write=write,
        listing_of=Listing("The tools, each with its description and the schema of its arguments:", listing),
        markers=(mark, *call, *declaration, "<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>"),
        layout=layout,
        frames=frames,
        rules=(_TEXT.format(mark),),
        raw=True,
    )


def _declared(spec: ToolSpec, markers: ReservedText) -> dict[str, Any]:
    described = {"description": markers.escape(spec.description)} if spec.description else {}
    return {**described, "parameters": _schema(spec.parameters, markers, 0)}


def _schema(value: Any, markers: ReservedText, depth: int, *, names: bool = False) -> Any:
    """Convert a schema to Gemma's training layout: types in capitals. ``names``: the keys are parameters, "type" included."""
    if isinstance(value, Mapping):
        if depth > _MAX_DEPTH:
            return {}
        return {
            markers.escape(str(key)): _type_name(item, markers)
            if key == "type" and not names
            else _schema(item, markers, depth + 1, names=key == "properties" and not names)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_schema(item, markers, depth + 1) for item in value] if depth <= _MAX_DEPTH else []
    if isinstance(value, str):
        return markers.escape(value)
    return value if value is None or isinstance(value, bool) else NumberText(json.dumps(value))


def _type_name(kinds: Any, markers: ReservedText) -> Any:
    if isinstance(kinds, list | tuple):
        return [markers.escape(str(kind).upper()) for kind in kinds]
    return markers.escape(str(kinds).upper())


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
            markers=("<|tool_response>", "<tool_response|>"),
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
            markers=("<start_function_response>", "<end_function_response>"),
        ),
    ),
)

"""Families that write calls as Python (catalogue 2.6, and Gemma's ``tool_code`` of 2.5)."""

from __future__ import annotations

from collections.abc import Sequence

from patchbay.formats.writing.family import (
    SEVERAL_IN_BLOCK,
    SEVERAL_IN_LIST,
    TOOL_RESPONSE_JSON,
    FamilyWriter,
    Frames,
    Layout,
    WriteCalls,
)
from patchbay.formats.writing.listings import json_lines, json_list
from patchbay.formats.writing.marks import CHATML, LLAMA, Marks
from patchbay.formats.writing.values import PYTHON, PYTHON_IN_DOUBLE_QUOTES, PYTHON_WITH_JSON_WORDS, Spelling, members
from patchbay.types import ToolCall

_KEYWORDS = "Arguments are keyword arguments, their values Python literals."


def python_call(call: ToolCall, spelling: Spelling) -> str:
    """A call with keyword arguments; with one dict as its only argument where a key is no Python name."""
    given = members(call.raw_arguments)
    if all(key.isidentifier() for key in given):
        return f"{call.name}({', '.join(f'{key}={spelling.respell(raw)}' for key, raw in given.items())})"
    inside = ", ".join(f"{spelling.text(key)}: {spelling.respell(raw)}" for key, raw in given.items())
    return f"{call.name}({{{inside}}})"


def _calls(before: str, after: str, *, join: str = ", ", spelling: Spelling = PYTHON, each: str = "{call}") -> WriteCalls:
    def write(calls: Sequence[ToolCall], _marks: Marks) -> str:
        return before + join.join(each.format(call=python_call(call, spelling)) for call in calls) + after

    return write


PYTHON_CALLS = (
    FamilyWriter(
        format="pythonic",
        write=_calls("[", "]"),
        listing_of=json_list(openai=False, indent=4),
        marks=LLAMA,
        frames=TOOL_RESPONSE_JSON,
        rules=(_KEYWORDS,),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="llama4_pythonic",
        by_name=False,
        write=_calls("<|python_start|>[", "]<|python_end|>"),
        listing_of=json_list(openai=False, indent=4),
        marks=("<|python_start|>", "<|python_end|>", "<|header_start|>", "<|eot|>", "<|eom|>"),
        frames=TOOL_RESPONSE_JSON,
        rules=(_KEYWORDS,),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="lfm2",
        by_name=False,
        write=_calls("<|tool_call_start|>[", "]<|tool_call_end|>", spelling=PYTHON_IN_DOUBLE_QUOTES),
        listing_of=json_list("List of tools: <|tool_list_start|>", "<|tool_list_end|>", openai=False),
        marks=("<|tool_call_", "<|tool_list_", *CHATML),
        layout=Layout(("<think>", "</think>"), prose=("", "")),
        frames=Frames(
            "<|tool_response_start|>{content}<|tool_response_end|>", marks=("<|tool_response_start|>", "<|tool_response_end|>")
        ),
        rules=(_KEYWORDS,),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="olmo3",
        write=_calls("<function_calls>", "</function_calls>", join="\n", spelling=PYTHON_WITH_JSON_WORDS),
        listing_of=json_list("<functions>", "</functions>", openai=False),
        marks=("<function_calls", *CHATML),
        layout=Layout(prose=("", "")),
        rules=("Arguments are keyword arguments, their values JSON.", "Each call stands on a line of its own."),
        several=SEVERAL_IN_BLOCK,
    ),
    FamilyWriter(
        format="tool_code",
        by_name=False,
        write=_calls("```tool_code\n", "\n```", join="\n", spelling=PYTHON_IN_DOUBLE_QUOTES, each="print(default_api.{call})"),
        listing_of=json_lines("", "", openai=False),
        marks=("<start_of_turn>", "<end_of_turn>"),
        frames=Frames("```tool_output\n{json}\n```", marks=("```tool_output",)),
        rules=(_KEYWORDS,),
        several=SEVERAL_IN_BLOCK,
    ),
)

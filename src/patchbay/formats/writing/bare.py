"""Families without marks of their own: bare JSON, and styles that a prompt teaches (catalogue 2.7).

A result could begin a call by a mere line of text, so here it always stands in a JSON string.
"""

from __future__ import annotations

from collections.abc import Sequence

from patchbay.formats.writing.family import SEVERAL_IN_LIST, TOOL_RESPONSE_JSON, FamilyWriter, Frames, Layout
from patchbay.formats.writing.json_tags import each, json_object, together
from patchbay.formats.writing.listings import json_lines, json_list
from patchbay.formats.writing.marks import LLAMA, Marks
from patchbay.formats.writing.named import spelled
from patchbay.formats.writing.values import json_arguments, quoted
from patchbay.types import ToolCall

_ARGUMENTS = '"arguments" is an object that fits the tool\'s schema ({} if it takes none).'
_PARAMETERS = '"parameters" is an object that fits the tool\'s schema ({} if it takes none).'
_ALONE = "Write no other text in an answer that calls a tool."


def _openai_dict(calls: Sequence[ToolCall], _marks: Marks) -> str:
    objects = (
        f'{{"id": {quoted(call.id)}, "type": "function", "function": '
        f'{{"name": {quoted(call.name)}, "arguments": {quoted(json_arguments(call.raw_arguments))}}}}}'
        for call in calls
    )
    return '{"tool_calls": [' + ", ".join(objects) + "]}"


def _bare_objects(calls: Sequence[ToolCall], _marks: Marks) -> str:
    return "\n".join(map(json_object, calls))


BARE = (
    FamilyWriter(
        format="llama3_json",
        write=each("", "", join="; ", arguments="parameters"),
        listing_of=json_lines("", ""),
        marks=("<|python_tag|>", *LLAMA),
        frames=TOOL_RESPONSE_JSON,
        rules=(_PARAMETERS, _ALONE),
        several='For several calls write several of these, separated by "; ".',
    ),
    FamilyWriter(
        format="bare_json",
        by_name=False,
        write=_bare_objects,
        listing_of=json_lines("", "", openai=False),
        frames=TOOL_RESPONSE_JSON,
        rules=(_ARGUMENTS, _ALONE),
    ),
    FamilyWriter(
        format="bare_json_list",
        by_name=False,
        write=together("[", "]"),
        listing_of=json_list(openai=False),
        frames=TOOL_RESPONSE_JSON,
        rules=(_ARGUMENTS, _ALONE),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="json_array_required",
        by_name=False,
        write=together("[", "]", arguments="parameters"),
        listing_of=json_list(openai=False),
        frames=TOOL_RESPONSE_JSON,
        rules=(_PARAMETERS, _ALONE),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="xlam",
        write=together("[", "]"),
        listing_of=json_list(openai=False),
        frames=TOOL_RESPONSE_JSON,
        rules=(_ARGUMENTS, _ALONE),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="openai_dict",
        by_name=False,
        write=_openai_dict,
        listing_of=json_list(),
        frames=TOOL_RESPONSE_JSON,
        rules=('"arguments" is a JSON object inside a string.', _ALONE),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="react",
        by_name=False,
        write=spelled("Action: {name}\nAction Input: {arguments}", join="\n"),
        listing_of=json_lines("", "", openai=False),
        layout=Layout(None, answer=("Final Answer: ", "")),
        frames=Frames("Observation: {json}", marks=("Observation:",)),
        rules=("The input is a JSON object that fits the tool's schema ({} if it takes none).",),
        parallel=False,
    ),
    FamilyWriter(
        format="qwen_agent",
        by_name=False,
        write=spelled("✿FUNCTION✿: {name}\n✿ARGS✿: {arguments}", join="\n"),
        listing_of=json_lines("", "", openai=False),
        marks=("✿FUNCTION", "✿ARGS"),
        layout=Layout(answer=("✿RETURN✿: ", "")),
        frames=Frames("✿RESULT✿: {content}", marks=("✿RESULT", "✿RETURN")),
        rules=("The arguments are a JSON object that fits the tool's schema ({} if it takes none).",),
    ),
)

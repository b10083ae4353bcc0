"""Families that write calls as JSON objects between marks of their own (catalogue 2.1)."""

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
from patchbay.formats.writing.marks import CHATML, Marks
from patchbay.formats.writing.values import json_arguments, quoted
from patchbay.types import ToolCall

_ARGUMENTS = '"arguments" is an object that fits the tool\'s schema ({} if it takes none).'
_PARAMETERS = '"parameters" is an object that fits the tool\'s schema ({} if it takes none).'


def json_object(call: ToolCall, *, name: str = "name", arguments: str = "arguments", before: str = "", after: str = "") -> str:
    """A call as a JSON object; ``before`` and ``after`` are further members."""
    return f'{{{before}"{name}": {quoted(call.name)}, "{arguments}": {json_arguments(call.raw_arguments)}{after}}}'


def each(before: str, after: str, *, join: str = "\n", arguments: str = "arguments") -> WriteCalls:
    """A block for every call."""

    def write(calls: Sequence[ToolCall], _marks: Marks) -> str:
        return join.join(before + json_object(call, arguments=arguments) + after for call in calls)

    return write


def together(before: str, after: str, *, join: str = ", ", arguments: str = "arguments") -> WriteCalls:
    """One block for all calls."""

    def write(calls: Sequence[ToolCall], _marks: Marks) -> str:
        return before + join.join(json_object(call, arguments=arguments) for call in calls) + after

    return write


def _cohere(calls: Sequence[ToolCall], _marks: Marks) -> str:
    objects = (
        json_object(call, name="tool_name", arguments="parameters", before=f'"tool_call_id": {quoted(call.id)}, ')
        for call in calls
    )
    return "<|START_ACTION|>[\n    " + ",\n    ".join(objects) + "\n]<|END_ACTION|>"


def _command_r_plus(calls: Sequence[ToolCall], _marks: Marks) -> str:
    objects = (
        f'    {{\n        "tool_name": {quoted(call.name)},\n        "parameters": {json_arguments(call.raw_arguments)}\n    }}'
        for call in calls
    )
    return "Action:\n```json\n[\n" + ",\n".join(objects) + "\n]```\n"


def _apertus(calls: Sequence[ToolCall], _marks: Marks) -> str:
    objects = (f"{{{quoted(call.name)}: {json_arguments(call.raw_arguments)}}}" for call in calls)
    return "<|tools_prefix|>[" + ", ".join(objects) + "]<|tools_suffix|>"


def _inkling(calls: Sequence[ToolCall], _marks: Marks) -> str:
    return "<|message_model|>".join(
        f"{call.name}<|content_invoke_tool_json|>{json_object(call, arguments='args')}<|end_message|>" for call in calls
    )


JSON_TAGS = (
    FamilyWriter(
        format="hermes",
        write=each("<tool_call>\n", "\n</tool_call>"),
        listing_of=json_lines(),
        marks=("<tool_call", *CHATML),
        rules=(_ARGUMENTS,),
    ),
    FamilyWriter(
        format="ernie45",
        write=each("<tool_call>\n", "\n</tool_call>\n", join=""),
        listing_of=json_lines(),
        marks=("<tool_call", "<response"),
        layout=Layout(("<think>\n", "\n</think>\n\n"), answer=("<response>\n", "\n</response>\n")),
        rules=(_ARGUMENTS,),
    ),
    FamilyWriter(
        format="longcat",
        write=each("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
        listing_of=json_lines(),
        marks=("<longcat_tool_call",),
        layout=Layout(("<longcat_think>\n", "\n</longcat_think>\n")),
        rules=(_ARGUMENTS,),
    ),
    FamilyWriter(
        format="granite3",
        by_name=False,
        write=together("<|tool_call|>[", "]"),
        listing_of=json_list(indent=4),
        marks=("<|tool_call|>", "<tool_call", "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
        rules=(_ARGUMENTS,),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="granite_20b_fc",
        write=each("<function_call> ", "", join=" "),
        listing_of=json_lines("", ""),
        marks=("<function_call",),
        rules=(_ARGUMENTS,),
    ),
    FamilyWriter(
        format="jamba",
        write=together("<tool_calls>[\n", "\n]</tool_calls>", join=",\n"),
        listing_of=json_lines("<tool_definitions>\n", "\n</tool_definitions>"),
        marks=("<tool_calls",),
        rules=(_ARGUMENTS,),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="hunyuan_a13b",
        write=together("<tool_calls>[", "]</tool_calls>"),
        listing_of=json_lines(),
        marks=("<tool_calls", "<answer"),
        layout=Layout(("<think>\n", "\n</think>\n"), answer=("<answer>\n", "\n</answer>")),
        rules=(_ARGUMENTS,),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="apriel",
        write=together("<tool_calls>[", "]</tool_calls>"),
        listing_of=json_lines("<available_tools>\n", "\n</available_tools>"),
        marks=("<tool_calls", "[BEGIN FINAL RESPONSE]", "<|end|>"),
        # The prompt opens the reasoning, by a line of words.
        layout=Layout(("", "\n[BEGIN FINAL RESPONSE]\n")),
        rules=(_ARGUMENTS,),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="minimax_m1",
        write=together("<tool_calls>\n", "\n</tool_calls>", join="\n"),
        listing_of=json_lines(),
        marks=("<tool_calls", "<end_of_sentence>", "<beginning_of_sentence>"),
        rules=(_ARGUMENTS,),
        several=SEVERAL_IN_BLOCK,
    ),
    FamilyWriter(
        format="nemotron_v2",
        write=together("<TOOLCALL>[", "]</TOOLCALL>"),
        listing_of=json_list("<AVAILABLE_TOOLS>", "</AVAILABLE_TOOLS>", openai=False),
        marks=("<TOOLCALL", "<SPECIAL_"),
        layout=Layout(("<think>\n", "\n</think>\n"), prose=("", "\n")),
        frames=Frames("{json}", join=", ", around="<TOOL_RESPONSE>[{results}]</TOOL_RESPONSE>", marks=("<TOOL_RESPONSE",)),
        rules=(_ARGUMENTS,),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="internlm2",
        by_name=False,
        write=each("<|action_start|> <|plugin|>\n", "<|action_end|>\n", join="", arguments="parameters"),
        listing_of=json_list(openai=False),
        marks=("<|action_start|>", "<|action_end|>", "<|plugin|>", *CHATML),
        layout=Layout(prose=("", "")),
        rules=(_PARAMETERS,),
    ),
    FamilyWriter(
        format="phi4_mini",
        write=together("functools[", "]"),
        listing_of=json_list("<|tool|>", "<|/tool|>", openai=False),
        marks=("functools[", "<|tool_call|>", "<|/tool_call|>", "<|end|>"),
        frames=Frames(
            '<|tool_response|>{{"output": {json}}}<|/tool_response|>', marks=("<|tool_response|>", "<|/tool_response|>")
        ),
        rules=(_ARGUMENTS,),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="firefunction_v2",
        write=together(" functools[", "]"),
        listing_of=json_list(openai=False),
        marks=("functools[",),
        layout=Layout(prose=("", "")),
        frames=TOOL_RESPONSE_JSON,
        rules=(_ARGUMENTS,),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="cohere_command",
        by_name=False,
        write=_cohere,
        listing_of=json_list("```json\n", "\n```", openai=False),
        marks=("<|START_", "<|END_", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>"),
        layout=Layout(
            ("<|START_THINKING|>", "<|END_THINKING|>"),
            prose=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
            answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ),
        frames=Frames(
            '    {{"tool_call_id": "{id}", "results": {{"0": {{"content": {json}}}}}, "is_error": null}}',
            join=",\n",
            around="<|START_TOOL_RESULT|>[\n{results}\n]<|END_TOOL_RESULT|>",
            marks=("<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>"),
        ),
        rules=('"tool_call_id" counts the calls of the whole conversation from "0".', _PARAMETERS),
        several=SEVERAL_IN_LIST,
        number_id=lambda number, _name: str(number),
    ),
    FamilyWriter(
        format="command_r_plus",
        write=_command_r_plus,
        listing_of=json_list("```json\n", "\n```", openai=False),
        marks=("Action:", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>"),
        frames=Frames(
            "Document: {number}\n{json}",
            join="\n\n",
            around="<results>\n{results}\n</results>",
            marks=("<results", "Document:"),
        ),
        rules=(_PARAMETERS,),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="apertus",
        by_name=False,
        write=_apertus,
        listing_of=json_list(openai=False),
        marks=("<|tools_prefix|>", "<|tools_suffix|>", "<|inner_", "<|assistant_", "<|user_", "<|system_", "<|developer_"),
        layout=Layout(("<|inner_prefix|>", "<|inner_suffix|>"), prose=("", "")),
        rules=("The tool's name is the key, and its value an object that fits the tool's schema ({} if it takes none).",),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="gigachat3",
        by_name=False,
        write=each("<|function_call|>", "", join=""),
        listing_of=json_lines("", "", openai=False),
        marks=("<|function_call|>", "<|message_sep|>", "<|role_sep|>"),
        layout=Layout(prose=("", "")),
        rules=(_ARGUMENTS,),
        parallel=False,
    ),
    FamilyWriter(
        format="inkling",
        by_name=False,
        write=_inkling,
        listing_of=json_list(openai=False),
        marks=("<|message_", "<|content_", "<|end_message|>"),
        layout=Layout(
            ("<|content_thinking|>", "<|end_message|><|message_model|>"),
            prose=("<|content_text|>", "<|end_message|><|message_model|>"),
            answer=("<|content_text|>", "<|end_message|>"),
        ),
        rules=('The name stands before the object and in it; "args" fits the tool\'s schema ({} if it takes none).',),
    ),
    FamilyWriter(
        format="pangu",
        by_name=False,
        write=together("[unused11][", "][unused12]"),
        listing_of=json_list(openai=False),
        marks=("[unused",),
        rules=(_ARGUMENTS,),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="hyperclova",
        by_name=False,
        write=together("<|im_end|>\n<|im_start|>assistant -> tool/function_call\n[", "]<|im_end|>"),
        listing_of=json_list(openai=False),
        marks=("-> tool/function_call", *CHATML),
        layout=Layout(("/think\n", "<|im_end|>\n<|im_start|>assistant\n"), prose=("", "")),
        rules=(_ARGUMENTS,),
        several=SEVERAL_IN_LIST,
    ),
)

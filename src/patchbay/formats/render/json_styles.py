"""Families that write arguments as JSON: in markers of their own, with the name outside of the JSON, or without markers.

A line of text is enough to begin a bare call, so for families without markers results are always written in a JSON string.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from patchbay.formats.render.tool_lists import HEADED, json_lines, json_list, typescript
from patchbay.formats.render.writer import (
    CHATML,
    LLAMA,
    SEVERAL_IN_BLOCK,
    SEVERAL_IN_LIST,
    TOOL_RESPONSE_JSON,
    FamilyWriter,
    Frames,
    Layout,
    ReservedText,
    WriteCalls,
    json_arguments,
    quoted,
)
from patchbay.types import ToolCall

_ARGUMENTS = '"arguments" is an object that fits the tool\'s schema ({} if it takes none).'
_PARAMETERS = '"parameters" is an object that fits the tool\'s schema ({} if it takes none).'


def spelled(call: str, *, join: str = "", block: tuple[str, str] = ("", "")) -> WriteCalls:
    """Return a writer of calls after a pattern, inside one block.

    Placeholders: ``{name}`` and ``{id}``, ``{json_name}`` and ``{json_id}`` as JSON strings, ``{arguments}`` as JSON, and
    ``{json_arguments}``: that JSON inside of a string.
    """

    def write(calls: Sequence[ToolCall], _markers: ReservedText) -> str:
        return block[0] + join.join(map(encode_call, calls)) + block[1]

    def encode_call(each: ToolCall) -> str:
        arguments = json_arguments(each.raw_arguments)
        return call.format(
            name=each.name,
            id=each.id,
            json_name=quoted(each.name),
            json_id=quoted(each.id),
            arguments=arguments,
            json_arguments=quoted(arguments),
        )

    return write


def _object(arguments: str) -> str:
    return f'{{{{"name": {{json_name}}, "{arguments}": {{arguments}}}}}}'


def each(before: str, after: str, *, join: str = "\n", arguments: str = "arguments") -> WriteCalls:
    """Return a writer with a block for every call, which is a JSON object."""
    return spelled(before + _object(arguments) + after, join=join)


def together(before: str, after: str, *, join: str = ", ", arguments: str = "arguments") -> WriteCalls:
    """Return a writer with one block for all calls, which are JSON objects."""
    return spelled(_object(arguments), join=join, block=(before, after))


_list_family = partial(FamilyWriter, rules=(_ARGUMENTS,), several=SEVERAL_IN_LIST)


JSON_TAGS = (
    FamilyWriter(
        format="hermes",
        write=each("<tool_call>\n", "\n</tool_call>"),
        listing_of=json_lines(),
        markers=("<tool_call", *CHATML),
        rules=(_ARGUMENTS,),
    ),
    FamilyWriter(
        format="ernie45",
        write=each("<tool_call>\n", "\n</tool_call>\n", join=""),
        listing_of=json_lines(),
        markers=("<tool_call", "<response"),
        layout=Layout(("<think>\n", "\n</think>\n\n"), answer=("<response>\n", "\n</response>\n")),
        rules=(_ARGUMENTS,),
    ),
    FamilyWriter(
        format="longcat",
        write=each("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
        listing_of=json_lines(),
        markers=("<longcat_tool_call",),
        layout=Layout(("<longcat_think>\n", "\n</longcat_think>\n")),
        rules=(_ARGUMENTS,),
    ),
    _list_family(
        format="granite3",
        by_name=False,
        write=together("<|tool_call|>[", "]"),
        listing_of=json_list(indent=4),
        markers=("<|tool_call|>", "<tool_call", "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
    ),
    FamilyWriter(
        format="granite_20b_fc",
        write=each("<function_call> ", "", join=" "),
        listing_of=json_lines("", ""),
        markers=("<function_call",),
        rules=(_ARGUMENTS,),
    ),
    _list_family(
        format="jamba",
        write=together("<tool_calls>[\n", "\n]</tool_calls>", join=",\n"),
        listing_of=json_lines("<tool_definitions>\n", "\n</tool_definitions>"),
        markers=("<tool_calls",),
    ),
    _list_family(
        format="hunyuan_a13b",
        write=together("<tool_calls>[", "]</tool_calls>"),
        listing_of=json_lines(),
        markers=("<tool_calls", "<answer"),
        layout=Layout(("<think>\n", "\n</think>\n"), answer=("<answer>\n", "\n</answer>")),
    ),
    _list_family(
        format="apriel",
        write=together("<tool_calls>[", "]</tool_calls>"),
        listing_of=json_lines("<available_tools>\n", "\n</available_tools>"),
        markers=("<tool_calls", "[BEGIN FINAL RESPONSE]", "<|end|>"),
        # The prompt opens the reasoning, by a line of words.
        layout=Layout(("", "\n[BEGIN FINAL RESPONSE]\n")),
    ),
    FamilyWriter(
        format="minimax_m1",
        write=together("<tool_calls>\n", "\n</tool_calls>", join="\n"),
        listing_of=json_lines(),
        markers=("<tool_calls", "<end_of_sentence>", "<beginning_of_sentence>"),
        rules=(_ARGUMENTS,),
        several=SEVERAL_IN_BLOCK,
    ),
    _list_family(
        format="nemotron_v2",
        write=together("<TOOLCALL>[", "]</TOOLCALL>"),
        listing_of=json_list("<AVAILABLE_TOOLS>", "</AVAILABLE_TOOLS>", openai=False),
        markers=("<TOOLCALL", "<SPECIAL_"),
        layout=Layout(("<think>\n", "\n</think>\n"), prose=("", "\n")),
        frames=Frames("{json}", join=", ", around="<TOOL_RESPONSE>[{results}]</TOOL_RESPONSE>", markers=("<TOOL_RESPONSE",)),
    ),
    FamilyWriter(
        format="internlm2",
        by_name=False,
        write=each("<|action_start|> <|plugin|>\n", "<|action_end|>\n", join="", arguments="parameters"),
        listing_of=json_list(openai=False),
        markers=("<|action_start|>", "<|action_end|>", "<|plugin|>", *CHATML),
        layout=Layout(prose=("", "")),
        rules=(_PARAMETERS,),
    ),
    _list_family(
        format="phi4_mini",
        write=together("functools[", "]"),
        listing_of=json_list("<|tool|>", "<|/tool|>", openai=False),
        markers=("functools[", "<|tool_call|>", "<|/tool_call|>", "<|end|>"),
        frames=Frames(
            '<|tool_response|>{{"output": {json}}}<|/tool_response|>', markers=("<|tool_response|>", "<|/tool_response|>")
        ),
    ),
    _list_family(
        format="firefunction_v2",
        write=together(" functools[", "]"),
        listing_of=json_list(openai=False),
        markers=("functools[",),
        layout=Layout(prose=("", "")),
        frames=TOOL_RESPONSE_JSON,
    ),
    FamilyWriter(
        format="cohere_command",
        by_name=False,
        write=spelled(
            '{{"tool_call_id": {json_id}, "tool_name": {json_name}, "parameters": {arguments}}}',
            join=",\n    ",
            block=("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>"),
        ),
        listing_of=json_list("```json\n", "\n```", openai=False),
        markers=("<|START_", "<|END_", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>"),
        layout=Layout(
            ("<|START_THINKING|>", "<|END_THINKING|>"),
            prose=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
            answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ),
        frames=Frames(
            '    {{"tool_call_id": "{id}", "results": {{"0": {{"content": {json}}}}}, "is_error": null}}',
            join=",\n",
            around="<|START_TOOL_RESULT|>[\n{results}\n]<|END_TOOL_RESULT|>",
            markers=("<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>"),
        ),
        rules=('"tool_call_id" counts the calls of the whole conversation from "0".', _PARAMETERS),
        several=SEVERAL_IN_LIST,
        number_id=lambda number, _name: str(number),
    ),
    FamilyWriter(
        format="command_r_plus",
        write=spelled(
            '    {{\n        "tool_name": {json_name},\n        "parameters": {arguments}\n    }}',
            join=",\n",
            block=("Action:\n```json\n[\n", "\n]```\n"),
        ),
        listing_of=json_list("```json\n", "\n```", openai=False),
        markers=("Action:", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>"),
        frames=Frames(
            "Document: {number}\n{json}",
            join="\n\n",
            around="<results>\n{results}\n</results>",
            markers=("<results", "Document:"),
        ),
        rules=(_PARAMETERS,),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="apertus",
        by_name=False,
        write=spelled("{{{json_name}: {arguments}}}", join=", ", block=("<|tools_prefix|>[", "]<|tools_suffix|>")),
        listing_of=json_list(openai=False),
        markers=("<|tools_prefix|>", "<|tools_suffix|>", "<|inner_", "<|assistant_", "<|user_", "<|system_", "<|developer_"),
        layout=Layout(("<|inner_prefix|>", "<|inner_suffix|>"), prose=("", "")),
        rules=("The tool's name is the key, and its value an object that fits the tool's schema ({} if it takes none).",),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="gigachat3",
        by_name=False,
        write=each("<|function_call|>", "", join=""),
        listing_of=json_lines("", "", openai=False),
        markers=("<|function_call|>", "<|message_sep|>", "<|role_sep|>"),
        layout=Layout(prose=("", "")),
        rules=(_ARGUMENTS,),
        parallel=False,
    ),
    FamilyWriter(
        format="inkling",
        by_name=False,
        write=spelled(f"{{name}}<|content_invoke_tool_json|>{_object('args')}<|end_message|>", join="<|message_model|>"),
        listing_of=json_list(openai=False),
        markers=("<|message_", "<|content_", "<|end_message|>"),
        layout=Layout(
            ("<|content_thinking|>", "<|end_message|><|message_model|>"),
            prose=("<|content_text|>", "<|end_message|><|message_model|>"),
            answer=("<|content_text|>", "<|end_message|>"),
        ),
        rules=('The name stands before the object and in it; "args" fits the tool\'s schema ({} if it takes none).',),
    ),
    _list_family(
        format="pangu",
        by_name=False,
        write=together("[unused11][", "][unused12]"),
        listing_of=json_list(openai=False),
        markers=("[unused",),
    ),
    _list_family(
        format="hyperclova",
        by_name=False,
        write=together("<|im_end|>\n<|im_start|>assistant -> tool/function_call\n[", "]<|im_end|>"),
        listing_of=json_list(openai=False),
        markers=("-> tool/function_call", *CHATML),
        layout=Layout(("/think\n", "<|im_end|>\n<|im_start|>assistant\n"), prose=("", "")),
    ),
)


_DEEPSEEK = ("<｜tool▁", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>")
_MISTRAL = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[AVAILABLE_TOOLS]", "[INST]", "[/INST]", "[THINK]", "[/THINK]", "<s>")
_AVAILABLE = json_list("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
_JSON = "The arguments are a JSON object that fits the tool's schema ({} if it takes none)."
_NEXT = "\n<|from|>assistant\n<|recipient|>"
AGAIN = "<|start|>assistant"
"""Separates the messages of a turn."""

CHANNEL_MARKS = ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|return|>")
CHANNEL_LAYOUT = Layout(
    ("<|channel|>analysis<|message|>", f"<|end|>{AGAIN}"),
    prose=("<|channel|>commentary<|message|>", f"<|end|>{AGAIN}"),
    answer=("<|channel|>final<|message|>", "<|return|>"),
)
CHANNEL_FRAMES = Frames(
    "<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{content}<|end|>",
    join="",
    markers=("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
)


_named_family = partial(FamilyWriter, rules=(_JSON,))


NAMED = (
    FamilyWriter(
        format="mistral_json",
        by_name=False,
        write=spelled('{{"name": {json_name}, "arguments": {arguments}, "id": "{id}"}}', join=", ", block=("[TOOL_CALLS][", "]")),
        listing_of=_AVAILABLE,
        markers=_MISTRAL,
        layout=Layout(prose=("", "")),
        frames=Frames(
            '[TOOL_RESULTS]{{"content": {json}, "call_id": "{id}"}}[/TOOL_RESULTS]',
            join="",
            markers=("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        ),
        rules=(
            '"arguments" is an object that fits the tool\'s schema ({} if it takes none).',
            '"id" has nine letters and digits.',
        ),
        several=SEVERAL_IN_LIST,
        number_id=lambda number, _name: f"call{(number + 1) % 100_000:05d}",
    ),
    _named_family(
        format="mistral_args",
        by_name=False,
        write=spelled("[TOOL_CALLS]{name}[ARGS]{arguments}"),
        listing_of=_AVAILABLE,
        markers=_MISTRAL,
        layout=Layout(("[THINK]", "[/THINK]"), prose=("", "")),
        frames=Frames(
            "[TOOL_RESULTS]{content}[/TOOL_RESULTS]", join="", markers=("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CONTENT]")
        ),
    ),
    _named_family(
        format="deepseek_v3_json",
        write=spelled(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>",
            join="\n",
            block=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        ),
        listing_of=HEADED,
        markers=_DEEPSEEK,
        layout=Layout(("<think>\n", "\n</think>\n\n"), prose=("", "")),
        frames=Frames(
            "<｜tool▁output▁begin｜>{content}<｜tool▁output▁end｜>",
            around="<｜tool▁outputs▁begin｜>{results}<｜tool▁outputs▁end｜>",
            markers=("<｜tool▁output",),
        ),
        several=SEVERAL_IN_BLOCK,
    ),
    _named_family(
        format="deepseek_v31",
        write=spelled(
            "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>",
            block=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        ),
        listing_of=HEADED,
        markers=_DEEPSEEK,
        layout=Layout(("<think>", "</think>"), prose=("", "")),
        frames=Frames("<｜tool▁output▁begin｜>{content}<｜tool▁output▁end｜>", join="", markers=("<｜tool▁output",)),
        several=SEVERAL_IN_BLOCK,
    ),
    FamilyWriter(
        format="kimi_k2",
        by_name=False,
        write=spelled(
            "<|tool_call_begin|>{id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
            block=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        ),
        listing_of=json_list(),
        markers=("<|tool_call", "<|im_"),
        layout=Layout(("<think>", "</think>"), prose=("", "")),
        frames=Frames("## Return of {id}\n{content}", markers=("## Return of",)),
        rules=(
            'The head is "functions.", the name, ":" and the number of the call, counted from 0 over the whole conversation.',
            _JSON,
        ),
        several=SEVERAL_IN_BLOCK,
        number_id=lambda number, name: f"functions.{name}:{number}",
    ),
    _named_family(
        format="functionary_v31",
        write=spelled("<function={name}>{arguments}</function>"),
        listing_of=json_lines("", "", openai=False),
        markers=("<function", "<|python_tag|>", *LLAMA),
        layout=Layout(prose=("", "")),
    ),
    FamilyWriter(
        format="functionary_v32",
        write=spelled("{name}\n{arguments}", join=">>>"),
        listing_of=typescript(),
        markers=LLAMA,
        # The prompt ends in ">>>". What is said to the user has the recipient "all".
        layout=Layout(None, prose=("all\n", ">>>"), answer=("all\n", "")),
        frames=TOOL_RESPONSE_JSON,
        rules=(_JSON, 'Separate calls, and what you say before them, by ">>>".'),
    ),
    FamilyWriter(
        format="functionary_v2",
        by_name=False,
        write=spelled("{name}\n<|content|>{arguments}", join=_NEXT),
        listing_of=typescript(),
        markers=("<|from|>", "<|recipient|>", "<|content|>", "<|stop|>"),
        # The prompt ends in "<|recipient|>".
        layout=Layout(None, prose=("all\n<|content|>", _NEXT), answer=("all\n<|content|>", "")),
        rules=(_JSON, "What you say to the user has the recipient all."),
    ),
    FamilyWriter(
        format="harmony",
        by_name=False,
        write=spelled("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>", join=AGAIN),
        listing_of=typescript("## functions\n\n"),
        markers=CHANNEL_MARKS,
        layout=CHANNEL_LAYOUT,
        frames=CHANNEL_FRAMES,
        rules=(_JSON, "A call goes to the channel commentary."),
    ),
    _named_family(
        format="plamo3",
        write=spelled(
            "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>"
            "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{arguments}<|plamo:end_tool_arguments:plamo|>"
            "<|plamo:end_tool_request:plamo|>",
            block=("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"),
        ),
        listing_of=json_lines("", ""),
        markers=("<|plamo:",),
        layout=Layout(("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"), prose=("", "")),
        several=SEVERAL_IN_BLOCK,
    ),
    _named_family(
        format="solar_open",
        by_name=False,
        write=spelled(
            "<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>{arguments}<|tool_call:end|>",
            block=("<|tool_calls|>", "<|calls|>"),
        ),
        listing_of=json_lines(),
        markers=("<|tool_call", "<|calls|>", "<|begin|>", "<|end|>", "<|content|>", "<|think|>"),
        layout=Layout(
            ("<|think|>", "<|end|><|begin|>assistant"),
            prose=("<|content|>", "<|end|><|begin|>assistant"),
            answer=("<|content|>", ""),
        ),
        several=SEVERAL_IN_BLOCK,
        number_id=lambda number, _name: f"call{(number + 1) % 100_000:05d}",
    ),
)


_ALONE = "Write no other text in an answer that calls a tool."


_bare_family = partial(FamilyWriter, frames=TOOL_RESPONSE_JSON, rules=(_ARGUMENTS, _ALONE))


BARE = (
    _bare_family(
        format="llama3_json",
        write=each("", "", join="; ", arguments="parameters"),
        listing_of=json_lines("", ""),
        markers=("<|python_tag|>", *LLAMA),
        rules=(_PARAMETERS, _ALONE),
        several='For several calls write several of these, separated by "; ".',
    ),
    _bare_family(
        format="bare_json",
        by_name=False,
        write=each("", ""),
        listing_of=json_lines("", "", openai=False),
    ),
    _bare_family(
        format="bare_json_list",
        by_name=False,
        write=together("[", "]"),
        listing_of=json_list(openai=False),
        several=SEVERAL_IN_LIST,
    ),
    _bare_family(
        format="json_array_required",
        by_name=False,
        write=together("[", "]", arguments="parameters"),
        listing_of=json_list(openai=False),
        rules=(_PARAMETERS, _ALONE),
        several=SEVERAL_IN_LIST,
    ),
    _bare_family(
        format="xlam",
        write=together("[", "]"),
        listing_of=json_list(openai=False),
        several=SEVERAL_IN_LIST,
    ),
    _bare_family(
        format="openai_dict",
        by_name=False,
        write=spelled(
            '{{"id": {json_id}, "type": "function", "function": {{"name": {json_name}, "arguments": {json_arguments}}}}}',
            join=", ",
            block=('{"tool_calls": [', "]}"),
        ),
        listing_of=json_list(),
        rules=('"arguments" is a JSON object inside a string.', _ALONE),
        several=SEVERAL_IN_LIST,
    ),
    FamilyWriter(
        format="react",
        by_name=False,
        write=spelled("Action: {name}\nAction Input: {arguments}", join="\n"),
        listing_of=json_lines("", "", openai=False),
        layout=Layout(None, answer=("Final Answer: ", "")),
        frames=Frames("Observation: {json}", markers=("Observation:",)),
        rules=("The input is a JSON object that fits the tool's schema ({} if it takes none).",),
        parallel=False,
    ),
    FamilyWriter(
        format="qwen_agent",
        by_name=False,
        write=spelled("✿FUNCTION✿: {name}\n✿ARGS✿: {arguments}", join="\n"),
        listing_of=json_lines("", "", openai=False),
        markers=("✿FUNCTION", "✿ARGS"),
        layout=Layout(answer=("✿RETURN✿: ", "")),
        frames=Frames("✿RESULT✿: {content}", markers=("✿RESULT", "✿RETURN")),
        rules=("The arguments are a JSON object that fits the tool's schema ({} if it takes none).",),
    ),
)

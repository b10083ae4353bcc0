"""Families that write a call's name outside of its JSON (catalogue 2.2)."""

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
from patchbay.formats.writing.json_tags import json_object
from patchbay.formats.writing.listings import HEADED, json_lines, json_list
from patchbay.formats.writing.marks import LLAMA, Marks
from patchbay.formats.writing.typescript import typescript
from patchbay.formats.writing.values import json_arguments
from patchbay.types import ToolCall

_DEEPSEEK = ("<｜tool▁", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>")
_MISTRAL = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[AVAILABLE_TOOLS]", "[INST]", "[/INST]", "[THINK]", "[/THINK]", "<s>")
_AVAILABLE = json_list("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
_JSON = "The arguments are a JSON object that fits the tool's schema ({} if it takes none)."
_NEXT = "\n<|from|>assistant\n<|recipient|>"
AGAIN = "<|start|>assistant"
"""Between the messages of a turn, where a turn has several."""

CHANNEL_MARKS = ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|return|>")
CHANNEL_LAYOUT = Layout(
    ("<|channel|>analysis<|message|>", f"<|end|>{AGAIN}"),
    prose=("<|channel|>commentary<|message|>", f"<|end|>{AGAIN}"),
    answer=("<|channel|>final<|message|>", "<|return|>"),
)
CHANNEL_FRAMES = Frames(
    "<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{content}<|end|>",
    join="",
    marks=("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
)


def spelled(call: str, *, join: str = "", block: tuple[str, str] = ("", "")) -> WriteCalls:
    """Calls after a pattern of ``{name}``, ``{id}`` and ``{arguments}``, inside one block."""

    def write(calls: Sequence[ToolCall], _marks: Marks) -> str:
        texts = (call.format(name=each.name, id=each.id, arguments=json_arguments(each.raw_arguments)) for each in calls)
        return block[0] + join.join(texts) + block[1]

    return write


def _mistral_json(calls: Sequence[ToolCall], _marks: Marks) -> str:
    return "[TOOL_CALLS][" + ", ".join(json_object(call, after=f', "id": "{call.id}"') for call in calls) + "]"


NAMED = (
    FamilyWriter(
        format="mistral_json",
        by_name=False,
        write=_mistral_json,
        listing_of=_AVAILABLE,
        marks=_MISTRAL,
        layout=Layout(prose=("", "")),
        frames=Frames(
            '[TOOL_RESULTS]{{"content": {json}, "call_id": "{id}"}}[/TOOL_RESULTS]',
            join="",
            marks=("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        ),
        rules=(
            '"arguments" is an object that fits the tool\'s schema ({} if it takes none).',
            '"id" has nine letters and digits.',
        ),
        several=SEVERAL_IN_LIST,
        number_id=lambda number, _name: f"call{(number + 1) % 100_000:05d}",
    ),
    FamilyWriter(
        format="mistral_args",
        by_name=False,
        write=spelled("[TOOL_CALLS]{name}[ARGS]{arguments}"),
        listing_of=_AVAILABLE,
        marks=_MISTRAL,
        layout=Layout(("[THINK]", "[/THINK]"), prose=("", "")),
        frames=Frames(
            "[TOOL_RESULTS]{content}[/TOOL_RESULTS]", join="", marks=("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CONTENT]")
        ),
        rules=(_JSON,),
    ),
    FamilyWriter(
        format="deepseek_v3_json",
        write=spelled(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>",
            join="\n",
            block=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        ),
        listing_of=HEADED,
        marks=_DEEPSEEK,
        layout=Layout(("<think>\n", "\n</think>\n\n"), prose=("", "")),
        frames=Frames(
            "<｜tool▁output▁begin｜>{content}<｜tool▁output▁end｜>",
            around="<｜tool▁outputs▁begin｜>{results}<｜tool▁outputs▁end｜>",
            marks=("<｜tool▁output",),
        ),
        rules=(_JSON,),
        several=SEVERAL_IN_BLOCK,
    ),
    FamilyWriter(
        format="deepseek_v31",
        write=spelled(
            "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>",
            block=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        ),
        listing_of=HEADED,
        marks=_DEEPSEEK,
        layout=Layout(("<think>", "</think>"), prose=("", "")),
        frames=Frames("<｜tool▁output▁begin｜>{content}<｜tool▁output▁end｜>", join="", marks=("<｜tool▁output",)),
        rules=(_JSON,),
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
        marks=("<|tool_call", "<|im_"),
        layout=Layout(("<think>", "</think>"), prose=("", "")),
        frames=Frames("## Return of {id}\n{content}", marks=("## Return of",)),
        rules=(
            'The head is "functions.", the name, ":" and the number of the call, counted from 0 over the whole conversation.',
            _JSON,
        ),
        several=SEVERAL_IN_BLOCK,
        number_id=lambda number, name: f"functions.{name}:{number}",
    ),
    FamilyWriter(
        format="functionary_v31",
        write=spelled("<function={name}>{arguments}</function>"),
        listing_of=json_lines("", "", openai=False),
        marks=("<function", "<|python_tag|>", *LLAMA),
        layout=Layout(prose=("", "")),
        rules=(_JSON,),
    ),
    FamilyWriter(
        format="functionary_v32",
        write=spelled("{name}\n{arguments}", join=">>>"),
        listing_of=typescript(),
        marks=LLAMA,
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
        marks=("<|from|>", "<|recipient|>", "<|content|>", "<|stop|>"),
        # The prompt ends in "<|recipient|>".
        layout=Layout(None, prose=("all\n<|content|>", _NEXT), answer=("all\n<|content|>", "")),
        rules=(_JSON, "What you say to the user has the recipient all."),
    ),
    FamilyWriter(
        format="harmony",
        by_name=False,
        write=spelled("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>", join=AGAIN),
        listing_of=typescript("## functions\n\n"),
        marks=CHANNEL_MARKS,
        layout=CHANNEL_LAYOUT,
        frames=CHANNEL_FRAMES,
        rules=(_JSON, "A call goes to the channel commentary."),
    ),
    FamilyWriter(
        format="plamo3",
        write=spelled(
            "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>"
            "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{arguments}<|plamo:end_tool_arguments:plamo|>"
            "<|plamo:end_tool_request:plamo|>",
            block=("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"),
        ),
        listing_of=json_lines("", ""),
        marks=("<|plamo:",),
        layout=Layout(("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"), prose=("", "")),
        rules=(_JSON,),
        several=SEVERAL_IN_BLOCK,
    ),
    FamilyWriter(
        format="solar_open",
        by_name=False,
        write=spelled(
            "<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>{arguments}<|tool_call:end|>",
            block=("<|tool_calls|>", "<|calls|>"),
        ),
        listing_of=json_lines(),
        marks=("<|tool_call", "<|calls|>", "<|begin|>", "<|end|>", "<|content|>", "<|think|>"),
        layout=Layout(
            ("<|think|>", "<|end|><|begin|>assistant"),
            prose=("<|content|>", "<|end|><|begin|>assistant"),
            answer=("<|content|>", ""),
        ),
        rules=(_JSON,),
        several=SEVERAL_IN_BLOCK,
        number_id=lambda number, _name: f"call{(number + 1) % 100_000:05d}",
    ),
)

"""Families that write arguments as XML with named parameters (catalogue 2.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from patchbay.formats.writing.family import SEVERAL_IN_BLOCK, TOOL_RESPONSE, FamilyWriter, Frames, Layout
from patchbay.formats.writing.listings import XML, json_lines, json_list
from patchbay.formats.writing.marks import CHATML, Marks
from patchbay.formats.writing.named import AGAIN, CHANNEL_FRAMES, CHANNEL_LAYOUT, CHANNEL_MARKS
from patchbay.formats.writing.typescript import typescript
from patchbay.formats.writing.values import members, read_value
from patchbay.formats.writing.xml import as_cdata, as_json_with_python_booleans, as_python, elements
from patchbay.types import ToolCall

_TEXT = "A text stands as it is, without quotes or escapes; everything else as JSON."
_TEXT_OR_PYTHON = "A text stands as it is, without quotes or escapes; everything else as a Python literal."
_TYPED = 'A text stands as it is, without quotes or escapes, with string="true"; everything else as JSON, with string="false".'
_DEEPSEEK = ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")
_FUNCTION_RESULTS = Frames(
    "<result>{content}</result>",
    around="<function_results>\n{results}\n</function_results>",
    marks=("<function_results", "<result"),
)
_TOOL_RESULT = Frames("<tool_result>{content}</tool_result>", marks=("<tool_result",))
_M3 = "]<]minimax[>["


def _dsml(name: str, tag: str, block: str, *, blank: str = "", frames: Frames = _TOOL_RESULT) -> FamilyWriter:
    """DeepSeek's markup language, or a sister's: ``tag`` is the mark in every tag, ``blank`` what stands behind it."""
    begin, end = f"<｜{tag}｜{blank}", f"</｜{tag}｜{blank}"
    return FamilyWriter(
        format=name,
        by_name=False,
        write=elements(
            block=(f"{begin}{block}>\n", f"\n{end}{block}>"),
            call=f'{begin}invoke name="{{name}}">\n{{values}}{end}invoke>',
            value=f'{begin}parameter name="{{key}}" string="{{string}}">{{value}}{end}parameter>\n',
        ),
        listing_of=json_lines("<functions>\n", "\n</functions>", openai=False),
        marks=(f"<｜{tag}｜", *_DEEPSEEK),
        layout=Layout(("<think>", "</think>"), prose=("", "\n\n")),
        frames=frames,
        rules=(_TYPED,),
        several=SEVERAL_IN_BLOCK,
        raw=True,
    )


def _minimax_m3(calls: Sequence[ToolCall], _marks: Marks) -> str:
    """Elements all the way down: what an object or a list holds are elements in it, and every tag has the mark before it."""
    blocks = []
    for call in calls:
        values = "".join(_m3_element(key, _m3_value(raw)) for key, raw in members(call.raw_arguments).items())
        blocks.append(f'{_M3}<invoke name="{call.name}">{values}{_M3}</invoke>\n')
    return f"{_M3}<tool_call>\n{''.join(blocks)}{_M3}</tool_call>"


def _m3_value(raw: str) -> str:
    try:
        return _m3_inside(read_value(raw))
    except RecursionError:
        return raw


def _m3_inside(value: Any) -> str:
    """An empty list, object and text look alike: the reader has the schema."""
    if isinstance(value, dict):
        return "".join(_m3_element(key, _m3_inside(item)) for key, item in value.items())
    if isinstance(value, list):
        return "".join(_m3_element("item", _m3_inside(item)) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def _m3_element(name: str, inside: str) -> str:
    return f"{_M3}<{name}>{inside}{_M3}</{name}>"


def _muse(name: str) -> str:
    return f' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n'


XML_PARAMETERS = (
    FamilyWriter(
        format="qwen3_coder",
        write=elements(
            call="<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>",
            value="<parameter={key}>\n{value}\n</parameter>\n",
            spell=as_json_with_python_booleans,
        ),
        listing_of=XML,
        marks=("<tool_call", "<function=", *CHATML),
        inner_marks=("<function", "<parameter"),
        layout=Layout(prose=("", "\n\n")),
        rules=(_TEXT, "Each value has its own lines."),
        raw=True,
    ),
    FamilyWriter(
        format="mimo",
        write=elements(
            call="<tool_call><function={name}>{values}</function></tool_call>",
            value="<parameter={key}>{value}</parameter>",
            join="",
        ),
        listing_of=json_lines(),
        marks=("<tool_call", "<function=", *CHATML),
        # The ampersand: some readers of this family undo XML's escapes.
        inner_marks=("<function", "<parameter", "&"),
        layout=Layout(("<think>", "</think>"), prose=("", "")),
        rules=(_TEXT, "There is no line break between the tags."),
        raw=True,
    ),
    FamilyWriter(
        format="seed_oss",
        write=elements(
            call="<seed:tool_call>\n<function={name}>\n{values}</function>\n</seed:tool_call>",
            value="<parameter={key}>{value}</parameter>\n",
            spell=as_python,
        ),
        listing_of=json_lines(),
        marks=("<seed:", "<function="),
        inner_marks=("<function", "<parameter"),
        layout=Layout(("<seed:think>", "</seed:think>\n"), prose=("", "\n\n")),
        rules=(_TEXT_OR_PYTHON,),
        raw=True,
    ),
    FamilyWriter(
        format="minicpm5",
        write=elements(
            call='<function name="{name}">{values}</function>',
            value='<param name="{key}">{value}</param>',
            spell=as_python,
            text=as_cdata,
        ),
        listing_of=json_lines(),
        marks=("<function", *CHATML),
        inner_marks=("<param", "]]>"),
        rules=(_TEXT_OR_PYTHON, "A text with '<', '&' or line breaks stands in <![CDATA[ and ]]>."),
        raw=True,
    ),
    FamilyWriter(
        format="minimax_m2",
        write=elements(
            block=("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
            call='<invoke name="{name}">\n{values}</invoke>',
            value='<parameter name="{key}">{value}</parameter>\n',
        ),
        listing_of=json_lines("<tools>\n<tool>", "</tool>\n</tools>", openai=False, join="</tool>\n<tool>"),
        marks=("<minimax:tool_call", "<invoke", "]~b", "[e~"),
        inner_marks=("<parameter",),
        frames=Frames("<response>{content}</response>", marks=("<response",)),
        rules=(_TEXT,),
        several=SEVERAL_IN_BLOCK,
        raw=True,
    ),
    FamilyWriter(
        format="minimax_m3",
        by_name=False,
        write=_minimax_m3,
        listing_of=json_lines("<tools>\n<tool>", "</tool>\n</tools>", openai=False, join="</tool>\n<tool>"),
        marks=(_M3, "]~b", "[e~"),
        layout=Layout(("<mm:think>", "</mm:think>"), prose=("", "")),
        frames=Frames("<response>{content}</response>", marks=("<response",)),
        rules=(
            "The element of an argument has its name.",
            "A text stands as it is; an object holds an element for each member, a list one <item> for each.",
        ),
        several=SEVERAL_IN_BLOCK,
        raw=True,
    ),
    _dsml("deepseek_v32", "DSML", "function_calls", frames=_FUNCTION_RESULTS),
    _dsml("deepseek_v4", "DSML", "tool_calls"),
    _dsml("deepseek_v41", "DSML", "calls", blank=" "),
    _dsml("gigachat35", "GCML", "tool_calls", frames=TOOL_RESPONSE),
    FamilyWriter(
        format="step3",
        by_name=False,
        write=elements(
            block=("<｜tool_calls_begin｜>\n", "\n<｜tool_calls_end｜>"),
            call=(
                '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">{values}</steptml:invoke>'
                "<｜tool_call_end｜>"
            ),
            value='<steptml:parameter name="{key}">{value}</steptml:parameter>',
        ),
        listing_of=json_lines(),
        marks=("<｜tool_", "<steptml:"),
        layout=Layout(prose=("", "")),
        frames=Frames(
            "<｜tool_output_begin｜>{content}<｜tool_output_end｜>",
            around="<｜tool_outputs_begin｜>\n{results}\n<｜tool_outputs_end｜>",
            marks=("<｜tool_output",),
        ),
        rules=(_TEXT,),
        several=SEVERAL_IN_BLOCK,
        raw=True,
    ),
    FamilyWriter(
        format="muse",
        by_name=False,
        write=elements(
            call=f"{_muse('{name}')}{{values}}</atem:invoke>\n</atem:function_calls>",
            value='<atem:parameter name="{key}">{value}</atem:parameter>\n',
            join="<|eom|><|start|>assistant",
        ),
        listing_of=json_lines("", "", openai=False),
        marks=("<atem:", "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
        layout=Layout(
            (" to=self<|message|>", "<|eom|><|start|>assistant"),
            prose=(" to=user<|message|>", "<|eom|><|start|>assistant"),
            answer=(" to=user<|message|>", ""),
        ),
        rules=(_TEXT, "Each call is a message to its tool."),
        raw=True,
    ),
    FamilyWriter(
        format="beam",
        by_name=False,
        write=elements(
            call="<|channel|>commentary to=functions.{name}<|message|>{values}<|call|>",
            value='<rfl:parameter name="{key}">{value}</rfl:parameter>',
            join=AGAIN,
        ),
        listing_of=typescript("## functions\n\n"),
        marks=("<rfl:", *CHANNEL_MARKS),
        layout=CHANNEL_LAYOUT,
        frames=CHANNEL_FRAMES,
        rules=(_TEXT, "A call goes to the channel commentary."),
        raw=True,
    ),
    FamilyWriter(
        format="dots",
        write=elements(
            block=("<dots_function_call>\n", "\n</dots_function_call>"),
            call='<invoke name="{name}">\n{values}</invoke>',
            value='<parameter name="{key}">{value}</parameter>\n',
        ),
        listing_of=json_lines(),
        marks=("<dots_function_call", "<invoke"),
        inner_marks=("<parameter",),
        rules=(_TEXT,),
        several=SEVERAL_IN_BLOCK,
        raw=True,
    ),
    FamilyWriter(
        format="kimi_k3",
        by_name=False,
        write=elements(
            block=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
            call='<|open|>call tool="{name}" index="{index}"<|sep|>{values}<|close|>call<|sep|>',
            value='<|open|>argument key="{key}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>',
            join="",
            attribute=lambda name: name.replace("&", "&amp;").replace('"', "&quot;"),
        ),
        listing_of=json_list(),
        marks=("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
        layout=Layout(
            ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
            prose=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
            answer=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
        ),
        rules=('A text stands as it is, with type="string"; everything else as JSON, with its JSON type.',),
        several=SEVERAL_IN_BLOCK,
        raw=True,
    ),
    FamilyWriter(
        format="claude_xml",
        write=elements(
            block=("<function_calls>\n", "\n</function_calls>"),
            call='<invoke name="{name}">\n{values}</invoke>',
            value='<parameter name="{key}">{value}</parameter>\n',
        ),
        listing_of=json_lines(
            "<functions>\n<function>", "</function>\n</functions>", openai=False, join="</function>\n<function>"
        ),
        marks=("<function_calls", "<invoke"),
        inner_marks=("<parameter",),
        frames=Frames(
            "<result>\n<tool_name>{name}</tool_name>\n<stdout>\n{content}\n</stdout>\n</result>",
            around="<function_results>\n{results}\n</function_results>",
            marks=("<function_results", "<result", "<stdout"),
        ),
        rules=(_TEXT,),
        several=SEVERAL_IN_BLOCK,
        raw=True,
    ),
)

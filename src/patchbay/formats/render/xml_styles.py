"""Families that write arguments as elements: XML with named parameters, and key/value tags.

A text is written unescaped in its element, unless it holds markers of the family that would be misread (``FamilyWriter.holds``).
Other values are JSON, or Python if the family's template writes that; ``null`` is always ``null``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from patchbay.formats.render.json_styles import AGAIN, CHANNEL_FRAMES, CHANNEL_LAYOUT, CHANNEL_MARKS
from patchbay.formats.render.tool_lists import XML, json_lines, json_list, typescript
from patchbay.formats.render.writer import (
    CHATML,
    PYTHON,
    SEVERAL_IN_BLOCK,
    TOOL_RESPONSE,
    FamilyWriter,
    Frames,
    Layout,
    ReservedText,
    WriteCalls,
    members,
    read_value,
)
from patchbay.types import ToolCall

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


def elements(
    *,
    call: str,
    value: str,
    block: tuple[str, str] = ("", ""),
    join: str = "\n",
    encode: EncodeValue = as_json,
    text: Callable[[str], str] = unchanged,
    attribute: Callable[[str], str] = unchanged,
) -> WriteCalls:
    """Return a writer of calls after two patterns, inside one block.

    ``call`` is filled in with ``{name}``, ``{values}`` and ``{index}`` (from 1), ``value`` with ``{key}``, ``{value}``,
    ``{type}`` (its JSON type) and ``{string}`` ("true" or "false").
    """

    def encode_member(name: str, raw: str, markers: ReservedText) -> str:
        is_text = raw.startswith('"')
        return value.format(
            key=attribute(name),
            value=text(markers.raw(json.loads(raw))) if is_text else encode(raw, markers),
            type=_json_type(raw),
            string="true" if is_text else "false",
        )

    def write(calls: Sequence[ToolCall], markers: ReservedText) -> str:
        texts = []
        for index, each in enumerate(calls, 1):
            values = "".join(encode_member(key, raw, markers) for key, raw in members(each.raw_arguments).items())
            texts.append(call.format(name=attribute(each.name), values=values, index=index))
        return block[0] + join.join(texts) + block[1]

    return write


def _json_type(raw: str) -> str:
    kinds = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}
    return kinds.get(raw[0], "number")


_TEXT = "A text stands as it is, without quotes or escapes; everything else as JSON."
_TEXT_OR_PYTHON = "A text stands as it is, without quotes or escapes; everything else as a Python literal."
_TYPED = 'A text stands as it is, without quotes or escapes, with string="true"; everything else as JSON, with string="false".'
_DEEPSEEK = ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")
_FUNCTION_RESULTS = Frames(
    "<result>{content}</result>",
    around="<function_results>\n{results}\n</function_results>",
    markers=("<function_results", "<result"),
)
_TOOL_RESULT = Frames("<tool_result>{content}</tool_result>", markers=("<tool_result",))
_M3 = "]<]minimax[>["
_M3_TOKEN = ReservedText((_M3,))


def _dsml(name: str, tag: str, block: str, *, blank: str = "", frames: Frames = _TOOL_RESULT) -> FamilyWriter:
    """Return the writer of DeepSeek's markup language, or a sister's: ``tag`` is the token in every tag, ``blank`` follows it."""
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
        markers=(f"<｜{tag}｜", *_DEEPSEEK),
        layout=Layout(("<think>", "</think>"), prose=("", "\n\n")),
        frames=frames,
        rules=(_TYPED,),
        several=SEVERAL_IN_BLOCK,
        raw=True,
    )


def _minimax_m3(calls: Sequence[ToolCall], markers: ReservedText) -> str:
    """Write members of objects and items of lists as elements too, with a token before every tag."""
    blocks = []
    for call in calls:
        values = "".join(_m3_element(key, _m3_value(raw, markers)) for key, raw in members(call.raw_arguments).items())
        blocks.append(f'{_M3}<invoke name="{call.name}">{values}{_M3}</invoke>\n')
    return f"{_M3}<tool_call>\n{''.join(blocks)}{_M3}</tool_call>"


def _m3_value(raw: str, markers: ReservedText) -> str:
    try:
        value = read_value(raw)
        return markers.raw(value) if isinstance(value, str) else _m3_inside(value)
    except RecursionError:
        return raw


def _m3_inside(value: Any) -> str:
    """Encode a value as elements; an empty list, object and text look alike; the schema distinguishes them."""
    if isinstance(value, dict):
        return "".join(_m3_element(key, _m3_inside(item)) for key, item in value.items())
    if isinstance(value, list):
        return "".join(_m3_element("item", _m3_inside(item)) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else _M3_TOKEN.escape(str(value))  # a tag in it would be another member


def _m3_element(name: str, inside: str) -> str:
    return f"{_M3}<{name}>{inside}{_M3}</{name}>"


_family = partial(FamilyWriter, raw=True, rules=(_TEXT,))


XML_PARAMETERS = (
    _family(
        format="qwen3_coder",
        write=elements(
            call="<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>",
            value="<parameter={key}>\n{value}\n</parameter>\n",
            encode=as_json_with_python_booleans,
        ),
        listing_of=XML,
        markers=("<tool_call", "<function=", *CHATML),
        inner_markers=("<function", "<parameter"),
        layout=Layout(prose=("", "\n\n")),
        rules=(_TEXT, "Each value has its own lines."),
    ),
    _family(
        format="mimo",
        write=elements(
            call="<tool_call><function={name}>{values}</function></tool_call>",
            value="<parameter={key}>{value}</parameter>",
            join="",
        ),
        listing_of=json_lines(),
        markers=("<tool_call", "<function=", *CHATML),
        # The ampersand: some readers of this family undo XML's escapes.
        inner_markers=("<function", "<parameter", "&"),
        layout=Layout(("<think>", "</think>"), prose=("", "")),
        rules=(_TEXT, "There is no line break between the tags."),
    ),
    _family(
        format="seed_oss",
        write=elements(
            call="<seed:tool_call>\n<function={name}>\n{values}</function>\n</seed:tool_call>",
            value="<parameter={key}>{value}</parameter>\n",
            encode=as_python,
        ),
        listing_of=json_lines(),
        markers=("<seed:", "<function="),
        inner_markers=("<function", "<parameter"),
        layout=Layout(("<seed:think>", "</seed:think>\n"), prose=("", "\n\n")),
        rules=(_TEXT_OR_PYTHON,),
    ),
    _family(
        format="minicpm5",
        write=elements(
            call='<function name="{name}">{values}</function>',
            value='<param name="{key}">{value}</param>',
            encode=as_python,
            text=as_cdata,
        ),
        listing_of=json_lines(),
        markers=("<function", *CHATML),
        inner_markers=("<param", "]]>"),
        rules=(_TEXT_OR_PYTHON, "A text with '<', '&' or line breaks stands in <![CDATA[ and ]]>."),
    ),
    _family(
        format="minimax_m2",
        write=elements(
            block=("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
            call='<invoke name="{name}">\n{values}</invoke>',
            value='<parameter name="{key}">{value}</parameter>\n',
        ),
        listing_of=json_lines("<tools>\n<tool>", "</tool>\n</tools>", openai=False, join="</tool>\n<tool>"),
        markers=("<minimax:tool_call", "<invoke", "]~b", "[e~"),
        inner_markers=("<parameter",),
        frames=Frames("<response>{content}</response>", markers=("<response",)),
        several=SEVERAL_IN_BLOCK,
    ),
    _family(
        format="minimax_m3",
        by_name=False,
        write=_minimax_m3,
        typed_by_schema=True,
        listing_of=json_lines("<tools>\n<tool>", "</tool>\n</tools>", openai=False, join="</tool>\n<tool>"),
        markers=(_M3, "]~b", "[e~"),
        layout=Layout(("<mm:think>", "</mm:think>"), prose=("", "")),
        frames=Frames("<response>{content}</response>", markers=("<response",)),
        rules=(
            "The element of an argument has its name.",
            "A text stands as it is; an object holds an element for each member, a list one <item> for each.",
        ),
        several=SEVERAL_IN_BLOCK,
    ),
    _dsml("deepseek_v32", "DSML", "function_calls", frames=_FUNCTION_RESULTS),
    _dsml("deepseek_v4", "DSML", "tool_calls"),
    _dsml("deepseek_v41", "DSML", "calls", blank=" "),
    _dsml("gigachat35", "GCML", "tool_calls", frames=TOOL_RESPONSE),
    _family(
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
        markers=("<｜tool▁", "<steptml:"),
        layout=Layout(prose=("", "")),
        frames=Frames(
            "<｜tool_output_begin｜>{content}<｜tool_output_end｜>",
            around="<｜tool_outputs_begin｜>\n{results}\n<｜tool_outputs_end｜>",
            markers=("<｜tool_output",),
        ),
        several=SEVERAL_IN_BLOCK,
    ),
    _family(
        format="muse",
        by_name=False,
        write=elements(
            call=(
                ' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n{values}</atem:invoke>\n'
                "</atem:function_calls>"
            ),
            value='<atem:parameter name="{key}">{value}</atem:parameter>\n',
            join="<|eom|><|start|>assistant",
        ),
        listing_of=json_lines("", "", openai=False),
        markers=("<atem:", "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
        layout=Layout(
            (" to=self<|message|>", "<|eom|><|start|>assistant"),
            prose=(" to=user<|message|>", "<|eom|><|start|>assistant"),
            answer=(" to=user<|message|>", ""),
        ),
        rules=(_TEXT, "Each call is a message to its tool."),
    ),
    _family(
        format="beam",
        by_name=False,
        write=elements(
            call="<|channel|>commentary to=functions.{name}<|message|>{values}<|call|>",
            value='<rfl:parameter name="{key}">{value}</rfl:parameter>',
            join=AGAIN,
        ),
        listing_of=typescript("## functions\n\n"),
        markers=("<rfl:", *CHANNEL_MARKS),
        layout=CHANNEL_LAYOUT,
        frames=CHANNEL_FRAMES,
        rules=(_TEXT, "A call goes to the channel commentary."),
    ),
    _family(
        format="dots",
        write=elements(
            block=("<dots_function_call>\n", "\n</dots_function_call>"),
            call='<invoke name="{name}">\n{values}</invoke>',
            value='<parameter name="{key}">{value}</parameter>\n',
        ),
        listing_of=json_lines(),
        markers=("<dots_function_call", "<invoke"),
        inner_markers=("<parameter",),
        several=SEVERAL_IN_BLOCK,
    ),
    _family(
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
        markers=("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
        layout=Layout(
            ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
            prose=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
            answer=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
        ),
        rules=('A text stands as it is, with type="string"; everything else as JSON, with its JSON type.',),
        several=SEVERAL_IN_BLOCK,
    ),
    _family(
        format="claude_xml",
        write=elements(
            block=("<function_calls>\n", "\n</function_calls>"),
            call='<invoke name="{name}">\n{values}</invoke>',
            value='<parameter name="{key}">{value}</parameter>\n',
        ),
        listing_of=json_lines(
            "<functions>\n<function>", "</function>\n</functions>", openai=False, join="</function>\n<function>"
        ),
        markers=("<function_calls", "<invoke"),
        inner_markers=("<parameter",),
        frames=Frames(
            "<result>\n<tool_name>{name}</tool_name>\n<stdout>\n{content}\n</stdout>\n</result>",
            around="<function_results>\n{results}\n</function_results>",
            markers=("<function_results", "<result", "<stdout"),
        ),
        several=SEVERAL_IN_BLOCK,
    ),
)


_GLM = ("<|user|>", "<|assistant|>", "<|observation|>", "<|system|>")
_LINES = "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
_COMPACT = "<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"
_IN_ONE_LINE = Frames("<tool_response>{content}</tool_response>", markers=("<tool_response",))


def _keyed(
    name: str,
    call: str,
    value: str,
    *,
    layout: Layout,
    join: str = "\n",
    block: tuple[str, str] = ("", ""),
    markers: tuple[str, ...] = ("<tool_call",),
    frames: Frames = TOOL_RESPONSE,
) -> FamilyWriter:
    return FamilyWriter(
        format=name,
        write=elements(call=call, value=value, join=join, block=block),
        listing_of=json_lines(),
        markers=markers,
        inner_markers=("<tool_call", "<arg_key", "<arg_value", "<tool_sep"),
        layout=layout,
        frames=frames,
        rules=(_TEXT,),
        several=SEVERAL_IN_BLOCK if block[0] else FamilyWriter.several,
        raw=True,
    )


XML_KEYS = (
    _keyed(
        "glm45",
        "<tool_call>{name}\n{values}</tool_call>",
        _LINES,
        layout=Layout(("\n<think>", "</think>\n")),
        markers=("<tool_call", *_GLM),
    ),
    _keyed(
        "glm47",
        "<tool_call>{name}{values}</tool_call>",
        _COMPACT,
        layout=Layout(("<think>", "</think>"), prose=("", "")),
        join="",
        markers=("<tool_call", *_GLM),
        frames=_IN_ONE_LINE,
    ),
    _keyed(
        "ling3",
        "<tool_call>{name}\n{values}\n</tool_call>",
        "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>",
        layout=Layout(("<think>", "</think>")),
        markers=("<tool_call", "<role>", "<|role_end|>"),
    ),
    _keyed(
        "spark25",
        "<tool_call>{name}{values}</tool_call>",
        _COMPACT,
        layout=Layout(("<think>", "</think>"), prose=("", "")),
        join="",
        frames=_IN_ONE_LINE,
    ),
    _keyed(
        "iquest_q1",
        "<iquest_tool_call>{name}{values}</iquest_tool_call>",
        _COMPACT,
        layout=Layout(("<think>", "</think>"), prose=("", "")),
        join="",
        markers=("<iquest_", "<|iquest_"),
        frames=_IN_ONE_LINE,
    ),
    _keyed("poolside_v1", "<tool_call>{name}\n{values}</tool_call>", _LINES, layout=Layout(("<think>", "</think>\n"))),
    _keyed(
        "hunyuan_v3",
        "<tool_call>{name}<tool_sep>\n{values}</tool_call>",
        _LINES,
        layout=Layout(("<think>", "</think>"), prose=("", "")),
        block=("<tool_calls>\n", "\n</tool_calls>"),
        markers=("<tool_call", "<｜hy_"),
    ),
    _keyed(
        "hunyuan_v4",
        "<tool_call>{name}\n{values}</tool_call>",
        _LINES,
        layout=Layout(("<think>", "</think>"), prose=("", "")),
        block=("<tool_calls>\n", "\n</tool_calls>"),
        markers=("<tool_call", "<｜hy_"),
    ),
    _keyed(
        "k2_horizon",
        "<ifm|tool_call>{name}{values}</ifm|tool_call>",
        "<ifm|arg_key>{key}</ifm|arg_key><ifm|arg_value>{value}</ifm|arg_value>",
        layout=Layout(("<ifm|think>", "</ifm|think>"), prose=("", "")),
        join="",
        block=("<ifm|tool_calls>", "</ifm|tool_calls>"),
        markers=("<ifm|",),
    ),
)

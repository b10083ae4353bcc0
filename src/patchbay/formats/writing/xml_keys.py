"""Families that write each argument as a key's element and a value's (catalogue 2.4)."""

from __future__ import annotations

from patchbay.formats.writing.family import SEVERAL_IN_BLOCK, TOOL_RESPONSE, FamilyWriter, Frames, Layout
from patchbay.formats.writing.listings import json_lines
from patchbay.formats.writing.xml import elements

_TEXT = "A text stands as it is, without quotes or escapes; everything else as JSON."
_GLM = ("<|user|>", "<|assistant|>", "<|observation|>", "<|system|>")
_LINES = "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
_COMPACT = "<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"
_IN_ONE_LINE = Frames("<tool_response>{content}</tool_response>", marks=("<tool_response",))


def _keyed(
    name: str,
    call: str,
    value: str,
    *,
    layout: Layout,
    join: str = "\n",
    block: tuple[str, str] = ("", ""),
    marks: tuple[str, ...] = ("<tool_call",),
    frames: Frames = TOOL_RESPONSE,
) -> FamilyWriter:
    return FamilyWriter(
        format=name,
        write=elements(call=call, value=value, join=join, block=block),
        listing_of=json_lines(),
        marks=marks,
        inner_marks=("<tool_call", "<arg_key", "<arg_value", "<tool_sep"),
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
        marks=("<tool_call", *_GLM),
    ),
    _keyed(
        "glm47",
        "<tool_call>{name}{values}</tool_call>",
        _COMPACT,
        layout=Layout(("<think>", "</think>"), prose=("", "")),
        join="",
        marks=("<tool_call", *_GLM),
        frames=_IN_ONE_LINE,
    ),
    _keyed(
        "ling3",
        "<tool_call>{name}\n{values}\n</tool_call>",
        "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>",
        layout=Layout(("<think>", "</think>")),
        marks=("<tool_call", "<role>", "<|role_end|>"),
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
        marks=("<iquest_", "<|iquest_"),
        frames=_IN_ONE_LINE,
    ),
    _keyed(
        "poolside_v1",
        "<tool_call>{name}\n{values}</tool_call>",
        _LINES,
        layout=Layout(("<think>", "</think>\n")),
    ),
    _keyed(
        "hunyuan_v3",
        "<tool_call>{name}<tool_sep>\n{values}</tool_call>",
        _LINES,
        layout=Layout(("<think>", "</think>"), prose=("", "")),
        block=("<tool_calls>\n", "\n</tool_calls>"),
        marks=("<tool_call", "<｜hy_"),
    ),
    _keyed(
        "hunyuan_v4",
        "<tool_call>{name}\n{values}</tool_call>",
        _LINES,
        layout=Layout(("<think>", "</think>"), prose=("", "")),
        block=("<tool_calls>\n", "\n</tool_calls>"),
        marks=("<tool_call", "<｜hy_"),
    ),
    _keyed(
        "k2_horizon",
        "<ifm|tool_call>{name}{values}</ifm|tool_call>",
        "<ifm|arg_key>{key}</ifm|arg_key><ifm|arg_value>{value}</ifm|arg_value>",
        layout=Layout(("<ifm|think>", "</ifm|think>"), prose=("", "")),
        join="",
        block=("<ifm|tool_calls>", "</ifm|tool_calls>"),
        marks=("<ifm|",),
    ),
)

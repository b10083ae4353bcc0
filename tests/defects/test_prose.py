"""Defects 17, 18, 21: white space of prose, markup of families that are not known yet, and what is shown while a call is written."""

from __future__ import annotations

import pytest

import patchbay
from patchbay.formats import events

from .reading import TOOLS, Read, calls, words


@pytest.mark.parametrize(
    "text",
    [
        "    indented = 1\n    more = 2\n",
        "\n\n  leading and trailing  \n\n",
        "\ttab\r\nCRLF\r\n",
        "ends with blanks   ",
        "   ",
        "\n",
        "a\n\n\n\nb",
        "\u00a0\u2003odd blanks\u3000",
        "\x00NUL and \ud800 a lone surrogate",
        "```python\n  x\n```\n",
        "~~~\n~~~",
        "``",
        "```",
        "```tool_cal",
        "<thin",
        "> > > ```",
    ],
)
def test_d17_prose_without_calls_is_kept_to_the_last_blank(read: Read, text: str) -> None:
    reply = read(text, tools=TOOLS)
    assert text == reply.content
    assert (None, (), ()) == (reply.reasoning, reply.tool_calls, reply.incomplete)


def test_d17_no_text_is_no_content(read: Read) -> None:
    assert read("", tools=TOOLS).content is None


FAMILIES = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>',
    "mistral json": '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome"}}]',
    "mistral args": '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}',
    "python tag": '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Rome"}}',
    "bare llama json": '{"name": "get_weather", "parameters": {"city": "Rome"}}',
    "pythonic list": '[get_weather(city="Rome")]',
    "functionary 3.1": '<function=get_weather>{"city": "Rome"}</function>',
    "functionary 3.2": '>>>get_weather\n{"city": "Rome"}',
    "qwen3 coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>",
    "deepseek v3": (
        "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>get_weather\n"
        '```json\n{"city": "Rome"}\n```<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c>'
    ),
    "kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Rome"}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "harmony": '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"Rome"}<|call|>',
    "invoke xml": '<function_calls>\n<invoke name="get_weather">\n<parameter name="city">Rome</parameter>\n</invoke>\n</function_calls>',
    "react": 'Thought: look\nAction: get_weather\nAction Input: {"city": "Rome"}\n',
    "command r": 'Action:\n```json\n[\n    {\n        "tool_name": "get_weather",\n        "parameters": {"city": "Rome"}\n    }\n]```\n',
    "tool_code": '```tool_code\nget_weather(city="Rome")\n```',
    "bare list": '[{"name": "get_weather", "arguments": {"city": "Rome"}}]',
    "own-line tag": '<get_weather>\n{"city": "Rome"}\n</get_weather>',
    "glm-4": 'get_weather\n{"city": "Rome"}',
    "gemma": '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>',
    "cohere": '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Rome"}}\n]<|END_ACTION|>',
    "qwen agent": '\u273fFUNCTION\u273f: get_weather\n\u273fARGS\u273f: {"city": "Rome"}\n',
}


@pytest.mark.parametrize("text", FAMILIES.values(), ids=FAMILIES)
def test_d18_a_native_format_is_read_or_kept_verbatim_never_mangled(read: Read, text: str) -> None:
    reply = read(text, tools=TOOLS)
    if reply.tool_calls:
        assert [("get_weather", {"city": "Rome"})] == calls(reply)
        assert "city" not in (reply.content or "")
    else:
        assert text == reply.content


def test_d21_a_name_is_known_before_the_arguments_and_they_come_as_they_are_written() -> None:
    parser = patchbay.StreamParser(tools=TOOLS)
    head = 'Writing.\n```tool_call\n{"name": "write_file", "arguments": {"path": "a.txt", "content": "'
    seen = parser.feed(head + "x" * 1000)
    assert ["write_file"] == [event.name for event in seen if isinstance(event, events.CallStart)]
    assert "x" * 900 in "".join(event.text for event in seen if isinstance(event, events.CallArguments))
    more = parser.feed("y" * 1000)
    assert "y" * 900 in "".join(event.text for event in more if isinstance(event, events.CallArguments))
    assert not [event for event in seen + more if isinstance(event, events.CallEnd)]


def test_d21_the_pieces_of_the_arguments_are_the_arguments() -> None:
    body = '{"name": "write_file", "arguments": {"path": "a.txt", "content": "one\\ntwo \\u00e9"}}'
    parser = patchbay.StreamParser(tools=TOOLS)
    seen = [event for char in f"Writing.\n```tool_call\n{body}\n```\nBye" for event in parser.feed(char)] + parser.close()
    written = "".join(event.text for event in seen if isinstance(event, events.CallArguments))
    (call,) = parser.reply.tool_calls
    assert call.raw_arguments == written
    assert [call] == [event.call for event in seen if isinstance(event, events.CallEnd)]
    assert [(0, call.id, call.name)] == [
        (event.index, event.id, event.name) for event in seen if isinstance(event, events.CallStart)
    ]


def test_d21_prose_is_not_buffered() -> None:
    parser = patchbay.StreamParser(tools=TOOLS)
    shown = "".join(event.text for event in parser.feed("Hello there, this is prose") if isinstance(event, events.TextDelta))
    assert ["Hello", "there,", "this", "is"] == words(shown)[:4]

"""Defects 7, 13, 14: the ways in which models write the fence of a call. All are calls, whole and streamed."""

from __future__ import annotations

import pytest

from patchbay.errors import ConfigurationError

from .reading import OSLO, OSLO_CALL, ROME, ROME_CALL, TOOLS, Read, block, calls, words


@pytest.mark.parametrize(
    "label", ["TOOL_CALL", "Tool_Call", "tool_call", "tool_calls", "tool-call", "TOOL-CALLS", "json", "JSON", ""]
)
def test_d07_d13_the_label_may_be_written_in_many_ways(read: Read, label: str) -> None:
    reply = read(f"Sure.\n{block(ROME, label=label)}", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert ["Sure."] == words(reply.content)


@pytest.mark.parametrize("label", ["CALL", "call", "Call"])
@pytest.mark.parametrize("tag", ["CALL", "call", "Call"])
def test_d07_a_configured_tag_matches_in_any_case(read: Read, tag: str, label: str) -> None:
    reply = read(f"Sure.\n{block(ROME, label=label)}\nBye", tools=TOOLS, tool_call_tag=tag)
    assert [ROME_CALL] == calls(reply)
    assert ["Sure.", "Bye"] == words(reply.content)


@pytest.mark.parametrize("tag", ["a.b", "c++", "call(x)", "x|y", "[t]", "\u00e9t\u00e9", "x-y", "_"])
def test_d07_a_configured_tag_works_as_plain_text_or_is_refused_when_it_is_set(read: Read, tag: str) -> None:
    refusal = None
    try:
        reply = read(block(ROME, label=tag), tools=TOOLS, tool_call_tag=tag)
    except ConfigurationError as error:
        refusal = str(error)
    assert (tag in refusal) if refusal else ([ROME_CALL] == calls(reply))


@pytest.mark.parametrize(
    ("tag", "label"), [("calls", "call"), ("call", "calls"), ("tool-use", "TOOL_USE"), ("tool_use", "tool-uses")]
)
def test_d13_a_configured_tag_has_its_plural_and_its_dashes_too(read: Read, tag: str, label: str) -> None:
    assert [ROME_CALL] == calls(read(block(ROME, label=label), tools=TOOLS, tool_call_tag=tag))


@pytest.mark.parametrize("label", ["json", ""])
def test_d07_lenient_fences_can_be_switched_off(read: Read, label: str) -> None:
    text = f"Sure.\n{block(ROME, label=label)}\nBye"
    reply = read(text, tools=TOOLS, lenient_fences=False)
    assert [] == calls(reply)
    assert text == reply.content


def test_d07_a_lenient_fence_may_hold_several_calls(read: Read) -> None:
    for body in (f"[{ROME}, {OSLO}]", f"{ROME}\n{OSLO}"):
        assert [ROME_CALL, OSLO_CALL] == calls(read(block(body, label="json"), tools=TOOLS))


def test_d07_a_json_fence_after_a_tagged_call_is_prose(read: Read) -> None:
    quoted = block(OSLO, label="json")
    reply = read(f"{block(ROME)}\n{quoted}\n", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert quoted in (reply.content or "")


GRAMMAR = {
    "closer on the line of the JSON": f"Sure.\n```tool_call\n{ROME}```\nBye",
    "one-line block": f"Sure.\n```tool_call {ROME}```\nBye",
    "JSON on the opener line": f"Sure.\n```tool_call {ROME}\n```\nBye",
    "JSON glued to the label": f"Sure.\n```tool_call{ROME}\n```\nBye",
    "opener after words on a line": f"Sure. ```tool_call\n{ROME}\n```\nBye",
    "4 ticks open and 3 close": f"Sure.\n````tool_call\n{ROME}\n```\nBye",
    "3 ticks open and 4 close": f"Sure.\n```tool_call\n{ROME}\n````\nBye",
    "tildes": f"Sure.\n~~~tool_call\n{ROME}\n~~~\nBye",
    "blockquote": f"Sure.\n> ```tool_call\n> {ROME}\n> ```\nBye",
    "blockquote over several lines": (
        'Sure.\n> ```tool_call\n> {\n>   "name": "get_weather",\n>   "arguments": {"city": "Rome"}\n> }\n> ```\nBye'
    ),
    "text after the closer": f"Sure.\n```tool_call\n{ROME}\n``` Bye",
    "label with a language": f"Sure.\n```tool_call:json\n{ROME}\n```\nBye",
    "label with an attribute": f"Sure.\n```tool_call{{x}}\n{ROME}\n```\nBye",
    "label with words": f"Sure.\n```tool_call json\n{ROME}\n```\nBye",
    "blank before the label": f"Sure.\n``` tool_call\n{ROME}\n```\nBye",
    "indented block": f"Sure.\n   ```tool_call\n   {ROME}\n   ```\nBye",
    "CRLF": f"Sure.\r\n```tool_call\r\n{ROME}\r\n```\r\nBye",
    "blank lines inside": f"Sure.\n```tool_call\n\n{ROME}\n\n```\nBye",
}


@pytest.mark.parametrize("text", GRAMMAR.values(), ids=GRAMMAR)
def test_d13_the_fence_may_be_written_in_many_ways(read: Read, text: str) -> None:
    reply = read(text, tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert ["Sure.", "Bye"] == words(reply.content)


TWO = {
    "glued": f"```tool_call\n{ROME}\n``````tool_call\n{OSLO}\n```",
    "glued on one line": f"```tool_call\n{ROME}```\n```tool_call\n{OSLO}```",
    "second opener on the closer's line": f"```tool_call\n{ROME}\n``` ```tool_call\n{OSLO}\n```",
    "second opener without closer": f"```tool_call\n{ROME}\n```tool_call\n{OSLO}\n```",
    "one-line blocks": f"```tool_call {ROME}```\n```tool_call {OSLO}```",
    "in a row": f"{block(ROME)}\n{block(OSLO)}",
    "blank line between": f"{block(ROME)}\n\n{block(OSLO)}\n",
    "CRLF": f"{block(ROME)}\n{block(OSLO)}\n".replace("\n", "\r\n"),
    "quoted blocks": "\n".join("> " + line for line in f"{block(ROME)}\n{block(OSLO)}".split("\n")),
}


@pytest.mark.parametrize("text", TWO.values(), ids=TWO)
def test_d13_two_blocks_are_two_calls_however_they_touch(read: Read, text: str) -> None:
    reply = read(text, tools=TOOLS)
    assert [ROME_CALL, OSLO_CALL] == calls(reply)
    assert [] == words((reply.content or "").replace(">", ""))


@pytest.mark.parametrize(
    "inner", ["```\ncode\n```", "```python\nx = 1\n```\n", "~~~\n```", "\n```\n", "```tool_call\nquoted\n```"]
)
def test_d13_raw_fence_lines_inside_a_string_do_not_end_the_call(read: Read, inner: str) -> None:
    body = '{"name": "write_file", "arguments": {"path": "a.md", "content": "' + inner + '"}}'
    reply = read(f"Sure.\n{block(body)}\nBye", tools=TOOLS)
    assert [("write_file", {"path": "a.md", "content": inner})] == calls(reply)
    assert ["Sure.", "Bye"] == words(reply.content)


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "get_weather", "args": {"city": "Rome"}}',
        '{"name": "get_weather", "input": {"city": "Rome"}}',
        '{"name": "get_weather", "params": {"city": "Rome"}}',
        '{"name": "get_weather", "parameters": {"city": "Rome"}}',
        '{"name": "get_weather", "city": "Rome"}',
        '{"city": "Rome", "name": "get_weather"}',
        '{"arguments": {"city": "Rome"}, "name": "get_weather"}',
        '{"name": "get_weather", "arguments": "{\\"city\\": \\"Rome\\"}"}',
    ],
)
def test_d13_arguments_under_another_key_or_flat_are_not_lost(read: Read, body: str) -> None:
    assert [ROME_CALL] == calls(read(block(body), tools=TOOLS))


def test_d13_a_flat_argument_called_name_is_ambiguous_but_never_lost(read: Read) -> None:
    reply = read(block('{"name": "set_opts", "arguments": {"name": "Alice"}}'), tools=TOOLS)
    assert [("set_opts", {"name": "Alice"})] == calls(reply)


@pytest.mark.parametrize("blanks", [1, 3, 4, 16, 40])
def test_d14_an_indented_closer_closes_and_the_later_prose_is_kept(read: Read, blanks: int) -> None:
    reply = read(f"Sure.\n```tool_call\n{ROME}\n{' ' * blanks}```\nLater prose.\nMore.", tools=TOOLS)
    assert [ROME_CALL] == calls(reply)
    assert ["Sure.", "Later", "prose.", "More."] == words(reply.content)

"""A call that is cut off between its markers is incomplete, and the calls around it are read."""

from __future__ import annotations

import json
import re

import pytest

from patchbay import StreamParser, parse
from patchbay.formats import FORMATS, CallArguments, CallCut
from patchbay.formats.render import WRITERS, writer_for
from patchbay.types import Reply, ToolCall
from support.repeated import sampled

from .cuts import pieces_of, read, streamed

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}, "count": {"type": "integer"}}},
        },
    }
]
ARGUMENTS = [json.dumps({"text": f"word {number}", "count": number}) for number in (1, 2, 3)]
"""Of the three calls; the second one is damaged."""
_FENCE = "\n```"


def ends(name: str) -> list[str]:
    """The end markers of a format's calls and messages."""
    row = FORMATS[name]
    found = [closer for wrapper in row.wrappers for closer in wrapper.closers]
    found += [end for channel in row.channels for end in channel.ends]
    return [_FENCE] if name == "fenced" else found


def messages(name: str) -> tuple[list[str], str]:
    """The three calls as the format writes them, and the markers that each ends with."""
    writer = writer_for(name)
    written = [
        writer.calls([ToolCall(writer.call_id(number, "f", f"id{number}"), "f", arguments)])
        for number, arguments in enumerate(ARGUMENTS)
    ]
    end = re.search(rf"(?:(?:{'|'.join(map(re.escape, ends(name)))})\s*)+\Z", written[1])
    return written, end.group() if end else ""


MARKED = [name for name in ("fenced", *WRITERS) if ends(name) and messages(name)[1]]
JSON_ARGUMENTS = [name for name in MARKED if ARGUMENTS[1] in messages(name)[0][1]]


def arguments(reply: Reply) -> list[object]:
    """The decoded arguments of a reply's calls."""
    return [json.loads(call.raw_arguments) for call in reply.tool_calls]


@pytest.mark.parametrize("way", ["named", "auto"])
@pytest.mark.parametrize("name", JSON_ARGUMENTS)
def test_body_with_invalid_json_is_incomplete_and_other_calls_are_read(name: str, way: str) -> None:
    (first, second, third), end = messages(name)
    options = {"format": name if way == "named" else "auto"}
    before = second[: second.index(ARGUMENTS[1])]
    for damaged in ("{not json at all", '{"text": "word', '{"te', '{"text": "word 2", "count": ', '{"text": , "count": 2}'):
        text = f"{first}\n{before}{damaged}{end}\n{third}"
        whole = read(text, TOOLS, **options)
        assert [json.loads(ARGUMENTS[0]), json.loads(ARGUMENTS[2])] == arguments(whole), damaged
        assert 1 == len(whole.incomplete), damaged
        assert damaged in whole.incomplete[0].raw
        assert "word 3" not in whole.incomplete[0].raw


@pytest.mark.parametrize("name", MARKED)
def test_call_truncated_anywhere_leaves_other_calls_intact(name: str) -> None:
    (first, second, third), end = messages(name)
    body = second[: len(second) - len(end)]
    begin = next(at for at in range(len(body)) if parse(body[: at + 1], TOOLS, format=name).incomplete)
    for cut in sampled(range(begin, len(body)), 12):
        text = f"{first}\n{body[:cut]}{end}\n{third}"
        reply = parse(text, TOOLS, format=name, generate_id="call_{}".format)
        read_calls = arguments(reply)
        assert [json.loads(ARGUMENTS[0])] == read_calls[:1], text
        assert [json.loads(ARGUMENTS[2])] == read_calls[-1:], text
        assert len(read_calls) <= 3
        assert "word 3" not in str(read_calls[1:-1])
        assert reply == streamed(pieces_of(text, 5), TOOLS, format=name), text


@pytest.mark.parametrize("name", ["gemma4", "functiongemma"])
def test_invalid_arguments_in_custom_notations_are_incomplete(name: str) -> None:
    (first, second, third), end = messages(name)
    for damaged in ("{not json at all", "{text:", "{te"):
        text = f"{first}\n{second[: second.index('{')]}{damaged}{end}\n{third}"
        whole = read(text, TOOLS, format=name)
        assert [json.loads(ARGUMENTS[0]), json.loads(ARGUMENTS[2])] == arguments(whole), damaged
        assert 1 == len(whole.incomplete), damaged
        begun = f"{second[: second.index('{')].rpartition('<')[2].partition('>')[2] or 'call:f'}{damaged}{end}"
        assert () == parse(begun, TOOLS, format=name).tool_calls


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('text:<|"|>tea,text:<|"|>milk<|"|>', {"text": "milk"}),
        ("text:tea, and milk,count:2", {"text": "tea, and milk", "count": 2}),
    ],
)
def test_unclosed_gemma_string_ends_where_the_next_member_begins(written: str, expected: dict[str, object]) -> None:
    assert [expected] == arguments(read(f"<|tool_call>call:f{{{written}}}<tool_call|>", TOOLS))


def test_string_may_contain_an_end_marker() -> None:
    text = 'Write "</tool_call>" behind it,\n<tool_call> before it.'
    call = f'<tool_call>\n{{"name": "f", "arguments": {json.dumps({"text": text})}}}\n</tool_call>'
    reply = read(f"{call}\n{call.replace('before', 'behind')}", TOOLS)
    assert [{"text": text}, {"text": text.replace("before", "behind")}] == arguments(reply)
    assert () == reply.incomplete


def test_string_argument_streams_up_to_an_end_marker_and_is_buffered_from_there() -> None:
    parser = StreamParser(TOOLS)
    parser.feed('<tool_call>{"name": "f", "arguments": {"text": "one')
    assert [CallArguments(0, " two")] == parser.feed(" two")
    assert [] == parser.feed("</tool_call>")
    assert [CallArguments(0, '</tool_call> three"')] == parser.feed(' three", ')


def test_truncated_call_is_emitted_at_its_position() -> None:
    parser = StreamParser(TOOLS)
    events = parser.feed(
        '<tool_call>{"name": "f", "arguments": {"text": "one</tool_call>Then <tool_call>{"name": "f"}</tool_call>'
    )
    events += parser.close()
    kinds = [type(event).__name__ for event in events]
    assert ["CallStart", "CallArguments", "CallCut", "TextDelta", "CallStart", "CallArguments", "CallEnd"] == kinds
    cut = events[2]
    assert isinstance(cut, CallCut)
    assert ("f", '{"text": "one') == (cut.call.name, cut.call.raw_arguments)


def test_call_of_an_unoffered_tool_is_prose_and_the_next_call_is_read() -> None:
    broken = '<tool_call>{"name": "g", "arguments": {"text": "one</tool_call>'
    reply = parse(f'{broken}<tool_call>{{"name": "f", "arguments": {ARGUMENTS[2]}}}</tool_call>', TOOLS)
    assert [json.loads(ARGUMENTS[2])] == arguments(reply)
    assert broken == reply.content


def test_tokens_of_elements_in_a_row_are_read_past() -> None:
    token = "]<]minimax[>["
    text = f'{token}<tool_call>{token}<invoke name="f">{token}<text>one{token}</text>{token}{token}</invoke>{token}</tool_call>'
    assert [{"text": "one"}] == arguments(parse(text, TOOLS, format="minimax_m3"))


MUSE = '<atem:function_calls>\n<atem:invoke name="get_weather">\n</atem:invoke>\n</atem:function_calls>'


@pytest.mark.parametrize(
    ("name", "call"),
    [("muse", f" to=get_weather<|message|>{MUSE}"), ("functionary_v31", "<function=get_weather>{}</function>")],
)
def test_braces_after_a_call_without_a_tool_name_are_prose(name, call):
    reply = read(f"{call}\n\n{{x}} Done.", None, format=name)
    assert ("{x} Done.", 1, ()) == (reply.content, len(reply.tool_calls), reply.incomplete)


@pytest.mark.parametrize(("written", "meant"), [("007", "007"), ("+5", 5), (".5", 0.5), ("1_000", 1000), ("0x1f", 31)])
def test_a_number_that_is_not_written_the_way_of_json_is_the_number_unless_it_begins_with_zeros(written, meant):
    reply = parse(f'<tool_call>{{"name": "f", "arguments": {{"text": {written}, "count": 1}}}}</tool_call>', TOOLS)
    assert [{"text": meant, "count": 1}] == arguments(reply)

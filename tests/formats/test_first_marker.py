"""Fast paths (arguments read at once, prose that is skipped) give the same reply as reading by character."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from patchbay import StreamParser, parse
from patchbay.errors import ConfigurationError
from patchbay.formats.parser import FormatPlan
from patchbay.formats.values.tool_names import make_rules
from support.repeated import sampled

from .cuts import read
from .golden import cases

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "count",
            "parameters": {"type": "object", "properties": {"times": {"type": "integer"}, "word": {"type": "string"}}},
        },
    }
]


@pytest.mark.parametrize(
    ("expected", "arguments"),
    [
        ('{"times": 3, "word": "a"}', '{"times": 3, "word": "a"}'),
        ('{"times":3 ,\n "word":"b"}', '{"times":3 ,\n "word":"b"}'),
        ('{"times": 3}', '{"times": "3"}'),
        ('{"times": 3, "times": 4}', '{"times": "3", "times": 4}'),
        ('{"word": {"times": "3"}}', '{"word": {"times": "3"}}'),
        ('{"times": null}', '{"times": NaN}'),
        ('{"times": 1e999}', '{"times": 1e999}'),
        ('{"times": ' + "9" * 5000 + "}", '{"times": ' + "9" * 5000 + "}"),
        ('{"word": ' + "[" * 5000 + "]" * 5000 + "}", '{"word": ' + "[" * 5000 + "]" * 5000 + "}"),
        ('{"word": "</tool_call>"}', '{"word": "</tool_call>"}'),
        ('{"word": "```"}', '{"word": "```"}'),
        ("{}", "{}"),
    ],
)
@pytest.mark.parametrize("around", ["```tool_call\n%s\n```", "<tool_call>\n%s\n</tool_call>", "<tool_call>%s</tool_call> Done."])
def test_arguments_are_the_same_read_at_once_and_by_the_character(around: str, arguments: str, expected: str) -> None:
    text = around % f'{{"name": "count", "arguments": {arguments}}}'
    whole = parse(text, TOOLS, generate_id="call_{}".format)
    assert [expected] == [call.raw_arguments for call in whole.tool_calls]
    assert whole == read(text, TOOLS)


def test_prefilled_beginning_reaches_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    def replies(case: Any) -> list[Any]:
        given = [(case.tools, way) for way in case.ways] + [(None, "auto")]
        return [parse(case.text, tools, format=way, generate_id="call_{}".format, **case.options) for tools, way in given]

    some = sampled(cases(), len(cases()) // 2)
    expected = {case.id: replies(case) for case in some}
    monkeypatch.setattr(FormatPlan, "may_open", lambda *_: True)
    assert expected == {case.id: replies(case) for case in some}


def test_call_detection_depends_on_lines_and_not_on_pieces() -> None:
    text = "a" * 81 + ' = count(word="x")'
    assert text == read(text, TOOLS).content


def test_skipped_chunks_count_in_repair_offsets() -> None:
    call = '\n```tool_call\n{"name": "count", "arguments": {"times": 3,}}\n```'
    assert () != read("Some words. " * 20 + call, TOOLS).repairs


def test_tools_that_were_changed_in_place_are_read_again() -> None:
    def arguments(name: str) -> list[str]:
        reply = parse(f'<tool_call>{{"name": "{name}", "arguments": {{"times": "3"}}}}</tool_call>', tools)
        return [call.raw_arguments for call in reply.tool_calls]

    tools = copy.deepcopy(TOOLS)
    assert ['{"times": 3}'] == arguments("count")
    tools[0]["function"]["parameters"]["properties"]["times"]["type"] = "string"
    assert ['{"times": "3"}'] == arguments("count")
    tools[0]["function"]["name"] = "tally"
    assert [[], ['{"times": "3"}']] == [arguments("count"), arguments("tally")]
    tools = copy.deepcopy(TOOLS)
    assert ['{"times": 3}'] == arguments("count")


def test_tools_of_any_mapping_type_are_read() -> None:
    class Name(str):
        __slots__ = ()

    tools = [{"type": "function", "function": {"name": Name("count"), "parameters": {}}}]
    assert make_rules(tools, "text").has_tools
    assert make_rules(tools, "text") is not make_rules(tools, "text")


@pytest.mark.parametrize("format", [None, 7, ["hermes"]])
def test_unknown_format_is_refused(format: Any) -> None:  # noqa: A002 - the name the API fixes
    with pytest.raises(ConfigurationError):
        StreamParser(format=format)


def test_repeated_call_is_positioned_at_the_end_of_its_arguments_in_any_split():
    call = '{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
    text = f"<tool_call>\n{call}<tool_call>\n<tool_call>\n{call}<tool_call>\n{call}"
    assert ["repeated_call", "repeated_call"] == [repair.kind for repair in read(text, None).repairs]

"""Response templates of checkpoints: errors name their path, valid ones read a region as declared."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchbay.errors import ConfigurationError
from patchbay.formats.checkpoint.declarations import Match, Verdict
from patchbay.formats.checkpoint.response_template import Field, ReadCall, ResponseTemplate, response_template

CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}


def declared(**fields: Any) -> dict[str, Any]:
    return {"version": 1, "defaults": {"role": "assistant"}, "start_anchor": "<|assistant|>", "fields": fields}


def field(**declaration: Any) -> Field:
    """A field of calls between ``<call>`` and ``</call>``."""
    opening = {} if "open_pattern" in declaration else {"open": "<call>"}
    (read,) = response_template(declared(tool_calls={"close": "</call>", "content": "json"} | opening | declaration)).fields
    return read


def named(**declaration: Any) -> Field:
    """A field whose opener tells the call's name."""
    return field(open_pattern=r"<call:(?P<name>\w+)>", transform=CALL, **declaration)


GEMMA = declared(
    content={"close": ["<turn|>", "<eos>"]},
    thinking={"open": "<|channel>thought\n", "close": "<channel|>"},
    tool_calls={
        "open_pattern": "\\<\\|tool_call>call:(?P<name>\\w+)",
        "close": "<tool_call|>",
        "repeats": True,
        "content": "json",
        "content_args": {"string_delims": [['<|"|>', '<|"|>']], "unquoted_keys": True},
        "transform": CALL,
    },
)


def test_complete_response_template_is_read() -> None:
    template = response_template(GEMMA)
    assert ["content", "thinking", "tool_calls"] == [read.name for read in template.fields]
    assert ["content", "reasoning", "calls"] == [read.role for read in template.fields]
    calls = template.fields[2]
    assert calls.open is not None
    opened = calls.open.match("<|tool_call>call:f{", 0, ended=False)
    assert Match(18, {"name": "f"}) == opened
    assert [ReadCall("f", '{"city": "Paris", "days": 3}', None)] == calls.calls('{city:<|"|>Paris<|"|>,days:3}', {"name": "f"})


def test_reading_a_template_does_not_depend_on_the_version_being_written_out() -> None:
    plain = {key: value for key, value in GEMMA.items() if key not in ("version", "defaults")}
    assert response_template(GEMMA).fields == response_template(plain).fields


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ([], "response_template must be a table, not a list"),
        ({**declared(content={}), "version": 2}, r"response_template\.version is 2"),
        ({**declared(content={}), "defaults": 1}, r"response_template\.defaults must be a table"),
        ({**declared(content={}), "feilds": {}}, r"response_template\.feilds is not known here \(did you mean 'fields'\?\)"),
        (declared(), r"response_template\.fields must hold a field"),
        ({"fields": {"content": {}}}, r"response_template\.start_anchor is missing"),
        ({**declared(content={}), "start_anchor_pattern": "a"}, r"response_template\.start_anchor and start_anchor_pattern exclude"),
        (declared(a={}, b={}), "only one field without 'open' or 'open_pattern', not a, b"),
        (declared(a=3), r"fields\.a must be a table, not a number"),
        (declared(a={"open": 3}), r"fields\.a\.open must be text or a list of texts"),
        (declared(a={"open": []}), r"fields\.a\.open must be text or a list of texts"),
        (declared(a={"open": "<", "open_pattern": "<"}), r"fields\.a\.open and open_pattern exclude each other"),
        (declared(a={"open_pattern": "<(a+)+"}), r"fields\.a\.open_pattern has \(a\+\)\+, which"),
        (declared(a={"close_pattern": "["}), r"fields\.a\.close_pattern is no regular expression"),
        (declared(a={"opne": "<"}), r"fields\.a\.opne is not known here \(did you mean 'open'\?\)"),
        (declared(a={"content": "yaml"}), r"fields\.a\.content is 'yaml', which is not one of text, int"),
        (declared(a={"content": "jsno"}), r"did you mean 'json'"),
        (declared(a={"repeats": 1}), r"fields\.a\.repeats must be true or false, not a number"),
        (declared(a={"join": ""}), r"fields\.a\.join is of use only with 'repeats'"),
        (declared(a={"join": 3, "repeats": True}), r"fields\.a\.join must be text"),
        (declared(a={"transform_each": True}), r"fields\.a\.transform_each is of use only with a 'transform'"),
        (declared(a={"open_pattern": "<(?P<n>a)"}), r"fields\.a\.transform is missing: without it the named groups n"),
        (declared(a={"transform": {"x": "pre {content}"}}), r"fields\.a\.transform\.x is 'pre \{content\}': a placeholder must be"),
        (declared(a={"transform": {"x": ["{nmae}"]}}), r"fields\.a\.transform\.x\[0\] is '\{nmae\}', but there is no 'nmae'"),
        (declared(a={"content_args": {"stirp": True}}), r"fields\.a\.content_args\.stirp is not known"),
        (declared(a={"content": "json", "content_args": {"string_delims": [["<"]]}}), r"content_args\.string_delims must be a list"),
        (declared(a={"content": "xml-inline"}), r"fields\.a\.content_args\.tag_pattern is missing"),
        (declared(tool_calls={"content": "json"}), r"fields\.tool_calls\.open is missing"),
        (declared(tool_calls={"open": "<", "content": "kv-lines"}), r"fields\.tool_calls\.transform is missing"),
        (declared(tool_calls={"open": "<", "content": "json", "transform": {"x": "{content}"}}), "what a call's 'function' is"),
        (declared(tool_calls={"open": "<", "content": "json", "transform": {"function": {}}}), "what a call's 'function.name' is"),
    ],
)  # fmt: skip
def test_error_names_the_path(template: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        response_template(template)


TAG = r"<p=(?P<key>\w+)>\s*(?P<value>.*?)\s*</p>"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"<p>(?P<value>.*?)</p>", "must have the named groups 'key' and 'value'"),
        (r"<p=(?P<key>\w+)>(?P<value>.*)</p>", r"must have its value as \(\?P<value>\.\*\?\)"),
        (r"<p=(?P<key>\w+)>((?P<value>.*?))</p>", "not inside of another group"),
        (r"<p=(?P<key>\w+)>(?P<value>.*?)(?:</p>)?", "must have literal text behind the value"),
        (r"<p=(?P<key>\w+)>(?P<value>.*?)", "must have literal text behind the value"),
        (r"<p=(?P<key>(a+)+)>(?P<value>.*?)</p>", "cannot be read in a stream"),
    ],
)
def test_unsupported_tag_pattern_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        named(content="xml-inline", content_args={"tag_pattern": pattern})


@pytest.mark.parametrize(
    ("expected", "content", "arguments", "body"),
    [
        ("a b", "text", {}, "  a b\n"),
        ("  a b\n", "text", {"strip": False}, "  a b\n"),
        (42, "int", {}, " 42 "),
        (1.5, "float", {}, "1.5"),
        (True, "bool", {}, "True"),
        (False, "bool", {}, "no"),
        ({"a": [1, None]}, "json", {}, ' {"a": [1, null]} '),
        ({"a": {"b": 1}, "c": True}, "json", {"unquoted_keys": True}, "{a:{b:1}, c :true}"),
        ({"a": 'x"y{', "b": "<s>"}, "json", {"string_delims": [["<|", "|>"]]}, '{"a":<|x"y{|>,"b":"<s>"}'),
        ("just text", "json", {"allow_non_json": True}, " just text "),
        ({"a": "1", "b": "x y"}, "xml-inline", {"tag_pattern": TAG}, "<p=a>1</p>, <p=b>\nx y\n</p>"),
        ({"a": 1, "b": "x"}, "xml-inline",
         {"tag_pattern": TAG, "value_parser": {"name": "json", "args": {"allow_non_json": True}}}, "<p=a>1</p><p=b>x</p>"),
        ({"a": "2"}, "xml-inline", {"tag_pattern": TAG}, "<p=a>1</p><p=a>2</p>"),
        ({"a": ["1", "2"]}, "xml-inline", {"tag_pattern": TAG, "merge_duplicates": True}, "<p=a>1</p><p=a>2</p>"),
        ({"a": "</q>"}, "xml-inline", {"tag_pattern": TAG}, "<p=a></q></p><p=b>never closed"),
        ({"a": "1", "b": "2:3"}, "kv-lines", {}, "a: 1\n\nnothing\n b:2:3"),
        ({"a ": " 1"}, "kv-lines", {"line_sep": ";", "kv_sep": "=", "strip": False}, "a = 1;b"),
        ({"a": 1}, "kv-lines", {"value_parser": {"name": "int"}}, "a: 1"),
    ],
)  # fmt: skip
def test_content_is_read_by_its_parser(expected: Any, content: str, arguments: dict[str, Any], body: str) -> None:
    (read,) = response_template(
        declared(x={"open": "<x>", "close": "</x>", "content": content, "content_args": arguments})
    ).fields
    value = read.read(body, {})
    assert (expected, type(expected)) == (value, type(value))


@pytest.mark.parametrize(
    ("content", "body", "message"),
    [
        ("int", "x", "invalid literal"),
        ("float", "nan", "no number that JSON knows"),
        ("float", "inf", "no number that JSON knows"),
        ("json", "{", "Expecting"),
        ("json", "NaN", "NaN is not JSON"),
        ("json", "[" * 100_000, "nested too deep"),
    ],
)
def test_invalid_template_raises_only_value_error(content: str, body: str, message: str) -> None:
    (read,) = response_template(declared(x={"open": "<x>", "close": "</x>", "content": content})).fields
    with pytest.raises(ValueError, match=message):
        read.read(body, {})


@pytest.mark.parametrize(
    ("expected", "read", "body"),
    [
        ([("f", '{"a": 1.50}')], field(transform={"type": "function", "function": "{content}"}), '{"name": "f", "arguments": {"a": 1.50}}'),
        ([("f", "{}")], field(), '{"name": "f"}'),
        ([("f", '{"a": 1}')], field(), '{"name": "f", "arguments": "{\\"a\\": 1}"}'),
        ([("f", '{"a": 1}')], field(), '{"type": "function", "function": {"name": "f", "parameters": {"a": 1}}}'),
        ([("f", "{}"), ("g", "{}")], field(), '[{"name": "f"}, {"name": "g"}]'),
        ([("f", '{"x": 1}'), ("g", "{}")],
         field(transform_each=True, transform={"function": {"name": "{tool}", "arguments": "{with.it}"}}),
         '[{"tool": "f", "with": {"it": {"x": 1}}}, {"tool": "g", "with": {"it": null}}]'),
        ([("f", '{"k": "1"}')], named(content="xml-inline", content_args={"tag_pattern": TAG}), "<p=k>1</p>"),
        ([("f", '{"k": "1"}')], named(content="kv-lines"), "k: 1"),
        ([("f", "{}")], named(), "  "),
        ([("f", '{"a":  1e5}')], named(), ' {"a":  1e5}\n'),
    ],
)  # fmt: skip
def test_calls_are_read_from_a_region(expected: list[tuple[str, str]], read: Field, body: str) -> None:
    assert expected == [(call.name, call.arguments) for call in read.calls(body, {"name": "f"})]


@pytest.mark.parametrize(
    ("read", "body", "message"),
    [
        (field(), "[1]", "no name"),
        (field(), '{"arguments": {}}', "no name"),
        (field(), '{"name": "f", "arguments": [1]}', "no object"),
        (named(), "[1]", "no object"),
        (field(), '"f"', "no name"),
        (field(transform_each=True, transform={"function": {"name": "{n}"}}), "3", "a list of objects"),
        (field(transform={"function": {"name": "{content.n}"}}), "{}", "there is no 'content.n'"),
    ],
)
def test_region_without_a_call_raises_value_error(read: Field, body: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read.calls(body, {"name": "f"})


def test_untyped_values_keep_their_text() -> None:
    read = named(
        content="xml-inline",
        content_args={"tag_pattern": TAG, "value_parser": {"name": "json", "args": {"allow_non_json": True}}},
    )
    assert [ReadCall("f", '{"zip": 2134, "on": true}', {"zip": "2134", "on": "true"})] == read.calls(
        "<p=zip>2134</p><p=on>true</p>", {"name": "f"}
    )


def test_only_text_and_json_arguments_under_a_name_can_stream() -> None:
    assert named().streams
    assert not named(content="json", content_args={"unquoted_keys": True}).streams
    assert not field().streams


def test_half_a_surrogate_pair_stays_an_escape() -> None:
    (call,) = field().calls('{"name": "f", "arguments": {"a": "\\ud83d", "b": "é"}}', {})
    assert '{"a": "\\ud83d", "b": "é"}' == call.arguments
    assert {"a": "\ud83d", "b": "é"} == json.loads(call.arguments)


def test_of_two_closers_the_longer_one_is_waited_for() -> None:
    template: ResponseTemplate = response_template(declared(x={"open": "<x>", "close": ["END", "ENDX"]}))
    closer = template.fields[0].close
    assert closer is not None
    assert Verdict.MORE is closer.match("END", 0, ended=False)
    assert Match(3, {}) == closer.match("ENDing", 0, ended=False)
    assert Match(4, {}) == closer.match("ENDX", 0, ended=False)
    assert Match(3, {}) == closer.match("END", 0)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=5), _json, max_size=4))
def test_argument_values_are_kept(arguments: dict[str, Any]) -> None:
    (call,) = field().calls(json.dumps({"name": "f", "arguments": arguments}), {})
    assert arguments == json.loads(call.arguments)
    (call,) = named().calls(json.dumps(arguments), {"name": "f"})
    assert json.dumps(arguments) == call.arguments


def _lax(value: Any) -> str:
    """As the Gemma family writes it: bare keys, strings between marks of its own."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_lax(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_lax, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


_bare = st.dictionaries(
    st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True), st.integers() | st.booleans() | st.text(), max_size=4
)


@settings(deadline=None)
@given(_bare)
def test_json_dialects_keep_their_values(arguments: dict[str, Any]) -> None:
    read = response_template(GEMMA).fields[2]
    (call,) = read.calls(_lax({"o": arguments, "l": [arguments]}), {"name": "f"})
    assert {"o": arguments, "l": [arguments]} == json.loads(call.arguments)

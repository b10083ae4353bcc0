"""Requests are written as the contract has them, and replies are read as it does: spec/hooks.md, section 2."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.hooks.process.wire import Reply, UndecodableError, id_in_head, notification_line, read_reply, request_line
from support.tables import rows

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_a_request_is_one_line_with_escaped_markup_plain_utf8_and_sorted_keys():
    line = request_line(7, "hook.before_tool", {"b": "<ü> & \u2028", "a": 1})
    expected = r'{"jsonrpc":"2.0","id":7,"method":"hook.before_tool","params":{"a":1,"b":"\u003cü\u003e \u0026 \u2028"}}' + "\n"
    assert expected.encode() == line


def test_a_notification_has_no_id():
    assert b'{"jsonrpc":"2.0","method":"hook.runtime_event","params":{}}\n' == notification_line("hook.runtime_event", {})


@given(JSON)
def test_any_request_is_one_line_of_json(value):
    line = request_line(1, "m", {"value": value})
    assert line.endswith(b"\n")
    assert 1 == line.count(b"\n")
    assert value == json.loads(line)["params"]["value"]
    assert not any(sign in line for sign in (b"<", b">", b"&"))


def test_values_that_json_lacks_are_written():
    loop: dict[str, object] = {"half": "\ud800", 1: "key", "nan": float("nan")}
    loop["self"] = loop
    params = json.loads(request_line(1, "m", loop))["params"]
    assert ("\ufffd", "key", None) == (params["half"], params["1"], params["nan"])


@pytest.mark.parametrize(("line", "reply"), rows(__file__, "lines.jsonl"))
def test_a_reply_is_read(line, reply):
    assert Reply(*reply) == read_reply(line.encode("latin-1"))


@pytest.mark.parametrize(("line", "reply_id"), rows(__file__, "bad_lines.jsonl"))
def test_undecodable_reply_error_has_the_likely_reply_id(line, reply_id):
    with pytest.raises(UndecodableError) as caught:
        read_reply(line.encode("latin-1"))
    assert reply_id == caught.value.reply_id


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_invalid_line_raises_only_undecodable_error(line):
    try:
        read_reply(line)
    except UndecodableError:
        pass


@pytest.mark.parametrize(("head", "reply_id"), rows(__file__, "heads.jsonl"))
def test_the_id_is_read_from_a_beginning_where_it_is_sure(head, reply_id):
    assert reply_id == id_in_head(head.encode())


@given(st.binary(max_size=200))
def test_no_beginning_is_too_odd_to_look_for_an_id_in(head):
    assert id_in_head(head) is None or isinstance(id_in_head(head), int)

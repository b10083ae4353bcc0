"""Law 1 for arbitrary message lists: each call has one result, right behind it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.transcript import NOT_SHOWN, normalize


def calling_message(*ids: str) -> dict[str, Any]:
    calls = [{"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for call_id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str, text: str = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def user(text: str = "hi") -> dict[str, Any]:
    return {"role": "user", "content": text}


WHOLE = [
    user(),
    calling_message("1", "2"),
    result("1"),
    result("2"),
    user("look"),
    calling_message("1"),
    result("1", "again"),
    {"role": "assistant", "content": "done"},
]


def test_messages_in_order_are_returned_as_they_are():
    assert WHOLE == normalize(WHOLE)
    assert all(one is other for one, other in zip(WHOLE, normalize(WHOLE), strict=True))


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([calling_message("1", "2"), result("2")], [calling_message("1", "2"), result("1", NOT_SHOWN), result("2")]),
        ([calling_message("1", "2"), result("2"), result("1")], [calling_message("1", "2"), result("1"), result("2")]),
        ([calling_message("1"), user(), result("1")], [calling_message("1"), result("1"), user()]),
        ([calling_message("1"), result("1"), result("1", "twice")], [calling_message("1"), result("1")]),
        ([result("1"), calling_message("1")], [calling_message("1"), result("1", NOT_SHOWN)]),
        ([result("1"), user()], [user()]),
        (
            [calling_message("1"), calling_message("1"), result("1")],
            [calling_message("1"), result("1", NOT_SHOWN), calling_message("1"), result("1")],
        ),
        ([{"role": "assistant", "tool_calls": [5, {"id": 7}]}], [{"role": "assistant", "content": ""}]),
        ([{"role": "assistant", "content": "x", "tool_calls": "y"}], [{"role": "assistant", "content": "x"}]),
        (
            [{**calling_message("1"), "tool_calls": [None, *calling_message("1")["tool_calls"]]}],
            [calling_message("1"), result("1", NOT_SHOWN)],
        ),
    ],
)
def test_missing_results_are_reported_and_surplus_ones_left_out(messages, expected):
    assert expected == normalize(messages)


ids = st.sampled_from(["1", "2", "3"])
some = st.one_of(
    st.lists(ids, min_size=1, max_size=3, unique=True).map(lambda each: calling_message(*each)), ids.map(result), st.just(user())
)


@given(st.lists(some, max_size=12))
def test_each_call_has_exactly_one_result(messages):
    view = normalize(messages)
    at = 0
    while at < len(view):
        expected = [call["id"] for call in view[at].get("tool_calls") or ()]
        at += 1
        assert expected == [message["tool_call_id"] for message in view[at : at + len(expected)]]
        at += len(expected)
        assert at >= len(view) or view[at]["role"] != "tool"
    assert [message for message in messages if message["role"] != "tool"] == [m for m in view if m["role"] != "tool"]
    assert view == normalize(view)

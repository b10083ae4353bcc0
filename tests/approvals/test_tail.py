"""Calls that wait for approval in ``patchbay tail``, and calls of one name that run side by side."""

from __future__ import annotations

import pytest

from patchbay.cli.tail import CALLS, TURNS, CallNumbers, Trace


def tail_event(kind, payload, *, call_id="c1", turn="turn-1", iteration=1):
    return {
        "kind": kind,
        "time": "2026-01-01T00:00:00.250000000Z",
        "scope": {"turn_id": turn},
        "payload": payload,
        "attrs": {"call_id": call_id, "iteration": iteration},
    }


def printed_lines(*events):
    """Return the lines, without time and turn."""
    trace = Trace(colour=False, ascii_only=True)
    return [line[21:].strip() for event in events for line in trace.lines(event)]


WAITS = {"ID": "3f0c9a1b2d4e", "Tool": "delete", "Arguments": {"path": "/a"}, "Who": ["terminal", "http"], "Deadline": 1.0}


def test_pending_call_is_printed_with_its_id():
    expected = '? delete(path="/a"): waits for approval 3f0c9a1b2d4e, to be decided by terminal or http'
    assert [expected] == printed_lines(tail_event("agent.approval.requested", WAITS))


@pytest.mark.parametrize(
    ("payload", "line"),
    [
        ({"Decision": "approved", "By": "ann"}, "- delete: approved by ann (3f0c9a1b2d4e)"),
        ({"Decision": "approved", "By": "ann", "ForSession": True}, "- delete: approved for the session by ann (3f0c9a1b2d4e)"),
        ({"Decision": "denied", "By": "ann", "Reason": "no\x1b"}, "- delete: denied by ann (3f0c9a1b2d4e): no\\u001b"),
        ({"Decision": "expired", "By": ""}, "- delete: expired (3f0c9a1b2d4e)"),
    ],
)
def test_decision_is_printed(payload, line):
    assert [line] == printed_lines(tail_event("agent.approval.decided", {"ID": "3f0c9a1b2d4e", "Tool": "delete", **payload}))


def test_calls_of_one_tool_are_numbered_in_each_line():
    lines = printed_lines(
        tail_event("agent.approval.requested", WAITS, call_id="c1"),
        tail_event("agent.tool.exec_start", {"Tool": "delete", "Arguments": {"path": "/b"}}, call_id="c2"),
        tail_event("agent.tool.exec_start", {"Tool": "show", "Arguments": {}}, call_id="c3"),
        tail_event("agent.tool.exec_end", {"Tool": "delete", "ForLLMLen": 1}, call_id="c2"),
        tail_event("agent.approval.decided", {"ID": "x", "Tool": "delete", "Decision": "denied"}, call_id="c1"),
        tail_event("agent.tool.exec_skipped", {"Tool": "delete", "Reason": "no"}, call_id="c1"),
        tail_event("agent.tool.exec_start", {"Tool": "delete", "Arguments": {}}, call_id="c1", iteration=2),
        tail_event("agent.tool.exec_start", {"Tool": "delete", "Arguments": {}}, call_id="c1", turn="turn-2"),
    )
    words = [line.split(" ", 1)[1].split(":")[0].split("(")[0] for line in lines]
    assert ["delete", "delete #2", "show", "delete #2", "delete", "delete", "delete #3", "delete"] == words


def test_call_numbers_are_dropped_with_their_turn_and_bounded():
    numbers = CallNumbers()
    assert [1, 2] == [numbers.of("t", "add", (1, each)) for each in "ab"]
    numbers.forget("t")
    assert 1 == numbers.of("t", "add", (1, "b"))
    for n in range(TURNS):
        numbers.of(f"other {n}", "add", (1, "a"))
    assert 1 == numbers.of("t", "add", (1, "c"))
    assert [CALLS, 1] == [[numbers.of("long", "add", (n, "")) for n in range(CALLS)][-1], numbers.of("long", "add", (CALLS, ""))]
    assert [1, 1] == [numbers.of("", "add", (n, "")) for n in range(2)]

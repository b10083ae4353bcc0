"""Turns stored between two requests: found by unguessable ids, bounded, and never of another conversation."""

from __future__ import annotations

import asyncio
from typing import Any

from agents.databases import execute
from patchbay.server.chat.hidden_turn_database import DatabaseHiddenTurns
from patchbay.server.chat.hidden_turns import HiddenTurnStore
from patchbay.tools.result_store import MemoryResultStore
from patchbay.types import ToolCall

USER = {"role": "user", "content": "hi"}


def stored_turn(store: HiddenTurnStore, text: str = "said") -> dict[str, Any]:
    """Store a hidden turn; return the message that a client has in its place."""
    pending = ToolCall("b", "theirs")
    made = [ToolCall("a", "ours").to_openai(), pending.to_openai()]
    hidden = [{"role": "assistant", "content": text, "tool_calls": made}, {"role": "tool", "tool_call_id": "a", "content": "A"}]
    (call,) = asyncio.run(store.keep(hidden, [pending], MemoryResultStore()))
    return {"role": "assistant", "content": None, "tool_calls": [call.to_openai()]}


def store(clock: Any = lambda: 0.0, **limits: Any) -> HiddenTurnStore:
    return HiddenTurnStore(**{"most": 3, "most_bytes": 100_000, "seconds": 10.0, "clock": clock, **limits})


def is_found(turns: HiddenTurnStore, message: dict[str, Any]) -> bool:
    answer = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "B"}
    restored = turns.restored([USER, message, answer])
    assert restored.found == (restored.messages != [USER, message, answer])
    return restored.found


def test_least_recently_used_turns_are_evicted() -> None:
    turns = store()
    first, second, third = (stored_turn(turns, str(n)) for n in range(3))
    assert is_found(turns, first)
    fourth = stored_turn(turns)
    assert [True, False, True, True] == [is_found(turns, each) for each in (first, second, third, fourth)]
    assert 3 == len(turns)


def test_their_size_is_bounded_and_one_that_is_too_large_pushes_out_no_other() -> None:
    turns = store(most=100, most_bytes=3000)
    first = stored_turn(turns, "x" * 1000)
    assert not is_found(turns, stored_turn(turns, "x" * 4000))
    assert is_found(turns, first)
    stored_turn(turns, "x" * 2500)
    assert not is_found(turns, first)
    assert 1 == len(turns)


def quoted(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [USER, message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "B"}]


def test_results_of_finished_turns_count_against_the_limit() -> None:
    turns = store()
    message = stored_turn(turns)
    results = turns.restored(quoted(message)).results
    asyncio.run(results.keep("x" * 1000))  # the turn goes on, and ends with an answer
    assert 0 == turns.restored(quoted(message)).results.size


def test_two_branches_of_a_conversation_have_their_own_long_results() -> None:
    turns = store()
    message = stored_turn(turns)
    one, other = (turns.restored(quoted(message)).results for _ in range(2))
    ids = [asyncio.run(results.keep(text)) for results, text in ((one, "one"), (other, "other"))]
    assert ["one", "other"] == [asyncio.run(results.read(id_)) for results, id_ in zip((one, other), ids, strict=True)]
    assert [None, None] == [asyncio.run(results.read("result_2")) for results in (one, other)]


def test_unused_hidden_turns_expire() -> None:
    now = 0.0
    turns = store(lambda: now)
    first, second = stored_turn(turns), stored_turn(turns)
    now = 9.0
    assert is_found(turns, first)
    now = 12.0
    assert [True, False] == [is_found(turns, first), is_found(turns, second)]
    now = 30.0
    assert not is_found(turns, first)
    assert 0 == len(turns)


def test_any_number_of_ids_is_looked_up_in_the_database_and_only_a_turn_that_is_due_is_written(url: str) -> None:
    made = [DatabaseHiddenTurns(url, most=3, most_bytes=100_000, seconds=1000.0) for _ in range(3)]
    message = stored_turn(made[0])
    body = "".join(f"call_{number:028x}0000" for number in range(70_000)) + message["tool_calls"][0]["id"]

    def extended_by(store: DatabaseHiddenTurns) -> float:
        before = execute(url, "SELECT expires FROM patchbay_hidden_turns")
        asyncio.run(store.load(body.encode()))
        assert is_found(store, message)
        return float(execute(url, "SELECT expires FROM patchbay_hidden_turns") - before)

    assert 0.0 == extended_by(made[1])
    execute(url, "UPDATE patchbay_hidden_turns SET expires = expires - 600")
    assert extended_by(made[2]) > 500.0
    for each in made:
        asyncio.run(each.close())


def test_hidden_turn_is_matched_only_by_a_message_of_its_calls() -> None:
    turns = store()
    one, other = stored_turn(turns), stored_turn(turns)
    foreign = {"id": "call_1", "type": "function", "function": {"name": "x", "arguments": "{}"}}
    for calls in (
        [*one["tool_calls"], foreign], [foreign, *one["tool_calls"]], [*one["tool_calls"], *other["tool_calls"]], [foreign], [], None, "x", [5],
        [{"id": 5}], [{}],
    ):  # fmt: skip
        messages = [USER, {"role": "assistant", "content": "mine", "tool_calls": calls}]
        restored = turns.restored(messages)
        assert (messages, False) == (restored.messages, restored.found)
    assert not turns.restored([{**one, "role": "user"}]).found

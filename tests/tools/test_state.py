"""The state in a call, and the merging of concurrent changes."""

from __future__ import annotations

import copy
import json
import operator
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from patchbay.tools import State, ToolActions, merge_actions


@dataclass
class Done:
    """An execution with actions only."""

    actions: ToolActions | None


def actions_of(state: State) -> ToolActions:
    return ToolActions(state_delta=state.delta, state_found=state.found)


def merged(base: dict[str, Any], *works: Any) -> dict[str, Any]:
    """Return the merged changes of concurrent calls, each with a State over ``base``."""
    states = []
    for work in works:
        state = State(base)
        work(state)
        states.append(state)
    return merge_actions(Done(actions_of(state)) for state in states).state_delta


KEYS = st.sampled_from(["a", "b", "app:c", "user:d", "temp:e"])
VALUES = (
    st.none()
    | st.integers()
    | st.text(max_size=3)
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.just("k"), st.integers())
)


class Overlay(RuleBasedStateMachine):
    """Against a plain dict: what is read is what was written, the base never changes, and the delta leads from one to the other."""

    def __init__(self) -> None:
        super().__init__()
        self.base = {"a": 1, "b": [1], "app:c": {"k": 0}, "user:d": None}
        self.before = copy.deepcopy(self.base)
        self.model: dict[str, Any] = {key: copy.deepcopy(value) for key, value in self.base.items() if value is not None}
        self.state = State(self.base)

    @rule(key=KEYS, value=VALUES)
    def write(self, key: str, value: Any) -> None:
        self.state[key] = copy.deepcopy(value)
        self.model[key] = copy.deepcopy(value)
        if value is None:
            del self.model[key]

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        if key in self.model:
            del self.state[key], self.model[key]
        else:
            with pytest.raises(KeyError):
                del self.state[key]

    @rule(key=KEYS, default=VALUES)
    def get(self, key: str, default: Any) -> None:
        assert self.model.get(key, default) == self.state.get(key, copy.deepcopy(default))

    @rule(key=KEYS)
    def change_in_place(self, key: str) -> None:
        for mapping in (self.state, self.model):
            value = mapping.get(key)
            if isinstance(value, list):
                value.append(7)
            elif isinstance(value, dict):
                value["more"] = 7

    @rule(key=KEYS, default=VALUES)
    def set_default(self, key: str, default: Any) -> None:
        found = self.state.setdefault(key, copy.deepcopy(default))
        if default is None:
            assert self.model.get(key) == found
        else:
            assert self.model.setdefault(key, copy.deepcopy(default)) == found

    @invariant()
    def reads_what_was_written(self) -> None:
        assert self.model == dict(self.state) == self.state.to_dict()
        assert len(self.model) == len(self.state)
        assert set(self.model) == {key for key in ("a", "b", "app:c", "user:d", "temp:e") if key in self.state}

    @invariant()
    def base_is_untouched_and_the_delta_leads_from_it(self) -> None:
        assert self.before == self.base
        applied = {**self.base, **self.state.delta}
        assert self.model == {key: value for key, value in applied.items() if value is not None}


TestOverlay = Overlay.TestCase


def test_in_place_change_is_in_the_delta_and_not_in_the_base():
    base = {"cart": ["a"], "seen": {"x"}}
    state = State(base)
    state["cart"].append("b")
    _ = state["seen"]
    assert {"cart": ["a", "b"]} == state.delta
    assert ["a"] == base["cart"]


def test_uncopyable_values_are_shared():
    lock = threading.Lock()
    held = {"lock": lock}
    state = State({"temp:held": held})
    assert state["temp:held"] is held
    assert {} == state.delta


def test_a_key_must_be_a_text():
    with pytest.raises(TypeError, match="str"):
        State()[3] = 1  # type: ignore[index]


def count(state: State) -> None:
    state["n"] = state.get("n", 0) + 1


def delete(state: State) -> None:
    del state["n"]


def assign(**values: Any) -> Any:
    return lambda state: state.update(values)


def append(item: str) -> Any:
    return lambda state: state.setdefault("log", []).append(item)


def append_by_operator(item: str) -> Any:
    return lambda state: state.__setitem__("log", operator.iadd(state["log"], [item]))


def append_by_hand(item: str) -> Any:
    def work(state: State) -> None:
        log = state.get("log", [])
        log.append(item)
        state["log"] = log

    return work


def fetch(*rows: str) -> Any:
    return lambda state: state.get("log", []) or state.__setitem__("log", list(rows))


def edit_containers(state: State) -> None:
    state["d"]["mine"] = 1
    state["s"].add(3)


def edit_others(state: State) -> None:
    del state["d"]["gone"]
    state["d"]["keep"] = 3
    state["s"].discard(1)


CONTAINERS = {"d": {"keep": 1, "gone": 2}, "s": {1, 2}}
EDITED = {"d": {"keep": 3, "mine": 1}, "s": {2, 3}}


@pytest.mark.parametrize(
    ("base", "works", "expected"),
    [
        ({}, [count] * 5, {"n": 5}),
        ({"n": 2}, [count] * 5, {"n": 7}),
        *(({"log": ["old"]}, [kind("a"), kind("b")], {"log": ["old", "a", "b"]}) for kind in (append, append_by_operator, append_by_hand)),
        *(({}, [kind("a"), kind("b")], {"log": ["a", "b"]}) for kind in (append, append_by_hand)),
        (CONTAINERS, [edit_containers, edit_others], EDITED),
        (CONTAINERS, [edit_others, edit_containers], EDITED),
        # The later call's: what was assigned or edited otherwise, what was deleted, members that both changed.
        ({}, [fetch("a", "b"), fetch("c")], {"log": ["c"]}),
        ({"log": []}, [fetch("a", "b"), fetch("c")], {"log": ["c"]}),
        ({"log": [2, 1]}, [append(3), lambda state: state["log"].sort()], {"log": [1, 2]}),
        ({"d": {"n": 0}}, [lambda state: state["d"].update(n=9), lambda state: state["d"].update(n=7)], {"d": {"n": 7}}),
        ({"d": {}}, [assign(d={"a": 1}), assign(d={"b": 2})], {"d": {"b": 2}}),
        ({"n": 1}, [count, delete], {"n": None}),
        ({"n": 1}, [delete, count], {"n": 2}),
        ({"n": True}, [lambda state: assign(n=not state["n"])(state)] * 2, {"n": False}),
    ],
)  # fmt: skip
def test_changes_of_concurrent_calls_are_merged_in_call_order(base, works, expected):
    assert expected == merged(base, *works)


@given(st.integers(-5, 5), st.lists(st.integers(-3, 3), min_size=1, max_size=5))
def test_concurrent_additions_to_a_number_are_summed(start, changes):
    def change(by: int) -> Any:
        return lambda state: assign(n=state["n"] + by)(state)

    assert start + sum(changes) == merged({"n": start}, *map(change, changes))["n"]


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (lambda state: assign(n=1 + state["n"])(state), 12),
        (lambda state: assign(n=state["n"] - 0.5)(state), 9.0),
        (lambda state: assign(n=sum([state["n"], 2, 3]))(state), 20),
        (lambda state: assign(n=state["n"] + state["step"])(state), 14),
        (lambda state: (count(state), count(state)), 14),
        (lambda state: (state.setdefault("n", 0), count(state)), 12),
        (lambda state: assign(n=state.setdefault("n", 0) + 1)(state), 12),
    ],
)
def test_additions_in_any_spelling_are_merged(work, expected):
    assert expected == merged({"n": 10, "step": 2}, work, work)["n"]


@pytest.mark.parametrize(
    "work",
    [
        lambda value: assign(n=value),
        lambda value: lambda state: assign(n=max(value, state["n"] - 1000))(state),
        lambda value: lambda state: assign(n=value)(state) if state["n"] < value else None,
        lambda value: lambda state: (state.pop("n"), assign(n=state.get("n", 0) + value)(state)),
        lambda value: lambda state: (assign(n=value - 1)(state), count(state)),
        lambda value: lambda state: assign(n=state["m"] + value)(state),
    ],
    ids=["unread", "highest", "compared", "deleted", "set first", "of another key"],
)
def test_assigned_number_is_never_summed(work):
    assert 700 == merged({"n": 5, "m": 0}, work(900), work(700))["n"]


class Unlike:
    def __eq__(self, other: object) -> bool:
        raise ValueError("neither true nor false")

    __hash__ = None  # type: ignore[assignment]


def test_values_that_cannot_be_compared_do_not_stop_the_merge():
    assert [1] == merged({"log": [Unlike()]}, append(1), append(1))["log"][1:]


def test_numbers_of_the_state_are_numbers_like_any_other():
    state = State({"n": 2, "x": 0.5, "on": True})
    n, x = state["n"], state["x"]
    assert ("2", "0.5", '{"n": 2, "x": 0.5}') == (str(n), repr(x), json.dumps({"n": n, "x": x}))
    assert (4, 1, 2.5, [0, 1], "b") == (n * 2, n // 2, n + x, list(range(n)), "abc"[n - 1])
    assert (int, float, bool) == (type(copy.copy(n)), type(copy.deepcopy({"x": x})["x"]), type(state["on"]))
    state["n"] += 1
    state["other"] = n
    assert [int, int] == [type(value) for value in state.delta.values()]
    assert {int, float, bool} == {type(value) for value in state.to_dict().values()}


def test_actions_are_merged_in_call_order_without_failed_calls():
    first = ToolActions(transfer_to_agent="a", escalate=True, state_delta={"k": 1})
    last = ToolActions(transfer_to_agent="b", state_delta={"k": 2, "l": 3})
    made = merge_actions([Done(first), Done(None), Done(last), Done(ToolActions())])
    assert ("b", True, {"k": 2, "l": 3}) == (made.transfer_to_agent, made.escalate, made.state_delta)
    assert not merge_actions([Done(None)])
    assert merge_actions([Done(first)])

"""Answers in a tool's place, and approvals (P2, P15): order, protected tools, and that exactly the approved call runs."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from patchbay.hooks import HookPolicy, Modify, Respond
from patchbay.hooks.events import digest_of

from .test_injected_tools import OSLO, WEATHER, hook_with_tools
from .turns import called, hook, managed, play_turn, run_turn


def approver(asked: list[Any], answer: Any = True) -> Any:
    return hook(approve_tool=lambda call: asked.append(call.tool) or answer)


RESPONDS = hook(before_tool=Respond("answered"))


@pytest.mark.parametrize(("policy", "result"), [("foreign", "Tool execution denied by approval hook"), ("never", "answered")])
def test_an_answer_that_is_not_approved_is_a_denied_call(policy, result):
    turned = play_turn(managed(RESPONDS, approver([], False), policy=HookPolicy(respond_approval=policy)))
    assert ([result], []) == (turned.results, turned.ran)


@pytest.mark.parametrize(("policy", "expected"), [("foreign", []), ("never", []), ("always", ["get_weather"])])
def test_hook_answers_its_own_tools_unless_the_policy_forbids_it(policy, expected):
    asked = []
    turned = play_turn(
        managed(hook_with_tools(WEATHER), approver(asked), policy=HookPolicy(respond_approval=policy)), OSLO, "done"
    )
    assert (["sunny in Oslo"], expected) == (turned.results, asked)


def test_approval_of_an_injected_tool_precedes_its_owner():
    """S5: by the time an answer is there, its hook has acted."""
    asked = []
    owner = hook_with_tools(WEATHER, before_tool=lambda call: asked.append("owner") or Respond("x"))
    turned = play_turn(managed(owner, approver(asked, False), policy=HookPolicy(respond_approval="always")), OSLO, "done")
    assert (["get_weather"], ["Tool execution denied by approval hook"]) == (asked, turned.results)


def test_answered_protected_tool_is_approved_and_later_hooks_are_called():
    asked = []
    after = hook(before_tool=lambda call: asked.append("next"))
    rules = HookPolicy(protected=frozenset({"add"}))
    play_turn(managed(RESPONDS, after, approver(asked), policy=rules))
    assert ["next", "add"] == asked


# what is approved is what runs


class Box(BaseModel):
    items: list[int]


def test_approvers_see_the_executed_arguments_and_their_digest():
    seen = []

    async def use(box: Box, tag: str = "x") -> str:
        return f"{box.items} {tag}"

    def approve_tool(call):
        seen.append((call.tool, call.arguments, call.digest, call.call_id))
        return True

    raw = '{"box": {"items": ["1", 2]}}'
    turned = play_turn(managed(hook(approve_tool=approve_tool)), called("use", raw), "done", tools=[use])
    arguments = {"box": {"items": [1, 2]}, "tag": "x"}
    assert [("use", arguments, digest_of("use", arguments), "c1")] == seen
    assert ["[1, 2] x"] == turned.results


@given(
    st.text(st.characters(), max_size=5),
    st.dictionaries(
        st.text(st.characters(), max_size=4),
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters())
        | st.lists(st.integers(), max_size=2),
        max_size=4,
    ),
)  # fmt: skip
def test_digest_is_reproducible_from_its_specification(tool, arguments):
    """In any language: the tool's name, a newline, and the arguments as JSON in ASCII with sorted keys and no blanks."""
    written = json.dumps(arguments, sort_keys=True, separators=(",", ":"))
    expected = hashlib.sha256(f"{tool}\n{written}".encode("utf-8", "surrogatepass")).hexdigest()
    assert f"sha256:{expected}" == digest_of(tool, arguments)


@given(
    st.text(st.characters(), max_size=5),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.dictionaries(st.text(st.characters(), max_size=2), st.none() | st.text(st.characters(), max_size=3), max_size=2),
)
def test_digest_with_facts_is_reproducible_from_its_specification(tool, arguments, facts):
    """The same, and where there are facts a newline, the word, a blank, and they as JSON in the same way."""
    args, found = (json.dumps(each, sort_keys=True, separators=(",", ":")) for each in (arguments, facts))
    text = f"{tool}\n{args}\nfacts {found}" if facts else f"{tool}\n{args}"
    expected = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    assert f"sha256:{expected}" == digest_of(tool, arguments, facts)


def test_digest_of_facts_cannot_be_forged_by_a_tool_name():
    with_facts = digest_of("f", {"a": 1}, {"b": 2})
    others = [
        ("f", {"a": 1}),
        ("f", {"b": 2}, {"a": 1}),
        ('f\n{"a":1}', {"b": 2}),
        ('f\n{"a":1}\nfacts ', {"b": 2}),
        ("f", {"a": 1}, {"b": 3}),
    ]
    assert with_facts not in [digest_of(*each) for each in others]


def test_digest_of_converted_arguments_is_that_of_their_json():
    box = {"box": Box(items=[1]), "nan": float("nan")}
    assert digest_of("f", {"box": Box(items=[1])}) == digest_of("f", {"box": {"items": [1]}})
    assert digest_of("f", box) == digest_of("f", box)


def recording_hook(kept: list[Any], answer: Any = None) -> Any:
    def asked(view: Any) -> Any:
        kept.append(view.arguments)
        return answer(view) if callable(answer) else answer

    return asked


def change_all(kept: list[Any]) -> None:
    for arguments in kept:
        arguments["box"]["items"].append(666)
        arguments["tag"] = "spoiled"


async def test_later_changes_by_a_hook_do_not_run():
    """Law 9: changed between approval and run, and while the tool runs, by everybody who ever saw the arguments."""
    kept: list[Any] = []
    seen: list[Any] = []

    async def use(box: Box, tag: str = "x") -> str:
        seen.append((list(box.items), tag))
        change_all(kept)
        await asyncio.sleep(0)
        return f"{box.items} {tag}"

    def before(_call, _tool, arguments, _context):
        kept.append({"box": {"items": arguments["box"].items}, "tag": arguments["tag"]})

    async def approve_tool(call):
        seen.append((call.arguments["box"]["items"], call.arguments["tag"]))
        change_all(kept)
        kept.append(call.arguments)
        return True

    changed = recording_hook(kept, lambda call: Modify({"arguments": kept[-1]}))
    manager = managed(hook(before_tool=changed), hook(before_tool=recording_hook(kept)), hook(approve_tool=approve_tool))
    manager.mount("first", hook(before_tool=recording_hook(kept)), priority=-1)
    result = await run_turn(manager, [called("use", '{"box": {"items": [1]}}'), "done"], tools=[use], before=before)
    assert [([1], "x"), ([1], "x")] == [(items[:1], tag) for items, tag in seen]
    assert ["[1] x"] == result.results
    assert {"box": Box(items=[1]), "tag": "x"} == result.final.tool_executions[0].arguments
    assert 5 == len(kept)


def test_late_read_of_a_view_shows_the_reviewed_values():
    """A hook keeps its view, and looks at it for the first time while the tool has its way with the arguments."""
    views: list[Any] = []
    late: list[Any] = []

    async def use(items: list[int]) -> str:
        items.append(9)
        late.append(views[0].arguments)
        return "ok"

    play_turn(managed(hook(before_tool=views.append)), called("use", '{"items": [1]}'), "done", tools=[use])
    assert [{"items": [1]}] == late
    assert ("use", "c1", 1) == (views[0].tool, views[0].call_id, views[0].meta.iteration)


def test_messages_and_arguments_nested_too_deeply_stop_nothing():
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    seen = []

    def before_llm(request):
        seen.append(request.messages)
        return Modify(request)

    turned = play_turn(managed(hook(before_llm=before_llm)), "done", messages=[{"role": "user", "content": deep}])
    assert (["..."], "done") == (seen, turned.final.content)
    while deep:
        deep = deep.pop()

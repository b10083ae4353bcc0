"""Replies of a real process become decisions, row by row of ``replies.jsonl``: contract sections 4 and 5, policies P5 and P6.

A row has the ``result`` that the hook sends and the ``decision`` or the ``error`` that it is; ``odd`` are words about what was
passed over. ``$params``, ``$messages.1`` and the like are what the hook was sent, or what the host has.
"""

from __future__ import annotations

import inspect
import json
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks_process import view_builders
from hooks_process.peers import script, spec
from patchbay import hooks
from patchbay.hooks import Meta, Modify, ToolOutput
from patchbay.hooks.process import HookReplyError, ProcessHook, client, replies
from patchbay.hooks.process.protocol import POINTS

IMAGE = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
CALL = {"id": "1", "type": "function", "function": {"name": "a", "arguments": "{}"}}
HOST: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE], "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
    ],
    "tools": [view_builders.tool("add", strict=True), view_builders.tool("sub", description="Subtracts.")],
    "options": {"max_tokens": 100, "temperature": 0.5},
    "long": "x" * 100_000,
    "cut": "x" * replies.MAX_REASON,
}
ROWS = [json.loads(line) for line in Path(__file__).with_name("replies.jsonl").read_text(encoding="utf-8").splitlines()]


def fill(value, source):
    if isinstance(value, list):
        return [fill(item, source) for item in value]
    if isinstance(value, dict):
        return {name: fill(item, source) for name, item in value.items()}
    if isinstance(value, str) and value.startswith("$"):
        for part in value[1:].split("."):
            source = source[int(part) if part.isdigit() else part]
        return source
    return value


BODY = f"""
{inspect.getsource(fill)}
def on(method, params):
    answer(fill(json.loads(params["meta"]["AgentID"]), {{**params, "params": params, "long": "x" * 100_000}}))
"""


def view_of(point: str, members: dict[str, Any], result: Any = None) -> Any:
    members = {**members, "meta": Meta(json.dumps(result))}
    if point == "before_llm":
        return view_builders.request(**{name: HOST[name] for name in ("messages", "tools", "options")}, **members)
    if point == "after_llm":
        return view_builders.response(**{"content": "old", "finish_reason": "stop", **members})
    if point == "after_tool":
        output = ToolOutput("old", members.get("for_user", ""), media=tuple(members.get("media", ())))
        return view_builders.result(output, meta=members["meta"])
    return view_builders.call(arguments={"path": "/"}, **members)


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    return script(tmp_path_factory.mktemp("replies"), BODY)


@asynccontextmanager
async def started(command, **members):
    hook = ProcessHook(spec(command, "llm", "tool", "approve", **members))
    await hook.start()
    try:
        yield hook
    finally:
        await hook.aclose()


def decision_of(row: dict[str, Any]) -> Any:
    if row["decision"] is None:
        return None
    ((name, value),) = fill(row["decision"], HOST).items()
    return getattr(hooks, name)(*value) if isinstance(value, list) else getattr(hooks, name)(value)


async def test_every_row_is_its_decision(command, caplog):
    assert len(ROWS) == len({row["about"] for row in ROWS})
    async with started(command) as plain, started(command, strict=True) as strict:
        for row in ROWS:
            caplog.clear()
            view = view_of(row["point"], row.get("view", {}), row["result"])
            if "error" in row:
                with pytest.raises(HookReplyError) as caught:
                    await getattr(plain, row["point"])(view)
                assert row["error"] in str(caught.value), row["about"]
                continue
            decision = await getattr(plain, row["point"])(view)
            assert (decision_of(row), type(decision_of(row))) == (decision, type(decision)), row["about"]
            assert len(row.get("odd", ())) == caplog.text.count("oddly"), row["about"]
            assert all(words in caplog.text for words in row.get("odd", ())), row["about"]
            if "odd" in row:
                with pytest.raises(HookReplyError, match="is refused"):
                    await getattr(strict, row["point"])(view)


async def test_whole_options_are_integers_and_unchanged_messages_the_hosts_objects(command):
    async with started(command) as hook:
        whole = await hook.before_llm(view_of("before_llm", {}, {"request": {"options": {"max_tokens": 50.0}}}))
        assert int is type(whole.changes["options"]["max_tokens"])


_NAMES = st.sampled_from([
    "action", "reason", "request", "response", "result", "call", "messages", "tools", "options", "tool", "arguments", "for_llm",
    "media", "content", "tool_calls", "function", "name", "parameters", "parts", "image_url", "url", "type", "text", "Tool",
])  # fmt: skip
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["", "x", "respond", "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(_VALUES)
def test_any_answer_is_a_decision_or_an_invalid_reply(value):
    message, call = {"role": "user", "content": "x", "parts": value, "media": []}, {"id": "1", "function": {"name": value}}
    for point, result in (
        *((point, value) for point in POINTS),
        ("before_llm", {"request": {"messages": [message], "options": {"n": value}}}),
        ("before_llm", {"request": {"tools": [{"function": value}]}}),
        ("before_llm", {"request": {"messages": [value]}}),
        ("after_llm", {"response": {"response": {"tool_calls": [call]}}}),
        ("before_tool", {"action": "respond", "call": {"hook_result": value}}),
    ):
        view = view_of(point, {})
        with suppress(replies.InvalidReplyError):
            decision = replies.read_decision(point, result, {}, client.params_of(point, view), view)
            assert decision is None or not isinstance(decision, Modify) or decision.changes

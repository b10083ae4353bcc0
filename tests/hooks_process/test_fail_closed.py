"""A guard that is a process and fails closed: whatever it does wrong, the call is not made."""

from __future__ import annotations

import pytest

from hooks_process.peers import mounted_hooks, process_of, script, spec, wait_until
from hooks_process.turns import results, take_turn

REFUSED = 'Tool execution denied by hook: hook "h" failed'

WRONG = {
    "it ends": "os._exit(7)",
    "an error": "answer(error={'code': -32000, 'message': 'broken'})",
    "no JSON": 'write(\'{"id":%d,"result":{"action":}\\n\' % id)',
    "a wrong type": "answer({'action': 1})",
    "an action that there is not": "answer({'action': 'deny'})",
    "another name for the action": "answer({'decision': 'deny_tool'})",
    "an unknown member": "answer({'vendor': 1})",
    "an answer without a result": "answer({'action': 'respond'})",
    "standard output closed": "os.close(1)",
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
async def test_guard_failures_are_denials(tmp_path, body):
    command = script(tmp_path, f"def on(method, params):\n    {body}")
    async with mounted_hooks(spec(command, "tool", fail_closed=True)) as manager:
        assert [REFUSED] == results(await take_turn(manager))


@pytest.mark.parametrize("members", [{}, {"fail_closed": True}, {"strict": True}], ids=["plain", "fail_closed", "strict"])
async def test_a_guard_strips_calls_by_a_response_without_them_and_with_another_finish_reason(tmp_path, members):
    """As in PicoClaw, where a response replaces the whole one."""
    body = """
    def on(method, params):
        if method == "after_llm" and params["response"].get("tool_calls"):
            answer({"action": "modify", "response": {"response": {"content": "I may not.", "finish_reason": "stop"}}})
        else:
            answer()
    """
    async with mounted_hooks(spec(script(tmp_path, body), "llm", **members)) as manager:
        end = await take_turn(manager)
    assert ("I may not.", "stop", ()) == (end.content, end.finish_reason, end.tool_executions)
    assert ["user", "assistant"] == [message["role"] for message in end.messages]


async def test_dead_guard_denies_later_calls(tmp_path):
    command = script(tmp_path, "def on(method, params): os._exit(7)")
    async with mounted_hooks(spec(command, "tool", fail_closed=True)) as manager:
        await take_turn(manager)
        await wait_until(lambda: process_of(manager).state == "given up")
        assert [REFUSED] == results(await take_turn(manager))


async def test_one_that_offers_tools_and_fails_about_a_request_ends_the_turn(tmp_path):
    body = """
    def hello(params):
        answer({"tools": [{"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}]})

    def on(method, params):
        answer(error={"code": 1, "message": "broken"})
    """
    async with mounted_hooks(spec(script(tmp_path, body), "llm", "tool", fail_closed=True)) as manager:
        end = await take_turn(manager)
    assert ("abort_turn", 'hook "h" failed') == (end.finish_reason, end.aborted.reason)

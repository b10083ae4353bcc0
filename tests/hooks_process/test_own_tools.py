"""Errors of a process's tools for the model: the cause, without internal class names."""

from __future__ import annotations

import json

import pytest

from hooks_process.peers import mounted_hooks, script, spec
from hooks_process.turns import results, take_turn
from patchbay import ToolCall

OFFERED = {"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}
HELLO = f"""
def hello(params):
    answer({{"tools": [json.loads({json.dumps(json.dumps(OFFERED))})]}})
"""

FAILS = {
    "os._exit(3)": "the tool failed: exit status 3",
    "os.close(1)": "the tool failed: it has closed its standard output",
    "answer()": "the tool failed: the call was not answered",
    "answer({'action': 'respond'})": (
        "the tool failed: its answer to hook.before_tool is refused: it responds without a result for the model"
    ),
    "answer({'action': 'respond', 'result': {'for_llm': 7}})": (
        "the tool failed: its answer to hook.before_tool is refused: /result/for_llm must be a valid string"
    ),
    "answer(error={'code': 1, 'message': 'no weather'})": "the tool failed: it answered with an error: no weather",
    'write(\'{"id":%d,"result":}\\n\' % id)': (
        "the tool failed: it answered with a line that is not a reply: not JSON: Expecting value: line 1 column 18 (char 17)"
    ),
}


@pytest.mark.parametrize(("does", "read"), FAILS.items(), ids=FAILS)
async def test_tool_error_reaches_the_model(tmp_path, does, read, caplog):
    command = script(tmp_path, f"{HELLO}\ndef on(method, params):\n    {does}")
    async with mounted_hooks(spec(command, "tool")) as manager:
        end = await take_turn(manager, ToolCall("1", "mine", "{}"))
        assert [f"Error: {read}"] == results(end)
    assert f"The hook 'h' has not answered a call of its tool 'mine': {read.removeprefix('the tool failed: ')}" in caplog.messages


async def test_timeout_is_logged_with_the_key_that_sets_it(tmp_path, caplog):
    command = script(tmp_path, f"{HELLO}\ndef on(method, params): pass")
    async with mounted_hooks(spec(command, "tool"), tool=0.05) as manager:
        end = await take_turn(manager, ToolCall("1", "mine", "{}"))
        assert ["Error: plugin tool timed out after 50 ms"] == results(end)
    words = "no answer within 50 ms (its tool_timeout_ms, or that of all interceptors)"
    assert f"The hook 'h' has not answered a call of its tool 'mine': {words}" in caplog.messages

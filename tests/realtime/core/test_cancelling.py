"""One of several calls can be cancelled at any stage, and the others continue."""

from __future__ import annotations

import pytest

from patchbay.executor import Executor
from patchbay.tools import tool
from patchbay.types import ToolCall

from .playing import SlowTool


@pytest.mark.parametrize("cancelled", ["a", "b", "c"])
async def test_one_call_is_cancelled_and_the_others_have_their_results(cancelled):
    held = SlowTool()

    @tool(sequential=True)
    async def alone() -> str:
        return "alone"

    batch = Executor([held.slow, alone]).start([ToolCall("a", "slow"), ToolCall("b", "alone"), ToolCall("c", "slow")])
    await held.began.wait()
    batch.cancel(cancelled)
    batch.cancel("nobody")
    held.may_end.set()
    settled = [execution async for execution in batch]
    await batch.stop()
    assert ["a", "b", "c"] == [each.call.id for each in batch.executions]
    assert 3 == len(settled)
    assert [cancelled] == [each.call.id for each in batch.executions if each.result.code == "cancelled"]

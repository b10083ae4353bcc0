"""Former public names work for one release, with a warning."""

from __future__ import annotations

from importlib import import_module

import pytest

from patchbay.executor import Executor
from patchbay.tools import AgentScope, ToolContext
from patchbay.types import ToolCall


@pytest.mark.parametrize(
    ("module", "name", "new_module", "new_name"),
    [
        ("patchbay.tools", "Surroundings", "patchbay.tools", "AgentScope"),
        ("patchbay.loop", "answered", "patchbay.transcript", "insert_results"),
        ("patchbay.schema.subsets", "Inexpressible", "patchbay.schema.subsets", "Unsupported"),
    ],
)
def test_a_former_name_is_the_new_one_and_warns(module: str, name: str, new_module: str, new_name: str) -> None:
    with pytest.warns(DeprecationWarning, match=new_name):
        assert getattr(import_module(new_module), new_name) is getattr(import_module(module), name)


async def test_surroundings_of_an_executor_are_its_agent_scope() -> None:
    def who(tool_context: ToolContext) -> str:
        return tool_context.agent_name

    with pytest.warns(DeprecationWarning, match="agent_scope"):
        (done,) = await Executor([who]).run([ToolCall("1", "who")], surroundings=AgentScope(agent_name="shop"))
    assert "shop" == done.content

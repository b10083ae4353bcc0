"""One answer of a tool, by the three ways in which it can come: each has its own envelope."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from patchbay.plugins import PluginBase, llm_tool, plugin
from patchbay.testing import run_plugin
from patchbay.tools import ToolDefinition
from patchbay.tools.manager import LLMSessionManager
from tools_server.rig import calling_back, json_response

ANSWERS: list[tuple[Any, Any, Any, Any]] = [
    # what a tool gives back: what it is as a callback's body, as a handler's return value, as a plugin's
    ({"output": 1}, 1, {"output": 1}, {"output": 1}),
    ({"error": "x"}, {"error": "x"}, {"error": "x"}, {"error": "x"}),
    ({"output": 1, "is_error": False}, 1, 1, 1),
    ({"a": 1, "is_error": False}, {"a": 1, "is_error": False}, {"a": 1, "is_error": False}, {"a": 1, "is_error": False}),
    ([1], [1], [1], [1]),
]


@pytest.mark.parametrize(("given", "of_a_callback", "of_a_handler", "of_a_plugin"), ANSWERS)
def test_each_way_has_its_own_envelope(server: Any, given: Any, of_a_callback: Any, of_a_handler: Any, of_a_plugin: Any) -> None:
    with calling_back(json_response(given)) as callback:
        server.register("callback", callback.url)
        assert of_a_callback == server.call("callback")["output"]

    manager: LLMSessionManager = server.app.managers["ann"]
    manager.register_tool(ToolDefinition("handler", handler=lambda _: given))
    assert of_a_handler == server.call("handler")["output"]

    @plugin
    class Plugin(PluginBase):
        @llm_tool
        def tool(self) -> Any:
            return given

    async def called() -> Any:
        async with run_plugin(Plugin) as running:
            return (await running.call("tool")).body

    with calling_back(json_response(asyncio.run(called()))) as callback:  # through the host's callback, as it is answered
        server.register("plugin", callback.url)
        assert of_a_plugin == server.call("plugin")["output"]

"""``examples/hooks/weather.py``, as a program uses it: a ToolRunner, a configuration, and a model that only writes text."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import openai

from patchbay import ToolRunner
from patchbay.hooks import HookManager
from patchbay.hooks.config import mount_configured, read_hooks_config
from patchbay.testing import ScriptedUpstream

EXAMPLE = Path(__file__).parents[2] / "examples" / "hooks" / "weather.py"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def block(name, **arguments):
    return f"```tool_call\n{json.dumps({'name': name, 'arguments': arguments})}\n```\n"


async def test_example_hook_tool_works_beside_program_tools(tmp_path):
    config = tmp_path / "patchbay.toml"
    command = json.dumps([sys.executable, str(EXAMPLE)])
    config.write_text(f'[hooks.processes.weather]\nenabled = true\ncommand = {command}\nintercept = ["before_tool"]\n')
    script = [block("get_weather", city="Beijing") + block("add", a=1, b=2) + block("get_weather", city="Oslo"), "Sunny, and 3."]

    manager = HookManager()
    await mount_configured(manager, read_hooks_config(config))
    with ScriptedUpstream(script, tools="refuse") as upstream:
        client = openai.AsyncOpenAI(base_url=upstream.url, api_key="unused")
        try:
            result = await ToolRunner(client, [add], hooks=manager).run("How is the weather?", model="small")
        finally:
            await client.close()
            await manager.aclose()
        result, sent = result, json.dumps([chat.json for chat in upstream.chats], ensure_ascii=False)
    assert ("Sunny, and 3.", "stop") == (result.content, result.finish_reason)
    weather, total, unknown = result.tool_executions
    assert ("Beijing: sunny, 15 °C", "3") == (weather.content, total.content)
    assert unknown.is_error
    assert "there is no weather of Oslo; there is of Beijing, Shanghai, Guangzhou" in unknown.content
    assert "Say how the weather is in a city." in sent
    assert "Beijing: sunny, 15 °C" in sent

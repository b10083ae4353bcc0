"""The seed's weather hook runs unchanged, but for the line that is not valid Python: its tool is offered, called and answered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from hooks_process.peers import BOUND
from patchbay.executor import Executor
from patchbay.hooks import HookManager
from patchbay.hooks.config import mount_configured, parse_hooks_config
from patchbay.loop import FinalEvent, turn
from patchbay.models import resolve_model
from patchbay.testing import ScriptedUpstream
from support.running import run

ROOT = Path(__file__).parents[2]
BROKEN = "lambda *_: raise SystemExit(0)"
MENDED = "lambda *_: sys.exit(0)"
CITY = "北京"


@pytest.fixture
def seed_hook(tmp_path):
    """Write the script of the seed's page, its two signal lines mended."""
    pages = sorted((ROOT.parent / "shared" / "seeds").glob("002_*.txt"))
    if not pages:
        pytest.skip("the seeds are not here: they are no part of the project")
    page = pages[0].read_text(encoding="utf-8")
    code = page[page.index("#!/usr/bin/env python3") : page.index("2. 配置 PicoClaw")].rstrip()
    assert 2 == code.count(BROKEN)
    path = tmp_path / "weather_plugin.py"
    path.write_text(code.replace(BROKEN, MENDED) + "\n", encoding="utf-8")
    return path


def config(path):
    """The configuration of the seed's page."""
    process = {
        "enabled": True,
        "priority": 100,
        "transport": "stdio",
        "command": [sys.executable, str(path)],
        "intercept": ["before_llm", "before_tool"],
    }
    return parse_hooks_config({"hooks": {"enabled": True, "processes": {"weather_plugin": process}}})


def call(city):
    return f"```tool_call\n{json.dumps({'name': 'get_weather', 'arguments': {'city': city}}, ensure_ascii=False)}\n```"


async def ask(hooks, script, question):
    """Let a model that only writes text take a turn; return the end of the turn, and what the model's server was sent."""
    manager = HookManager()
    await mount_configured(manager, hooks)
    with ScriptedUpstream(script, tools="refuse") as upstream:
        client = openai.AsyncOpenAI(base_url=upstream.url, api_key="unused")
        try:
            model = resolve_model(client)
            messages = [{"role": "user", "content": question}]
            events = turn(model, Executor([], hooks=manager), messages, parameters={"model": "small"})
            *_, last = [event async for event in events]
        finally:
            await client.close()
            await manager.aclose()
        assert isinstance(last, FinalEvent)
        return last, [json.dumps(chat.json, ensure_ascii=False) for chat in upstream.chats]


def test_its_tool_is_offered_called_and_answered_with_a_text_only_model(seed_hook):
    script = [call(CITY), "北京今天晴天,温度15°C"]
    end, sent = run(ask(config(seed_hook), script, "北京今天天气怎么样?"))
    assert ("北京今天晴天,温度15°C", "stop") == (end.content, end.finish_reason)
    assert "查询指定城市的天气信息" in sent[-2]
    (execution,) = end.tool_executions
    assert (False, "北京天气:晴,温度15°C,湿度45%") == (execution.is_error, execution.content)
    assert "北京天气:晴,温度15°C,湿度45%" in sent[-1]


def test_a_call_that_does_not_fit_its_schema_never_reaches_it(seed_hook):
    wrong = '```tool_call\n{"name": "get_weather", "arguments": {"town": "x"}}\n```'
    end, _ = run(ask(config(seed_hook), [wrong, "Sorry."], "?"))
    assert "city" in end.tool_executions[0].content
    assert end.tool_executions[0].is_error


async def test_broken_seed_hook_is_left_out_with_the_reason(seed_hook):
    seed_hook.write_text(seed_hook.read_text(encoding="utf-8").replace(MENDED, BROKEN), encoding="utf-8")
    manager = HookManager()
    configured = await mount_configured(manager, config(seed_hook))
    assert "hook.hello failed: exit status 1 (SyntaxError: invalid syntax)" == configured.outcomes[0].problem


def test_doctor_finds_no_defect(seed_hook):
    command = [sys.executable, "-m", "patchbay", "hooks", "doctor", "--json", sys.executable, str(seed_hook)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=False)
    verdicts = json.loads(done.stdout)
    assert (0, 0, False) == (done.returncode, verdicts["failure"], verdicts["failed"])
    odd = [each["check"] for each in verdicts["verdicts"] if each["outcome"] == "warning"]
    assert [] == odd

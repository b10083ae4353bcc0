"""What hook processes and their host say to each other, line by line.

``host-and-sdk`` and ``host-and-raw`` are whole turns: a hook of the SDK, and one with nothing of ours in it that also answers what
no hook should. ``sdk-alone`` is what a hook of the SDK answers to lines of any host.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from patchbay import ToolCall, ToolRunner
from patchbay.hooks import HookManager
from patchbay.hooks.config import mount_configured, read_hooks_config
from patchbay.testing import ScriptedModel

from . import Names, Recorded

POINTS = ["before_llm", "after_llm", "before_tool", "after_tool", "approve_tool"]
SDK = """
from patchbay import Attachment
from patchbay.hooks.sdk import AbortTurn, Approval, DenyTool, Hook, Modify, Respond, ToolOutput

hook = Hook("all")


@hook.tool
def weather(city: str, days: int = 1) -> str:
    \"\"\"Say how the weather is.

    :param city: its name
    \"\"\"
    if city == "Atlantis":
        raise ValueError("it has sunk")
    return f"{city}: <sunny> & warm"


@hook.tool
def picture() -> ToolOutput:
    "Draw."
    return ToolOutput(for_llm="a dot", for_user="Look!", response_handled=False)


@hook.before_llm
def before_llm(request):
    if request.model == "small":
        return Modify({"model": "large"})


@hook.after_llm
def after_llm(response):
    if response.content == "bad":
        return Modify({"content": "good"})
    if response.content == "stop":
        return AbortTurn("enough")


@hook.before_tool
def before_tool(call):
    number = call.arguments.get("number")
    if number == 1:
        return Modify({"arguments": {"number": 10}})
    if number == 2:
        return DenyTool("not two")
    if number == 3:
        return Respond(ToolOutput(for_llm="three, by the hook"))
    if number == 4:
        raise RuntimeError("the hook has failed")


@hook.approve_tool
def approve(call):
    return Approval(call.arguments.get("number") != 5, "not five")


@hook.after_tool
def after_tool(result):
    if result.arguments.get("number") == 6:
        return Modify({"result": ToolOutput(for_llm="changed by the hook")})


@hook.observer
def observer(event):
    print("seen", event.kind)


hook.run()
"""
RAW = """
import json, sys


def answer(method, params):
    number = (params.get("arguments") or {}).get("number")
    if method == "hook.hello":
        tools = [{"type": "function", "function": {"name": "raw_tool", "description": "d", "parameters": {"type": "object"}}}]
        return {"ok": True, "tools": tools}
    if method == "hook.before_tool" and params["tool"] == "raw_tool":
        return {"action": "respond", "result": {"for_llm": "by the raw hook", "for_user": "shown"}}
    if method == "hook.before_tool":
        return {
            1: {"action": "modify", "call": {"arguments": {"number": 10}}},
            2: {"action": "deny_tool", "reason": "not two"},
            3: {"action": "respond", "result": {"for_llm": "three", "is_error": True}},
            4: {"action": "respond"},
            7: {"action": "no_such_action"},
            8: {"action": "modify", "call": {"arguments": [1]}},
            9: {"unknown_member": 1},
        }.get(number, {})
    if method == "hook.approve_tool":
        return {"approved": number != 5, "reason": "not five"} if number != 10 else {"approved": True}
    if method == "hook.before_llm" and params["model"] == "small":
        return {"action": "modify", "request": {"model": "large", "messages": [*params["messages"], {"role": "user", "content": "?"}]}}
    if method == "hook.after_tool" and number == 6:
        return {"action": "modify", "result": {"result": {"for_llm": "changed"}}}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    if (message["params"].get("arguments") or {}).get("number") == 11:
        reply["error"] = {"code": -32000, "message": "the hook has failed"}
    else:
        reply["result"] = answer(message["method"], message["params"])
    print(json.dumps(reply), flush=True)
"""
LINES: list[Any] = [
    {"jsonrpc": "2.0", "id": 1, "method": "hook.hello", "params": {"name": "all", "version": 1, "modes": ["llm", "tool", "approve"]}},
    {"jsonrpc": "2.0", "id": 2, "method": "hook.before_llm", "params": {"model": "small", "messages": [{"role": "user", "content": "é"}]}},
    {"jsonrpc": "2.0", "id": 3, "method": "hook.before_llm", "params": {}},
    {"jsonrpc": "2.0", "id": 4, "method": "hook.after_llm", "params": {"model": "m", "response": {"content": "bad"}}},
    {"jsonrpc": "2.0", "id": 5, "method": "hook.after_llm", "params": {"model": "m", "response": {"content": "stop"}}},
    {"jsonrpc": "2.0", "id": 6, "method": "hook.before_tool", "params": {"tool": "weather", "arguments": {"city": "Rome"}}},
    {"jsonrpc": "2.0", "id": 7, "method": "hook.before_tool", "params": {"tool": "weather", "arguments": {"city": "Atlantis"}}},
    {"jsonrpc": "2.0", "id": 8, "method": "hook.before_tool", "params": {"tool": "weather", "arguments": {"city": 5}}},
    *({"jsonrpc": "2.0", "id": 10 + n, "method": "hook.before_tool", "params": {"tool": "add", "arguments": {"number": n}}} for n in range(5)),
    {"jsonrpc": "2.0", "id": 20, "method": "hook.approve_tool", "params": {"tool": "add", "arguments": {"number": 5}}},
    {"jsonrpc": "2.0", "id": 21, "method": "hook.approve_tool", "params": {"tool": "add", "arguments": {}}},
    {"jsonrpc": "2.0", "id": 22, "method": "hook.after_tool",
     "params": {"tool": "add", "arguments": {"number": 6}, "result": {"for_llm": "6"}, "duration": 1000}},
    {"jsonrpc": "2.0", "id": 23, "method": "hook.no_such_method", "params": {}},
    {"jsonrpc": "2.0", "method": "hook.runtime_event", "params": {"Kind": "turn.start"}},
    "no JSON",
    "[]",
    '{"id": "text", "method": "hook.hello"}',
    {"jsonrpc": "2.0", "id": 24, "method": "hook.before_tool", "params": {"tool": "picture", "arguments": {}}},
]  # fmt: skip


def record() -> Recorded:
    """Play the turns, then the lines."""
    recorded = Recorded()
    logging.disable(logging.CRITICAL)  # odd answers are logged, too
    try:
        for name, source in (("sdk", SDK), ("raw", RAW)):
            with tempfile.TemporaryDirectory() as folder:
                recorded.files[f"hooks/host-and-{name}.txt"] = asyncio.run(asyncio.wait_for(turns(Path(folder), source), 60))
        with tempfile.TemporaryDirectory() as folder:
            recorded.files["hooks/sdk-alone.txt"] = alone(Path(folder))
    finally:
        logging.disable(logging.NOTSET)
    return recorded


def add(number: int) -> str:
    """Add one."""
    return f"{number + 1}"


async def turns(folder: Path, source: str) -> str:
    """Play turns with one hook, and return what it and its host said, and what came of the turns."""
    log, script = folder / "log", folder / "hook.py"
    script.write_text(textwrap.dedent(source), encoding="utf-8")
    command = [sys.executable, str(Path(__file__).with_name("tee.py")), str(log), sys.executable, str(script)]
    process = {
        "enabled": True,
        "command": command,
        "intercept": POINTS,
        "observe": ["*"],
        "hello_timeout_ms": 30000,
        "timeout_ms": 30000,
    }
    config = folder / "config.json"
    config.write_text(json.dumps({"hooks": {"processes": {"h": process}}}), encoding="utf-8")
    manager = HookManager()
    configured = await mount_configured(manager, read_hooks_config(config))
    ends = [str(configured.outcomes)]
    own = "weather" if source is SDK else "raw_tool"
    try:
        for script_of in (
            [[call(n) for n in (1,)], [call(n) for n in (2,)], "ok"],
            *([[call(n)], "ok"] for n in (3, 4, 5, 6, 7, 8, 9, 11, 12)),
            [[ToolCall("c", own, '{"city": "Rome"}')], "ok"],
            [[ToolCall("c", own, '{"city": "Atlantis"}')], [ToolCall("c", own, '{"city": 5}')], "bad"],
            [[ToolCall("c", "no_such_tool", "{}")], "stop"],
        ):
            model = ScriptedModel(script_of)
            try:
                result = await ToolRunner(model, tools=[add], hooks=manager).run("Go on.")
                ends.append(json.dumps({"content": result.content, "messages": result.messages}, default=str, ensure_ascii=False))
            except Exception as error:  # noqa: BLE001 - how a turn ends is what is recorded
                ends.append(f"{type(error).__name__}: {error}")
    finally:
        await manager.aclose()
    names = cleaned()
    lines = log.read_text(encoding="utf-8").splitlines()
    # Events are sent concurrently with the turn: their order among requests varies.
    is_event = '"method":"hook.runtime_event"'
    said = [names(line) for line in lines if is_event not in line]
    events = [names(line) for line in lines if is_event in line]
    return "\n".join(["##### said", *said, "##### events", *events, "##### turns", *map(names, ends)]) + "\n"


def call(number: int) -> ToolCall:
    return ToolCall(f"call-{number}", "add", json.dumps({"number": number}))


def cleaned() -> Names:
    return Names(
        turn=r"\b(?:turn|run|sess|session)[-_:][0-9a-z-]{6,}",
        call=r"call_[0-9a-f]{24}",
        hex=r"\b[0-9a-f]{12,}\b",
        time=r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)",
        duration=r'"[Dd]uration(?:_\w+)?": ?(\d+(?:\.\d+)?)',
        folder=r'(/(?:tmp|var)/[^" ]+)',
    )


def alone(folder: Path) -> str:
    script = folder / "hook.py"
    script.write_text(textwrap.dedent(SDK), encoding="utf-8")
    shown = []
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in LINES:
            text = line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)
            shown.append(f"> {text}")
            process.stdin.write(text + "\n")
            process.stdin.flush()
            if isinstance(line, dict) and "id" in line:
                shown.append(f"< {process.stdout.readline().strip()}")
        process.stdin.close()
        shown += [f"< {line.strip()}" for line in process.stdout]
        shown.append(f"exit status {process.wait(10)}")
    names = cleaned()
    return "\n".join(map(names, shown)) + "\n"

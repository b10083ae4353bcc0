"""Sessions together with plugins, hook processes and approvals, and a server that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.rig import BOUND, EXAMPLES, running
from patchbay.testing.realtime import Call, FakeOpenAI, Quote, Say
from tools_server.rig import calling_back, json_response

from .rig import Serving, serving

HOOK = """
from patchbay.hooks import DenyTool, Modify
from patchbay.hooks.sdk import Hook

hook = Hook("careful")

@hook.before_tool
def guard(call):
    if call.tool == "delete_file":
        return DenyTool("not here")
    if call.tool == "fail":
        raise RuntimeError("it is broken")
    return Modify({"arguments": {"city": "Oslo"}})

hook.run()
"""
ASKS = """
[[approvals.rules]]
tools = ["delete_*"]
outcome = "ask"
deadline = 60
"""


def patchbay(*command: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "patchbay", *command)


def poll_until(found: Callable[[], Any]) -> Any:
    """Poll another process until there is a result."""
    end = time.monotonic() + BOUND
    while not (there := found()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return there


def pending_request(server: Serving) -> Any:
    """Wait for the pending request."""
    return poll_until(lambda: server.http.ask("GET", "/api/approvals").json["approvals"])[0]


def test_plugin_tool_is_called_and_synced_to_the_model():
    with (
        FakeOpenAI([Call("get_weather", {"city": "Oslo"}), Quote()]) as fake,
        serving(fake) as server,
        server.session() as client,
    ):
        host = patchbay("plugins", "run", str(EXAMPLES / "weather_plugin"), "--server", server.url, "--port", "0")
        with running(*host) as plugins:
            poll_until(lambda: "get_weather" in server.http.tools())
            fake.wait_until(lambda: "get_weather" in fake.tools, within=BOUND)
            assert '"temperature": 3' in client.answer("How is Oslo?")
            assert 0 == plugins.end()
        fake.wait_until(lambda: [] == fake.tools, within=BOUND)
    assert [] == fake.violations
    assert [] == fake.unanswered


def test_a_hook_process_refuses_and_changes_calls_and_fails_closed(tmp_path: Path):
    (tmp_path / "careful.py").write_text(HOOK)
    process = {"enabled": True, "command": [sys.executable, str(tmp_path / "careful.py")], "intercept": ["before_tool"]}
    config = tmp_path / "patchbay.json"
    config.write_text(json.dumps({"hooks": {"processes": {"careful": {**process, "fail_closed": True}}}}))
    script = [Call("delete_file", {"path": "/a"}), Call("get_weather", {"city": "Rome"}), Call("fail"), "Well."]
    with (
        FakeOpenAI(script) as fake,
        calling_back(json_response({"output": "sunny"})) as callback,
        serving(fake, "--config", str(config)) as server,
    ):
        for name in ("delete_file", "get_weather", "fail"):
            server.http.register(name, callback.url)
        with server.session() as client:
            assert "Well." == client.answer("Do it all.")
            results = client.of("tool_result")
        assert [("delete_file", True), ("get_weather", False), ("fail", True)] == [
            (each["name"], each["is_error"]) for each in results
        ]
        assert "not here" in results[0]["content"]
        assert [("get_weather", {"city": "Oslo"})] == [(call.json["name"], call.json["arguments"]) for call in callback.calls]
    assert [] == fake.violations


def test_call_is_approved_in_one_terminal_and_shown_in_another(tmp_path: Path):
    (tmp_path / "patchbay.toml").write_text(ASKS)
    with (
        FakeOpenAI([Call("delete_file", {"path": "/a"}), Quote()]) as fake,
        calling_back(json_response({"output": "gone"})) as callback,
        serving(fake, "--config", str(tmp_path / "patchbay.toml"), "--audit", "memory") as server,
        running(*patchbay("tail", "--json", "--session", "monday", "--server", server.url)) as tail,
    ):
        server.http.register("delete_file", callback.url)
        tail.says("error: Tailing")
        with server.session(query="output=text&session=monday") as client:
            client.text("Delete it.")
            client.until("tool_call")
            asked = pending_request(server)
            assert ("delete_file", "monday") == (asked["tool"], asked["session_key"])
            done = subprocess.run(
                patchbay("approvals", "approve", asked["id"], "--server", server.url),
                capture_output=True,
                text=True,
                timeout=BOUND,
            )
            assert 0 == done.returncode, done.stderr
            assert "gone" == client.until("tool_result")["content"]
            client.idle()
        kinds: set[str] = set()
        while "agent.tool.exec_end" not in kinds:
            kinds.add(json.loads(tail.says("{"))["kind"])
        audit = patchbay("audit", "--server", server.url, "--session", "monday", "--json")
        done = subprocess.run(audit, capture_output=True, text=True, timeout=BOUND)
        assert "delete_file" in done.stdout, done
    assert [] == fake.violations
    assert [] == fake.unanswered


@pytest.mark.parametrize("allowed", ["before the call comes again", "after that"])
def test_tools_of_a_killed_server_are_restored_by_the_next(allowed: str, tmp_path: Path):
    (tmp_path / "patchbay.toml").write_text(ASKS)
    kept = ["--config", str(tmp_path / "patchbay.toml"), "--store", f"sqlite:///{tmp_path}/kept.db"]
    call = Call("delete_file", {"path": "/a"})
    query = "output=text&session=monday"
    with (
        FakeOpenAI([call, call, Say("Gone.")]) as fake,
        calling_back(json_response({"output": "gone"})) as callback,
    ):
        with serving(fake, *kept) as server:
            server.http.register("delete_file", callback.url, role="ann")
            with server.session(query=query) as client:
                client.text("Delete it.")
                client.until("tool_call")
                asked = pending_request(server)
                server.kill()
                client.closed()
        with serving(fake, *kept) as server:
            assert ["delete_file"] == list(server.http.tools())
            assert asked["id"] == pending_request(server)["id"]
            with server.session(query=query) as client:
                if allowed == "after that":
                    client.text("Delete it, I said.")
                    client.until("tool_call")
                assert 200 == server.http.ask("POST", f"/api/approvals/{asked['id']}", {"decision": "approve"}).status
                if allowed != "after that":
                    client.text("Delete it, I said.")
                assert "gone" == client.until("tool_result")["content"]
                client.idle()
        assert 1 == len(callback.calls)

"""Sessions together with plugins, hook processes and approvals, and a server that is killed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from examples.rig import BOUND, EXAMPLES, running
from patchbay.testing import ScriptedUpstream
from patchbay.testing.realtime import Call, FakeOpenAI, Quote, Say
from tools_server.rig import calling_back, json_response, poll_until

from .rig import calling, serving

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
DELETES = Call("delete_file", {"path": "/a"})
SAME = calling("delete_file", '{"path":"/a"}')


def patchbay(*command: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "patchbay", *command)


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


@pytest.mark.parametrize("kind", ["realtime", "offline"])
def test_session_call_awaits_approval_is_audited_and_withdrawn_when_the_user_continues(kind: str, tmp_path: Path):
    (tmp_path / "hooks.toml").write_text(ASKS)
    flags = ["--config", str(tmp_path / "hooks.toml"), "--audit", f"sqlite:///{tmp_path}/audit.db"]
    with (
        FakeOpenAI([DELETES, "It is gone.", DELETES, "Very well."]) as fake,
        ScriptedUpstream([SAME, "It is gone.", SAME, "Very well."]) as upstream,
        calling_back(json_response({"output": "gone"})) as callback,
        serving(fake, *flags, upstream=upstream.url) as server,
    ):
        server.http.register("delete_file", callback.url)
        query = "output=text" if kind == "realtime" else "model=small"
        with server.session(query=f"{query}&session=monday") as client:
            client.text("Delete it.")
            client.until("tool_call")
            pending = server.pending_approval()
            assert ("delete_file", []) == (pending["tool"], callback.calls)
            decision = {"decision": "approve", "by": "ann"}
            assert 200 == server.http.ask("POST", f"/api/approvals/{pending['id']}", decision).status
            assert "gone" == client.until("tool_result")["content"]
            client.idle()
            entries = poll_until(lambda: server.http.ask("GET", "/api/audit?session=monday").json["entries"])
            assert [("delete_file", "ann", "session")] == [(each["tool"], each["agent"], each["channel"]) for each in entries]
            begin = len(client.frames)
            client.text("Once more.")
            call = client.until("tool_call")
            assert "delete_file" == server.pending_approval()["tool"]
            assert "Very well." == client.answer("No, leave it.")
            ends = [*client.of("tool_result"), *client.of("dropped")]
            assert [call["call_id"]] == [frame["call_id"] for frame in ends if frame in client.frames[begin:]]
        assert [] == server.http.ask("GET", "/api/approvals").json["approvals"]
        assert 1 == len(callback.calls)
    assert [] == fake.violations


@pytest.mark.parametrize("allowed", ["before the call comes again", "after that"])
def test_tools_of_a_killed_server_are_restored_by_the_next(allowed: str, tmp_path: Path):
    (tmp_path / "patchbay.toml").write_text(ASKS)
    kept = ["--config", str(tmp_path / "patchbay.toml"), "--store", f"sqlite:///{tmp_path}/kept.db"]
    query = "output=text&session=monday"
    with (
        FakeOpenAI([DELETES, DELETES, Say("Gone.")]) as fake,
        calling_back(json_response({"output": "gone"})) as callback,
    ):
        with serving(fake, *kept) as server:
            server.http.register("delete_file", callback.url, role="ann")
            with server.session(query=query) as client:
                client.text("Delete it.")
                client.until("tool_call")
                asked = server.pending_approval()
                server.kill()
                client.closed()
        with serving(fake, *kept) as server:
            assert ["delete_file"] == list(server.http.tools())
            assert asked["id"] == server.pending_approval()["id"]
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

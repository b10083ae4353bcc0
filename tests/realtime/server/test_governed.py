"""Hooks, approvals and the audit of a server act on its sessions, of both kinds, as on every call."""

from __future__ import annotations

import pytest

from patchbay.testing import Message, ScriptedUpstream
from patchbay.testing.realtime import Call, FakeOpenAI, Quote
from tools_server.rig import calling_back, json_response, poll_until

from .rig import serving

CONFIG = """
[[approvals.rules]]
tools = ["delete_*"]
outcome = "ask"
deadline = 60

[[approvals.rules]]
tools = ["send_*"]
outcome = "deny"
"""

CALLED = Message(
    {"tool_calls": [{"id": "call_9", "type": "function", "function": {"name": "delete_file", "arguments": '{"path":"/a"}'}}]},
    finish_reason="tool_calls",
)


@pytest.fixture
def flags(tmp_path):
    (tmp_path / "hooks.toml").write_text(CONFIG)
    return ["--config", str(tmp_path / "hooks.toml"), "--audit", f"sqlite:///{tmp_path}/audit.db"]


@pytest.mark.parametrize("kind", ["realtime", "offline"])
def test_session_call_awaits_approval_and_is_audited(kind, flags):
    with (
        FakeOpenAI([Call("delete_file", {"path": "/a"}), Quote()]) as fake,
        ScriptedUpstream([CALLED, "It is gone."]) as upstream,
        calling_back(json_response({"output": "gone"})) as callback,
        serving(fake, *flags, upstream=upstream.url) as server,
    ):
        server.http.register("delete_file", callback.url)
        query = "output=text" if kind == "realtime" else "model=small"
        with server.session(query=f"{query}&session=monday") as client:
            client.text("Delete it.")
            client.until("tool_call")
            pending = server.pending_approval()
            assert "delete_file" == pending["tool"]
            assert [] == callback.calls
            decision = {"decision": "approve", "by": "ann"}
            assert 200 == server.http.ask("POST", f"/api/approvals/{pending['id']}", decision).status
            assert "gone" == client.until("tool_result")["content"]
            client.idle()
        entries = poll_until(lambda: server.http.ask("GET", "/api/audit?session=monday").json["entries"])
        assert [("delete_file", "ann", "session")] == [(each["tool"], each["agent"], each["channel"]) for each in entries]
    assert [] == fake.violations


@pytest.mark.parametrize("kind", ["realtime", "offline"])
def test_pending_call_is_withdrawn_when_the_user_continues(kind, flags):
    with (
        FakeOpenAI([Call("delete_file", {"path": "/a"}), "Very well."]) as fake,
        ScriptedUpstream([CALLED, "Very well."]) as upstream,
        calling_back(json_response({"output": "gone"})) as callback,
        serving(fake, *flags, upstream=upstream.url) as server,
    ):
        server.http.register("delete_file", callback.url)
        with server.session(query="output=text" if kind == "realtime" else "model=small") as client:
            client.text("Delete it.")
            client.until("tool_call")
            assert "delete_file" == server.pending_approval()["tool"]
            assert "Very well." == client.answer("No, leave it.")
            ends = [*client.of("tool_result"), *client.of("dropped")]
            assert [client.of("tool_call")[0]["call_id"]] == [frame["call_id"] for frame in ends]
        assert [] == server.http.ask("GET", "/api/approvals").json["approvals"]
        assert [] == callback.calls
    assert [] == fake.violations

"""Session failures for operators: one log line each, and the responses to clients."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from patchbay.testing import ScriptedUpstream
from patchbay.testing.realtime import Answer, Call, Drop, FakeOpenAI, Faults, Frame, Say
from support.scripted_server import SharedUpstream, json_body
from tools_server.rig import calling_back, json_response

from .rig import Client, serving
from .test_bridge import Client as SessionClient
from .test_bridge import SessionsUnderTest

KEY = "a-secret-key-that-nobody-may-read"


def session_log_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("patchbay.server")]


async def test_failed_opening_is_one_log_line_with_role_session_and_reason(caplog):
    async with SessionsUnderTest(FakeOpenAI(api_key="another")) as sessions:
        client = SessionClient(sessions, query="session=mondays")
        assert 4502 == await client.code()
    (line,) = session_log_lines(caplog)
    assert all(each in line for each in ("'ann'", "'mondays'", "could not be opened", "HTTP 401"))
    assert [logging.WARNING] == [record.levelno for record in caplog.records if record.name.startswith("patchbay.server")]


async def test_lost_connection_and_model_failure_are_each_one_log_line(caplog):
    broken = Frame({"type": "error", "error": {"type": "server_error", "code": "broken", "message": "It is broken."}})
    script = [Answer((Say("One"), Drop())), Answer((broken, Say("Fine.")))]
    async with SessionsUnderTest(FakeOpenAI(script)) as sessions:
        client = SessionClient(sessions, query="session=mondays")
        client.text("Count.")
        await client.until("idle")
        client.text("Fail.")
        await client.until("error")
        client.leave()
        await client.task
    lost, failed = session_log_lines(caplog)
    assert ("is lost" in lost, "'mondays'" in lost, "'ann'" in lost) == (True, True, True), lost
    assert ("'mondays'" in failed, "It is broken." in failed) == (True, True), failed


async def test_lost_model_of_a_session_is_logged_once(caplog):
    with FakeOpenAI() as fake:
        sessions = SessionsUnderTest(fake, reconnects=1)
        client = SessionClient(sessions)
        await client.until("ready")
    assert 4502 == await client.code()
    await sessions.close()
    lines = session_log_lines(caplog)
    assert 1 == sum("is lost" in line for line in lines), lines
    assert len(lines) == len(set(lines)), lines


def test_no_model_or_client_text_breaks_a_log_line(caplog):
    from patchbay.errors import UpstreamError
    from patchbay.realtime import ErrorEvent
    from patchbay.server.live_sessions.bridge import SessionLog

    log = SessionLog("ann", "a\nkey\x1b[2J" + "k" * 500)
    log.event(ErrorEvent(UpstreamError("one\ntwo \x1b[31m" + "x" * 5_000)))
    (line,) = session_log_lines(caplog)
    assert line.isprintable()
    assert len(line) < 1_000


async def test_client_mistakes_are_not_logged_as_warnings(caplog):
    async with SessionsUnderTest(FakeOpenAI()) as sessions:
        assert [4404, 4400] == [
            await SessionClient(sessions, role, query).code() for role, query in (("eve", ""), ("ann", "x=1"))
        ]
    assert [] == session_log_lines(caplog)


def test_missing_model_key_is_reported_at_startup_and_to_clients():
    with serving(None, "--realtime", "openai/gpt-realtime") as server:
        code, reason, error = server.refused()
    assert (4503, "configuration") == (code, error)
    assert "OPENAI_API_KEY in the server's environment" in reason
    assert "api_key" not in reason.replace("OPENAI_API_KEY", "").lower()
    first, second = server.logged()
    assert ("OPENAI_API_KEY" in first, "--realtime-key" in first) == (True, True)
    assert "could not be opened" in second


def test_missing_key_of_another_provider_is_reported_without_the_flag():
    with FakeOpenAI() as fake, serving(None, "--realtime", "openai/x", "--realtime-url", fake.url) as server:
        code, reason, _error = server.refused(query="realtime=gemini/x")
    assert (4503, True, False) == (code, "in the server's environment" in reason, "--realtime-key" in reason)


def test_unsent_environment_key_is_reported_at_startup_and_on_401():
    with FakeOpenAI(api_key=KEY) as fake:
        flags = ("--realtime", "openai/x", "--realtime-url", f"{fake.url}?secret=hidden")
        with serving(None, *flags, OPENAI_API_KEY=KEY) as server, server.socket() as opened:
            client = Client(opened)
            client.ended()
            message = client.of("error")[0]["error"]["message"]
        assert ("HTTP 401" in message, "No key was sent" in message, "--realtime-key" in message) == (True, True, True)
        first, second = server.logged()
        assert ("OPENAI_API_KEY is not sent" in first, "No key was sent" in second) == (True, True)
        assert not any(secret in "".join(server.printed) for secret in (KEY, "hidden"))
        with serving(None, *flags, "--realtime-key", KEY) as server, server.session():
            pass
        assert [] == server.logged()


@pytest.mark.parametrize(
    ("role", "options", "status", "why"),
    [
        ("ann", {"origin": "https://evil.example.com"}, 403, "web pages of other sites"),
        ("ann", {"additional_headers": {"X-Forwarded-For": "8.8.8.8"}}, 403, "proxy"),
        ("ann/more", {}, 404, "/api/sessions/ann/more"),
    ],
)
def test_refused_handshake_is_one_log_line_with_its_reason(role, options, status, why):
    with FakeOpenAI() as fake, serving(fake) as server:
        assert status == server.turned_away(role, "session=x", **options)[0]
        with server.session():  # what was logged before is there by now
            pass
    (line,) = server.logged()
    assert (f"HTTP {status}" in line, why in line, "session=x" in line) == (True, True, False), line


def test_invalid_handshake_is_one_log_line(tmp_path):
    with FakeOpenAI() as fake, serving(fake) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw:
            raw.sendall(b"GET /api/sessions/ann HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
            assert raw.recv(65536).startswith(b"HTTP/1.1 4")
        with server.session():
            pass
    (line,) = server.logged()
    assert "Sec-WebSocket-Key" in line


HOOK = """
from patchbay.hooks.sdk import Hook

hook = Hook("{name}")

{what}

hook.run()
"""
TOOL = '''@hook.tool
def get_weather(city: str) -> str:
    """Say how the weather is."""
    return city'''
GUARD = """@hook.before_tool
def look(call):
    return None"""


def test_hooks_without_effect_on_realtime_are_named_in_the_log(tmp_path: Path):
    processes: dict[str, Any] = {}
    for name, what, intercept in (
        ("weather", TOOL, ["before_tool"]),
        ("rewrites", "@hook.before_llm\ndef look(request):\n    return None", ["before_llm"]),
        ("guards", GUARD, ["before_tool"]),
    ):
        (tmp_path / f"{name}.py").write_text(HOOK.format(name=name, what=textwrap.dedent(what)))
        processes[name] = {"enabled": True, "command": [sys.executable, str(tmp_path / f"{name}.py")], "intercept": intercept}
    config = tmp_path / "patchbay.json"
    config.write_text(json.dumps({"hooks": {"processes": processes}}))
    with FakeOpenAI() as fake, serving(fake, "--config", str(config)) as server, server.session():
        os.kill(server.pid, signal.SIGHUP)
        end = time.monotonic() + 60
        while sum("before_llm" in line for line in server.printed) < 2:
            assert time.monotonic() < end, server.printed
            time.sleep(0.02)
    lines = [line for line in server.logged() if "before_llm" in line]
    assert 2 == len(lines)
    assert all(("rewrites" in line, "weather" in line, "guards" in line) == (True, True, False) for line in lines), lines


def test_call_limit_is_set_by_the_server():
    script = [*(Call("now", {"zone": zone}) for zone in range(6)), Say("Done.")]
    with (
        FakeOpenAI(script) as fake,
        calling_back(json_response({"output": "noon"})) as callback,
        serving(fake, "--realtime-calls", "6") as server,
    ):
        server.http.register("now", callback.url)
        with server.session() as client:
            client.answer("Six times.")
            assert [False] * 6 == [frame["is_error"] for frame in client.of("tool_result")]


def test_upstream_with_several_models_requires_one_and_a_single_one_is_the_default():
    with SharedUpstream() as upstream, serving(upstream=upstream.url) as server:
        upstream.on("/v1/models", json_body({"object": "list", "data": [{"id": "small"}, {"id": "large"}]}))
        code, reason, error = server.refused()
        assert (4503, "no_model") == (code, error)
        assert all(each in reason for each in ("small", "large", "?model="))
        with server.session(query="model=large") as client:
            assert "large" == client.frames[0]["model"]
    with (
        ScriptedUpstream(["Hello."], model="small") as upstream,
        serving(upstream=upstream.url) as server,
        server.session() as client,
    ):
        assert ("small", "Hello.") == (client.frames[0]["model"], client.answer("Hi."))
    assert ["/v1/models", "/v1/chat/completions"] == [request.path for request in upstream.requests]  # it is asked once


def test_detect_turns_can_be_switched_off_in_the_query():
    with FakeOpenAI() as fake, serving(fake) as server, server.session(query="output=text&detect_turns=0"):
        assert fake.sessions[0]["audio"]["input"]["turn_detection"] is None


async def test_refused_tool_change_is_logged(caplog):
    async with SessionsUnderTest(FakeOpenAI(faults=Faults(updates=("ok", "refuse")))) as sessions:
        client = SessionClient(sessions)
        await client.until("ready")
        manager = sessions.managers["ann"]
        from patchbay.errors import ToolSyncError
        from patchbay.tools import ToolDefinition

        with pytest.raises(ToolSyncError):
            await manager.register_tool_and_sync(ToolDefinition("added", handler=lambda _arguments: "done"))
        client.leave()
        await client.task
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert any("'ann'" in line and "refused" in line for line in lines), lines


def test_lone_surrogate_of_a_client_is_replaced():
    with FakeOpenAI(["Fine."]) as fake, serving(fake) as server, server.session() as client:
        client.socket.send('{"type":"text","text":"half \\ud83d of it"}')
        client.asked += 1
        client.idle()
        assert [] == client.of("error")
        assert ["half \ufffd of it"] == [each.text for each in fake.heard if each.kind == "user"]

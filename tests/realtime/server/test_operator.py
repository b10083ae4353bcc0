"""Session failures for operators: one log line each, and the responses to clients."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from patchbay.errors import ToolSyncError, UpstreamError
from patchbay.realtime import ErrorEvent
from patchbay.server.live_sessions.bridge import SessionLog
from patchbay.testing import ScriptedUpstream
from patchbay.testing.realtime import Answer, Call, Drop, FakeOpenAI, Faults, Frame, Say
from patchbay.tools import ToolDefinition
from support.scripted_server import SharedUpstream, json_body
from tools_server.rig import calling_back, json_response

from .rig import Client, calling, serving
from .test_bridge import Client as SessionClient
from .test_bridge import SessionsUnderTest

KEY = "a-secret-key-that-nobody-may-read"


def session_log_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("patchbay.server")]


async def test_failed_opening_is_one_log_line_and_frees_the_role(caplog):
    async with SessionsUnderTest(FakeOpenAI(faults=Faults(refuse=1, refuse_with="503"))) as sessions:
        client = SessionClient(sessions, query="session=mondays")
        assert 4502 == await client.code()
        assert client.frames[-1]["error"]["code"].startswith("upstream")
        await SessionClient(sessions).until("ready")
    (line,) = session_log_lines(caplog)
    assert all(each in line for each in ("'ann'", "'mondays'", "could not be opened", "HTTP 503"))
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


async def test_tool_change_that_stays_refused_is_logged(caplog):
    async with SessionsUnderTest(FakeOpenAI(faults=Faults(updates=("ok", "refuse")))) as sessions:
        client = SessionClient(sessions)
        await client.until("ready")
        with pytest.raises(ToolSyncError):
            await sessions.managers["ann"].register_tool_and_sync(ToolDefinition("added", handler=lambda _arguments: "done"))
        client.leave()
        await client.task
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert any("'ann'" in line and "refused" in line for line in lines), lines


def test_missing_model_key_is_reported_at_startup_and_to_clients():
    with serving(None, "--realtime", "openai/gpt-realtime") as server:
        code, reason, error = server.refused()
    assert (4503, "configuration") == (code, error)
    assert "OPENAI_API_KEY in the server's environment" in reason
    assert "api_key" not in reason.replace("OPENAI_API_KEY", "").lower()
    first, second = server.logged()
    assert ("OPENAI_API_KEY" in first, "--realtime-key" in first) == (True, True)
    assert "could not be opened" in second


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


def test_flags_limit_calls_and_rounds_of_a_turn_and_the_upstreams_time():
    script = [*(Call("now", {"zone": zone}) for zone in range(6)), Say("Done.")]
    again = calling("now")
    flags = ("--realtime-calls", "6", "--max-iterations", "2", "--upstream-timeout", "700")
    with (
        FakeOpenAI(script) as fake,
        ScriptedUpstream([again, again, "Noon."]) as upstream,
        calling_back(json_response({"output": "noon"})) as callback,
        serving(fake, *flags, upstream=upstream.url) as server,
    ):
        server.http.register("now", callback.url)
        with server.session() as client:
            client.answer("Six times.")
            assert [False] * 6 == [frame["is_error"] for frame in client.of("tool_result")]
        with server.session(query="model=small") as client:
            assert "Noon." == client.answer("What time is it?")
    assert [True, True, False] == [bool(chat.json.get("tools")) for chat in upstream.chats]
    # The client of the upstream says so itself, with each request.
    assert 700 <= float(upstream.chats[0].headers["x-stainless-read-timeout"])


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
        serving(None, "--upstream-timeout", "0", upstream=upstream.url) as server,
        server.session() as client,
    ):
        assert ("small", "Hello.") == (client.frames[0]["model"], client.answer("Hi."))
    assert ["/v1/models", "/v1/chat/completions"] == [request.path for request in upstream.requests]  # it is asked once
    assert 86_400 <= float(upstream.chats[0].headers["x-stainless-read-timeout"])  # 0 is no limit

"""``WS /api/sessions/{role}`` of a real ``patchbay serve`` in front of the fakes, over real sockets."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
from urllib.parse import urlencode

import pytest

from patchbay.testing import ContractModel, ScriptedUpstream
from patchbay.testing.realtime import Answer, Call, FakeOpenAI, Faults, Pause, Quote, Say
from support.cli import run_cli
from support.realtime_fakes import FakeGemini
from tools_server.rig import calling_back, json_response, no_response

from .rig import serving

PROVIDERS = [FakeOpenAI, FakeGemini]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}


def assert_kept(fake):
    assert [] == fake.violations
    assert [] == fake.unanswered


@pytest.mark.parametrize("provider", PROVIDERS)
def test_script_runs_a_session_whose_model_calls_a_registered_tool(provider):
    with (
        provider([Call("get_weather", {"city": "Rome"}), Quote()]) as fake,
        calling_back(json_response({"output": "21 degrees"})) as callback,
        serving(fake) as server,
    ):
        server.http.register("get_weather", callback.url, parameters=CITY)
        with server.session() as client:
            ready = client.frames[0]
            kind = {"role": "ann", "kind": "realtime", "model": f"{fake.provider}/a-model"}
            assert kind == {name: ready[name] for name in kind}
            assert ready["input_rate"] in (16_000, 24_000)
            client.text("How is Rome?")
            client.idle()
            (call,), (result,) = client.of("tool_call"), client.of("tool_result")
            assert ("get_weather", {"city": "Rome"}) == (call["name"], call["arguments"])
            assert (call["call_id"], "21 degrees", False) == (result["call_id"], result["content"], result["is_error"])
            assert ["completed", "completed"] == [frame["status"] for frame in client.of("response_end")]
            received = [frame["text"] for frame in client.of("transcript") if frame["role"] == "assistant"]
            assert "21 degrees" in "".join([*(frame["delta"] for frame in client.of("text")), *received])
        assert {"city": "Rome"} == callback.calls[0].json["arguments"]
    assert_kept(fake)


def test_tool_registered_over_http_is_synced_when_the_response_arrives(shared):
    shared.plays("Hello, Ann.")
    with shared.session() as client:
        assert [] == shared.fake.tools
        answer = shared.http.register("added", role="ann")
        assert (["ann"], []) == (answer["affected_roles"], answer["pending_roles"])
        assert ["added"] == shared.fake.tools
        shared.http.register("of_ben", role="ben")
        assert ["added"] == shared.fake.tools
        assert shared.http.post("unregister", name="added").json["ok"]
        assert [] == shared.fake.tools
        assert "Hello, Ann." == client.answer("Hello.")


def test_role_with_a_failed_tool_sync_is_pending_until_the_retry():
    with FakeOpenAI(faults=Faults(updates=("ok", "refuse"))) as fake, serving(fake) as server, server.session():
        answer = server.http.register("added", role="ann")
        assert (True, ["ann"], ["ann"]) == (answer["ok"], answer["affected_roles"], answer["pending_roles"])
        assert "refused" in answer["failed_roles"][0]["error"]
        fake.wait_until(lambda: fake.tools == ["added"])
        waited = server.http.register("other", role="ann")
        assert (True, []) == (waited["ok"], waited["pending_roles"])


def test_audio_is_exchanged_as_json_or_binary_frames(shared):
    sound = bytes(range(200)) * 24
    shared.plays(*[Say("Hello.", audio=sound, piece=100)] * 2)
    with shared.session(query="") as client:
        client.say(type="audio", audio=base64.b64encode(b"\1\2" * 2_000).decode())
        client.until("response_end")
        assert sound == b"".join(base64.b64decode(frame["audio"]) for frame in client.of("audio"))
        assert {24_000} == {frame["rate"] for frame in client.of("audio")}
        assert ["Hi."] == [frame["text"] for frame in client.of("transcript") if frame["role"] == "user"]
    with shared.session(query="audio=binary") as client:
        client.socket.send(b"\1\2" * 2_000)
        client.until("response_end")
        assert sound == b"".join(frame for frame in client.frames if isinstance(frame, bytes))
        assert [24_000] == [frame["rate"] for frame in client.of("audio_format")]
        assert [] == client.of("audio")
    assert 8_000 == shared.fake.audio_bytes


def test_interrupted_answer_is_followed_by_the_next(shared):
    shared.plays(Answer((Say("One two three."), Pause(20))), "Yes?")
    with shared.session() as client:
        client.text("Count.")
        client.until("text")
        client.say(type="interrupt")
        client.until("interrupted")
        client.idle()
        assert "cancelled" == client.of("response_end")[-1]["status"]
        assert "Yes?" == client.answer("Hey.")


def test_invalid_frames_are_errors_and_the_session_continues(shared):
    odd = ["{", "[]", '"text"', '{"type": "nothing"}', '{"type": "text"}', '{"type": "text", "text": "  "}', '{"type": "audio"}',
           '{"type": "audio", "audio": "%%"}', '{"type": "audio", "audio": "AAAA"}', b"\1", b"",
           json.dumps({"type": "text", "text": "x" * 65_537}), "[" * 5_000]  # fmt: skip
    shared.plays("Fine.")
    with shared.session() as client:
        for frame in odd:
            client.socket.send(frame)
            client.asked += '{"type": "text"' in str(frame)
            assert "invalid_request" == client.until("error")["error"]["code"], frame
        client.say(type="ping")
        assert {"type": "pong"} == client.until("pong")
        assert "Fine." == client.answer("Hello.")


@pytest.mark.parametrize(("frames", "code"), [(["{"] * 40, 4400), (["x" * 1_100_000], 1009)])
def test_client_with_too_many_invalid_frames_or_an_overlong_one_is_closed(frames, code, shared):
    with shared.session() as client:
        with contextlib.suppress(Exception):  # it ends in the midst of it
            for frame in frames:
                client.socket.send(frame)
        assert code == client.ended()[0]


def test_role_has_one_session_at_a_time_and_another_can_take_over(shared):
    shared.plays("One.", "Two.")
    with shared.session() as first:
        assert (4409, "role_busy") == shared.refused()[::2]
        assert "One." == first.answer("Hello.")
        with shared.session(query="output=text&takeover=1") as second:
            assert (4410, "another client has taken over") == first.ended()
            shared.http.register("added")
            assert ["added"] == shared.fake.tools
            assert "Two." == second.answer("Hello.")
            with shared.session("ben"):  # another role's affair
                pass
        with shared.session():
            pass


@pytest.mark.parametrize(
    ("role", "query", "code", "error"),
    [
        ("nobody", "", 4404, "unknown_role"),
        ("ann", "model=small", 4503, "no_model"),
        ("ann", "model=small&realtime=openai/x", 4400, "invalid_request"),
        ("ann", "nothing=1", 4400, "invalid_request"),
        ("ann", "audio=mp3", 4400, "invalid_request"),
        ("ann", "output=text&output=text", 4400, "invalid_request"),
        ("ann", "realtime=no%0Asuch", 4400, "invalid_request"),
        ("ann", "realtime=nobody/model", 4503, "configuration"),
        ("ann", "realtime=gemini/a-model", 4503, "configuration"),  # whose key is not there
        ("ann", "realtime=openai/", 4503, "configuration"),
        ("ann", "session=%0A", 4400, "invalid_request"),
    ],
)
def test_refused_session_gets_an_error_before_close(role, query, code, error, shared):
    outcome, reason, told_error = shared.refused(role, query)
    assert (code, error) == (outcome, told_error)
    assert error != "unknown_role" or all(each in reason for each in ("'nobody'", "ann", "ben"))
    if "gemini" in query:  # the flag has the key of another provider
        assert (True, False) == ("in the server's environment" in reason, "--realtime-key" in reason)


def test_disconnected_client_frees_its_role_and_stops_its_tools(shared):
    shared.plays(Call("slow"), "Later.")
    with calling_back(no_response) as callback:
        shared.http.register("slow", callback.url)
        with shared.session() as client:
            client.text("Go.")
            client.until("tool_call")
            client.socket.socket.close()
        with shared.session(query="output=text&takeover=1"):
            pass


def test_session_with_an_upstream_model_works_the_same():
    with (
        ScriptedUpstream(ContractModel(), tools="refuse") as upstream,
        calling_back(json_response({"output": "21 degrees"})) as callback,
        serving(upstream=upstream.url) as server,
    ):
        server.http.register("get_weather", callback.url, parameters=CITY)
        with server.session(query="model=small&instructions=Be+brief.&session=monday") as client:
            assert ("offline", "small", "monday", None) == tuple(
                client.frames[0][key] for key in ("kind", "model", "session", "input_rate")
            )
            assert "21 degrees" in client.answer("What is the weather in Rome?")
            assert ["get_weather"] == [frame["name"] for frame in client.of("tool_result")]
            client.socket.send(b"\0\0")
            assert "text alone" in client.until("error")["error"]["message"]
            assert {"small"} == {request.json["model"] for request in upstream.chats}
            assert "Be brief." in json.dumps(upstream.chats[0].json["messages"][0])


def test_server_with_both_session_kinds_serves_the_requested_one():
    with (
        ScriptedUpstream(["From the chat."]) as upstream,
        FakeOpenAI(["From the live one."]) as fake,
        serving(fake, upstream=upstream.url) as server,
        server.session(query="model=small") as client,
    ):
        assert "From the chat." == client.answer("Hello.")
        with server.session(query="realtime=&output=text&takeover=1") as other:
            assert 4410 == client.ended()[0]
            assert "From the live one." == other.answer("Hello.")


@pytest.mark.parametrize(("seconds", "received"), [("30", "One two."), ("1", "One")])
def test_answer_under_way_has_the_drain_time_at_a_stop(seconds, received):
    pause = 0.5 if seconds == "30" else 60
    script = [Answer((Say("One"), Pause(pause), Say(" two.")))]
    with FakeOpenAI(script) as fake, serving(fake, "--drain-timeout", seconds) as server, server.session() as client:
        client.text("Count.")
        client.until("text")
        os.kill(server.pid, signal.SIGTERM)
        assert (1001, "the server stops") == client.ended()
        assert received == "".join(frame["delta"] for frame in client.of("text"))
    assert_kept(fake)


def test_instructions_may_be_long_in_any_script(shared):
    instructions = "\N{GRINNING FACE}" * 16_000
    with shared.session(query=urlencode({"instructions": instructions})):
        assert instructions in json.dumps(shared.fake.sessions[-1], ensure_ascii=False)


def test_detect_turns_can_be_switched_off_in_the_query(shared):
    with shared.session(query="output=text&detect_turns=0"):
        assert shared.fake.sessions[-1]["audio"]["input"]["turn_detection"] is None


def test_lone_surrogate_of_a_client_is_replaced(shared):
    shared.plays("Fine.")
    with shared.session() as client:
        client.socket.send('{"type":"text","text":"half \\ud83d of it"}')
        client.asked += 1
        client.idle()
        assert [] == client.of("error")
        assert "half \ufffd of it" == [each.text for each in shared.fake.heard if each.kind == "user"][-1]


def test_session_key_is_used_unchanged(shared):
    for query, headers in (("session=100%2541", {}), ("", {"X-Patchbay-Session": "100%2541"})):
        with shared.session(query=query, additional_headers=headers) as client:
            assert "100%41" == client.frames[0]["session"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--realtime-url", "ws://127.0.0.1:1/"], "--realtime-url needs --realtime"),
        (["--realtime", "openai/x", "--realtime-url", "http://127.0.0.1:1/"], "begins with ws://"),
        (["--realtime", "nobody/x"], "There is no provider"),
        (["--realtime", "openai/x", "--realtime-key", "--roles"], "needs a key"),
    ],
)
def test_invalid_flags_are_refused(flags, message):
    done = run_cli("serve", "--port", "0", "--store", "memory", *flags)
    assert (2, True) == (done.returncode, message in done.stderr), done.stderr

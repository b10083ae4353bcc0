"""Violations of clients are recorded and answered as by the real servers; what a client cannot avoid is none."""

from __future__ import annotations

import pytest
from websockets.exceptions import ConnectionClosed

from patchbay.testing.realtime import Answer, Call, Cancel, FakeOpenAI, Interrupt, Pause
from support.realtime_fakes import FakeGemini, FakeGLM, FakeQwen, FakeStepFun

from .raw import DECLARED, FLAT, NESTED, SESSIONS, Line, opened, result, talking, text_item

FAMILY = {"openai": FakeOpenAI, "qwen": FakeQwen, "glm": FakeGLM, "stepfun": FakeStepFun}
CREATE = {"type": "response.create"}
ASK = Call("get_weather", {"city": "Rome"}, call_id="call_1")
TWO = [ASK, Call("get_weather", {"city": "Oslo"}, call_id="call_2")]


async def play_frames(fake, *frames, after: int = 1):
    """Configure a session, send a text, wait for ``after`` responses, send the frames, and return the next events."""
    async with talking(fake, "hello") as line:
        for _ in range(after):
            await line.until("response.done")
        await line.send(*frames, {"type": "input_audio_buffer.clear"})
        return await line.until("input_audio_buffer.cleared")


def errors(events) -> list[tuple[str, str | None]]:
    return [(event["error"]["code"], event["error"].get("param")) for event in events if event["type"] == "error"]


@pytest.mark.parametrize(
    ("frames", "violation"),
    [
        ([result("a", "call_9")], "result for 'call_9': unknown call_id"),
        ([result("a", "call_1"), result("b", "call_1")], "second result for 'call_1'"),
        ([result("b", "call_2")], "result for 'call_2' before that of 'call_1', which was called first"),
        ([CREATE], "response.create before the result of 'call_1', 'call_2'"),
        ([result("a", "call_1"), CREATE], "response.create before the result of 'call_2'"),
        (
            [result("a", "call_1"), result("b", "call_2"), CREATE, CREATE],
            "Conversation already has an active response in progress",
        ),
    ],
)
@pytest.mark.parametrize("provider", ["openai", "qwen", "stepfun"])
async def test_misnumbered_or_misordered_results_and_requests_are_violations(provider, frames, violation):
    with FAMILY[provider]([TWO, Pause(30)]) as fake:
        await play_frames(fake, *frames)
        assert 1 == len(fake.violations)
        assert violation in fake.violations[0]


async def test_refused_frame_is_answered_with_the_servers_error():
    with FakeOpenAI([TWO]) as fake:
        seen = await play_frames(
            fake,
            result("a", "call_9"),
            result("a", "call_1"),
            result("b", "call_1"),
            {"type": "no.such"},
            {"type": "response.cancel"},
        )
        codes = ["invalid_tool_call_id", "invalid_tool_call_id", "invalid_value", "response_cancel_not_active"]
        assert codes == [code for code, _ in errors(seen)]
        assert codes == fake.refusals
        assert 3 == len(fake.violations)


async def test_request_without_new_input_is_a_violation():
    with FakeOpenAI(["first", "second", "third"]) as fake:
        await play_frames(fake, text_item("more"), CREATE)
        assert [] == fake.violations
    with FakeOpenAI(["first", "second"]) as fake:
        await play_frames(fake, CREATE)
        assert ["connection 1: response.create, and nothing new was said"] == fake.violations


async def test_request_that_crosses_a_server_response_is_refused_without_a_violation():
    script = [Answer(TWO, then=[Interrupt("Stop.")]), Call("get_weather", {}, call_id="call_3")]
    with FakeOpenAI(script) as fake:
        await play_frames(fake, CREATE, after=2)
        assert [] == fake.violations
        assert ["call_1", "call_2", "call_3"] == [call.call_id for call in fake.calls]


async def test_glm_matches_results_by_order_and_rejects_ids():
    with FakeGLM([TWO]) as fake:
        await play_frames(fake, result("a"), result("b"))
        assert [["a"], ["b"]] == [call.results for call in fake.calls]
        assert [] == fake.violations
    with FakeGLM([TWO]) as fake:
        await play_frames(fake, result("a", "glm_1"), result("b"), result("c"))
        assert [
            "connection 1: call_id 'glm_1' in a result",
            "connection 1: result for 'a call without an id': unknown call_id",
        ] == fake.violations


@pytest.mark.parametrize(
    ("provider", "change", "code", "param"),
    [
        ("openai", {"tools": [NESTED]}, "missing_required_parameter", "session.tools[0].name"),
        ("glm", {"tools": [NESTED]}, "missing_required_parameter", None),
        ("qwen", {"tools": [FLAT]}, "missing_required_parameter", "session.tools[0].function"),
        ("stepfun", {"tools": [FLAT]}, "missing_required_parameter", "session.tools[0].function"),
        ("openai", {"tools": [FLAT, {**FLAT, "name": "no spaces"}]}, "invalid_value", "session.tools[1].name"),
        ("openai", {"tools": [FLAT, FLAT]}, "invalid_value", "session.tools[1].name"),
        ("openai", {"tools": [{**FLAT, "strict": True}]}, "unknown_parameter", "session.tools[0].strict"),
        ("openai", {"type": None}, "missing_required_parameter", "session.type"),
        ("openai", {"modalities": ["text"]}, "unknown_parameter", "session.modalities"),
        ("qwen", {"enable_search": True}, "invalid_value", "session.enable_search"),
        ("qwen", {"modalities": ["audio"]}, "invalid_value", "session.modalities"),
        ("stepfun", {"voice": "two"}, "invalid_value", "session.voice"),
        ("glm", {"turn_detection": None}, "missing_required_parameter", None),
        ("glm", {"beta_fields": {"chat_mode": "video_passive"}}, "invalid_value", None),
    ],
)
async def test_invalid_session_update_is_refused_without_effect(provider, change, code, param):
    with FAMILY[provider]() as fake:
        async with talking(fake, **({"voice": "one"} if provider == "stepfun" else {})) as line:
            await line.send({"type": "session.update", "event_id": "mine", "session": {**SESSIONS[provider], **change}})
            error = (await line.until("error"))[-1]["error"]
        assert (code, param) == (error["code"], error.get("param"))
        assert (provider == "openai") == (error.get("event_id") == "mine")
        assert 1 == len(fake.violations)
        assert ["get_weather"] == fake.tools
        assert 2 == len(fake.sessions)


async def test_type_is_optional_for_a_fake_that_is_not_strict():
    with FakeOpenAI(strict_type=False) as fake:
        async with opened(fake) as socket:
            line = Line(socket)
            await line.send({"type": "session.update", "session": {"tools": [FLAT], "tool_choice": "auto"}})
            await line.until("session.updated")
        assert [] == fake.violations
        assert ["get_weather"] == fake.tools


async def gemini(fake, *frames, before: str = "setupComplete", seen: str = "turnComplete"):
    """Send frames after the frame ``before``, and return the frames up to ``seen``, or the code of the close."""
    async with opened(fake) as socket:
        line = Line(socket)
        if before:
            await line.configure("gemini")
        if before not in ("", "setupComplete"):
            await line.say("hello", "gemini")
            await line.until(before)
        await line.send(*frames)
        try:
            return await line.until(seen)
        except ConnectionClosed as closed:
            return closed.rcvd.code


def tool_response(*responses):
    return {"tool_response": {"function_responses": list(responses)}}


A = {"id": "call_1", "name": "get_weather", "response": {"result": "a"}}
B = {"id": "call_2", "name": "get_weather", "response": {"result": "b"}}


@pytest.mark.parametrize(
    ("frames", "before", "violation"),
    [
        ([{"clientContent": {"turns": []}}], "", "clientContent before setup"),
        ([tool_response(A)], "", "toolResponse before setup"),
        ([{"setup": {"model": "m", "tools": [DECLARED]}}], "setupComplete", "tools after setup"),
        ([{"setup": {"model": "m"}}], "setupComplete", "a second setup"),
        ([{"setup": {"tools": [DECLARED]}}], "", "setup without a model"),
        ([{"setup": {"model": "m", "tools": [FLAT]}}], "", "setup.tools are not functionDeclarations"),
        ([{"setup": {"model": "m", "tools": [{"functionDeclarations": [{"name": "a b"}]}]}}], "", "Invalid function name 'a b'"),
        ([{"setup": {"model": "m", "tools": [DECLARED, DECLARED]}}], "", "Duplicate function declaration found: get_weather"),
        (
            [{"setup": {"model": "m", "tools": [{"functionDeclarations": [{"name": "a", "parameters": {"oneOf": []}}]}]}}],
            "",
            "Unknown name 'oneOf' at 'setup.tools[0].function_declarations[0].parameters'",
        ),
        ([{"hello": {}}], "setupComplete", "a message with hello"),
        ([tool_response({**A, "response": "text"})], "toolCall", "the response of 'get_weather' is not an object"),
    ],
)
async def test_gemini_fake_closes_on_invalid_frames(frames, before, violation):
    with FakeGemini([TWO]) as fake:
        assert 1007 == await gemini(fake, *frames, before=before, seen="never")
        assert 1 == len(fake.violations)
        assert violation in fake.violations[0]


@pytest.mark.parametrize(
    ("frames", "violation"),
    [
        ([tool_response({**A, "id": "call_9"}), tool_response(A, B)], "result for 'call_9': unknown call_id"),
        ([tool_response(A, A, B)], "second result for 'call_1'"),
        ([tool_response({**A, "name": "other"}, B)], "result for 'call_1' as one of 'other', which is 'get_weather'"),
    ],
)
async def test_gemini_results_that_are_wrong_are_violations(frames, violation):
    with FakeGemini([TWO]) as fake:
        await gemini(fake, *frames, before="toolCall")
        assert [f"connection 1: {violation}"] == fake.violations


async def test_result_of_a_cancelled_call_is_a_violation_unless_it_crossed():
    for crossing, violations in ((0.0, ["connection 1: result for 'call_1', which was taken back"]), (60.0, [])):
        with FakeGemini([Answer(TWO, then=[Cancel(["call_1"])])], crossing=crossing) as fake:
            await gemini(fake, tool_response(A, B), before="toolCallCancellation")
            assert violations == fake.violations
            assert [] == fake.unanswered


async def test_calls_without_results_and_results_without_a_request_are_detected():
    with FakeOpenAI([TWO]) as fake:
        async with talking(fake, "hello") as line:
            response = (await line.until("response.done"))[-1]["response"]["id"]
            assert ["call_1", "call_2"] == fake.unanswered
            assert [] == fake.unasked
            await line.send(result("a", "call_1"), result("b", "call_2"))
            await fake.until(lambda: not fake.unanswered)
            assert [response] == fake.unasked
            await line.send(CREATE)
            await line.until("response.done")
            assert [] == fake.unasked

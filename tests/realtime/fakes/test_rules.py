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


REST = "response.create before the result of"
MISORDERED = [
    ([result("a", "call_9")], "result for 'call_9': unknown call_id"),
    ([result("a", "call_1"), result("b", "call_1")], "second result for 'call_1'"),
    ([result("b", "call_2")], "result for 'call_2' before that of 'call_1', which was called first"),
    ([CREATE], f"{REST} 'call_1', 'call_2'"),
    ([result("a", "call_1"), CREATE], f"{REST} 'call_2'"),
    ([result("a", "call_1"), result("b", "call_2"), CREATE, CREATE], "already has an active response in progress"),
]
CROSSED = [Answer(TWO, then=[Interrupt("Stop.")]), Call("get_weather", {}, call_id="call_3")]


@pytest.mark.parametrize(
    ("provider", "script", "frames", "after", "violations"),
    [
        *[(name, [TWO, Pause(30)], sent, 1, [why]) for name in ("openai", "qwen", "stepfun") for sent, why in MISORDERED],
        ("openai", ["first", "second", "third"], [text_item("more"), CREATE], 1, []),
        ("openai", ["first", "second"], [CREATE], 1, ["response.create, and nothing new was said"]),
        pytest.param("openai", CROSSED, [CREATE], 2, [], id="a request that crosses a response of the server"),
        ("glm", [TWO], [result("a"), result("b")], 1, []),
        ("glm", [TWO], [result("a", "glm_1"), result("b"), result("c")], 1,
            ["call_id 'glm_1' in a result", "result for 'a call without an id': unknown call_id"]),
    ],
)  # fmt: skip
async def test_misnumbered_or_misordered_results_and_requests_are_violations(provider, script, frames, after, violations):
    with FAMILY[provider](script) as fake:
        await play_frames(fake, *frames, after=after)
        assert [(True, why) for why in violations] == [
            (why in found, why) for why, found in zip(violations, fake.violations, strict=True)
        ]
        if script is CROSSED:
            assert ["call_1", "call_2", "call_3"] == [call.call_id for call in fake.calls]
        if provider == "glm" and not violations:
            assert [["a"], ["b"]] == [call.results for call in fake.calls]


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


def setup_of(*tools, **members):
    return {"setup": {"model": "m", "tools": list(tools), **members}}


def declares(**declaration):
    return {"functionDeclarations": [declaration]}


@pytest.mark.parametrize(
    ("before", "frames", "violation"),
    [
        ("", [{"clientContent": {"turns": []}}], "clientContent before setup"),
        ("", [tool_response(A)], "toolResponse before setup"),
        ("setupComplete", [setup_of(DECLARED)], "tools after setup"),
        ("setupComplete", [{"setup": {"model": "m"}}], "a second setup"),
        ("", [{"setup": {"tools": [DECLARED]}}], "setup without a model"),
        ("", [setup_of(FLAT)], "setup.tools are not functionDeclarations"),
        ("", [setup_of(declares(name="a b"))], "Invalid function name 'a b'"),
        ("", [setup_of(DECLARED, DECLARED)], "Duplicate function declaration found: get_weather"),
        ("", [setup_of(declares(name="a", parameters={"oneOf": []}))],
            "Unknown name 'oneOf' at 'setup.tools[0].function_declarations[0].parameters'"),
        ("setupComplete", [{"hello": {}}], "a message with hello"),
        ("toolCall", [tool_response({**A, "response": "text"})], "the response of 'get_weather' is not an object"),
        # Wrong results do not end the connection
        ("toolCall", [tool_response({**A, "id": "call_9"}), tool_response(A, B)], "result for 'call_9': unknown call_id"),
        ("toolCall", [tool_response(A, A, B)], "second result for 'call_1'"),
        ("toolCall", [tool_response({**A, "name": "other"}, B)], "result for 'call_1' as one of 'other', which is 'get_weather'"),
    ],
)  # fmt: skip
async def test_gemini_fake_records_violations_and_closes_on_invalid_frames(before, frames, violation):
    with FakeGemini([TWO]) as fake:
        outcome = await gemini(fake, *frames, before=before)
        assert violation.startswith(("result for", "second result")) == (outcome != 1007)
        (found,) = fake.violations
        assert violation in found


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

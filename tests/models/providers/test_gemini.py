"""Gemini's own wire: what it is asked, by its own types of a request, and what is understood of its answers."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

pytest.importorskip("google.genai", reason="needs the packages of patchbay-tools[gemini]")

from google.genai import types

from patchbay.errors import InvalidRequestError, UpstreamError, UpstreamTimeoutError
from patchbay.models.chat_model import ChatModel, ChatRequest, ModelReply, ReasoningDelta, TextDelta
from patchbay.models.gemini import GeminiAnswer, GeminiChatModel, gemini_request
from patchbay.models.resolve import resolve_model
from patchbay.testing import Raw
from patchbay.types import ToolSpec, Usage

from .conftest import QUESTION, TIME, WEATHER, events_of, replies, reply_of, run, turn
from .gemini_server import GeminiServer, call, error, response, text

# google-genai derives a class from one of aiohttp's, which aiohttp does not like to see.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")

MODEL = "gemini/gemini-3-pro"


def model_at(server: GeminiServer, name: str = MODEL, **options: Any) -> Any:
    return resolve_model(name, api_key="secret", base_url=server.base_url, max_retries=0, **options)


def test_turn_with_two_calls_sends_signatures_back(stream: bool) -> None:
    script = [
        response(
            text("Let me see."), call("get_weather", {"city": "Rome"}, signature=b"\x00sig"), call("get_time", {"zone": "CET"})
        ),
        response(text("Clear, at noon.")),
    ]
    with GeminiServer(script, signatures=True) as server:
        model = model_at(server)
        (asked, reply), conversation = run(model, turn(model, tools=[WEATHER, TIME], stream=stream))
    assert [("get_weather", {"city": "Rome"}), ("get_time", {"zone": "CET"})] == [
        (one.name, one.arguments) for one in asked.reply.tool_calls
    ]
    assert 2 == len({one.id for one in asked.reply.tool_calls} - {""})
    assert ("Let me see.", "tool_calls") == (asked.reply.content, asked.finish_reason)
    assert ("Clear, at noon.", "stop") == (reply.reply.content, reply.finish_reason)
    assert Usage(7, 3, 10) == reply.usage
    _, answer, results = server.bodies[1]["contents"]
    assert ["text", "functionCall", "functionCall"] == [
        next(iter(part.keys() - {"thoughtSignature"})) for part in answer["parts"]
    ]
    assert [None, base64.b64encode(b"\x00sig").decode(), None] == [part.get("thoughtSignature") for part in answer["parts"]]
    assert [{"sky": "clear"}] * 2 == [part["functionResponse"]["response"] for part in results["parts"]]
    assert [one.id for one in asked.reply.tool_calls] == [part["functionResponse"]["id"] for part in results["parts"]]
    assert json.loads(json.dumps(conversation)) == conversation  # a history that is stored keeps the signature
    assert {"secret"} == {request.headers["x-goog-api-key"] for request in server.requests}
    assert all("gemini-3-pro:" in request.path for request in server.requests)


def test_the_pieces_of_a_stream_add_up_to_the_reply() -> None:
    pieces = [
        response(text("It is about ", thought=True), finish=None),
        response(text("weather.", thought=True), finish=None),
        response(text("It is "), finish=None),
        response(text("clear."), finish=None),
        response(text("", thought_signature=b"end"), candidates_token_count=3, thoughts_token_count=5, total_token_count=15),
    ]
    with GeminiServer([pieces]) as server:
        model = model_at(server)
        events = run(model, events_of(model, ChatRequest([QUESTION], [WEATHER], stream=True)))
    end = events[-1]
    assert isinstance(end, ModelReply)
    assert "It is about weather." == end.reply.reasoning == "".join(one.text for one in events if isinstance(one, ReasoningDelta))
    assert "It is clear." == end.reply.content == "".join(one.text for one in events if isinstance(one, TextDelta))
    assert Usage(7, 8, 15) == end.usage
    message = end.reply.to_message()
    part = gemini_request({"model": "m", "messages": [QUESTION, message]})["contents"][1]["parts"]
    assert [{"text": "It is clear.", "thought_signature": b"end"}] == part


def test_foreign_calls_are_sent_with_a_dummy_signature() -> None:
    foreign = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    history = [QUESTION, {"role": "assistant", "content": None, "tool_calls": [foreign]}]
    history.append({"role": "tool", "tool_call_id": "a", "content": "clear"})
    with GeminiServer([response(text("Clear."))], signatures=True) as server:
        model = model_at(server)
        assert "Clear." == run(model, reply_of(model, history)).reply.content
    (part,) = server.bodies[0]["contents"][1]["parts"]
    assert b"skip_thought_signature_validator" == base64.urlsafe_b64decode(part["thoughtSignature"])
    (result,) = server.bodies[0]["contents"][2]["parts"]
    assert {"result": "clear"} == result["functionResponse"]["response"]
    older = gemini_request({"model": "gemini-2.5-flash", "messages": history})["contents"][1]["parts"]
    assert "thought_signature" not in older[0]


def test_gemini_gets_converted_schemas_and_names() -> None:
    parameters = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"where": {"$ref": "#/$defs/place"}, "size": {"const": 3}},
        "$defs": {"place": {"type": ["string", "null"]}},
        "additionalProperties": False,
    }
    tools = [ToolSpec("weather/get", "Tell.", parameters), ToolSpec("now", "Tell the time.")]

    def script(body: dict[str, Any]) -> Any:
        first, second = body["tools"][0]["functionDeclarations"]
        assert {"type": "STRING", "nullable": True} == first["parameters"]["properties"]["where"]
        assert "parameters" not in second
        return response(call(first["name"], {"where": None, "size": 3}), call(second["name"], {}))

    with GeminiServer(script) as server:
        model = model_at(server)
        end = run(model, reply_of(model, [QUESTION], tools=tools))
    assert ["weather/get", "now"] == [one.name for one in end.reply.tool_calls]
    assert "weather/get" not in json.dumps(server.bodies)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ({"type": "function", "function": {"name": "get_time"}}, {"mode": "ANY", "allowedFunctionNames": ["get_time"]}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_time"}}]},
            },
            {"mode": "VALIDATED", "allowedFunctionNames": ["get_time"]},
        ),
    ],
)
def test_a_tool_choice_is_gemini_s_calling_mode(choice: Any, expected: dict[str, Any]) -> None:
    def script(body: dict[str, Any]) -> Any:
        calling = body["toolConfig"]["functionCallingConfig"]
        return response(call("get_time", {})) if calling["mode"] == "ANY" else response(text("Noon."))

    with GeminiServer(script) as server:
        model = model_at(server)
        end = run(model, reply_of(model, [QUESTION], tools=[WEATHER, TIME], tool_choice=choice))
    assert expected == server.bodies[0]["toolConfig"]["functionCallingConfig"]
    assert (expected["mode"] == "ANY") == bool(end.reply.tool_calls)


def test_openai_parameters_are_translated_for_gemini() -> None:
    parameters = {
        "temperature": 0.5,
        "max_tokens": 99,
        "stop": "END",
        "seed": 3,
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        "user": "someone",
        "logprobs": True,
        "top_logprobs": 3,
    }
    with GeminiServer([response(text("{}"))]) as server:
        model = model_at(server)
        run(model, reply_of(model, [{"role": "developer", "content": "Be brief."}, QUESTION], tools=(), parameters=parameters))
    body = server.bodies[0]
    config = body["generationConfig"]
    assert (0.5, 99, ["END"], 3) == tuple(config[name] for name in ("temperature", "maxOutputTokens", "stopSequences", "seed"))
    assert ("application/json", {"type": "object"}) == (config["responseMimeType"], config["responseJsonSchema"])
    assert "LOW" in str(config["thinkingConfig"])
    assert (True, 3) == (config["responseLogprobs"], config["logprobs"])
    assert [{"text": "Be brief."}] == body["systemInstruction"]["parts"]
    assert "tools" not in body


@pytest.mark.parametrize(
    ("effort", "thinking"), [("medium", {"thinking_budget": 8192, "include_thoughts": True}), ("none", {"thinking_budget": 0})]
)
def test_thinking_budget_is_sent_to_models_without_levels(effort: str, thinking: dict[str, Any]) -> None:
    """Gemini refuses to show thoughts that it does not think."""
    config = gemini_request({"model": "gemini-2.5-flash", "messages": [QUESTION], "reasoning_effort": effort})["config"]
    assert thinking == config["thinking_config"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2}, "n"),
        ({"frobnicate": 1}, "frobnicate"),
        ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,é"}}]}]},
            "messages",
        ),
    ],
)
def test_request_gemini_cannot_express_is_refused_before_sending(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        gemini_request({"model": "m", "messages": [QUESTION], **body})
    assert param == caught.value.param


def test_images_sound_and_files_are_parts() -> None:
    data = base64.b64encode(b"bytes").decode()
    content = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/cat.jpg"}},
        {"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}},
        {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{data}", "filename": "x.pdf"}},
    ]
    with GeminiServer([response(text("A cat."))]) as server:
        model = model_at(server)
        run(model, reply_of(model, [{"role": "user", "content": content}]))
    parts = types.Content.model_validate(server.bodies[0]["contents"][0]).parts or []
    assert ["image/png", "audio/mp3", "application/pdf"] == [part.inline_data.mime_type for part in parts if part.inline_data]
    assert [b"bytes"] * 3 == [part.inline_data.data for part in parts if part.inline_data]
    assert ["https://example.com/cat.jpg"] == [part.file_data.file_uri for part in parts if part.file_data]


def test_a_model_without_tools_and_system_role_is_taught_in_text_and_that_is_learnt(stream: bool) -> None:
    written = '```tool_call\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n```'
    script = [response(text(written)), response(text("Clear.")), response(text(written))]
    with GeminiServer(script, tools=False, system=False) as server:
        model = model_at(server, "gemini/gemma-4-27b-it")

        async def three() -> list[str]:
            ends, _ = await turn(model, [{"role": "system", "content": "Be brief."}, QUESTION], stream=stream)
            ends.append(await reply_of(model, [QUESTION], stream=stream))
            return [one.arguments["city"] for end in ends for one in end.reply.tool_calls]

        assert ["Rome", "Rome"] == run(model, three())
    taught = ["get_weather" in json.dumps(body["contents"][0]) for body in server.bodies]
    # Refused with tools, then with a system instruction; from then on neither is sent.
    assert [False, False, True, True, True] == taught
    assert [True, False, False, False, False] == ["tools" in body for body in server.bodies]


def test_schema_beside_tools_is_sent_with_the_last_request_where_unsupported(stream: bool) -> None:
    def script(body: Any) -> Any:
        formatted = "responseMimeType" in body["generationConfig"]
        if formatted and "tools" in body:
            return error(400, "Function calling with a response mime type: 'application/json' is unsupported")
        return response(text('{"sky": "clear"}' if formatted else "It is clear."))

    wanted = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}}
    with GeminiServer(script) as server:
        model = model_at(server)
        ends = run(model, replies(model, *[{"stream": stream, "parameters": wanted}] * 2))
        assert ['{"sky": "clear"}'] * 2 == [end.reply.content for end in ends]
    assert [True, True, False, True, False] == ["tools" in body for body in server.bodies]


def choice_of(message: str) -> Any:
    piece = types.GenerateContentResponse.model_validate(response(finish="MALFORMED_FUNCTION_CALL", message=message))
    return GeminiAnswer("gemini-3-pro", [WEATHER.to_openai()]).chunk(piece).choices[0]


def test_a_call_that_gemini_could_not_read_is_read_here() -> None:
    choice = choice_of("Malformed function call: print(default_api.get_weather(city='Rome'))")
    assert "stop" == choice.finish_reason
    (written,) = choice.delta["tool_calls"]
    assert ("get_weather", {"city": "Rome"}) == (written["function"]["name"], json.loads(written["function"]["arguments"]))


def test_unreadable_malformed_call_is_passed_on_verbatim() -> None:
    """So the executor tells the model what was wrong with it, and the run goes on."""
    (written,) = choice_of("Malformed function call: print(default_api.get_weather(lambda: 1))").delta["tool_calls"]
    assert "get_weather" == written["function"]["name"]
    assert "lambda" in written["function"]["arguments"]


def test_unreadable_gemini_answer_is_requested_again_and_counted_in_usage(stream: bool) -> None:
    unreadable = response(text("hm", thought=True), finish="MALFORMED_FUNCTION_CALL")
    with GeminiServer([unreadable, response(call("get_weather", {"city": "Rome"}))]) as server:
        model = model_at(server)
        end = run(model, reply_of(model, [QUESTION], stream=stream))
    assert ["Rome"] == [one.arguments["city"] for one in end.reply.tool_calls]
    assert Usage(14, 6, 20) == end.usage


@pytest.mark.parametrize(("reason", "requests"), [("MALFORMED_FUNCTION_CALL", 3), ("MISSING_THOUGHT_SIGNATURE", 1), ("OTHER", 1)])
def test_failed_answer_is_an_error_with_its_finish_reason(reason: str, requests: int, stream: bool) -> None:
    with GeminiServer(lambda _: response(finish=reason)) as server:
        model = model_at(server)
        with pytest.raises(UpstreamError, match=reason):
            run(model, reply_of(model, [QUESTION], stream=stream))
    assert requests == len(server.requests)


def test_a_blocked_prompt_and_a_blocked_answer_are_filtered(stream: bool) -> None:
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 4, "totalTokenCount": 4}}
    with GeminiServer([blocked, response(finish="PROHIBITED_CONTENT"), response(text("It"), finish="MAX_TOKENS")]) as server:
        model = model_at(server)
        ends = run(model, replies(model, *[{"stream": stream}] * 3))
    assert ["content_filter", "content_filter", "length"] == [end.finish_reason for end in ends]
    assert ["The prompt was blocked: SAFETY.", None, "It"] == [end.reply.content for end in ends]


def test_silent_server_is_a_timeout_error() -> None:
    with GeminiServer([Raw([], end="hang")]) as server:
        model = model_at(server, timeout=0.2)
        with pytest.raises(UpstreamTimeoutError):
            run(model, reply_of(model, [QUESTION]))


def test_a_client_of_the_callers_own_is_a_model_too() -> None:
    from google import genai

    with GeminiServer([response(text("Clear."))]) as server:
        client = genai.Client(vertexai=False, api_key="k", http_options={"base_url": server.base_url})
        model = GeminiChatModel(client, model="gemini-3-pro")
        assert isinstance(model, ChatModel)

        async def ask() -> ModelReply:
            try:
                return await asyncio.wait_for(reply_of(model, [QUESTION]), 60)
            finally:
                await client.aio.aclose()

        assert "Clear." == asyncio.run(ask()).reply.content
        client.close()
    assert "gemini-3-pro:" in server.requests[0].path


def test_signatures_are_sent_back_in_their_positions(stream: bool) -> None:
    """On a text, on a part without text, on calls that come in pieces of a stream of their own: all of one answer."""
    parts = [
        text("Let me see. ", thought_signature=b"text"),
        call("get_weather", {"city": "Rome"}, signature=b"rome", id="g1"),
        call("get_weather", {"city": "Oslo"}, signature=b"oslo", id="g2"),
        call("get_time", {"zone": "CET"}, id="g3"),
    ]
    pieces = [response(part, finish=None) for part in parts] + [response()]
    with GeminiServer([pieces if stream else response(*parts), response(text("Clear."))], signatures=True) as server:
        model = model_at(server)
        ends, _ = run(model, turn(model, tools=[WEATHER, TIME], stream=stream))
    assert ["g1", "g2", "g3"] == [one.id for one in ends[0].reply.tool_calls]
    _, reply, results = [types.Content.model_validate(content) for content in server.bodies[1]["contents"]]
    assert [b"text", b"rome", b"oslo", None] == [part.thought_signature for part in reply.parts or []]
    answers = [part.function_response for part in results.parts or []]
    assert [("g1", "get_weather"), ("g2", "get_weather"), ("g3", "get_time")] == [
        (answer.id, answer.name) for answer in answers if answer
    ]


def test_tool_images_follow_the_results_for_gemini() -> None:
    from patchbay import ToolRunner
    from patchbay.types import Attachment

    def get_weather(city: str) -> Attachment:
        """Show the sky."""
        return Attachment(city.encode(), "image/png")

    asked = response(call("get_weather", {"city": "Rome"}), call("get_weather", {"city": "Oslo"}))
    with GeminiServer([asked, response(text("Blue."))]) as server:
        model = model_at(server)
        runner = ToolRunner(model, tools=[get_weather], attachments=["image"])
        assert "Blue." == run(model, runner.run("How is the sky?")).content
    results, shown = [types.Content.model_validate(content) for content in server.bodies[1]["contents"]][-2:]
    assert ("user", 2) == (results.role, len([part for part in results.parts or [] if part.function_response]))
    assert [b"Rome", b"Oslo"] == [part.inline_data.data for part in shown.parts or [] if part.inline_data]


@pytest.mark.parametrize("status", [302, 307])
def test_key_is_not_sent_to_a_redirect(status: int, stream: bool) -> None:
    """Google's header for it is one that HTTP clients do not know for a secret."""
    with GeminiServer(lambda _: response(text("Clear."))) as other:
        target = f"{other.base_url.replace('127.0.0.1', 'localhost')}/elsewhere"
        with GeminiServer(lambda _: Raw([], status=status, headers=[("location", target)])) as server:
            model = model_at(server)
            with pytest.raises(UpstreamError, match=f"redirect.*{target}") as caught:
                run(model, reply_of(model, [QUESTION], stream=stream))
    assert (status, []) == (caught.value.upstream_status, other.requests)


def test_a_server_that_cannot_be_reached_is_named() -> None:
    model = resolve_model(MODEL, api_key="k", base_url="http://127.0.0.1:9", max_retries=0)
    with pytest.raises(UpstreamError, match=r"could not be reached \(127.0.0.1:9\)") as caught:
        run(model, reply_of(model, [QUESTION]))
    assert "SSLContext" not in str(caught.value)


def test_model_works_in_successive_event_loops_and_keeps_its_capabilities() -> None:
    with GeminiServer(lambda _: response(text("Clear.")), tools=False, system=False) as server:
        model = model_at(server, "gemini/gemma-4-27b-it")
        for _ in range(2):
            assert "Clear." == run(model, reply_of(model, [{"role": "system", "content": "Be brief."}, QUESTION])).reply.content
    assert [True, True, False, False] == ["systemInstruction" in body for body in server.bodies]


@pytest.mark.parametrize("written", ["NaN", '{"x": Infinity}', "-Infinity"])
def test_non_json_result_is_sent_verbatim(written: str) -> None:
    call_made = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "a", "content": written}
    messages = [QUESTION, {"role": "assistant", "content": None, "tool_calls": [call_made]}, result]
    (part,) = gemini_request({"model": "m", "messages": messages})["contents"][2]["parts"]
    assert {"result": written} == part["function_response"]["response"]

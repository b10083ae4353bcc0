"""Which errors say that a server takes no tools, and what a token count proves."""

from __future__ import annotations

import json

import pytest

from patchbay.models.capabilities import Capabilities, ModelCapabilities, refuses_choice, refuses_tools
from patchbay.models.exchange import Exchange
from patchbay.models.options import TextOptions
from patchbay.models.policy import refuses_format

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
REQUEST = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}).encode()
ANSWER = json.dumps({"choices": [{"index": 0, "message": {"content": "Hello."}, "finish_reason": "stop"}]}).encode()


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, '{"error":{"message":"registry.ollama.ai/library/gemma:2b does not support tools","type":"api_error"}}'),
        (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        (500, "tools param requires --jinja flag"),
        (404, "No endpoints found that support tool use. To learn more about provider routing, visit the docs."),
        (400, "Unsupported parameter: 'tools' is not supported with this model."),
        (400, "Unrecognized request argument supplied: tools"),
        (422, '{"detail":[{"type":"extra_forbidden","loc":["body","tools"],"msg":"Extra inputs are not permitted"}]}'),
        (400, "Function calling is not supported by this model"),
        (400, "This model doesn't support function calling."),
        (501, "tool_choice is not yet supported"),
        (400, "scripted-model does not support tools"),
        # OpenRouter
        (
            404,
            (
                '{"error":{"message":"No endpoints found that support the provided \'tool_choice\' value. To learn more about provider '
                'routing, visit: https://openrouter.ai/docs/provider-routing","code":404}}'
            ),
        ),
        (
            404,
            'No endpoints found that support tool use. Try disabling "question". To learn more about provider routing, visit: …',
        ),
        # llama.cpp before 2025; llama.cpp where its grammar of the tools is too large
        (500, '{"error":{"code":500,"message":"Unsupported param: tools","type":"server_error"}}'),
        (400, '{"error":{"code":400,"message":"Failed to initialize samplers: failed to parse grammar"}}'),
        # NVIDIA, xAI, Groq, DeepInfra, DeepSeek, Perplexity, Amazon, Google, OpenAI
        (
            400,
            '{"error":"Tool use has not been enabled, because it is unsupported by deepseek-ai/deepseek-r1-distill-qwen-14b."}',
        ),
        (
            400,
            (
                '{"code":"Client specified an invalid argument","error":"Invalid request content: The model does not support tool use or '
                'function calling but tools or tool_choice have been specified on the request."}'
            ),
        ),
        (400, '{"error":{"message":"`tool calling` is not supported with this model","type":"invalid_request_error"}}'),
        (405, "deepinfra error: Tool calling is not supported for model: mistralai/Mistral-Small-24B-Instruct-2501"),
        (400, '{"error":{"message":"deepseek-reasoner does not support Function Calling","type":"invalid_request_error"}}'),
        (400, '{"error":{"message":"Tool calling is not supported for this model","type":"bad_request"}}'),
        (
            400,
            "An error occurred (ValidationException) when calling the Converse operation: This model doesn't support tool use.",
        ),
        (
            400,
            '{"error":{"code":400,"message":"Function calling is not enabled for models/gemma-3-12b-it","status":"INVALID_ARGUMENT"}}',
        ),
        (
            400,
            "tools is not supported in this model. For a list of supported models, refer to https://platform.openai.com/docs/guides/…",
        ),
    ],
)
def test_refusal_of_tools_is_recognised(status: int, text: str) -> None:
    assert refuses_tools(status, text)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, "Unknown parameter: 'tools[0].function.foo'."),
        (400, "Unexpected role 'tool' after role 'user'"),
        (400, "Invalid schema for function 'f': 'x' is not valid under any of the given schemas"),
        (400, "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"),
        (400, "This model's maximum context length is 4096 tokens; the tools need 5000."),
        (400, "temperature is not supported with this model"),
        (400, "parallel_tool_calls is not supported with this model"),
        (400, "strict mode is not supported for tools"),
        (401, "This key does not support tools"),
        # llama.cpp, vLLM, Groq, OpenRouter, Mistral, Fireworks, Google, Amazon: what they say of other mistakes
        (
            400,
            '{"error":{"code":400,"message":"Cannot use custom grammar constraints with tools.","type":"invalid_request_error"}}',
        ),
        (400, '{"error":{"code":400,"message":"request (4480 tokens) exceeds the available context size (4096 tokens)"}}'),
        (500, '{"error":{"code":500,"message":"Failed to parse input at pos 31: <tool_call>","type":"server_error"}}'),
        (400, "You can only either use guided decoding or tools, not both."),
        (400, '{"error":{"message":"Failed to call a function. Please adjust your prompt.","code":"tool_use_failed"}}'),
        (400, "tool call validation failed: parameters for tool f did not match schema: errors: [`/domain`: expected array]"),
        (
            404,
            "No endpoints found matching your data policy. Enable prompt training here: https://openrouter.ai/settings/privacy",
        ),
        (404, "The model `gpt-5.4-image-2` does not exist or you do not have access to it."),
        (400, "Not the same number of function calls and responses"),
        (400, "Extra inputs are not permitted, field: 'tools[0].eager_input_streaming', value: True"),
        (400, "Function calling mode `ANY` is not enabled for api version v1beta"),
        (400, "This model doesn't support the toolConfig.toolChoice.any field. Remove toolConfig.toolChoice.any and try again"),
        (400, "Missing `reasoning_content` field in the assistant message at message index 2, which has tool calls"),
        (503, "The server does not support tools while it is loading"),
    ],
)
def test_another_mistake_does_not_turn_a_model_to_text(status: int, text: str) -> None:
    assert not refuses_tools(status, text)


def test_one_stray_closing_tag_is_not_enough_to_read_every_answer_as_reasoning() -> None:
    known = ModelCapabilities("m")
    known.note_reasoning(unopened=True)
    assert not known.prefilled
    known.note_reasoning(unopened=True)
    assert known.prefilled
    known.note_reasoning(unopened=False)
    assert not known.prefilled


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, "The tool_choice parameter does not support being set to required or object in thinking mode"),
        (400, "tool_choice 'specified' is incompatible with thinking enabled"),
        (422, '{"detail":[{"loc":["body","tool_choice"],"msg":"Input should be \'auto\'"}]}'),
        (404, "No endpoints found that support the provided 'tool_choice' value. To learn more about provider routing, visit: …"),
        (400, "This model doesn't support the toolConfig.toolChoice.any field. Remove toolConfig.toolChoice.any and try again"),
    ],
)
def test_refusal_of_tool_choice_is_recognised(status: int, text: str) -> None:
    assert refuses_choice(status, text)


def test_other_errors_are_not_about_the_tool_choice() -> None:
    assert not refuses_choice(400, "Unknown parameter: 'tools[0].function.foo'.")
    assert not refuses_choice(401, "This key may not use tool_choice")


def test_server_with_tools_is_not_probed_but_can_refuse_them() -> None:
    exchange = Exchange(REQUEST, TextOptions(), Capabilities(doubts=False))
    assert not exchange.answer(ANSWER)[1]
    assert exchange.on_upstream_error(400, "this model does not support tools")


@pytest.mark.parametrize(
    "text",
    [
        "json mode cannot be combined with tool/function calling",
        "Function calling with a response mime type: 'application/json' is unsupported",
        "You cannot specify response format and function call at the same time",
        "Cannot use custom grammar constraints with tools.",
        "You can only either use guided decoding or tools, not both.",
        "You can only either use constraints for structured outputs or tools, not both.",
        "This response_format type is unavailable now",
        "Unsupported parameter: 'response_format'",
        '{"detail":[{"loc":["body","response_format"],"msg":"Extra inputs are not permitted"}]}',
    ],
)
def test_refusal_of_response_format_is_recognised(text: str) -> None:
    assert refuses_format(400, text)
    assert not refuses_format(429, text)


@pytest.mark.parametrize(
    "text",
    [
        "Invalid schema for response_format 'w': In context=('properties', 'x'), 'oneOf' is not permitted.",
        "Invalid 'response_format.json_schema.name': string does not match pattern.",
        "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
        "this model does not support tools",
    ],
)
def test_error_about_schema_content_is_not_a_refusal_of_response_format(text: str) -> None:
    assert not refuses_format(400, text)

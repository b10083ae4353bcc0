"""Errors of many servers, as each protocol's clients know them: status, code and words."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web
from google import genai
from google.genai.errors import APIError
from tests.server.proxy_rig import running_upstream

from frontends.protocols import PROTOCOLS
from frontends.test_proxy import GEMINI, MESSAGES, RESPONSES, STREAM
from patchbay.errors import UpstreamError
from patchbay.models.upstream_errors import CONTEXT, context_tokens, subject_of
from patchbay.proxy import create_app
from support.http_server import ask, serving

CHAT = ("/v1/chat/completions", json.loads(PROTOCOLS["chat"].request(stream=False)[0]))

TOO_LONG = [
    ("OpenAI", "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.", (9000, None, 8192)),
    ("vLLM", "This model's maximum context length is 8192 tokens. However, you requested 10000 tokens (9000 in the messages, 1000 in the completion).", (9000, 1000, 8192)),
    ("vLLM, max_tokens", "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 4096 tokens and your request has 100 input tokens (32000 > 4096 - 100).", (100, 32000, 4096)),
    ("vLLM, newer", "You passed 8193 input tokens and requested 12 output tokens. However, the model's context length is only 8192 tokens, resulting in a maximum input length of 8180 tokens.", (8193, 12, 8192)),
    ("vLLM, engine", "The decoder prompt (length 5000) is longer than the maximum model length of 4096.", (5000, None, 4096)),
    ("llama.cpp", "request (8200 tokens) exceeds the available context size (4096 tokens), try increasing it", (8200, None, 4096)),
    ("Ollama", "prompt too long; exceeded max context length by 918 tokens", (None, None, None)),
    ("Ollama, older", "the input length exceeds the context length", (None, None, None)),
    ("LM Studio", "Trying to keep the first 5650 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough.", (5650, None, 4096)),
    ("LM Studio, newer", "Context size has been exceeded.", (None, None, None)),
    ("SGLang", "The input (516368 tokens) is longer than the model's context length (262144 tokens).", (516368, None, 262144)),
    ("SGLang, max_tokens", "Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of 9000 tokens: 8000 tokens from the input messages and 1000 tokens for the completion.", (8000, 1000, 8192)),
    ("SGLang, length", "Input length (5000 tokens) exceeds the maximum allowed length (4096 tokens). Use a shorter input or enable --allow-auto-truncate.", (5000, None, 4096)),
    ("TGI", "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 10 `max_new_tokens`", (5000, 10, 4096)),
    ("TGI, inputs", "Input validation error: `inputs` must have less than 4095 tokens. Given: 5000", (5000, None, 4095)),
    ("Mistral", "Prompt contains 140000 tokens and 0 draft tokens, too large for model with 131072 maximum context length", (140000, None, 131072)),
    ("OpenRouter", "This endpoint's maximum context length is 131072 tokens. However, you requested about 150000 tokens (149000 of text input, 1000 in the output).", (149000, 1000, 131072)),
    ("Anthropic", "prompt is too long: 213462 tokens > 200000 maximum", (213462, None, 200000)),
    ("Gemini", "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).", (1196265, None, 1048575)),
    ("Anthropic, max_tokens", "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or `max_tokens` and try again", (188240, 21333, 200000)),
    ("OpenAI, newer", "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens. Please reduce the length of the messages.", (300000, None, 272000)),
    ("xAI", "This model's maximum prompt length is 131072 but the request contains 537812 tokens.", (537812, None, 131072)),
    ("Copilot", "prompt token count of 140000 exceeds the limit of 128000", (140000, None, 128000)),
    ("DashScope", "Range of input length should be [1, 98304]", (None, None, None)),
    ("Z.ai", "Prompt exceeds max length", (None, None, None)),
    ("TabbyAPI", "Prompt length 5000 is greater than max_seq_len 4096", (5000, None, 4096)),
    ("vLLM, length", "Input length (5000) exceeds model's maximum context length (4096).", (5000, None, 4096)),
    ("LM Studio, keep", "The number of tokens to keep from the initial prompt is greater than the context length.", (None, None, None)),
    ("LM Studio, overflow", "Reached context length of 4096 tokens with this model, but this model does not currently support mid-generation context overflow.", (None, None, 4096)),
    ("Kimi", "Invalid request: Your request exceeded model token limit: 131072", (None, None, 131072)),
    ("MiniMax", "invalid params, context window exceeds limit (2013)", (None, None, None)),
    ("Fireworks", "The prompt is too long: 140000, model maximum context length: 131071", (140000, None, 131071)),
    ("Responses", "Your input exceeds the context window of this model. Please adjust your input and try again.", (None, None, None)),
]  # fmt: skip
"""A server, what it says of a prompt that is too long, and the tokens in it: of the prompt, of the output, and of the context."""


@pytest.mark.parametrize(("said", "tokens"), [row[1:] for row in TOO_LONG], ids=[row[0] for row in TOO_LONG])
def test_a_prompt_that_is_too_long_is_recognised_with_its_numbers(said, tokens):
    error = UpstreamError(f"The upstream answered HTTP 400: {said}", upstream_status=400, body=json.dumps({"error": said}))
    assert CONTEXT is subject_of(error)
    assert tokens == context_tokens(error)


LLAMA = {
    "code": 400,
    "message": "the request exceeds the available context size.",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 8200,
    "n_ctx": 4096,
}
KNOWN = {
    "context": (400, {"error": LLAMA}, "context_length_exceeded"),
    "context as a text": (500, {"error": "the input length exceeds the context length"}, "context_length_exceeded"),
    "quota": (
        429,
        {"error": {"message": "You exceeded your current quota.", "code": "insufficient_quota"}},
        "insufficient_quota",
    ),
    "balance": (402, {"error": {"message": "Insufficient Balance"}}, "insufficient_quota"),
    "rate limit": (429, {"error": {"message": "Slow down."}}, "rate_limit_exceeded"),
    "model": (404, {"error": {"message": 'model "m" not found, try pulling it first'}}, "model_not_found"),
    "model with dots": (404, {"error": {"message": "The model `Qwen/Qwen2.5-7B` does not exist."}}, "model_not_found"),
    "model of Ollama": (404, {"error": {"message": 'model "qwen2.5:7b" not found, try pulling it first'}}, "model_not_found"),
    "model of LiteLLM": (400, {"error": {"message": "Invalid model name passed in model=x"}}, "model_not_found"),
    "model, 400": (400, {"error": {"message": "org/m is not a valid model ID", "code": 400}}, "model_not_found"),
    "key": (401, {"error": "Unauthorized"}, "invalid_api_key"),
}
"""What a server answers, and OpenAI's code for it."""
EXPECTED: dict[str, dict[str, tuple[int, str]]] = {
    "messages": {
        "context_length_exceeded": (400, "invalid_request_error"),
        "insufficient_quota": (402, "billing_error"),
        "rate_limit_exceeded": (429, "rate_limit_error"),
        "model_not_found": (404, "not_found_error"),
        "invalid_api_key": (401, "authentication_error"),
    },
    "gemini": {
        "context_length_exceeded": (400, "INVALID_ARGUMENT"),
        "insufficient_quota": (429, "RESOURCE_EXHAUSTED"),
        "rate_limit_exceeded": (429, "RESOURCE_EXHAUSTED"),
        "model_not_found": (404, "NOT_FOUND"),
        "invalid_api_key": (401, "UNAUTHENTICATED"),
    },
    "responses": {
        code: (status, code)
        for code, status in (
            ("context_length_exceeded", 400),
            ("insufficient_quota", 429),
            ("rate_limit_exceeded", 429),
            ("model_not_found", 404),
            ("invalid_api_key", 401),
        )
    },
}
REQUESTS = {"messages": MESSAGES, "responses": RESPONSES, "gemini": GEMINI}
WORDS = {
    "messages": "prompt is too long: 8200 tokens > 4096 maximum",
    "gemini": "The input token count (8200) exceeds the maximum number of tokens allowed (4096).",
    "responses": "exceeds the available context size",
}


def refusing(status: int, body: Any, *, stream: bool = False):
    """An upstream that refuses each request, or fails after the first piece of a stream."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        if not stream:
            return web.json_response(body, status=status)
        chunk = {"id": "x", "model": "m", "choices": [{"index": 0, "delta": {"content": "Half"}, "finish_reason": None}]}
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in (chunk, body))
        return web.Response(text=text, content_type="text/event-stream")

    return running_upstream(answer)


def named(protocol: str, error: Any) -> str:
    return error["error"][{"messages": "type", "gemini": "status", "responses": "code"}[protocol]]


@pytest.mark.parametrize("known", KNOWN)
def test_a_known_error_has_each_protocols_status_and_name(known):
    status, body, code = KNOWN[known]
    with refusing(status, body) as upstream, serving(create_app(upstream.url)) as port:
        for protocol, expected in EXPECTED.items():
            answer = ask(port, "POST", *REQUESTS[protocol])
            assert expected[code] == (answer.status, named(protocol, answer.json)), protocol
            if known == "rate limit":
                assert "Slow down." == answer.json["error"]["message"]
            if known == "context":
                assert WORDS[protocol] in json.dumps(answer.json)


def test_only_the_error_of_a_prompt_that_is_too_long_is_written_anew_for_chat():
    with refusing(500, {"error": LLAMA}) as upstream, serving(create_app(upstream.url)) as port:
        answer = ask(port, "POST", *CHAT)
        error = answer.json["error"]
        assert (400, {**LLAMA, "type": "invalid_request_error", "code": "context_length_exceeded"}) == (answer.status, error)
    for status, body, _ in (KNOWN["balance"], KNOWN["rate limit"], KNOWN["model, 400"]):
        with refusing(status, body) as upstream, serving(create_app(upstream.url)) as port:
            answer = ask(port, "POST", *CHAT)
            assert (status, body) == (answer.status, answer.json)


def test_an_output_that_does_not_fit_beside_the_prompt_is_not_a_prompt_that_is_too_long_for_claude():
    body = {"error": {"message": TOO_LONG[2][1], "code": 400}}
    with refusing(400, body) as upstream, serving(create_app(upstream.url)) as port:
        error = ask(port, "POST", *MESSAGES).json["error"]
    assert "input length and `max_tokens` exceed context limit: 100 + 32000 > 4096" == error["message"]


@pytest.mark.parametrize("protocol", EXPECTED)
def test_a_known_error_in_mid_stream_has_its_name(protocol):
    path, body = (
        (STREAM, GEMINI[1]) if protocol == "gemini" else (REQUESTS[protocol][0], {**REQUESTS[protocol][1], "stream": True})
    )
    with refusing(200, {"error": LLAMA}, stream=True) as upstream, serving(create_app(upstream.url)) as port:
        last = ask(port, "POST", path, body).body.decode().strip().split("\n\n")[-1]
    error = json.loads(last[last.index("{") :])
    error = error["response"] if protocol == "responses" else error
    assert EXPECTED[protocol]["context_length_exceeded"][1] == named(protocol, error)
    assert WORDS[protocol] in last


def test_the_packages_raise_their_own_errors():
    status, body, _ = KNOWN["context"]
    with refusing(status, body) as upstream, serving(create_app(upstream.url)) as port:
        url = f"http://127.0.0.1:{port}"
        with openai.OpenAI(base_url=f"{url}/v1", api_key="k") as client, pytest.raises(openai.BadRequestError) as of_openai:
            client.responses.create(model="m", input="Hi.", stream=True)
        message = {"role": "user", "content": "Hi."}
        with anthropic.Anthropic(base_url=url, api_key="k") as claude, pytest.raises(anthropic.BadRequestError, match="too long"):
            claude.messages.create(model="m", max_tokens=9, messages=[message])
        gemini = genai.Client(api_key="k", vertexai=False, http_options={"base_url": url})
        with pytest.raises(APIError, match="input token count"):
            gemini.models.generate_content(model="m", contents="Hi.")
        gemini.close()
    assert "context_length_exceeded" == of_openai.value.code

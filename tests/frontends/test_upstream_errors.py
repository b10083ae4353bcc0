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
from patchbay.proxy import create_app
from support.http_server import ask, serving

CHAT = ("/v1/chat/completions", json.loads(PROTOCOLS["chat"].request(stream=False)[0]))


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
    said = "'max_tokens' is too large: 32000. This model's maximum context length is 4096 tokens and your request has 100 input tokens."
    body = {"error": {"message": said, "code": 400}}
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

"""Errors of many servers, as each protocol's clients know them: status, code and words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


_DATA = json.loads(Path(__file__).with_name("errors.json").read_text(encoding="utf-8"))
KNOWN: dict[str, tuple[int, Any, str]] = _DATA["known"]
"""The status and the body that a server answers, and OpenAI's code for it."""
EXPECTED: dict[str, dict[str, list[Any]]] = _DATA["expected"]
"""The status and the name of an error in each protocol, by OpenAI's code."""
LLAMA = KNOWN["context"][1]["error"]
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
            assert expected[code] == [answer.status, named(protocol, answer.json)], protocol
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
    import anthropic  # which takes half a second: not in each worker

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

"""What a wrapped ``openai`` client sends: the same body as the client itself, whatever its arguments are made of."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import functools
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionMessage

from patchbay import ToolRunner, wrap
from patchbay.errors import UpstreamError
from patchbay.testing import Raw, ScriptedUpstream, Text

TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
QUESTION = {"role": "user", "content": "How is the weather?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}


@contextmanager
def served(answer: Any) -> Iterator[tuple[openai.OpenAI, ScriptedUpstream]]:
    with (
        ScriptedUpstream(lambda _request: answer) as upstream,
        openai.OpenAI(base_url=upstream.url, api_key="unused", max_retries=0) as client,
    ):
        yield client, upstream


def body_of(client: openai.OpenAI, upstream: ScriptedUpstream, **given: Any) -> dict[str, Any]:
    client.chat.completions.create(model="m", **given)
    return dict(upstream.requests[-1].json)


def assistant_message() -> ChatCompletionMessage:
    return ChatCompletionMessage.model_validate({"role": "assistant", "content": None, "tool_calls": [CALL]})


RESULT = {"role": "tool", "tool_call_id": "c1", "content": "Sunny."}
ARGUMENTS: dict[str, Any] = {
    "plain": lambda: {"messages": [QUESTION], "tools": [TOOL], "temperature": 0},
    "the SDK's message": lambda: {"messages": [QUESTION, assistant_message(), RESULT], "tools": [TOOL]},
    "the SDK's calls in a dict": lambda: {
        "messages": [QUESTION, {"role": "assistant", "tool_calls": assistant_message().tool_calls}, RESULT],
        "tools": [TOOL],
    },
    "iterators": lambda: {"messages": iter([QUESTION]), "tools": iter([TOOL])},
    "an extra body": lambda: {"messages": [QUESTION], "tools": [TOOL], "extra_body": {"messages": [RESULT], "top_k": 3}},
    "an omitted member": lambda: {"messages": [{**QUESTION, "name": openai.omit}], "tools": [TOOL]},
    "no tools": lambda: {"messages": [QUESTION]},
}


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_wrapped_client_sends_the_same_request_as_the_client(kind):
    with served(Text("Fine.")) as (client, upstream):
        expected = body_of(client, upstream, **ARGUMENTS[kind]())
        assert expected == body_of(wrap(client, tools="native"), upstream, **ARGUMENTS[kind]())


@dataclasses.dataclass
class NotAMessage:
    role: str = "user"
    content: str = "Hi"


@pytest.mark.parametrize(
    "odd",
    [
        {"temperature": math.nan},
        {"logit_bias": {"1": math.inf}},
        {"tools": [{**TOOL, "default": math.nan}]},
        {"messages": [{"role": "user", "content": b"abc"}]},
        {"messages": [NotAMessage()]},
        {"user": b"abc"},
        {"user": dt.datetime(2026, 1, 2, tzinfo=dt.UTC)},
        {"metadata": {"price": decimal.Decimal("0.5")}},
        {"stop": {"a"}},
        {"stop": ("a", "b")},
    ],
    ids=repr,
)
def test_what_is_not_plain_json_is_sent_or_refused_as_by_the_client_itself(odd):
    def outcome(sending: openai.OpenAI) -> Any:
        given: dict[str, Any] = {"model": "m", "messages": [QUESTION], "tools": [TOOL], **odd}
        try:
            sending.chat.completions.create(**given)
        except (TypeError, ValueError) as error:
            return type(error)
        return upstream.requests[-1].json

    with served(Text("Fine.")) as (client, upstream):
        assert outcome(client) == outcome(wrap(client, tools="native"))


def test_an_azure_client_still_names_the_deployment_in_its_url():
    def path_of(sending: openai.OpenAI) -> str:
        sending.chat.completions.create(model="m", messages=[QUESTION], tools=[TOOL])
        return upstream.requests[-1].path

    with ScriptedUpstream(lambda _request: Text("Fine.")) as upstream:
        address = upstream.url.removesuffix("/v1")
        with openai.AzureOpenAI(azure_endpoint=address, api_key="unused", api_version="1", max_retries=0) as client:
            assert path_of(client) == path_of(wrap(client, tools="text"))


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_http_client_below_keeps_its_headers_cookies_auth_hooks_redirects_and_end(library):
    class Signature(library.Auth):  # type: ignore[misc]
        requires_request_body = True

        def auth_flow(self, request: Any) -> Iterator[Any]:
            request.headers["x-signature"] = f"of {len(request.content)} bytes"
            yield request

    seen: list[Any] = []
    with ScriptedUpstream(lambda _request: Text("Fine.")) as target:
        moved = Raw([], status=307, headers=[("location", f"{target.url}/chat/completions")])
        with ScriptedUpstream(lambda _request: moved) as upstream:
            below = library.Client(
                headers={"x-team": "a"},
                cookies={"session": "1"},
                auth=Signature(),
                event_hooks={"request": [lambda request: seen.append(json.loads(request.read()))]},
                follow_redirects=True,
            )
            client = wrap(openai.OpenAI(base_url=upstream.url, api_key="unused", max_retries=0, http_client=below), tools="text")
            body = {"model": "m", "messages": [QUESTION], "tools": [TOOL]}
            assert "Fine." == client.chat.completions.create(**body).choices[0].message.content
            # The SDK's providers forbid redirects request by request: their credentials are for one server.
            with pytest.raises(openai.APIStatusError, match="307"):
                client.post("/chat/completions", body=body, cast_to=object, options={"follow_redirects": False})
            client.close()
    first, second = upstream.requests
    assert ("a", "session=1", f"of {len(first.body)} bytes") == tuple(
        first.headers[name] for name in ("x-team", "cookie", "x-signature")
    )
    assert [first.json, target.requests[0].json, second.json] == seen
    assert "tools" not in first.json
    assert (True, True, 1) == (below.is_closed, client.is_closed(), len(target.requests))


def test_x509_identity_of_the_client_is_kept():
    """The SDK sends such requests by the HTTP client's transport, not by its ``send``."""
    auth = pytest.importorskip("openai.auth")
    if not hasattr(auth, "x509_workload_identity"):
        pytest.skip("the openai package has no such identity")
    model = {"id": "m", "object": "model", "created": 1, "owned_by": "x"}
    token = {
        "access_token": "t", "token_type": "Bearer", "expires_in": 3600,
        "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
    }  # fmt: skip

    def serve(request: Any) -> Any:
        return httpx2.Response(200, json=token if request.method == "POST" else {"object": "list", "data": [model]})

    identity = auth.x509_workload_identity(identity_provider_id="a", service_account_id="b")
    with httpx2.Client(transport=httpx2.MockTransport(serve)) as below:
        client = wrap(openai.OpenAI(workload_identity=identity, http_client=below))
        assert ["m"] == [listed.id for listed in client.models.list()]


def test_wrapping_again_replaces_the_options():
    with served(Text("Fine.")) as (client, upstream):
        twice = wrap(wrap(client, tools="native"), tools="text")
        assert isinstance(twice, openai.OpenAI)
        assert "tools" not in body_of(twice, upstream, messages=[QUESTION], tools=[TOOL])


def test_function_patched_before_create_sees_all_arguments(monkeypatch):
    seen: list[dict[str, Any]] = []
    completions = openai.resources.chat.completions.Completions
    original = completions.create

    @functools.wraps(original)
    def traced(*args: Any, **given: Any) -> Any:
        seen.append(given)
        return original(*args, **given)

    monkeypatch.setattr(completions, "create", traced)
    with served(Text("Fine.")) as (client, _):
        wrap(client, tools="native").chat.completions.create(model="m", messages=[QUESTION], tools=[TOOL])
        assert "Fine." == ToolRunner(client, [], tool_mode="native").run_sync([QUESTION], "m").content
    assert [([QUESTION], [TOOL]), ([QUESTION], None)] == [(each["messages"], each.get("tools")) for each in seen]


def test_an_answer_that_is_not_json_fails_as_an_error_of_the_upstream():
    answer = Raw([b"<html>busy</html>"], content_type="text/html")
    with served(answer) as (client, _), pytest.raises(UpstreamError, match="busy"):
        ToolRunner(client, tool_mode="native").run_sync("hi", "m")

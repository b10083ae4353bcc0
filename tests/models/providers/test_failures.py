"""What goes wrong between a model and its server: the error says what and where, holds no key, and nothing is left running."""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from typing import Any

import pytest

from patchbay import ToolRunner
from patchbay.errors import ConfigurationError, InvalidRequestError, ToolChoiceError, UpstreamError
from patchbay.models.resolve import resolve_model
from patchbay.testing import Raw, ScriptedUpstream, Text
from patchbay.testing.script import error
from support.scripted_server import SharedUpstream

from .chat_servers import calls
from .conftest import QUESTION, WEATHER, cancel_closes_response, first_event, reply_of, run
from .wires import KEY, WIRES, Wire

# google-genai derives a class from one of aiohttp's, which aiohttp does not like to see.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")

model_at = WIRES["chat"].model


def failure_of(model: Any, **asked: Any) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        run(model, reply_of(model, [QUESTION], **asked))
    return caught.value


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> Wire:
    return WIRES[request.param]


@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
def test_an_http_error_has_its_status_and_the_servers_words(status: int, wire: Wire, stream: bool) -> None:
    with wire.serve(lambda _: wire.error(status, "Try it tomorrow.")) as server:
        failure = failure_of(wire.model(server), tools=wire.tools, stream=stream)
    assert status == failure.upstream_status
    assert f"The model's server answered HTTP {status}: Try it tomorrow." == str(failure)


def test_key_is_redacted_from_errors_and_logs(wire: Wire, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with wire.serve(lambda _: wire.error(401, f"Incorrect API key provided: {KEY}.")) as server:
        model = wire.model(server)
        failure = failure_of(model, tools=wire.tools, stream=stream)
    assert "Incorrect API key provided: [redacted]." in str(failure)
    shown = "".join(traceback.format_exception(failure)) + failure.body + repr(failure) + repr(model) + caplog.text
    assert KEY not in shown


@pytest.mark.parametrize(("name", "cut"), [(name, cut) for name, wire in WIRES.items() for cut in wire.cuts])
def test_a_stream_that_is_cut_is_an_error(name: str, cut: str) -> None:
    wire = WIRES[name]
    with wire.serve(lambda _: wire.cuts[cut]) as server:
        failure_of(wire.model(server), tools=wire.tools, stream=True)


@pytest.mark.parametrize(("name", "cut"), [(name, cut) for name, wire in WIRES.items() for cut in wire.whole_cuts])
def test_truncated_whole_answer_is_an_error(name: str, cut: str, stream: bool) -> None:
    wire = WIRES[name]
    with wire.serve(lambda _: wire.whole_cuts[cut]) as server:
        failure_of(wire.model(server), tools=wire.tools, stream=stream)


@pytest.mark.parametrize("begun", [False, True], ids=["silent", "begun"])
def test_cancellation_closes_the_response(begun: bool, wire: Wire, stream: bool) -> None:
    arrived = threading.Event()

    def script(_: Any) -> Raw:
        arrived.set()
        return Raw([wire.begun] if begun else [], end="hang")

    with wire.serve(script) as server:
        assert cancel_closes_response(wire.model(server), server, arrived, tools=wire.tools, stream=stream)


def test_leaving_a_stream_closes_the_response(wire: Wire) -> None:
    with wire.serve(lambda _: Raw([wire.begun], end="hang")) as server:
        assert "It is " == first_event(wire.model(server, tool_mode="native"), wire.tools).text
        assert server.requests[-1].left.wait(30)


@pytest.fixture(params=[(), (WEATHER,)], ids=["without tools", "with tools"])
def tools(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_unreachable_server_error_has_its_url_and_the_reason() -> None:
    model = resolve_model("http://127.0.0.1:9/v1#m", max_retries=0)
    text = str(failure_of(model))
    assert "http://127.0.0.1:9/v1/chat/completions" in text
    assert "onnection" in text.partition("reached")[2]  # the system's reason, behind what we say


def test_a_path_that_does_not_exist_is_named(tools: Any) -> None:
    with ScriptedUpstream(lambda _: error(404, "Not Found")) as server:
        text = str(failure_of(model_at(server), tools=tools))
    assert f"{server.url}/chat/completions" in text
    assert "HTTP 404" in text


def test_html_page_is_an_error_that_quotes_it(tools: Any, stream: bool) -> None:
    page = Raw([b"<html>Welcome to nginx</html>"], content_type="text/html")
    with ScriptedUpstream(lambda _: page) as server:
        failure = failure_of(model_at(server), tools=tools, stream=stream)
    if tools or not stream:  # a stream of no events has no words to show
        assert "Welcome to nginx" in str(failure)
    assert failure.upstream_status is None  # the server did not say 502


@pytest.mark.parametrize("status", [302, 307])
def test_key_is_not_sent_to_a_redirect(status: int, tools: Any) -> None:
    with ScriptedUpstream(lambda _: "Clear.") as other:
        target = f"{other.url.replace('127.0.0.1', 'localhost')}/chat/completions"
        redirect = Raw([], status=status, headers=[("location", target)])
        with ScriptedUpstream(lambda _: redirect) as server:
            model = model_at(server)
            if status == 307:
                assert "Clear." == run(model, reply_of(model, [QUESTION], tools=tools)).reply.content
            else:  # turns a POST into a GET, which no such server answers
                assert f"redirect to {target}" in str(failure_of(model, tools=tools))
        assert other.requests
        assert not any(KEY in str(request.headers) for request in other.requests)


def test_ignored_tool_choice_is_a_tool_choice_error(stream: bool) -> None:
    """As with Gemini: it is no failure of the server's."""
    with ScriptedUpstream(lambda _: "I would rather not.") as server:
        model = model_at(server, tool_mode="native", choice_rounds=1)
        with pytest.raises(ToolChoiceError, match="asked 2 times"):
            run(model, reply_of(model, [QUESTION], tool_choice="required", stream=stream))


def test_unknown_tool_choice_is_an_invalid_request_error() -> None:
    choice = {"type": "function", "function": {"name": "no_such_tool"}}
    with ScriptedUpstream([]) as server:
        model = model_at(server)
        with pytest.raises(InvalidRequestError, match="no_such_tool") as caught:
            run(model, reply_of(model, [QUESTION], tool_choice=choice))
    assert ("tool_choice", []) == (caught.value.param, server.requests)


@pytest.mark.parametrize(
    "listed",
    [b"{}", b"[]", b"null", b"<html>", b'{"data": null}', b'{"data": [{}]}', b'{"data": [{"id": 3}]}', b'{"data": ["m"]}'],
)
def test_empty_model_list_requires_a_name(listed: bytes) -> None:
    with SharedUpstream() as server:
        server.on("/v1/models", Raw([listed], content_type="text/html" if listed.startswith(b"<") else "application/json"))
        model = resolve_model(server.url)
        with pytest.raises(ConfigurationError, match=f"names no model.*{server.url}#name"):
            run(model, reply_of(model, [QUESTION]))


def get_weather(city: str) -> str:
    """Tell the weather."""
    return f"clear in {city}"


CALL = calls(("get_weather", '{"city": "Rome"}'))


def run_error(runner: ToolRunner) -> Any:
    """What ``run_sync`` gives; its connections are kept in the loop in the background, where they are closed."""
    try:
        return runner.run_sync("How is Rome?").content
    finally:
        runner.close()


def test_a_user_names_a_server_and_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedUpstream([CALL, Text("Clear."), CALL, Text("Clear.")]) as server:
        assert "Clear." == run_error(ToolRunner(f"{server.url}#m", tools=[get_weather]))
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert "Clear." == run_error(ToolRunner("m", tools=[get_weather]))
    assert [False, False, True, True] == [KEY in request.headers["authorization"] for request in server.chats]


def test_undecodable_answer_is_an_error_and_closes_the_response(stream: bool) -> None:
    packed = Raw([b"this is no gzip"], headers=[("content-encoding", "gzip")], end="hang")
    with ScriptedUpstream(lambda _: packed) as server:
        model = model_at(server)

        async def ask() -> bool:
            with pytest.raises(UpstreamError):
                await reply_of(model, [QUESTION], stream=stream)
            return await asyncio.to_thread(server.requests[-1].left.wait, 30)

        assert run(model, ask())

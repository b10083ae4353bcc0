"""The vendors' protocols on the tool server: the registry's tools run here, the client's are handed out."""

from __future__ import annotations

from typing import Any

import pytest

from chat_server.rig import PROTOCOLS, call, calls, request_of, serve_weather

VENDORS = PROTOCOLS[1:]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", VENDORS)
def test_registered_tool_runs_and_the_clients_own_is_returned(name: str, stream: bool) -> None:
    path, body = request_of(name, stream=stream, tool="theirs")
    script = [calls(call("weather", '{"city": "Rome"}')), calls(call("theirs", id="call_2"), content="It is clear.")]
    with serve_weather(script) as at:
        answer = at.server.ask("POST", path, body)
        text = answer.body.decode()
        assert 200 == answer.status
        assert {"city": "Rome"} == at.callback.calls[0].json["arguments"]
        assert "It is" in text
        assert "theirs" in text
        assert "weather" not in text
        assert ["theirs", "weather"] == sorted(tool["function"]["name"] for tool in at.asked[0]["tools"])


def test_the_registrys_tools_run_for_a_response_in_the_background() -> None:
    script = [calls(call("weather", '{"city": "Rome"}')), "It is clear."]
    with serve_weather(script) as at, at.client() as client:
        begun = client.responses.create(model="m", input="How is Rome?", background=True)
        assert "queued" == begun.status
        for _ in range(2000):
            if (response := client.responses.retrieve(begun.id)).status not in ("queued", "in_progress"):
                break
        assert ("completed", "It is clear.") == (response.status, response.output_text)
        assert "completed" == client.responses.cancel(begun.id).status
        assert 200 == at.server.ask("HEAD", "/").status


SEARCHES: dict[str, list[dict[str, Any]]] = {
    "messages": [{"type": "web_search_20250305", "name": "web_search"}],
    "responses": [{"type": "web_search"}],
    "gemini": [{"googleSearch": {}}],
}


@pytest.mark.parametrize("name", VENDORS)
def test_a_registered_tool_searches_in_the_place_of_the_vendors(name: str) -> None:
    path, body = request_of(name)
    body = {**body, "tools": SEARCHES[name]}
    script = [calls(call("weather", '{"city": "Rome"}')), "It is clear."]
    with serve_weather(script, chat={"web_search": "weather"}) as at:
        answer = at.server.ask("POST", path, body)
        assert (200, True) == (answer.status, "It is clear." in answer.body.decode())
        assert {"city": "Rome"} == at.callback.calls[0].json["arguments"]
    for missing in (None, "other"):
        with serve_weather(["Invented."], chat={"web_search": missing}) as at:
            assert (400, []) == (at.server.ask("POST", path, body).status, at.asked)


@pytest.mark.parametrize("others", [[], [{"name": "other", "input_schema": {"type": "object"}}]])
def test_a_search_that_a_client_demands_is_the_registered_tools(others: list[dict[str, Any]]) -> None:
    path, body = request_of("messages")
    body = {**body, "tools": [*others, *SEARCHES["messages"]], "tool_choice": {"type": "tool", "name": "web_search"}}
    with serve_weather([calls(call("weather", '{"city": "Rome"}')), "It is clear."], chat={"web_search": "weather"}) as at:
        assert 200 == at.server.ask("POST", path, body).status
        assert {"type": "function", "function": {"name": "weather"}} == at.asked[0]["tool_choice"]


def test_a_tool_choice_that_only_the_registrys_tools_can_meet_is_passed_on() -> None:
    path, body = request_of("messages")
    with serve_weather([calls(call("weather", '{"city": "Rome"}')), "It is clear.", "Words."]) as at:
        assert 200 == at.server.ask("POST", path, {**body, "tool_choice": {"type": "any"}}).status
        assert "required" == at.asked[0]["tool_choice"]
        assert 200 == at.server.ask("POST", path, {**body, "tool_choice": {"type": "none"}}).status
        assert "tools" not in at.asked[-1]

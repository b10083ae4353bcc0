"""Server flags for chats: limits of a turn, and the upstream's timeout."""

from __future__ import annotations

import pytest

from patchbay.testing import Message, ScriptedUpstream
from tools_server.rig import calling_back, json_response

from .rig import serving


def calls(*names: str) -> Message:
    """An answer that calls these tools."""
    asked = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for number, name in enumerate(names)
    ]
    return Message({"tool_calls": asked}, finish_reason="tool_calls")


def test_rounds_of_a_chat_are_limited_by_the_server():
    with (
        ScriptedUpstream([calls("now"), calls("now"), "Noon."]) as upstream,
        calling_back(json_response({"output": "noon"})) as callback,
        serving(None, "--max-iterations", "2", upstream=upstream.url) as server,
    ):
        server.http.register("now", callback.url)
        with server.session(query="model=small") as client:
            assert "Noon." == client.answer("What time is it?")
    assert [True, True, False] == [bool(chat.json.get("tools")) for chat in upstream.chats]


@pytest.mark.parametrize(("seconds", "least"), [("0", 86_400), ("700", 700)])
def test_upstream_timeout_is_configurable_and_0_disables_it(seconds, least):
    with (
        ScriptedUpstream(["Hello."]) as upstream,
        serving(None, "--upstream-timeout", seconds, upstream=upstream.url) as server,
        server.session(query="model=small") as client,
    ):
        client.answer("Hi.")
    # The client of the upstream says so itself, with each request.
    assert least <= float(upstream.chats[0].headers["x-stainless-read-timeout"])

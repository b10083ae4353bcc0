"""Identical calls with identical results: the model gets a note instead of another run, also over a client's requests."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from chat_server.rig import SUNNY, THEIRS, USER, call, calls, serve_chat
from patchbay.testing import ScriptedUpstream
from support.http_server import ask
from support.processes import listening
from tools_server.rig import BOUND, calling_back

PROXY = [sys.executable, "-m", "patchbay", "proxy", "--port", "0"]
ROME, PARIS = '{"city": "Rome", "day": 1}', '{"day": 1, "city": "Paris"}'
SPACED = '{ "day":1,"city":"Rome" }'
TOLD = "gave the same result 2 times, so it was not run again"


def noted(messages: list[dict[str, Any]]) -> list[bool]:
    """For each result in a request, whether it says that the call was not run."""
    return [TOLD in str(message["content"]) for message in messages if message["role"] == "tool"]


@pytest.mark.parametrize(("most", "runs"), [(None, 2), (3, 3), (0, 4)])
def test_the_third_identical_call_of_a_turn_gets_a_result_that_says_so(most: int | None, runs: int) -> None:
    script = [*[calls(call("weather", arguments)) for arguments in (ROME, SPACED, ROME, ROME)], "done"]
    chat = {} if most is None else {"max_identical_calls": most}
    with calling_back(SUNNY) as callback, serve_chat(script, chat=chat) as at:
        at.server.register("weather", callback.url)
        assert "done" == at.ask().choices[0].message.content
        assert runs == len(callback.calls)


def test_alternating_calls_are_counted_too() -> None:
    script = [*[calls(call("weather", arguments)) for arguments in (ROME, PARIS) * 3], "done"]
    with calling_back(SUNNY) as callback, serve_chat(script) as at:
        at.server.register("weather", callback.url)
        assert "done" == at.ask().choices[0].message.content
        # What Paris returned first was new, so Rome counts from there.
        assert [ROME, PARIS, ROME, PARIS, ROME] == [each.json["raw_arguments"] for each in callback.calls]
        assert [*[False] * 5, True] == noted(at.asked[-1]["messages"])


def answered(arguments: str, number: int, result: str = "locked") -> list[dict[str, Any]]:
    """A call of the client's tool, and its result."""
    made = {"role": "assistant", "content": None, "tool_calls": [call("open_door", arguments, f"c{number}")]}
    return [made, {"role": "tool", "tool_call_id": f"c{number}", "content": result}]


TWICE = [USER, *answered(ROME, 1), *answered(SPACED, 2)]
AGAIN = [calls(call("open_door", ROME, "c3")), "I give up."]


def test_clients_calls_are_handed_out_however_often_unless_they_are_limited() -> None:
    with serve_chat(AGAIN) as at:
        at.server.register("weather")
        assert "tool_calls" == at.ask(messages=TWICE, tools=[THEIRS]).choices[0].finish_reason


@pytest.mark.parametrize("streamed", [False, True])
def test_a_limited_call_of_a_client_is_answered_in_its_place_and_the_model_asked_again(streamed: bool) -> None:
    with serve_chat(AGAIN, chat={"max_identical_client_calls": 2}) as at:
        outcome = at.outcome(streamed=streamed, messages=TWICE, tools=[THEIRS])
        assert ("I give up.", "stop") == (outcome.text, outcome.finish)
        assert [False, False, True] == noted(at.asked[-1]["messages"])


@pytest.mark.parametrize(
    "history",
    [
        [USER, *answered(ROME, 1), *answered(ROME, 2, "open")],
        [USER, *answered(ROME, 1), *answered(PARIS, 2), *answered(ROME, 3), *answered(PARIS, 4, "open")],
        [*TWICE, {"role": "assistant", "content": "It is locked."}, {"role": "user", "content": "Try again."}],
    ],
    ids=["another-result", "something-new", "the-user-asks"],
)
def test_a_call_with_something_new_before_it_is_handed_out(history: list[dict[str, Any]]) -> None:
    with serve_chat(AGAIN, chat={"max_identical_client_calls": 2}) as at:
        assert "tool_calls" == at.ask(messages=history, tools=[THEIRS]).choices[0].finish_reason


def test_a_model_that_never_stops_repeating_itself_ends_the_turn() -> None:
    with serve_chat(AGAIN[:1] * 4, chat={"max_identical_client_calls": 2, "max_iterations": 3}) as at:
        assert "length" == at.ask(messages=TWICE, tools=[THEIRS]).choices[0].finish_reason
        assert 3 == len(at.asked)
        (shown,) = at.server.ask("GET", "/api/turns").json["turns"]
    assert "max_iterations: The turn reached this limit before the model had answered. " in shown["error"]
    assert "Calls of open_door were not handed out" in shown["error"]


@pytest.mark.parametrize(("flags", "finish"), [((), "tool_calls"), (("--max-identical-client-calls", "2"), "stop")])
def test_the_proxy_counts_the_calls_in_the_conversation(flags: tuple[str, ...], finish: str) -> None:
    with (
        ScriptedUpstream(AGAIN) as upstream,
        listening(
            [*PROXY, "--upstream", upstream.url, "--tools", "native", *flags], name="patchbay proxy", timeout=BOUND
        ) as child,
    ):
        body = {"model": "m", "messages": TWICE, "tools": [THEIRS]}
        port = int(child.url.removesuffix("/v1").rpartition(":")[2])
        answer = ask(port, "POST", "/v1/chat/completions", body, headers={"content-type": "application/json"})
        assert f'"finish_reason":"{finish}"' in answer.body.decode().replace(": ", ":")

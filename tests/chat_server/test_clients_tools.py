"""A client's own tools: their calls are handed out, and what the client does not see of its conversation is not lost."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from agents.databases import execute
from chat_server.rig import (
    SUNNY,
    THEIRS,
    USER,
    assert_answered_once,
    call,
    calls,
    calls_of,
    finish_of,
    report_of,
    serve_chat,
    serve_weather,
    text_of,
)
from patchbay.testing import Message
from tools_server.rig import calling_back, json_response

WEATHER = '{"city": "Rome"}'


def client_message(at: Any, *, streamed: bool, **fields: Any) -> tuple[dict[str, Any], str, Any]:
    """Ask; return the assistant's message as a client keeps it, why it ended, and the report."""
    if streamed:
        chunks = at.stream(**fields)
        made = [call(name, arguments, id_) for id_, name, arguments in calls_of(chunks)]
        message = {"role": "assistant", "content": text_of(chunks) or None, "tool_calls": made}
        return message, finish_of(chunks), report_of(chunks)
    answer = at.ask(**fields)
    text = answer.choices[0].message.model_dump(include={"role", "content", "tool_calls"})
    return text, answer.choices[0].finish_reason, answer.model_extra["patchbay"]


BOTH = calls(call("weather", WEATHER, "a"), call("open_door", "{}", "b"))
"""One call for each side."""


def result(message: dict[str, Any], content: str = "open", at: int = 0) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": message["tool_calls"][at]["id"], "content": content}


def begun(at: Any) -> list[dict[str, Any]]:
    """A conversation in which the client has answered its call."""
    message, _, _ = client_message(at, streamed=False, tools=[THEIRS])
    return [USER, message, result(message)]


@pytest.mark.parametrize("streamed", [True, False])
def test_client_call_alone_is_returned_unchanged(streamed: bool) -> None:
    with serve_chat([calls(call("open_door", '{"city":"Rome"}', "call_x"), content="I will."), "done"]) as at:
        at.server.register("weather")
        message, reason, report = client_message(at, streamed=streamed, tools=[THEIRS])
        assert ("tool_calls", "I will.", [call("open_door", '{"city":"Rome"}', "call_x")], []) == (
            reason, message["content"], message["tool_calls"], report["calls"]
        )  # fmt: skip
        assert "done" == at.ask(messages=[USER, message, result(message)], tools=[THEIRS]).choices[0].message.content
        assert [USER, message, result(message)] == at.asked[1]["messages"]


def test_client_tool_definitions_reach_the_model_unchanged() -> None:
    odd = {"type": "function", "function": {"name": "开门", "parameters": {"type": "object", "properties": {}}}}
    with serve_chat([calls(call("开门", "{}", "call_x"))]) as at:
        at.server.register("weather")
        message, reason, _ = client_message(at, streamed=True, tools=[THEIRS, odd])
        assert [THEIRS, odd] == at.asked[0]["tools"][:2]
        assert ["weather"] == [tool["function"]["name"] for tool in at.asked[0]["tools"][2:]]
        assert ("tool_calls", "开门") == (reason, message["tool_calls"][0]["function"]["name"])


def test_client_tool_takes_precedence_over_a_registered_one() -> None:
    with calling_back(SUNNY) as callback, serve_chat([calls(call("open_door"))]) as at:
        at.server.register("open_door", callback.url)
        _, reason, _ = client_message(at, streamed=False, tools=[THEIRS])
        assert ("tool_calls", [THEIRS], []) == (reason, at.asked[0]["tools"], callback.calls)


@pytest.mark.parametrize("streamed", [True, False])
def test_client_and_registry_calls_of_one_reply_each_run_on_their_side(streamed: bool) -> None:
    both = calls(
        call("weather", WEATHER, "a"),
        call("open_door", "{}", "b"),
        call("weather", '{"city": "Oslo"}', "c"),
        reasoning_content="Hm.",
    )

    def script(body: dict[str, Any]) -> Any:
        return "done" if body["messages"][-1]["role"] == "tool" else both

    with serve_weather(script) as at:
        message, reason, report = client_message(at, streamed=streamed, tools=[THEIRS])
        assert ("tool_calls", ["open_door"]) == (reason, [each["function"]["name"] for each in message["tool_calls"]])
        assert (2, ["a", "c"]) == (len(at.callback.calls), [done["id"] for done in report["calls"]])

        answer = at.ask(messages=[USER, message, result(message)], tools=[THEIRS])
        assert "done" == answer.choices[0].message.content
        seen = at.asked[1]["messages"]
        assert_answered_once(seen)
        sunny = '{"sky": "clear"}'
        assert [USER["content"], None, sunny, "open", sunny] == [each["content"] for each in seen]
        assert ["weather", "open_door", "weather"] == [each["function"]["name"] for each in seen[1]["tool_calls"]]
        assert "Hm." == seen[1]["reasoning_content"]
        assert 2 == len(at.callback.calls)


@pytest.mark.parametrize("streamed", [True, False])
def test_earlier_rounds_are_stored_across_requests(streamed: bool) -> None:
    rounds = [
        calls(call("weather", WEATHER, "a"), content="First."),
        calls(call("open_door", "{}", "b")),
        calls(call("weather", WEATHER, "a"), content="Again."),
        calls(call("open_door", "{}", "b"), call("weather", WEATHER, "c")),
        *["done"] * 9,
    ]
    with serve_weather(lambda body: rounds[sum(message["role"] == "tool" for message in body["messages"])]) as at:
        history: list[Any] = [USER]
        for _ in range(2):
            message, reason, _ = client_message(at, streamed=streamed, messages=history, tools=[THEIRS])
            assert "tool_calls" == reason
            history += [message, result(message)]
        assert "done" == at.ask(messages=history, tools=[THEIRS]).choices[0].message.content
        seen = at.asked[-1]["messages"]
        assert_answered_once(seen)
        roles = [message["role"] for message in seen]
        assert ["user", *["assistant", "tool"] * 3, "assistant", "tool", "tool"] == roles
        assert ["First.", "Again."] == [each["content"] for each in seen if each["role"] == "assistant" and each["content"]]
        for earlier, later in zip(at.asked, at.asked[1:], strict=False):
            assert earlier["messages"] == later["messages"][: len(earlier["messages"])]  # what a prompt's cache goes by


def test_a_text_model_sees_it_all_too() -> None:
    both = '```tool_call\n{"name": "weather", "arguments": {"city": "Rome"}}\n```\n```tool_call\n{"name": "open_door", "arguments": {}}\n```'
    with serve_weather([both, "done"], tools="text") as at:
        message, _, _ = client_message(at, streamed=True, tools=[THEIRS])
        assert "done" == at.ask(messages=[USER, message, result(message, "wide open")], tools=[THEIRS]).choices[0].message.content
        seen = json.dumps(at.asked[1]["messages"])
        assert seen.index("clear") < seen.index("wide open")
        assert "No result" not in seen


def test_hidden_turn_ids_are_random_and_unguessable() -> None:
    with serve_weather([BOTH, BOTH]) as at:
        ids = {begun(at)[2]["tool_call_id"] for _ in range(2)}
        assert (2, {len("call_") + 32}) == (len(ids), set(map(len, ids)))


def test_stored_turn_can_be_continued_twice() -> None:
    with serve_weather([BOTH, "one", "two"]) as at:
        history = begun(at)
        for expected in ("one", "two"):
            assert expected == at.ask(messages=history, tools=[THEIRS]).choices[0].message.content
        assert at.asked[1]["messages"] == at.asked[2]["messages"]


@pytest.mark.parametrize("chat", [{"max_kept": 0}, {"max_kept_size": 10}, {"kept_for": 0.0}])
def test_client_history_is_used_after_the_stored_turn_expired(chat: dict[str, Any]) -> None:
    with serve_weather([BOTH, "done"], chat=chat) as at:
        assert "done" == at.ask(messages=begun(at), tools=[THEIRS]).choices[0].message.content
        seen = at.asked[1]["messages"]
        assert_answered_once(seen)
        assert ["user", "assistant", "tool"] == [each["role"] for each in seen]


@pytest.mark.parametrize("fields", [{"tools": [THEIRS], "tool_choice": "none"}, {}])
def test_stored_turn_is_used_even_if_no_tool_may_be_called(fields: dict[str, Any]) -> None:
    with serve_weather([BOTH, "done"]) as at:
        history = begun(at)
        at.server.post("unregister", name="weather")
        assert "done" == at.ask(messages=history, **fields).choices[0].message.content
        assert_answered_once(at.asked[1]["messages"])
        assert (4, fields.get("tools")) == (len(at.asked[1]["messages"]), at.asked[1].get("tools"))


def test_call_removed_from_the_clients_history_is_not_left_dangling() -> None:
    made = calls(call("weather", WEATHER, "a"), call("open_door", "{}", "b"), call("open_door", "{}", "c"))
    with serve_weather([made, "done"]) as at:
        message, _, _ = client_message(at, streamed=False, tools=[THEIRS])
        second = {**message, "tool_calls": message["tool_calls"][1:]}
        at.ask(messages=[USER, second, result(second)], tools=[THEIRS])
        assert_answered_once(at.asked[1]["messages"])
        assert 2 == len(at.asked[1]["messages"][1]["tool_calls"])


def test_a_long_result_can_still_be_read_when_the_client_has_answered() -> None:
    def script(body: dict[str, Any]) -> Any:
        results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        if len(results) < 2:
            return BOTH
        if len(results) == 2:
            return calls(call("read_result", '{"result_id": "result_1", "find": "needle"}', "c"))
        return "found" if "needle" in results[2] else "lost"

    hay = "hay " * 20_000
    with serve_weather(script, answers=json_response({"output": f"{hay}needle{hay}"})) as at:
        assert "found" == at.ask(messages=begun(at), tools=[THEIRS]).choices[0].message.content


def test_call_keeps_the_fields_its_provider_needs_back() -> None:
    signed = {**call("open_door", "{}", "call_x"), "extra_content": {"google": {"thought_signature": "abc"}}}
    with serve_chat([Message({"tool_calls": [signed]}, finish_reason="tool_calls")] * 2) as at:
        at.server.register("weather")
        whole = at.ask(tools=[THEIRS]).choices[0].message.tool_calls[0]
        deltas = [
            chunk.choices[0].delta.tool_calls[0]
            for chunk in at.stream(tools=[THEIRS])
            if chunk.choices and chunk.choices[0].delta.tool_calls
        ]
        (streamed,) = [delta.model_extra["extra_content"] for delta in deltas if delta.model_extra]
        assert signed["extra_content"] == whole.model_extra["extra_content"] == streamed


def test_a_conversation_goes_on_with_another_server_and_after_a_restart(url: str) -> None:
    hay = "hay " * 20_000
    read = calls(call("read_result", '{"result_id": "result_1", "find": "needle"}', "c"))
    with serve_weather([BOTH], answers=json_response({"output": f"{hay}needle{hay}"}), store=url) as first:
        conversation = begun(first)
    with serve_chat([read, "found"], store=url) as second:
        assert "found" == second.ask(messages=conversation, tools=[THEIRS]).choices[0].message.content
        sent = second.asked[1]["messages"]
        assert ["user", "assistant", "tool", "tool", "assistant", "tool"] == [message["role"] for message in sent]
        assert "needle" in sent[-1]["content"]


def test_a_conversation_is_not_continued_without_its_start_while_the_database_is_away(url: str) -> None:
    with serve_weather([BOTH, BOTH], store=url) as first:
        conversations = begun(first), begun(first)
    with serve_chat(["done", "still here"], store=url) as second:
        assert "done" == second.ask(messages=conversations[0], tools=[THEIRS]).choices[0].message.content
        execute(url, "DROP TABLE patchbay_hidden_turns")
        with pytest.raises(openai.InternalServerError, match="does not answer"):
            second.ask(messages=conversations[1], tools=[THEIRS])
        assert "still here" == second.ask(messages=conversations[0], tools=[THEIRS]).choices[0].message.content  # in its memory

"""Hooks of a server's chat: their effect on a turn and on its client. Real sockets, and the real client."""

from __future__ import annotations

import base64
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from chat_server.rig import THEIRS, USER, call, calls, calls_of, serve_chat
from patchbay.hooks import AbortTurn, DenyTool, HardAbort, HookManager, Modify, Respond
from patchbay.server.governance import Governance, GovernanceSettings
from patchbay.tools.output import ToolOutput
from tools_server.rig import BOUND, calling_back, json_response, poll_until

WEATHER = {"type": "function", "function": {"name": "weather", "description": "Look out.", "parameters": {"type": "object"}}}
PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==")


class ToolHook:
    """A hook that adds a tool and answers its calls."""

    def __init__(self, answer: Any = "21 degrees") -> None:
        self.answer = answer
        self.seen: list[Any] = []

    def before_llm(self, request):
        self.seen.append(request)
        return Modify({"tools": [*request.tools, WEATHER]})

    def before_tool(self, call):
        return Respond(self.answer) if call.tool == "weather" else None


class PointHook:
    """A hook that gives one decision at one point."""

    def __init__(self, point: str, decision: Any) -> None:
        setattr(self, point, lambda _asked: decision)


class RecordingHook:
    """A hook that keeps what it is shown of calls."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def before_tool(self, call):
        self.seen.append(call)


def governed(*hooks: object, **settings: Any) -> Governance:
    manager = HookManager()
    for number, hook in enumerate(hooks):
        manager.mount(f"hook{number}", hook)
    return Governance(GovernanceSettings(**settings), hooks=manager)


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_a_hook_adds_is_offered_called_and_answered_where_no_tool_is_registered(stream) -> None:
    hook = ToolHook()
    with serve_chat([calls(call("weather")), "It is 21 degrees."], governance=governed(hook)) as chat:
        outcome = chat.outcome(streamed=stream, user="ann", extra_headers={"X-Patchbay-Session": "s1"})
        assert "It is 21 degrees." == outcome.text
        assert [("weather", "21 degrees")] == [(each["name"], each["content"]) for each in outcome.report["calls"]]
        assert ["weather"] == [tool["function"]["name"] for tool in chat.asked[0]["tools"]]
        assert [None, None] == [request.headers.get("x-patchbay-session") for request in chat.upstream.chats]
    assert ("ann", "s1") == (hook.seen[0].meta.agent_id, hook.seen[0].meta.session_key)
    assert "ann" == hook.seen[0].context["inbound"]["sender_id"]
    assert {"role": "ann"} == hook.seen[0].context["scope"]


def test_request_and_answer_changed_by_hooks_are_sent() -> None:
    warmer = PointHook("before_llm", Modify({"options": {"temperature": 0.9}}))
    with serve_chat(
        ["It is raining."], governance=governed(warmer, PointHook("after_llm", Modify({"content": "It is not said."})))
    ) as chat:
        assert "It is not said." == chat.ask().choices[0].message.content
        assert 0.9 == chat.asked[0]["temperature"]


def test_observing_hook_changes_no_request() -> None:
    seen = threading.Event()
    with serve_chat(["a"], governance=governed(PointHook("on_runtime_event", seen.set()))) as chat:
        chat.ask(n=2)  # which a turn could not give: it went straight through
        assert 2 == chat.asked[0]["n"]


def test_request_hooks_apply_to_each_of_several_choices() -> None:
    with (
        serve_chat(["a"], governance=governed(PointHook("before_llm", None))) as chat,
        pytest.raises(openai.BadRequestError, match="has hooks"),
    ):
        chat.ask(n=2)


def test_turn_aborted_by_a_hook_is_a_permission_error_with_the_reason() -> None:
    with serve_chat(["a"], governance=governed(PointHook("before_llm", AbortTurn("not today")))) as chat:
        with pytest.raises(openai.PermissionDeniedError, match="hook requested turn abort: not today"):
            chat.ask()
        with pytest.raises(openai.PermissionDeniedError, match="not today"):
            chat.stream()
        assert [] == chat.asked


@pytest.mark.parametrize("stream", [False, True])
def test_aborted_turn_ends_without_its_text(stream) -> None:
    with serve_chat([calls(call("weather"), content="Let me see.")], governance=governed(ToolHook(), PointHook("after_tool", None), PointHook("after_llm", HardAbort("secret")))) as chat:  # fmt: skip
        outcome = chat.outcome(streamed=stream)
        report = outcome.report
        assert ("content_filter", "Let me see." if stream else "") == (outcome.finish, outcome.text)
        assert ("hard_abort", {"by": "hook2", "point": "after_llm", "reason": "secret"}) == (report["limit"], report["aborted"])


def test_turn_ended_at_a_call_leaves_no_call_for_the_client() -> None:
    with serve_chat([calls(call("weather"), call("open_door", id="call_2"))], governance=governed(ToolHook(), PointHook("before_tool", AbortTurn("no")))) as chat:  # fmt: skip
        with pytest.raises(openai.PermissionDeniedError):
            chat.ask(tools=[THEIRS])
        assert 1 == len(chat.asked)


def test_client_call_beside_a_hook_call_is_left_to_the_client() -> None:
    with serve_chat(
        [calls(call("weather"), call("open_door", id="call_2")), "It is open."], governance=governed(ToolHook())
    ) as chat:
        [(call_id, name, _)] = calls_of(chat.stream(tools=[THEIRS]))
        assert "open_door" == name
        written = {"role": "assistant", "content": None, "tool_calls": [call("open_door", id=call_id)]}
        result = {"role": "tool", "tool_call_id": call_id, "content": "open"}
        assert "It is open." == chat.ask(messages=[USER, written, result], tools=[THEIRS]).choices[0].message.content
        assert ["21 degrees", "open"] == [each["content"] for each in chat.asked[1]["messages"] if each["role"] == "tool"]


def test_a_denied_call_is_an_error_that_the_model_reads() -> None:
    with calling_back(json_response("done")) as callback:
        with serve_chat(
            [calls(call("erase")), "Then not."], governance=governed(PointHook("before_tool", DenyTool("nothing is erased")))
        ) as chat:
            chat.server.register("erase", callback.url)
            assert "Then not." == chat.ask().choices[0].message.content
            assert "Tool execution denied by hook: nothing is erased" in chat.asked[1]["messages"][-1]["content"]
        assert [] == callback.calls


@pytest.mark.parametrize("stream", [False, True])
def test_tool_output_for_the_user_is_part_of_the_answer(stream) -> None:
    shown = ToolOutput("it was drawn", for_user="Here is your picture.", response_handled=True, media=["data:image/png;base64," + base64.b64encode(PIXEL).decode()])  # fmt: skip
    with serve_chat([calls(call("weather"), content="I draw.")], governance=governed(ToolHook(shown))) as chat:
        outcome = chat.outcome(streamed=stream)
        assert "I draw.\n\nHere is your picture." == outcome.text
        assert 1 == len(chat.asked)
        [output] = outcome.report["outputs"]
        assert ("Here is your picture.", True) == (output["text"], output["handled"])
        [media] = output["media"]
        file = chat.server.ask("GET", media["path"])
        assert (200, PIXEL, "image/png") == (file.status, file.body, file.headers["content-type"])


@pytest.mark.parametrize(("images", "shown"), [((), False), (("image",), True)])
def test_images_are_sent_to_models_with_vision(images, shown) -> None:
    envelope = {"output": "a picture", "images": ["data:image/png;base64," + base64.b64encode(PIXEL).decode()]}
    with (
        calling_back(json_response(envelope)) as callback,
        serve_chat([calls(call("draw")), "Nice."], chat={"attachments": images}) as chat,
    ):
        chat.server.register("draw", callback.url)
        assert "Nice." == chat.ask().choices[0].message.content
        assert shown == any("image_url" in str(message) for message in chat.asked[1]["messages"])


def test_non_text_session_is_refused() -> None:
    with (
        serve_chat(["a"], governance=governed(ToolHook())) as chat,
        pytest.raises(openai.BadRequestError, match="X-Patchbay-Session"),
    ):
        chat.ask(extra_headers={"X-Patchbay-Session": "a%0Ab"})


# Approvals


def pending_request(server: Any) -> Any:
    """The request that waits; asked for until there is one."""
    return poll_until(lambda: server.ask("GET", "/api/approvals").json["approvals"])[0]


def policy(tmp_path: Path, text: str = 'tools = ["erase"]\noutcome = "ask"') -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(f"[[rules]]\n{text}\n")
    return path


@pytest.mark.parametrize(("decision", "result"), [("approve", "done"), ("deny", "denied by a person: not that")])
def test_a_call_waits_for_a_person_over_http(decision, result, tmp_path) -> None:
    with (
        calling_back(json_response("done")) as callback,
        serve_chat([calls(call("erase", '{"path": "/a"}')), "So be it."], governance=governed(config=policy(tmp_path))) as chat,
        ThreadPoolExecutor(1) as pool,
    ):
        chat.server.register("erase", callback.url, role="ann")
        answer = pool.submit(chat.ask)
        request = pending_request(chat.server)
        assert ("erase", {"path": "/a"}, "ann", "external") == (
            request["tool"], request["arguments"], request["agent"], request["source"],
        )  # fmt: skip
        decided = {"decision": decision, "reason": "not that", "by": "ben", "digest": request["digest"]}
        assert 200 == chat.server.ask("POST", f"/api/approvals/{request['id']}", decided).status
        assert "So be it." == answer.result(BOUND).choices[0].message.content
        assert result in chat.asked[1]["messages"][-1]["content"]
        assert (1 if decision == "approve" else 0) == len(callback.calls)
        [turn] = chat.server.ask("GET", "/api/turns?tool=erase").json["turns"]
        events = chat.server.ask("GET", f"/api/turns/{turn['id']}").json["events"]
    ran = ["agent.tool.exec_start", "agent.tool.exec_end"] if decision == "approve" else ["agent.tool.exec_skipped"]
    assert ["agent.approval.requested", "agent.approval.decided", *ran] == [each["kind"] for each in events]
    assert [request["call_id"]] * len(events) == [each["attrs"]["call_id"] for each in events]
    assert ("approved" if decision == "approve" else "denied", "ben") == tuple(
        events[1]["payload"][name] for name in ("Decision", "By")
    )


def test_a_yes_for_the_session_is_for_this_session_alone(tmp_path) -> None:
    script = [calls(call("erase")), "Once.", calls(call("erase")), "Twice.", calls(call("erase")), "Thrice."]
    session = {"X-Patchbay-Session": "s1"}
    with (
        calling_back(json_response("done")) as callback,
        serve_chat(script, governance=governed(config=policy(tmp_path))) as chat,
        ThreadPoolExecutor(1) as pool,
    ):
        chat.server.register("erase", callback.url)
        first = pool.submit(chat.ask, extra_headers=session)
        chat.server.ask("POST", f"/api/approvals/{pending_request(chat.server)['id']}", {"decision": "approve_session"})
        assert "Once." == first.result(BOUND).choices[0].message.content
        assert "Twice." == chat.ask(extra_headers=session).choices[0].message.content
        other = pool.submit(chat.ask, extra_headers={"X-Patchbay-Session": "s2"})
        chat.server.ask("POST", f"/api/approvals/{pending_request(chat.server)['id']}", {"decision": "deny"})
        assert "Thrice." == other.result(BOUND).choices[0].message.content
        assert 2 == len(callback.calls)


def test_a_call_over_the_registry_waits_too(tmp_path) -> None:
    with (
        calling_back(json_response("done")) as callback,
        serve_chat([], governance=governed(config=policy(tmp_path))) as chat,
        ThreadPoolExecutor(1) as pool,
    ):
        chat.server.register("erase", callback.url)
        answer = pool.submit(chat.server.call, "erase")
        chat.server.ask("POST", f"/api/approvals/{pending_request(chat.server)['id']}", {"decision": "deny", "reason": "no"})
        text = answer.result(BOUND)
        assert (True, "tool_denied") == (text["is_error"], text["code"])
        assert [] == callback.calls


@pytest.mark.parametrize("header", ["s 1", "s%201", "%73%20%31"])
def test_session_header_sets_the_session_of_an_api_call(header) -> None:
    seen: list[Any] = []
    with (
        calling_back(json_response("done")) as callback,
        serve_chat([], governance=governed(RecordingHook(seen))) as chat,
    ):
        chat.server.register("erase", callback.url)
        assert chat.server.ask("POST", "/api/tools/call", {"name": "erase"}, X_Patchbay_Session=header).json["ok"]
        assert chat.server.call("erase")["ok"]
        assert ["s 1", ""] == [call.meta.session_key for call in seen]
        assert "x-patchbay-session" not in callback.calls[0].head.lower()


@pytest.mark.parametrize("header", ["a%0Ab", "x" * 201])
def test_a_session_that_cannot_be_one_is_refused_and_nothing_runs(header) -> None:
    with calling_back(json_response("done")) as callback, serve_chat([], governance=governed()) as chat:
        chat.server.register("erase", callback.url)
        answer = chat.server.ask("POST", "/api/tools/call", {"name": "erase"}, X_Patchbay_Session=header)
        assert (422, ["header", "X-Patchbay-Session"]) == (answer.status, answer.json["detail"][0]["loc"])
        assert [] == callback.calls


def test_approval_request_is_withdrawn_if_its_client_disconnects(tmp_path) -> None:
    with calling_back(json_response("done")) as callback, serve_chat([], governance=governed(config=policy(tmp_path))) as chat:
        chat.server.register("erase", callback.url)
        body = json.dumps({"name": "erase"}).encode()
        with socket.create_connection(("127.0.0.1", chat.server.port), timeout=BOUND) as client:
            head = f"POST /api/tools/call HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            client.sendall(head.encode() + b"\r\n" + body)
            request = pending_request(chat.server)
        poll_until(lambda: "withdrawn" == chat.server.ask("GET", f"/api/approvals/{request['id']}").json["approval"]["state"])
        assert 409 == chat.server.ask("POST", f"/api/approvals/{request['id']}", {"decision": "approve"}).status
        assert [] == callback.calls


def test_audit_of_a_chat_has_sender_and_decisions_of_each_call(tmp_path) -> None:
    oversight = governed(ToolHook(), config=policy(tmp_path), audit=f"sqlite:///{tmp_path / 'audit.db'}")
    with (
        calling_back(json_response("done")) as callback,
        serve_chat([calls(call("weather"), call("erase", id="call_2")), "So."], governance=oversight) as chat,
        ThreadPoolExecutor(1) as pool,
    ):
        chat.server.register("erase", callback.url)
        answer = pool.submit(chat.ask, user="ben", extra_headers={"X-Patchbay-Session": "s1"})
        chat.server.ask("POST", f"/api/approvals/{pending_request(chat.server)['id']}", {"decision": "approve", "by": "ann"})
        answer.result(BOUND)
        entries: list[Any] = []

        def written() -> bool:  # what was done comes into it a moment later
            entries[:] = chat.server.ask("GET", "/api/audit?session=s1").json["entries"]
            return len(entries) == 2

        poll_until(written)
        by_tool = {entry["tool"]: entry for entry in entries}
        assert {"weather", "erase"} == by_tool.keys()
        assert ("ben", "s1", "chat", "ben") == tuple(
            by_tool["erase"][name] for name in ("agent", "session_key", "channel", "sender")
        )
        assert [("ann", "approved")] == [(each["by"], each["decision"]) for each in by_tool["erase"]["decisions"]]
        assert "hook0" == by_tool["weather"]["responded_by"]

"""``patchbay tail`` as people run it, against a real server; and events as lines."""

from __future__ import annotations

import json
import signal

import pytest

from patchbay.cli.tail import describe_event
from patchbay.hooks.process.protocol import KINDS
from ports import kept_port

from .serving import Command, Reading, patchbay, serving, wait_for

TOKEN = "0123456789abcdef-token"
USAGE = {"prompt_tokens": 1200, "completion_tokens": 7, "total_tokens": 1207}


def tail_event(kind: str, payload: object = None, **members: object) -> dict[str, object]:
    return {
        "kind": kind,
        "time": "2026-01-01T00:00:00.250000000Z",
        "scope": {},
        "correlation": {},
        "payload": payload or {},
        **members,
    }


def test_tail_shows_a_turn_from_sender_to_answer(tmp_path):
    with serving(tmp_path) as server, Command("tail", "--server", server.url) as command:
        command.said("Tailing")
        server.run(message="How much is 1 and 2?")
        command.printed("completed")
        status = command.end(signal.SIGINT)
        lines = command.lines
    assert (130, [f"Tailing {server.url}; Ctrl-C ends.\n"]) == (status, command.errors)
    assert "\x1b" not in "".join(lines)
    assert all(line[2] == ":" == line[5] and "urn-0001" in line for line in lines)
    words = [line.split("urn-0001", 1)[1].split(maxsplit=1) for line in lines]
    shown = "\n".join(" ".join(word.rstrip() for word in line) for line in words)
    assert (
        'sender_id=ann channel=telegram agent_id=helper session_key=s1 UserMessage="How much is 1 and 2?"' == words[0][1].strip()
    )
    assert "agent.llm.request Model=scripted MessagesCount=1 ToolsCount=2" in shown
    assert "agent.llm.response ToolCalls=2" in shown
    assert 'agent.tool.exec_start Tool=add Arguments={"a": 1, "b": 2}' in shown
    assert "agent.tool.exec_end Tool=add Duration=" in shown
    assert 'Reason="Tool execution denied by hook: nothing is removed here"' in shown
    assert '"decision": "denied: nothing is removed here"' in shown
    assert "agent.user_output Tool=add Text=xxxx" in shown
    assert "agent.turn.end" == words[-1][0].strip()
    assert 'FinalContent="It is 3."' in shown.splitlines()[-1]


def test_tail_prints_selected_events_as_json(tmp_path):
    with serving(tmp_path) as server:
        arguments = [
            "tail",
            "--server",
            server.url,
            "--json",
            "--kind",
            "agent.turn.*",
            "--kind",
            "agent.user_output",
            "--session",
            "s2",
        ]
        with Command(*arguments) as command:
            command.said("Tailing")
            server.run(session="s1")
            server.run(session="s2")
            command.printed("agent.turn.end")
            assert 130 == command.end(signal.SIGINT)
    events = [json.loads(line) for line in command.lines]
    assert ["agent.turn.start", "agent.user_output", "agent.turn.end"] == [each["kind"] for each in events]
    assert {"s2"} == {each["scope"]["session_key"] for each in events}


def test_a_server_that_is_started_again_is_tailed_again(tmp_path):
    with serving(tmp_path, port=kept_port()) as server:
        command = Command("tail", "--server", server.url, "--json", "--kind", "agent.turn.end")
        with command:
            command.said("Tailing")
            server.run()
            command.printed("agent.turn.end")
            assert 0 == server.stop()
            command.said("reconnecting")
            with serving(tmp_path, port=server.port) as again:
                command.said("Reconnected.")
                again.run()
                command.printed("agent.turn.end", 2)
                assert 130 == command.end(signal.SIGINT)


def test_unreachable_or_refusing_server_is_a_one_line_error(tmp_path):
    status, out, err = patchbay("tail", "--server", "http://127.0.0.1:9")
    hint = "Start `patchbay serve`, or use --server (http://127.0.0.1:8787 for a proxy with the default port)"
    assert (1, "", f"patchbay: No response from http://127.0.0.1:9: Connection refused. {hint}.\n") == (status, out, err)
    with serving(tmp_path, token=TOKEN) as server:
        status, out, err = patchbay("tail", "--server", server.url)
        assert (1, "", 1) == (status, out, err.count("\n"))
        assert "send the token of this server to read the events. Use --token-file.\n" in err
    assert (2, "") == patchbay("tail", "--server", "nonsense")[:2]


def test_tail_ends_when_its_reader_closes_without_new_events(tmp_path):
    with serving(tmp_path) as server, Reading("tail", "--server", server.url, "--json") as reading:
        wait_for(lambda: server.ask("GET", "/readers")[1])
        server.run()
        assert "agent.turn.start" in reading.line()
        assert 1 == reading.leave()


@pytest.mark.parametrize("kind", ["agent.toool", "agent.toool.*", "turn_start", ""])
def test_unknown_event_kind_is_refused(kind):
    status, out, err = patchbay("tail", "--server", "http://127.0.0.1:9", "--kind", "agent.turn.*", "--kind", kind)
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert f"--kind {kind!r} matches no event kind" in err
    assert "agent.tool.exec_start" in err


@pytest.mark.parametrize("kind", ["*", "agent.tool.*", "agent.user_output", "stream.dropped", "gateway.ready", "*.turn.[se]*"])
def test_possible_event_kind_is_accepted(kind):
    assert 1 == patchbay("tail", "--server", "http://127.0.0.1:9", "--kind", kind)[0]  # no server there


def test_server_without_an_event_stream_is_a_one_line_error(proxied):
    status, out, err = patchbay("tail", "--server", proxied.upstream.url)
    assert (1, "", 1) == (status, out, err.count("\n"))
    assert "it has no events" in err


CALL = {"scope": {"turn_id": "main-turn-1"}, "severity": "warn", "attrs": {"call_id": "c1", "decisions": [{"by": "ann"}]}}


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (tail_event("agent.turn.start", {"UserMessage": "a\nStatus=ok"}), 'agent.turn.start        UserMessage="a\\nStatus=ok"'),
        (tail_event("agent.turn.start", {"UserMessage": "x" * 200, "MediaCount": 2}), f"agent.turn.start        UserMessage={'x' * 97}... MediaCount=2"),
        (tail_event("agent.turn.end", {"Status": "error", "Duration": 1500000000, "Iterations": 0}), "agent.turn.end          Status=error Duration=1.5 s"),
        (tail_event("agent.llm.response", {"ToolCalls": 1}, attrs={"usage": USAGE}), "agent.llm.response      ToolCalls=1 1,200 \u2192 7 tokens"),
        (tail_event("agent.tool.exec_end", {"Tool": "a"}, **CALL), 'n-turn-1 agent.tool.exec_end     Tool=a call=c1 decisions=[{"by": "ann"}]'),
        (tail_event("agent.tool.exec_start", {"Tool": "a\x07", "Arguments": {"x": "y\n\x1b"}}), 'agent.tool.exec_start   Tool=a\\u0007 Arguments={"x": "y\\n\\u001b"}'),
        (tail_event("agent.user_output", {"Text": "[red]a b"}), 'agent.user_output       Text="[red]a b"'),
        (tail_event("stream.dropped", {"count": 7}), "stream.dropped          count=7"),
        (tail_event("gateway.ready", {"duration_ms": 1}), "gateway.ready           duration_ms=1"),
    ],
)  # fmt: skip
def test_an_event_is_one_line(event, line):
    assert line == describe_event(event).plain[12:].strip()


@pytest.mark.parametrize(
    "payload", [None, [], "x", {"Tool": ["a"], "Arguments": [1], "Duration": "x", "ForLLMLen": None, "Media": 1}]
)
def test_event_of_any_shape_is_one_line(payload):
    for kind in (*sorted(KINDS), "stream.dropped", "server.request", "unknown", None, 5):
        event = {"kind": kind, "payload": payload, "scope": 3, "attrs": [], "time": {}, "correlation": None, "severity": []}
        assert "\n" not in describe_event(event).plain, kind

"""``patchbay tail`` as people run it, against a real server; and each kind of event as a line."""

from __future__ import annotations

import json
import signal

import pytest

from patchbay.cli.tail import Trace
from patchbay.hooks.process.protocol import KINDS
from ports import kept_port

from .serving import Command, Reading, patchbay, serving, wait_for

TOKEN = "0123456789abcdef-token"
USAGE = {"prompt_tokens": 1200, "completion_tokens": 7, "total_tokens": 1207}


SUBTURNS = {"agent.subturn.spawn", "agent.subturn.end"}  # not printed: the turns of both are


def printed_lines(event: object, **options: bool) -> list[str]:
    """Return the lines, without the time."""
    trace = Trace(**{"colour": False, "ascii_only": True, **options})
    return [line[12:].strip() for line in trace.lines(event)]


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
    words = [line[13:].removeprefix("urn-0001").strip() if "urn-0001" in line else line for line in lines]
    assert all(line[2] == ":" == line[5] and "urn-0001" in line for line in lines)
    text = "\n".join(words)
    assert 'ann@telegram, agent helper, session s1: "How much is 1 and 2?"' in words[0]
    assert "round 1: scripted, 1 message, 2 tools" in words[1]
    assert "answered: 2 calls" in words[2]
    assert "add(a=1, b=2)" in text
    assert "add: 1 character, 4 for the user, " in text
    assert "remove: Tool execution denied by hook: nothing is removed here" in text
    assert "policy (before_tool): denied: nothing is removed here" in text
    assert 'to the user, from add: "xxxx"' in text
    assert "completed in " in words[-1]
    assert words[-1].endswith('2 rounds: "It is 3."')


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


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (tail_event("agent.turn.start", {"UserMessage": "x" * 200, "MediaCount": 2}), f'>> a turn: "{"x" * 97}..." and 2 files'),
        (
            tail_event("agent.turn.start", {"UserMessage": "hi"}, scope={"sender_id": "ann", "turn_id": "t"}, correlation={"parent_turn_id": "main-turn-1"}),
            't        >> ann, for n-turn-1: "hi"',
        ),
        (tail_event("agent.turn.end", {"Status": "error", "Iterations": 1, "Duration": 1500000000}), "== error in 1.5 s, 1 round"),
        (
            tail_event("agent.turn.end", {"Status": "completed", "Iterations": 2, "FinalContent": "3"}, attrs={"usage": USAGE}),
            '== completed in 0.0 ms, 2 rounds, 1,200 -> 7 tokens: "3"',
        ),
        (tail_event("agent.llm.response", {"ContentLen": 1}, attrs={"usage": USAGE}), "- answered: 1 character, 1,200 -> 7 tokens"),
        (tail_event("agent.llm.response", {"ContentLen": 1}, attrs={"usage": {"prompt_tokens": "x"}}), "- answered: 1 character"),
        (tail_event("agent.llm.request", {"MessagesCount": 1}, attrs={"iteration": 3}), "- round 3: the model, 1 message, 0 tools"),
        (tail_event("agent.llm.response", {"ContentLen": 1200, "HasReasoning": True}), "- answered: 1,200 characters, reasoning"),
        (tail_event("agent.tool.exec_start", {"Tool": "a", "Arguments": {"x": "y\n\x1b"}}), '-> a(x="y\\n\\u001b")'),
        (tail_event("agent.tool.exec_start", {"Tool": "a", "Arguments": None}), "-> a()"),
        (tail_event("agent.tool.exec_end", {"Tool": "a", "ForLLMLen": 5, "Duration": 2000000, "IsError": True}), "!! a: failed, 5 characters, 2.0 ms"),
        (tail_event("agent.tool.exec_end", {"Tool": "a", "ForLLMLen": 1, "Async": True}), "ok a: 1 character, 0.0 ms, goes on"),
        (tail_event("agent.tool.exec_skipped", {"Tool": "a", "Reason": ""}), "!! a: given up"),
        (tail_event("agent.error", {"Stage": "llm", "Message": "no\x07"}), "!! llm: no\\u0007"),
        (tail_event("agent.user_output", {"Tool": "a", "Media": ["media://1"]}), "> to the user, from a: media://1"),
        (tail_event("stream.dropped", {"count": 7}), "(7 events missing here: they came too fast)"),
        (tail_event("gateway.ready", {"duration_ms": 1}), '- gateway.ready {"duration_ms": 1}'),
    ],
)  # fmt: skip
def test_each_kind_is_one_line(event, line):
    assert [line] == printed_lines(event)


def test_turn_of_a_sub_agent_is_shown_once():
    assert [] == printed_lines(tail_event("agent.subturn.spawn", {"AgentID": "a"})) + printed_lines(
        tail_event("agent.subturn.end", {"AgentID": "a"})
    )


def test_decisions_are_shown_below_the_call():
    decisions = [{"by": "ann", "point": "approve_tool", "decision": "denied: no"}, "?", {"by": None}]
    lines = printed_lines(tail_event("agent.tool.exec_skipped", {"Tool": "rm", "Reason": "no"}, attrs={"decisions": decisions}))
    assert ["!! rm: no", "- ann (approve_tool): denied: no"] == lines[:2]


@pytest.mark.parametrize(
    "payload", [None, [], "x", {"Tool": ["a"], "Arguments": [1], "Duration": "x", "ForLLMLen": None, "Media": 1}]
)
@pytest.mark.parametrize("kind", [*sorted(KINDS - SUBTURNS), "stream.dropped", "unknown", None, 5])
def test_event_of_any_shape_is_shown(kind, payload):
    event = {"kind": kind, "payload": payload, "scope": 3, "attrs": [], "time": {}, "correlation": None}
    assert 1 == len(printed_lines(event))


def test_colours_and_symbols_depend_on_the_terminal():
    event = tail_event("agent.tool.exec_start", {"Tool": "\u732b", "Arguments": {}})
    assert ["\u2192 \u732b()"] == printed_lines(event, ascii_only=False)
    assert ["-> \\u732b()"] == printed_lines(event)
    assert "\x1b[36m\u2192\x1b[0m" in "".join(Trace(colour=True, ascii_only=False).lines(event))

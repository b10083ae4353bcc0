"""A hook that is another process: asked, answering, and failing, over real pipes."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvloop

from hooks_process import view_builders
from hooks_process.peers import (
    BOUND,
    QUICK,
    mount,
    mounted_hooks,
    process_exists,
    process_of,
    script,
    spec,
    wait_for_exit,
    wait_until,
    with_limits,
)
from patchbay.hooks import Approval, DenyTool, Event, HookManager, Modify, Respond, ToolOutput
from patchbay.hooks.process import HookProcessError, HookReplyError, ProcessHook
from patchbay.hooks.process.child import HookProcess
from support.running import run

ECHO = """
def on(method, params):
    answer({"action": "deny_tool", "reason": json.dumps(params, sort_keys=True)})
"""


async def started(each):
    hook = ProcessHook(each)
    await hook.start()
    return hook


def ask_hook(command, *about, modes=(), **members):
    """Start a hook, ask it about each view in turn, and return its decisions; an exception stands for itself."""

    async def main():
        hook = await started(spec(command, *modes, **members))
        try:
            return [await _decision(hook, method, view) for method, view in about]
        finally:
            await hook.aclose()

    return run(main())


async def _decision(hook, method, view):
    try:
        return await getattr(hook, method)(view)
    except HookProcessError as error:
        return error


def test_every_method_is_a_request_and_its_reply_a_decision(tmp_path):
    command = script(
        tmp_path,
        """
        def on(method, params):
            if method == "before_llm":
                answer({"action": "modify", "request": {"model": "other"}})
            elif method == "after_llm":
                answer({"action": "modify", "response": {"response": {"content": "new"}}})
            elif method == "before_tool":
                answer({"action": "respond", "result": {"for_llm": params["arguments"]["path"]}})
            elif method == "after_tool":
                answer({"action": "modify", "result": {"result": {"for_llm": str(params["duration"])}}})
            elif method == "approve_tool":
                answer({"approved": True, "reason": params["digest"]})
        """,
    )
    decisions = ask_hook(
        command,
        ("before_llm", view_builders.request()),
        ("after_llm", view_builders.response(content="old")),
        ("before_tool", view_builders.call(arguments={"path": "/ü<&>"})),
        ("after_tool", view_builders.result(ToolOutput("x"), duration=0.5)),
        ("approve_tool", view_builders.call(digest="sha256:1")),
        modes=("llm", "tool", "approve"),
    )
    expected = [
        Modify({"model": "other"}),
        Modify({"content": "new"}),
        Respond({"for_llm": "/ü<&>"}),
        Modify({"result": {"for_llm": "500000000"}}),
        Approval(approved=True, reason="sha256:1"),
    ]
    assert expected == decisions


def test_hello_is_first_with_id_1_and_ordered_modes(tmp_path):
    command = script(
        tmp_path,
        """
        def hello(params):
            answer()
            global greeting
            greeting = {"id": id, **params}

        def on(method, params):
            answer({"action": "deny_tool", "reason": json.dumps([greeting, id])})
        """,
    )
    (decision,) = ask_hook(
        command, ("before_tool", view_builders.call()), modes=("approve", "tool", "observe", "llm"), media_folder=tmp_path
    )
    greeting, second = json.loads(decision.reason)
    assert 2 == second
    assert ["observe", "llm", "tool", "approve"] == greeting["modes"]
    assert (1, "h", 1, str(tmp_path)) == (greeting["id"], greeting["name"], greeting["version"], greeting["media_dir"])


@pytest.mark.parametrize("result", ['{"ok":false}', "{}", "null"])
def test_any_hello_object_is_accepted(tmp_path, result):
    command = script(tmp_path, f'def hello(params): write(\'{{"id":1,"result":{result}}}\\n\')')
    assert [None] == ask_hook(command, ("before_tool", view_builders.call()))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("def hello(params): answer([])", "hook.hello failed: the result must be an object, not a list"),
        (
            "def hello(params): answer(error={'code': 1, 'message': 'not today'})",
            "hook.hello failed: it answered with an error: not today",
        ),
        ("def hello(params): sys.exit('nothing works')", r"hook.hello failed: exit status 1 \(nothing works\)"),
        ("lambda *_: raise SystemExit(0)", r"hook.hello failed: exit status 1 \(SyntaxError: invalid syntax\)"),
        ("def hello(params): os.close(1); time.sleep(60)", "hook.hello failed: it has closed its standard output"),
    ],
)
async def test_a_process_that_does_not_answer_hello_is_not_started_and_none_is_left(tmp_path, body, why):
    hook = ProcessHook(spec(script(tmp_path, body), limits=with_limits(spec(("x",)), eof_grace=0.01).limits))
    with pytest.raises(HookProcessError, match=why):
        await hook.start()
    assert "not started" == hook.state
    await hook.aclose()


async def test_hello_timeout_is_enforced(tmp_path):
    marker = tmp_path / "pid"
    command = script(tmp_path, f"def hello(params): open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    hook = ProcessHook(with_limits(spec(command), hello=0.5, eof_grace=0.01))
    with pytest.raises(HookProcessError, match=r"hook.hello failed: no answer within 0.5 s"):
        await hook.start()
    if marker.exists():  # it may not even have come so far
        await wait_for_exit(int(marker.read_text()))


@pytest.mark.parametrize("command", [("/no/such/program",), ("",), ("a\0b",)])
async def test_an_invalid_command_cannot_be_started(command):
    with pytest.raises(HookProcessError, match="it cannot be started"):
        await ProcessHook(spec(command)).start()


def test_its_folder_and_its_environment_are_as_they_should_be(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "x")
    monkeypatch.setenv("LC_PAPER", "a4")
    command = script(
        tmp_path,
        "def on(method, params): answer({'action': 'respond', 'result': {'for_llm': json.dumps([os.getcwd(), dict(os.environ)])}})",
    )
    (decision,) = ask_hook(
        command, ("before_tool", view_builders.call()), folder=tmp_path, env={"MINE": "1", "LC_PAPER": "letter"}
    )
    folder, environment = json.loads(decision.result["for_llm"])
    assert (str(tmp_path), "x", "1", "letter") == (
        folder,
        environment["SECRET_KEY"],
        environment["MINE"],
        environment["LC_PAPER"],
    )
    (decision,) = ask_hook(command, ("before_tool", view_builders.call()), env={"MINE": "1"}, inherit=("PATH", "LC_*"))
    environment = json.loads(decision.result["for_llm"])[1]
    assert ("SECRET_KEY" not in environment, "a4", "1") == (True, environment["LC_PAPER"], environment["MINE"])


async def test_missing_working_folder_is_an_error(tmp_path):
    with pytest.raises(HookProcessError, match="nowhere"):
        await ProcessHook(spec(script(tmp_path, ""), folder=tmp_path / "nowhere")).start()


def test_an_error_is_a_failure_of_this_call_alone(tmp_path):
    command = script(
        tmp_path,
        """
        def on(method, params):
            if params["tool"] == "bad":
                answer({"action": "deny_tool"}, error={"code": -32000, "message": "no such city"})
            else:
                answer({"action": "deny_tool"})
        """,
    )
    failed, fine = ask_hook(command, ("before_tool", view_builders.call(tool="bad")), ("before_tool", view_builders.call()))
    assert isinstance(failed, HookReplyError)
    assert "it answered with an error: no such city" == str(failed)
    assert DenyTool() == fine


async def test_concurrent_calls_accept_replies_in_any_order(tmp_path):
    command = script(
        tmp_path,
        """
        kept = []
        def on(method, params):
            kept.append((id, params["tool"]))
            if len(kept) == 3:
                for number, tool in reversed(kept):
                    write(json.dumps({"id": number, "result": {"action": "deny_tool", "reason": tool}}) + "\\n")
        """,
    )
    hook = await started(spec(command))
    decisions = await asyncio.gather(*(hook.before_tool(view_builders.call(tool=name)) for name in "abc"))
    assert [DenyTool("a"), DenyTool("b"), DenyTool("c")] == decisions
    await hook.aclose()


def test_unknown_or_repeated_reply_id_is_dropped(tmp_path, caplog):
    command = script(
        tmp_path,
        """
        def on(method, params):
            for number in (0, -1, id + 1, 999, "null", f'"{id}"', f"{id}.0"):
                write(f'{{"id":{number},"result":{{"action":"hard_abort"}}}}\\n')
            first = {"id": id, "result": {"action": "deny_tool", "reason": "first"}}
            second = {"id": id, "result": {"action": "hard_abort", "reason": "second"}}
            write(json.dumps(first) + "\\n" + json.dumps(second) + "\\n")
        """,
    )
    first, second = ask_hook(command, ("before_tool", view_builders.call()), ("before_tool", view_builders.call()))
    assert (DenyTool("first"), DenyTool("first")) == (first, second)
    assert "asyncio" not in {record.name for record in caplog.records}


def test_a_line_that_cannot_be_read_fails_its_call_at_once_if_its_id_can(tmp_path):
    command = script(tmp_path, """def on(method, params): write(f'{{"jsonrpc":"2.0","id":{id},"result":NaN}}\\n')""")
    (failed,) = ask_hook(command, ("before_tool", view_builders.call()))
    assert "it answered with a line that is not a reply: not JSON: NaN is not JSON" == str(failed)


def test_a_line_that_is_too_long_fails_its_call_alone_and_the_next_is_read(tmp_path):
    command = script(
        tmp_path,
        """
        def on(method, params):
            answer({"action": "deny_tool", "reason": "x" * (2_000_000 if params["tool"] == "big" else 3)})
        """,
    )
    failed, fine = ask_hook(command, ("before_tool", view_builders.call(tool="big")), ("before_tool", view_builders.call()))
    assert "it answered with a line that is too long (max_line_bytes)" == str(failed)
    assert DenyTool("xxx") == fine


def test_the_limit_of_a_line_can_be_set(tmp_path):
    command = script(tmp_path, 'def on(method, params): answer({"action": "respond", "result": {"for_llm": "x" * 5000}})')
    limits = with_limits(spec(("x",)), line=4096).limits
    assert [Respond({"for_llm": "x" * 5000})] == ask_hook(command, ("before_tool", view_builders.call()))
    assert [HookReplyError] == [type(each) for each in ask_hook(command, ("before_tool", view_builders.call()), limits=limits)]


async def test_a_reply_just_before_the_end_is_received_and_later_calls_fail_at_once(tmp_path):
    command = script(
        tmp_path,
        """
        def on(method, params):
            answer({"action": "deny_tool", "reason": "last"})
            os._exit(7)
        """,
    )
    hook = await started(spec(command))
    assert DenyTool("last") == await hook.before_tool(view_builders.call())
    await wait_until(lambda: hook.state == "given up")
    with pytest.raises(HookProcessError, match="exit status 7"):
        await hook.before_tool(view_builders.call())
    await hook.aclose()


async def test_running_calls_fail_at_once_when_the_process_ends(tmp_path):
    command = script(
        tmp_path,
        """
        calls = 0
        def on(method, params):
            global calls
            calls += 1
            if calls == 3:
                os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    hook = await started(spec(command))
    calls = await asyncio.gather(*(hook.before_tool(view_builders.call()) for _ in range(3)), return_exceptions=True)
    assert ["ended by SIGKILL"] * 3 == [str(each) for each in calls]
    await hook.aclose()


async def test_exit_status_is_reported_after_a_blocked_event_loop(tmp_path, monkeypatch):
    gate = tmp_path / "gate"
    body = f"""
    def on(method, params):
        os.close(1)
        while not os.path.exists({str(gate)!r}):
            time.sleep(0.005)
        os._exit(3)
    """

    def then_held_up(process, fd, error):
        lost(process, fd, error)
        if fd == 1:
            gate.touch()
            while process_exists(process.pid):
                time.sleep(0.005)
            time.sleep(0.3)  # longer than it waits for the exit code

    lost = HookProcess.pipe_connection_lost
    monkeypatch.setattr(HookProcess, "pipe_connection_lost", then_held_up)
    hook = await started(spec(script(tmp_path, body)))
    with pytest.raises(HookProcessError, match="exit status 3"):
        await hook.before_tool(view_builders.call())
    await hook.aclose()


def test_an_answer_without_an_id_is_logged(tmp_path, caplog):
    command = script(tmp_path, """def on(method, params): write('{"result":{"action":"deny_tool"}}\\n'); answer()""")
    assert [None] == ask_hook(command, ("before_tool", view_builders.call()))
    words = "The hook 'h' printed a line that is not a reply: a line that is not a reply: it has no id of a request: "
    assert f'{words}{{"result":{{"action":"deny_tool"}}}}' in caplog.messages


@pytest.mark.parametrize("stream", [0, 1])
@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_that_a_stream_was_closed_is_noticed_at_once_in_every_event_loop(tmp_path, factory, stream):
    """In uvloop, which a server has, the child had a second descriptor of each of its streams."""
    body = f"""
    def on(method, params):
        os.write(1, json.dumps({{"id": id, "result": {{"action": "deny_tool", "reason": str(os.listdir("/dev/fd"))}}}}).encode() + b"\\n")
        os.close({stream})
        time.sleep(60)
    """

    async def main():
        limits = with_limits(spec(("x",)), eof_grace=0.01, restarts=1).limits
        hook = await started(spec(script(tmp_path, body), limits=limits))
        pid = hook.pid
        open_there = (await hook.before_tool(view_builders.call())).reason
        assert 4 == open_there.count("'") // 2, f"its three streams, and the folder that it looks at: {open_there}"
        await wait_until(lambda: hook.restarts == 1)
        assert pid != hook.pid
        await hook.aclose()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(main(), BOUND))


async def test_a_process_that_closes_its_input_cannot_be_called(tmp_path):
    command = script(
        tmp_path,
        """
        def on(method, params):
            os.close(0)
            answer()
            time.sleep(60)
        """,
    )
    hook = await started(with_limits(spec(command), eof_grace=0.01))
    await hook.before_tool(view_builders.call())
    await wait_until(lambda: hook.state == "given up")
    with pytest.raises(HookProcessError, match="it has closed its standard input"):
        await hook.before_tool(view_builders.call())
    await hook.aclose()


def test_process_hook_is_bound_to_its_event_loop(tmp_path):
    async def main():
        hook = await started(spec(script(tmp_path, "")))

        def elsewhere():
            with pytest.raises(HookProcessError, match="another event loop"):
                asyncio.run(hook.before_tool(view_builders.call()))

        await asyncio.to_thread(elsewhere)
        await hook.aclose()

    run(main())


def _on_uvloop(work):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())


def _in_a_thread(work):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(work())).result(BOUND)


@pytest.mark.parametrize("on", [_on_uvloop, _in_a_thread])
def test_process_hook_works_in_any_event_loop_type(tmp_path, on):
    body = """
    def on(method, params):
        if params["tool"] == "exit":
            os._exit(5)
        answer({"action": "deny_tool", "reason": "x" * (2_000_000 if params["tool"] == "big" else 3)})
    """

    async def main():
        async with mounted_hooks(spec(script(tmp_path, body))) as manager:
            hook = process_of(manager)
            pid = hook.pid
            assert DenyTool("xxx") == await hook.before_tool(view_builders.call(arguments={"text": "y" * 1_000_000}))
            with pytest.raises(HookReplyError, match="too long"):
                await hook.before_tool(view_builders.call(tool="big"))
            with pytest.raises(HookProcessError, match="exit status 5"):
                await hook.before_tool(view_builders.call(tool="exit"))
        assert not process_exists(pid)

    on(lambda: asyncio.wait_for(main(), BOUND))


# Ending.


async def test_a_hook_that_ends_with_its_input_is_not_signalled(tmp_path):
    marker = tmp_path / "ended"
    command = script(tmp_path, "", name="h")
    path = tmp_path / "h.py"
    path.write_text(path.read_text() + f"\nopen({str(marker)!r}, 'w').write('of itself')\n")
    async with mounted_hooks(spec(command)) as manager:
        pid = process_of(manager).pid
    assert not process_exists(pid)
    assert "of itself" == marker.read_text()


@pytest.mark.parametrize(
    "body",
    [
        "def lines():\n    yield from map(json.loads, sys.stdin.buffer)\n    time.sleep(200)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ndef lines():\n    yield from map(json.loads, sys.stdin.buffer)\n    time.sleep(200)",
    ],
    ids=["ignores the end of its input", "ignores SIGTERM, too"],
)
async def test_stubborn_process_is_killed_with_its_children(tmp_path, body):
    command = script(
        tmp_path,
        body + "\nchild = subprocess.Popen(['sleep', '200'])\ndef hello(params): answer()\n"
        "def on(method, params): answer({'action': 'deny_tool', 'reason': str(child.pid)})",
    )
    async with mounted_hooks(with_limits(spec(command), eof_grace=0.05, term_grace=0.05)) as manager:
        hook = process_of(manager)
        pid, child = hook.pid, int((await hook.before_tool(view_builders.call())).reason)
        assert process_exists(child)
    assert not process_exists(pid)
    await wait_for_exit(child)


def test_a_process_left_open_ends_with_the_event_loop(tmp_path):
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ndef lines():\n    yield from map(json.loads, sys.stdin.buffer)\n    time.sleep(60)"

    async def main():
        hook = await started(with_limits(spec(script(tmp_path, body)), eof_grace=0.01, term_grace=0.01))
        return hook.pid

    assert not process_exists(run(main()))


async def test_closing_again_and_asking_then_are_harmless(tmp_path):
    hook = await started(spec(script(tmp_path, "")))
    await asyncio.gather(hook.aclose(), hook.aclose())
    await hook.aclose()
    assert "closed" == hook.state
    with pytest.raises(HookProcessError, match="it was closed"):
        await hook.before_tool(view_builders.call())


async def test_cancelled_start_leaves_no_process(tmp_path):
    marker = tmp_path / "pid"
    command = script(tmp_path, f"def hello(params): open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    starting = asyncio.create_task(ProcessHook(with_limits(spec(command), eof_grace=0.01)).start())
    await wait_until(lambda: marker.exists() and marker.read_text())
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await wait_for_exit(int(marker.read_text()))


async def test_one_that_is_closed_during_hello_stays_closed(tmp_path):
    closing = []

    class ClosedByGreeting(ProcessHook):
        async def _greet(self, process):
            await process.call("hook.hello", {})
            closing.append(asyncio.create_task(self.aclose()))
            await asyncio.sleep(0)

    supervisor = ClosedByGreeting(spec(script(tmp_path, ""), limits=with_limits(spec(("x",)), restarts=9).limits))
    for _ in range(2):
        with pytest.raises(HookProcessError, match="it was closed"):
            await supervisor.start()
        await closing[0]
        assert ("closed", None) == (supervisor.state, supervisor.running)
    assert 1 == len(closing)


# What it offers, sees, and says.


OFFERING = """
def hello(params):
    answer({"tools": [
        {"type": "function", "function": {"name": "mine", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}},
        {"type": "function", "function": {}},
        {"type": "function", "function": {"name": "mine", "description": "again"}},
    ]})
"""


async def test_tools_of_the_hello_are_added_without_asking(tmp_path, caplog):
    hook = await started(spec(script(tmp_path, OFFERING), "tool"))
    assert ["mine"] == [tool.name for tool in hook.tools]
    assert ("before_llm", "before_tool", "after_tool") == hook.methods
    other = view_builders.tool("other")
    decision = await hook.before_llm(view_builders.request(tools=[other]))
    assert ["other", "mine"] == [tool["function"]["name"] for tool in decision.changes["tools"]]
    assert await hook.before_llm(view_builders.request(tools=[view_builders.tool("mine")])) is None
    assert await hook.before_llm(view_builders.request(graceful_terminal=True)) is None
    await hook.aclose()
    assert await hook.before_llm(view_builders.request()) is None
    assert "The hook 'h' offers an invalid tool" in caplog.text


async def test_request_hook_sees_its_own_tools(tmp_path):
    body = (
        OFFERING
        + """
def on(method, params):
    names = [tool["function"]["name"] for tool in params.get("tools", [])]
    answer({"action": "modify", "request": {"model": ",".join(names)}} if params["model"] == "m" else {})
"""
    )
    hook = await started(spec(script(tmp_path, body), "llm", "tool"))
    decision = await hook.before_llm(view_builders.request(tools=[view_builders.tool("other")]))
    assert "other,mine" == decision.changes["model"]
    assert 2 == len(decision.changes["tools"])
    decision = await hook.before_llm(view_builders.request(model="n"))
    assert ["mine"] == [tool["function"]["name"] for tool in decision.changes["tools"]]
    await hook.aclose()


async def test_own_tools_are_offered_even_if_the_request_hook_fails(tmp_path, caplog):
    body = (
        OFFERING
        + """
def on(method, params):
    os._exit(7) if params["model"] == "exit" else answer({"action": 1})
"""
    )
    hook = await started(spec(script(tmp_path, body), "llm", "tool", limits=with_limits(spec(("x",)), restarts=1).limits))
    for model in ("any", "exit"):
        decision = await hook.before_llm(view_builders.request(model=model))
        assert ["mine"] == [tool["function"]["name"] for tool in decision.changes["tools"]]
    await hook.aclose()
    assert "The hook 'h' failed at before_llm: its answer to hook.before_llm is refused: action must be a string" in caplog.text
    assert "The hook 'h' failed at before_llm: exit status 7" in caplog.text


async def test_tools_of_a_hook_without_call_points_are_left_out(tmp_path, caplog):
    hook = await started(spec(script(tmp_path, OFFERING), "llm"))
    assert () == hook.tools
    await hook.aclose()
    assert "offers tools, but before_tool is not enabled for it" in caplog.text


def event(kind):
    return Event("evt-1", kind, 0.0, view_builders.META, {}, "info", {"n": kind}, {})


async def test_an_observer_receives_the_kinds_that_it_named(tmp_path):
    command = script(
        tmp_path,
        """
        seen = []
        def on(method, params):
            if method == "runtime_event":
                seen.append([id, params["kind"], params["payload"]])
            else:
                answer({"action": "deny_tool", "reason": json.dumps(seen)})
        """,
    )
    hook = await started(spec(command, "observe", "tool", kinds=frozenset({"agent.error"})))
    for kind in ("agent.turn.start", "agent.error"):
        await hook.on_runtime_event(event(kind))
    decision = await hook.before_tool(view_builders.call())
    assert [[None, "agent.error", {"n": "agent.error"}]] == json.loads(decision.reason)
    await hook.aclose()


def test_output_is_logged_with_the_hook_name(tmp_path, caplog):
    command = script(
        tmp_path,
        """
        def on(method, params):
            write("debugging\\n\\n  \\r\\n")
            sys.stderr.buffer.write("ärger\\r\\n".encode() + b"x" * 5000 + b"\\n")
            sys.stderr.flush()
            answer({"action": "deny_tool"})
        """,
    )
    caplog.set_level(logging.WARNING)
    assert [DenyTool()] == ask_hook(command, ("before_tool", view_builders.call()))
    messages = [record.getMessage() for record in caplog.records]
    assert "The hook 'h' printed a line that is not a reply: debugging" in messages
    assert "[h] ärger" in messages
    assert "[h] " + "x" * 4096 + "..." in messages
    assert 3 == len(messages)


def test_oddities_of_its_answers_are_logged_once(tmp_path, caplog):
    command = script(tmp_path, 'def on(method, params): answer({"decision": "deny", "args": {}})')
    assert [None, None] == ask_hook(command, ("before_tool", view_builders.call()), ("before_tool", view_builders.call()))
    odd = [record.getMessage() for record in caplog.records if "oddly" in record.getMessage()]
    assert 2 == len(odd)
    assert "'decision' is not known there: 'action' is meant" in odd[0]


def test_a_hook_with_ever_new_oddities_is_logged_only_so_often(tmp_path, caplog):
    command = script(tmp_path, 'def on(method, params): answer({f"odd {id} {number}": 1 for number in range(40)})')
    ask_hook(command, *[("before_tool", view_builders.call())] * 5)
    assert 50 == caplog.text.count("oddly (logged once)")


def test_output_is_escaped_in_the_log(tmp_path, caplog):
    command = script(
        tmp_path,
        r"""
        def on(method, params):
            os.write(2, b"\x1b[2J\tred\rERROR\n")
            write("\x1b[1mbold\n")
            answer(error={"code": 1, "message": "first\nsecond"})
        """,
    )
    (failed,) = ask_hook(command, ("before_tool", view_builders.call()))
    assert r"it answered with an error: first\x0asecond" == str(failed)
    messages = [record.getMessage() for record in caplog.records]
    assert r"[h] \x1b[2J" + "\t" + r"red\x0dERROR" in messages
    assert r"The hook 'h' printed a line that is not a reply: \x1b[1mbold" in messages


def test_a_strict_hook_fails_for_oddities(tmp_path):
    command = script(tmp_path, 'def on(method, params): answer({"approved": True, "action": "x"})')
    (failed,) = ask_hook(command, ("approve_tool", view_builders.call()), modes=("approve",), strict=True)
    assert isinstance(failed, HookReplyError)
    assert "its answer to hook.approve_tool is refused: the member 'action' is not known there" in str(failed)


def test_a_wrong_type_is_a_failure(tmp_path):
    command = script(tmp_path, 'def on(method, params): answer({"action": "abort_turn", "reason": 1})')
    (failed,) = ask_hook(command, ("before_tool", view_builders.call()))
    assert "its answer to hook.before_tool is refused: reason must be a string, not a number" == str(failed)


async def test_a_command_that_repeats_its_input_is_not_a_hook():
    with pytest.raises(HookProcessError, match=r"a request .* instead of a reply"):
        await ProcessHook(spec(("cat",))).start()


# Starting again.


CRASHING = """
def on(method, params):
    if params["tool"] == "crash":
        os._exit(3)
    answer({"action": "deny_tool", "reason": str(os.getpid())})
"""


async def test_a_process_that_ends_is_started_again_and_greeted(tmp_path, caplog):
    hook = await started(with_limits(spec(script(tmp_path, CRASHING)), restarts=5))
    first = (await hook.before_tool(view_builders.call())).reason
    with pytest.raises(HookProcessError, match="exit status 3"):
        await hook.before_tool(view_builders.call(tool="crash"))
    await wait_until(lambda: hook.restarts == 1)
    assert "running" == hook.state
    assert first != (await hook.before_tool(view_builders.call())).reason
    await hook.aclose()
    assert "The hook 'h' has ended: exit status 3; it is started again in" in caplog.text


async def test_hook_with_too_many_failures_in_a_row_is_disabled(tmp_path, caplog):
    marker = tmp_path / "once"
    body = f"""
    if os.path.exists({str(marker)!r}):
        sys.exit("not again")
    open({str(marker)!r}, "w").close()
    {CRASHING}
    """.replace(CRASHING, CRASHING.replace("\n", "\n    "))
    hook = await started(with_limits(spec(script(tmp_path, body)), restarts=3))
    with pytest.raises(HookProcessError):
        await hook.before_tool(view_builders.call(tool="crash"))
    await wait_until(lambda: hook.state == "given up")
    with pytest.raises(HookProcessError, match="not again"):
        await hook.before_tool(view_builders.call())
    assert 0 == hook.restarts
    await hook.aclose()
    assert 3 == caplog.text.count("it is started again in")
    assert 1 == caplog.text.count("is not started again")


async def test_one_that_had_run_for_long_begins_a_new_row(tmp_path):
    hook = await started(with_limits(spec(script(tmp_path, CRASHING)), restarts=1, healthy_after=0.0))
    for number in range(1, 4):
        with pytest.raises(HookProcessError):
            await hook.before_tool(view_builders.call(tool="crash"))
        await wait_until(lambda number=number: hook.restarts == number)
    await hook.aclose()


async def test_hook_can_be_closed_during_its_restart_backoff(tmp_path):
    hook = await started(with_limits(spec(script(tmp_path, CRASHING)), restarts=5, backoff_first=60.0, backoff_most=60.0))
    with pytest.raises(HookProcessError):
        await hook.before_tool(view_builders.call(tool="crash"))
    await wait_until(lambda: hook.state == "waiting to be started again")
    with pytest.raises(HookProcessError, match="exit status 3; it is about to be started again"):
        await hook.before_tool(view_builders.call())
    await hook.aclose()
    assert "closed" == hook.state


def test_the_delay_grows_up_to_its_most():
    delays = [QUICK.restart_delay(failures) for failures in (1, 2, 3, 1000)]
    assert 0.0075 <= delays[0] <= 0.01
    assert all(0.015 <= delay <= 0.02 for delay in delays[1:])


async def test_the_manager_closes_it_when_it_is_unmounted(tmp_path):
    manager = HookManager()
    hook = await mount(manager, spec(script(tmp_path, "")))
    pid = hook.pid
    manager.unmount("h")
    await manager.aclose()
    assert not process_exists(pid)

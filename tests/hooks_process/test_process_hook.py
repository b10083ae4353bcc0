"""A hook in another process, over real pipes: requests, replies, failures and restarts."""

from __future__ import annotations

import asyncio
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest
import uvloop

from hooks_process import view_builders
from hooks_process.peers import (
    BOUND,
    mounted_hooks,
    process_exists,
    process_of,
    script,
    spec,
    wait_for_exit,
    wait_until,
    with_limits,
)
from patchbay.hooks import DenyTool, Event, Respond
from patchbay.hooks.process import HookProcessError, HookReplyError, ProcessHook
from patchbay.hooks.process.child import HookProcess
from support.running import run

ECHO = """
def on(method, params):
    answer({"action": "deny_tool", "reason": json.dumps(params, sort_keys=True)})
"""


CALLED = ("before_tool", view_builders.call())


async def started(each):
    """Start a hook; the caller closes it."""
    hook = ProcessHook(each)
    await hook.start()
    return hook


@asynccontextmanager
async def running_hook(each):
    hook = await started(each)
    try:
        yield hook
    finally:
        await hook.aclose()


async def ask_hook(command, *about, modes=(), **members):
    """Start a hook, ask it about each view in turn, and return its decisions; an exception stands for itself."""
    async with running_hook(spec(command, *modes, **members)) as hook:
        return [(await asyncio.gather(getattr(hook, method)(view), return_exceptions=True))[0] for method, view in about]


async def test_hello_is_first_with_id_1_and_ordered_modes(tmp_path):
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
    (decision,) = await ask_hook(command, CALLED, modes=("approve", "tool", "observe", "llm"), media_folder=tmp_path)
    greeting, second = json.loads(decision.reason)
    assert 2 == second
    assert ["observe", "llm", "tool", "approve"] == greeting["modes"]
    assert (1, "h", 1, str(tmp_path)) == (greeting["id"], greeting["name"], greeting["version"], greeting["media_dir"])


@pytest.mark.parametrize("result", ['{"ok":false}', "{}", "null"])
async def test_any_hello_object_is_accepted(tmp_path, result):
    command = script(tmp_path, f'def hello(params): write(\'{{"id":1,"result":{result}}}\\n\')')
    assert [None] == await ask_hook(command, CALLED)


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


async def test_its_folder_and_its_environment_are_as_they_should_be(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "x")
    monkeypatch.setenv("LC_PAPER", "a4")
    command = script(
        tmp_path,
        "def on(method, params): answer({'action': 'respond', 'result': {'for_llm': json.dumps([os.getcwd(), dict(os.environ)])}})",
    )
    (decision,) = await ask_hook(command, CALLED, folder=tmp_path, env={"MINE": "1", "LC_PAPER": "letter"})
    folder, environment = json.loads(decision.result["for_llm"])
    assert (str(tmp_path), None, "1", "letter") == (
        folder,
        environment.get("SECRET_KEY"),
        environment["MINE"],
        environment["LC_PAPER"],
    )
    (decision,) = await ask_hook(command, CALLED, inherit=("*",))
    assert "x" == json.loads(decision.result["for_llm"])[1]["SECRET_KEY"]
    (decision,) = await ask_hook(command, CALLED, env={"MINE": "1"}, inherit=("PATH", "LC_*"))
    environment = json.loads(decision.result["for_llm"])[1]
    assert ("SECRET_KEY" not in environment, "a4", "1") == (True, environment["LC_PAPER"], environment["MINE"])


async def test_missing_working_folder_is_an_error(tmp_path):
    with pytest.raises(HookProcessError, match="nowhere"):
        await ProcessHook(spec(script(tmp_path, ""), folder=tmp_path / "nowhere")).start()


async def test_an_error_is_a_failure_of_this_call_alone(tmp_path):
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
    failed, fine = await ask_hook(command, ("before_tool", view_builders.call(tool="bad")), CALLED)
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
    async with running_hook(spec(command)) as hook:
        decisions = await asyncio.gather(*(hook.before_tool(view_builders.call(tool=name)) for name in "abc"))
        assert [DenyTool("a"), DenyTool("b"), DenyTool("c")] == decisions


async def test_unknown_or_repeated_reply_id_is_dropped(tmp_path, caplog):
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
    first, second = await ask_hook(command, CALLED, CALLED)
    assert (DenyTool("first"), DenyTool("first")) == (first, second)
    assert "asyncio" not in {record.name for record in caplog.records}


async def test_the_limit_of_a_line_can_be_set(tmp_path):
    command = script(tmp_path, 'def on(method, params): answer({"action": "respond", "result": {"for_llm": "x" * 5000}})')
    limits = with_limits(spec(("x",)), line=4096).limits
    assert [Respond({"for_llm": "x" * 5000})] == await ask_hook(command, CALLED)
    assert [HookReplyError] == [type(each) for each in await ask_hook(command, CALLED, limits=limits)]


async def test_a_reply_just_before_the_end_is_received_and_later_calls_fail_at_once(tmp_path):
    command = script(
        tmp_path,
        """
        def on(method, params):
            answer({"action": "deny_tool", "reason": "last"})
            os._exit(7)
        """,
    )
    async with running_hook(spec(command)) as hook:
        assert DenyTool("last") == await hook.before_tool(view_builders.call())
        await wait_until(lambda: hook.state == "given up")
        with pytest.raises(HookProcessError, match="exit status 7"):
            await hook.before_tool(view_builders.call())


async def test_an_answer_without_an_id_is_logged(tmp_path, caplog):
    command = script(tmp_path, """def on(method, params): write('{"result":{"action":"deny_tool"}}\\n'); answer()""")
    assert [None] == await ask_hook(command, CALLED)
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
    async with running_hook(with_limits(spec(command), eof_grace=0.01)) as hook:
        await hook.before_tool(view_builders.call())
        await wait_until(lambda: hook.state == "given up")
        with pytest.raises(HookProcessError, match="it has closed its standard input"):
            await hook.before_tool(view_builders.call())


async def test_process_hook_is_bound_to_its_event_loop(tmp_path):
    async with running_hook(spec(script(tmp_path, ""))) as hook:

        def elsewhere():
            with pytest.raises(HookProcessError, match="another event loop"):
                asyncio.run(hook.before_tool(view_builders.call()))

        await asyncio.to_thread(elsewhere)


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
    async with running_hook(spec(script(tmp_path, ""))) as hook:
        await asyncio.gather(hook.aclose(), hook.aclose())
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


async def test_one_that_is_closed_during_hello_stays_closed(tmp_path, monkeypatch):
    call, closing = HookProcess.call, []
    hook = ProcessHook(with_limits(spec(script(tmp_path, "")), restarts=9))

    async def then_closed(process, method, params):
        answer = await call(process, method, params)
        closing.append(asyncio.create_task(hook.aclose()))
        await asyncio.sleep(0)
        return answer

    monkeypatch.setattr(HookProcess, "call", then_closed)
    for _ in range(2):
        with pytest.raises(HookProcessError, match="it was closed"):
            await hook.start()
        await closing[0]
        assert ("closed", None) == (hook.state, hook.running)
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
    async with running_hook(spec(script(tmp_path, OFFERING), "tool")) as hook:
        assert ["mine"] == [tool.name for tool in hook.tools]
        assert ("before_llm", "before_tool", "after_tool") == hook.methods
        other = view_builders.tool("other")
        decision = await hook.before_llm(view_builders.request(tools=[other]))
        assert ["other", "mine"] == [tool["function"]["name"] for tool in decision.changes["tools"]]
        assert await hook.before_llm(view_builders.request(tools=[view_builders.tool("mine")])) is None
        assert await hook.before_llm(view_builders.request(graceful_terminal=True)) is None
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
    assert (
        "The hook 'h' failed at before_llm: its answer to hook.before_llm is refused: /action must be a valid string"
        in caplog.text
    )
    assert "The hook 'h' failed at before_llm: exit status 7" in caplog.text


async def test_tools_of_a_hook_without_call_points_are_left_out(tmp_path, caplog):
    async with running_hook(spec(script(tmp_path, OFFERING), "llm")) as hook:
        assert () == hook.tools
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
    async with running_hook(spec(command, "observe", "tool", kinds=frozenset({"agent.error"}))) as hook:
        for kind in ("agent.turn.start", "agent.error"):
            await hook.on_runtime_event(event(kind))
        decision = await hook.before_tool(view_builders.call())
        assert [[None, "agent.error", {"n": "agent.error"}]] == json.loads(decision.reason)


async def test_output_is_logged_with_the_hook_name(tmp_path, caplog):
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
    assert [DenyTool()] == await ask_hook(command, CALLED)
    messages = [record.getMessage() for record in caplog.records]
    assert "The hook 'h' printed a line that is not a reply: debugging" in messages
    assert "[h] ärger" in messages
    assert "[h] " + "x" * 4096 + "..." in messages
    assert 3 == len(messages)


async def test_oddities_of_its_answers_are_logged_once(tmp_path, caplog):
    command = script(tmp_path, 'def on(method, params): answer({"decision": "deny", "args": {}})')
    assert [None, None] == await ask_hook(command, CALLED, CALLED)
    odd = [record.getMessage() for record in caplog.records if "oddly" in record.getMessage()]
    assert 2 == len(odd)
    assert "the member 'decision' is not known there" in odd[0]


async def test_a_hook_with_ever_new_oddities_is_logged_only_so_often(tmp_path, caplog):
    command = script(tmp_path, 'def on(method, params): answer({f"odd {id} {number}": 1 for number in range(40)})')
    await ask_hook(command, *[CALLED] * 5)
    assert 50 == caplog.text.count("oddly (logged once)")


async def test_output_is_escaped_in_the_log(tmp_path, caplog):
    command = script(
        tmp_path,
        r"""
        def on(method, params):
            os.write(2, b"\x1b[2J\tred\rERROR\n")
            write("\x1b[1mbold\n")
            answer(error={"code": 1, "message": "first\nsecond"})
        """,
    )
    (failed,) = await ask_hook(command, CALLED)
    assert r"it answered with an error: first\x0asecond" == str(failed)
    messages = [record.getMessage() for record in caplog.records]
    assert r"[h] \x1b[2J" + "\t" + r"red\x0dERROR" in messages
    assert r"The hook 'h' printed a line that is not a reply: \x1b[1mbold" in messages


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
    async with running_hook(with_limits(spec(script(tmp_path, CRASHING)), restarts=5)) as hook:
        first = (await hook.before_tool(view_builders.call())).reason
        with pytest.raises(HookProcessError, match="exit status 3"):
            await hook.before_tool(view_builders.call(tool="crash"))
        await wait_until(lambda: hook.restarts == 1)
        assert "running" == hook.state
        assert first != (await hook.before_tool(view_builders.call())).reason
    assert "The hook 'h' has ended: exit status 3; it is started again in" in caplog.text


async def test_hook_with_too_many_failures_in_a_row_is_disabled(tmp_path, caplog):
    marker = tmp_path / "once"
    body = f"""
    if os.path.exists({str(marker)!r}):
        sys.exit("not again")
    open({str(marker)!r}, "w").close()
    {CRASHING}
    """.replace(CRASHING, CRASHING.replace("\n", "\n    "))
    async with running_hook(with_limits(spec(script(tmp_path, body)), restarts=3)) as hook:
        with pytest.raises(HookProcessError):
            await hook.before_tool(view_builders.call(tool="crash"))
        await wait_until(lambda: hook.state == "given up")
        with pytest.raises(HookProcessError, match="not again"):
            await hook.before_tool(view_builders.call())
        assert 0 == hook.restarts
    assert 3 == caplog.text.count("it is started again in")
    assert 1 == caplog.text.count("is not started again")


async def test_one_that_had_run_for_long_begins_a_new_row(tmp_path):
    async with running_hook(with_limits(spec(script(tmp_path, CRASHING)), restarts=1, healthy_after=0.0)) as hook:
        for number in range(1, 4):
            with pytest.raises(HookProcessError):
                await hook.before_tool(view_builders.call(tool="crash"))
            await wait_until(lambda number=number: hook.restarts == number)


async def test_hook_can_be_closed_during_its_restart_backoff(tmp_path):
    async with running_hook(
        with_limits(spec(script(tmp_path, CRASHING)), restarts=5, backoff_first=60.0, backoff_most=60.0)
    ) as hook:
        with pytest.raises(HookProcessError):
            await hook.before_tool(view_builders.call(tool="crash"))
        await wait_until(lambda: hook.state == "waiting to be started again")
        with pytest.raises(HookProcessError, match="exit status 3; it is about to be started again"):
            await hook.before_tool(view_builders.call())
    assert "closed" == hook.state

"""Hostile hooks: the host survives, the turn ends as it should, memory is bounded, and no process is left."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import pytest

from hooks_process import view_builders
from hooks_process.peers import (
    megabytes,
    mounted_hooks,
    open_files,
    process_exists,
    process_of,
    script,
    spec,
    wait_for_exit,
    wait_until,
    with_limits,
)
from hooks_process.turns import results, take_turn
from patchbay.hooks import DenyTool
from patchbay.hooks.process import HookProcessError
from support.running import run

FEW_MEGABYTES = 40
"""Memory that a hostile hook may cost; it sends many times that."""


FLOODS = {
    "lines": "write('x\\n' * 10_000)",
    "objects": "write('{}\\n' * 10_000)",
    "unsolicited replies": 'write(\'{"id":77,"result":{}}\\n\' * 2_000)',
    "large unsolicited replies": 'write(\'{"id":77,"result":[\' + "[[],{}]," * 100_000 + "0]}\\n")',
    "one line without an end": "write('x' * 65536)",
    "an object without an end": 'write(\'{"id":1,"result":"\' if first else \'x\' * 65536)',
    "brackets": "write('[' * 65536)",
    "bytes that are no text": "os.write(1, os.urandom(65536))",
    "standard error": "os.write(2, b'x\\n' * 10_000)",
    "standard error without an end": "os.write(2, b'x' * 65536)",
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_costs_the_hook_its_time_and_the_host_little(tmp_path, flood, caplog):
    command = script(
        tmp_path,
        f"""
        def on(method, params):
            first = True
            while True:
                {FLOODS[flood]}
                first = False
        """,
    )
    before = megabytes()
    each = with_limits(spec(command, "tool"), eof_grace=0.01, term_grace=0.5)
    async with mounted_hooks(each, interceptor=0.3) as manager:
        pid = process_of(manager).pid
        end = await take_turn(manager)
        assert ["3"] == results(end)
        assert "stop" == end.finish_reason
        assert FEW_MEGABYTES > megabytes() - before
    assert not process_exists(pid)
    assert 100 > len(caplog.records)


async def test_a_line_of_100_megabytes_fails_its_call_and_the_next_one_is_answered(tmp_path):
    command = script(
        tmp_path,
        """
        def on(method, params):
            if params["tool"] == "big":
                write(f'{{"jsonrpc":"2.0","id":{id},"result":{{"action":"deny_tool","reason":"')
                for _ in range(100):
                    write("x" * 1_000_000)
                write('"}}\\n')
            else:
                answer({"action": "deny_tool", "reason": "fine"})
        """,
    )
    async with mounted_hooks(spec(command, "tool")) as manager:
        hook = process_of(manager)
        before = megabytes()
        with pytest.raises(HookProcessError, match=r"^it answered with a line that is too long \(max_line_bytes\)$"):
            await hook.before_tool(view_builders.call(tool="big"))
        assert DenyTool("fine") == await hook.before_tool(view_builders.call())
        assert FEW_MEGABYTES > megabytes() - before


async def test_a_reply_after_its_time_is_dropped(tmp_path, caplog):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = script(
        tmp_path,
        f"""
        def on(method, params):
            if method == "before_tool":
                open({str(gate)!r}).read()
                answer({{"action": "hard_abort"}})
            else:
                answer()
        """,
    )
    async with mounted_hooks(spec(command, "tool"), interceptor=0.3) as manager:
        assert ["3"] == results(await take_turn(manager))  # neither is asked in time: it still waits at the gate
        with gate.open("w"):
            pass
        assert await process_of(manager).after_tool(view_builders.result(None)) is None
    assert "no answer within 0.3 s" in caplog.text


POINTS = ("before_llm", "after_llm", "before_tool", "approve_tool", "after_tool", "runtime_event")
ENDS = {
    "exits": "os._exit(9)",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "closes its output": "os.close(1); time.sleep(60)",
    "writes half a line and exits": 'write(\'{"jsonrpc":"2.0","id":\'); os._exit(0)',
    "answers with an error": "answer(error={'code': 1, 'message': 'no'})",
    "answers with a wrong type": "answer({'action': 1, 'approved': 1})",
    "answers with bytes that are no text": "os.write(1, b'\\xff\\xfe{\"id\":\\n')",
}


PLACES = [(point, how) for point in POINTS for how in ENDS if point in ("before_tool", "approve_tool") or how == "exits"]


@pytest.mark.parametrize(("point", "how"), PLACES)
async def test_a_turn_ends_well_wherever_a_hook_fails(tmp_path, point, how):
    command = script(
        tmp_path,
        f"""
        def on(method, params):
            if method == {point!r}:
                {ENDS[how]}
            elif method != "runtime_event":
                answer({{"approved": True}} if method == "approve_tool" else {{}})
        """,
    )
    each = with_limits(spec(command, "observe", "llm", "tool", "approve", kinds=None), eof_grace=0.01)
    # Where nothing comes that can be told to be the answer, the time has to run out; nowhere else may it.
    limit = {("approval" if point == "approve_tool" else "interceptor"): 0.4} if "bytes" in how else {}
    async with mounted_hooks(each, **limit) as manager:
        end = await take_turn(manager)
    assert ("stop", "done") == (end.finish_reason, end.content)
    (result,) = results(end)
    is_gone = "exits" in how or how in ("is killed", "closes its output")
    if point == "approve_tool" or (is_gone and point in ("before_llm", "after_llm", "before_tool")):
        assert 'Tool execution denied by approval hook: tool approval hook "h"' in result
    elif point == "runtime_event":
        assert result == "3" or "denied by approval hook" in result  # observer events are not synchronous with approvals
    else:
        assert "3" == result


@pytest.mark.parametrize("away", [False, True], ids=["in its group", "in a session of its own"])
async def test_child_holding_the_pipes_does_not_delay_calls(tmp_path, away):
    command = script(
        tmp_path,
        f"""
        def on(method, params):
            child = subprocess.Popen(["sleep", "60"], start_new_session={away})
            answer({{"action": "deny_tool", "reason": str(child.pid)}})
            os._exit(4)
        """,
    )
    async with mounted_hooks(spec(command, "tool")) as manager:
        hook = process_of(manager)
        child = int((await hook.before_tool(view_builders.call())).reason)
        try:
            await wait_until(lambda: hook.state == "given up")
            with pytest.raises(HookProcessError, match="exit status 4"):
                await hook.before_tool(view_builders.call())
        finally:
            if away:
                os.kill(child, signal.SIGKILL)
        await wait_for_exit(child)


async def test_one_that_does_not_read_costs_only_the_first_call_its_time(tmp_path):
    command = script(tmp_path, "def on(method, params): time.sleep(60)")
    each = with_limits(spec(command, "tool"), eof_grace=0.01, queued=200_000)
    async with mounted_hooks(each) as manager:
        hook = process_of(manager)
        big = {"text": "x" * 100_000}
        calls = [asyncio.create_task(hook.before_tool(view_builders.call(arguments=big))) for _ in range(3)]
        with pytest.raises(HookProcessError, match="it does not read what it is asked"):
            await calls[2]  # more than may wait for it
        calls[0].cancel()
        await asyncio.wait(calls[:1])
        with pytest.raises(HookProcessError, match="it does not read what it is asked"):
            await hook.before_tool(view_builders.call())  # an earlier call has timed out
        calls[1].cancel()
        await asyncio.wait(calls)


async def test_thousands_of_calls_at_once_are_each_answered_or_fail_at_once_when_it_ends(tmp_path):
    command = script(
        tmp_path,
        """
        def on(method, params):
            if params["tool"] == "exit":
                os._exit(3)
            elif params["tool"] != "wait":
                answer({"action": "deny_tool", "reason": params["tool"]})
        """,
    )
    async with mounted_hooks(spec(command, "tool")) as manager:
        hook = process_of(manager)
        names = [str(number) for number in range(5000)]
        decisions = await asyncio.gather(*(hook.before_tool(view_builders.call(tool=name)) for name in names))
        assert names == [each.reason for each in decisions]
        calls = [hook.before_tool(view_builders.call(tool=name)) for name in (*["wait"] * 3000, "exit")]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert {"exit status 3"} == {str(error) for error in errors}


async def test_one_that_has_not_read_for_long_is_started_again(tmp_path):
    command = script(
        tmp_path,
        """
        def on(method, params):
            if params["tool"] == "hang":
                time.sleep(60)
            answer({"action": "deny_tool"})
        """,
    )
    each = with_limits(spec(command, "tool"), eof_grace=0.01, stuck_after=0.1, restarts=3)
    async with mounted_hooks(each) as manager:
        hook = process_of(manager)
        big = view_builders.call(tool="hang", arguments={"text": "x" * 300_000})
        for about in (view_builders.call(tool="hang"), big):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(hook.before_tool(about), 0.1)
        await wait_until(lambda: hook.restarts == 1)
        assert DenyTool() == await hook.before_tool(view_builders.call())


async def test_hook_that_reads_again_is_called_again(tmp_path):
    gate = tmp_path / "gate"
    command = script(
        tmp_path,
        f"""
        def on(method, params):
            if params["tool"] == "wait":
                while not os.path.exists({str(gate)!r}):
                    time.sleep(0.005)
            answer({{"action": "deny_tool"}})
        """,
    )
    async with mounted_hooks(spec(command, "tool")) as manager:
        hook = process_of(manager)
        big = view_builders.call(tool="wait", arguments={"text": "x" * 300_000})
        waiting = [asyncio.create_task(hook.before_tool(about)) for about in (view_builders.call(tool="wait"), big)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting[0]), 0.1)
        waiting[1].cancel()
        await asyncio.wait(waiting[1:])
        with pytest.raises(HookProcessError, match="it does not read"):
            await hook.before_tool(view_builders.call())

        gate.touch()
        assert DenyTool() == await waiting[0]
        asked = None
        while asked is None:
            try:
                asked = await hook.before_tool(view_builders.call())
            except HookProcessError:  # what it was asked before is still on its way into the pipe
                await asyncio.sleep(0.005)
        assert DenyTool() == asked
        # If it is slow again, later calls wait again.
        calls = [hook.before_tool(about) for about in (big, big)]
        assert [DenyTool(), DenyTool()] == await asyncio.gather(*calls)


def test_hundred_turns_with_a_crashing_hook_leave_nothing_behind(tmp_path):
    command = script(tmp_path, "def on(method, params): os._exit(1)")
    logging.getLogger("patchbay.hooks").setLevel(logging.CRITICAL)

    async def main():
        each = with_limits(spec(command, "tool"), restarts=1_000_000)
        files = open_files()
        async with mounted_hooks(each) as manager:
            for _ in range(100):
                assert ["3"] == results(await take_turn(manager))
        assert files + 8 > open_files()

    try:
        run(main())
    finally:
        logging.getLogger("patchbay.hooks").setLevel(logging.NOTSET)


async def test_one_that_does_not_read_gets_no_more_events_than_it_may_queue(tmp_path):
    command = script(tmp_path, "def on(method, params): time.sleep(60)")
    from hooks_process.test_process_hook import event

    async with mounted_hooks(with_limits(spec(command, "observe", kinds=None), eof_grace=0.01)) as manager:
        before = megabytes()
        for _ in range(20_000):
            await process_of(manager).on_runtime_event(event("agent.turn.start"))
        assert process_of(manager).process.dropped > 19_000
        assert FEW_MEGABYTES > megabytes() - before

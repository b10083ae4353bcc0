"""ToolRunner: one call runs the turn; options are refused when set, callbacks watch, and every entry point gives the same result."""

from __future__ import annotations

import asyncio
import contextvars
import json
import sys
import threading
from typing import Any

import pytest

from patchbay import MaxIterationsError, ToolRunner, tool
from patchbay.errors import ConfigurationError, InvalidRequestError, UpstreamError
from patchbay.models.chat_model import ModelReply
from patchbay.testing.models import ScriptedModel
from patchbay.types import Reply, ToolCall, Usage
from support.running import run


def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


ADD = ToolCall("1", "add", '{"a": 1}')


def test_run_returns_the_answer_and_its_history():
    model = ScriptedModel(
        [ModelReply(Reply(None, tool_calls=(ADD,)), "tool_calls", Usage(1, 1, 2)), ModelReply(Reply("3"), "stop", Usage(2, 1, 3))]
    )
    result = run(ToolRunner(model, tools=[add]).run(messages=[{"role": "user", "content": "1+2?"}], model="m", temperature=0.5))
    assert ("3", 2, "stop", Usage(3, 2, 5)) == (result.content, result.iterations, result.finish_reason, result.usage)
    assert ["user", "assistant", "tool", "assistant"] == [message["role"] for message in result.messages]
    assert ({"a": 1, "b": 2}, 3) == (result.tool_executions[0].arguments, result.tool_executions[0].value)
    request = model.requests[0]
    assert {"model": "m", "temperature": 0.5} == request.parameters
    assert (["add"], False) == ([spec.name for spec in request.tools], request.stream)
    model.assert_consumed()


def test_messages_may_be_the_users_text_and_are_never_changed():
    mine = [{"role": "user", "content": "hi"}]
    model = ScriptedModel([ADD, "x", "y"])
    runner = ToolRunner(model, [add])
    assert 4 == len(run(runner.run(mine)).messages)
    assert [{"role": "user", "content": "hi"}] == mine
    assert mine == run(runner.run("hi")).messages[:1]


async def test_run_stream_yields_events_in_order():
    model = ScriptedModel([Reply("let me see", tool_calls=(ADD,)), Reply("3", reasoning="easy")])
    events = [event async for event in ToolRunner(model, [add]).run_stream("1+2?")]
    expected = "text text tool_call tool_result iteration_end reasoning reasoning text iteration_end final"
    assert expected.split() == [event.type for event in events]
    assert ("add", 1, 3, 1) == (events[2].tool_call.name, events[2].iteration, events[3].execution.value, events[3].iteration)
    assert [(1, "tool_calls"), (2, "stop")] == [
        (event.iteration, event.finish_reason) for event in events if event.type == "iteration_end"
    ]
    end = events[-1]
    assert ("3", 2, "stop", 1) == (end.content, end.iterations, end.finish_reason, len(end.tool_executions))


@pytest.mark.parametrize("in_a_loop", [False, True])
def test_run_sync_works_inside_a_running_loop(in_a_loop):
    variable = contextvars.ContextVar("variable", default="none")

    async def read() -> str:
        return variable.get()

    def main() -> Any:
        variable.set("mine")
        return ToolRunner(ScriptedModel([ToolCall("1", "read"), "done"]), [read]).run_sync("hi")

    async def inside() -> Any:
        return main()

    result = run(inside()) if in_a_loop else main()
    assert ("done", "mine") == (result.content, result.tool_executions[0].value)


def test_run_sync_reuses_one_loop():
    loops = []

    async def f() -> None:
        loops.append(asyncio.get_running_loop())

    for _ in range(2):
        ToolRunner(ScriptedModel([ToolCall("1", "f"), "x"]), [f]).run_sync("hi")
    assert loops[0] is loops[1]


def test_run_sync_from_its_own_loop_is_an_error_and_no_deadlock():
    def make(step: Any) -> ToolRunner:
        return ToolRunner(ScriptedModel([step, "x"]), [nested])

    async def nested() -> Any:
        return ToolRunner(ScriptedModel(["inner"])).run_sync("hi").content

    result = make(ToolCall("1", "nested")).run_sync("hi")
    assert "RuntimeError: This would wait for itself" in result.tool_executions[0].content


def test_run_sync_raises_the_exceptions_of_the_run():
    with pytest.raises(UpstreamError, match="down"):
        ToolRunner(ScriptedModel([UpstreamError("down")])).run_sync("hi")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_runner_callbacks_get_each_call_and_result(asynchronous):
    received = []

    def on_call(call, iteration):
        received.append(("call", call.id, iteration))

    def on_result(execution, iteration):
        received.append(("result", execution.value, iteration))

    async def on_call_async(call, iteration):
        on_call(call, iteration)

    async def on_result_async(execution, iteration):
        on_result(execution, iteration)

    runner = ToolRunner(
        ScriptedModel([ADD, "3"]),
        [add],
        on_tool_call=on_call_async if asynchronous else on_call,
        on_tool_result=on_result_async if asynchronous else on_result,
    )
    assert () == run(runner.run("hi")).callback_errors
    assert [("call", "1", 1), ("result", 3, 1)] == received


@pytest.mark.parametrize("error", [ValueError("observer"), asyncio.CancelledError()])
def test_failing_callback_is_reported_and_the_run_continues(error, caplog):
    def fail(*_: Any) -> None:
        raise error

    result = run(ToolRunner(ScriptedModel([ADD, "3"]), [add], on_tool_call=fail, on_tool_result=fail).run("hi"))
    assert ("3", 3) == (result.content, result.tool_executions[0].value)
    assert 2 == len(caplog.records)
    if isinstance(error, ValueError):
        assert (error, error) == result.callback_errors


async def test_cancelling_stops_the_model_and_the_tools():
    stopped = []
    begun = asyncio.Event()

    async def wait() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    model = ScriptedModel([ToolCall("1", "wait"), "never asked for"])
    task = asyncio.create_task(ToolRunner(model, [wait]).run("hi"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 1 == len(model.requests)
    assert [True] == stopped


async def test_leaving_a_stream_stops_the_tools():
    stopped = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    events = ToolRunner(ScriptedModel([[ToolCall("1", "wait"), ADD]]), [wait, add]).run_stream("hi")
    async for event in events:
        if event.type == "tool_result":
            break
    await events.aclose()
    assert [] == [task for task in asyncio.all_tasks() if "carry_out" in repr(task)]
    assert [True] == stopped


def test_round_limit_ends_or_raises_by_option():
    calls = [ADD, ToolCall("2", "add", '{"a": 1}')]
    result = run(ToolRunner(ScriptedModel(calls), [add], max_iterations=2).run("hi"))
    assert ("max_iterations", 2) == (result.finish_reason, result.iterations)
    with pytest.raises(MaxIterationsError) as caught:
        run(ToolRunner(ScriptedModel(calls), [add], max_iterations=2, raise_on_max_iterations=True).run("hi"))
    assert 2 == caught.value.iterations


@pytest.mark.parametrize(
    ("validate", "raw", "expected"),
    [
        (True, '{"n": "5"}', "invalid_arguments"),
        ({"coerce_types": True}, '{"n": "5"}', {"n": 5, "m": 1}),
        ({"use_defaults": False}, '{"n": 5}', {"n": 5}),
        (False, '{"n": "5"}', {"n": "5"}),
        (False, "[1]", "invalid_arguments"),
    ],
)
def test_validate_option_selects_the_argument_validation(validate, raw, expected):
    schema = {"properties": {"n": {"type": "integer"}, "m": {"default": 1}}}
    item = tool(name="t", parameters=schema, handler=lambda args: args)
    execution = run(
        ToolRunner(ScriptedModel([ToolCall("1", "t", raw), "x"]), [item], validate=validate).run("hi")
    ).tool_executions[0]
    assert expected == (execution.result.code if execution.is_error else execution.value)


@pytest.mark.usefixtures("time_jumps")
def test_tools_and_runs_end_in_time():
    async def never() -> None:
        await asyncio.Event().wait()

    def runner(**limits: float) -> ToolRunner:
        return ToolRunner(ScriptedModel([ToolCall("1", "never"), "x"]), [never], **limits)

    assert "tool_timeout" == run(runner(tool_timeout=0.01).run("hi")).tool_executions[0].result.code
    assert "max_seconds" == run(runner(max_seconds=0.01).run("hi")).finish_reason


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_iterations": 0}, "max_iterations"),
        ({"max_iterations": True}, "max_iterations"),
        ({"tool_timeout": -1}, "tool_timeout"),
        ({"max_calls": 0}, "max_calls"),
        ({"max_seconds": 0}, "max_seconds"),
        ({"max_repeats": 0}, "max_repeats"),
        ({"max_result_chars": 1}, "max_result_chars"),
        ({"attachments": "x"}, "attachments"),
        ({"before": 1}, "before"),
        ({"validate": "yes"}, "validate"),
        ({"validate": {"coerce": True}}, "validate"),
        ({"validate": {"coerce_types": 1}}, "coerce_types"),
        ({"on_tool_call": 3}, "on_tool_call"),
        ({"tool_call_tag": "x"}, "tool_call_tag"),
        ({"tool_mode": "text"}, "ChatModel"),
        ({"tools": [add, add]}, "'add'"),
        ({"tools": [tool(name="t", parameters={"type": "nope"}, handler=lambda args: 1)]}, "'t'"),
    ],
)
def test_invalid_options_are_refused_at_construction(options, words):
    with pytest.raises(ConfigurationError, match=words):
        ToolRunner(ScriptedModel([]), **options)


def test_invalid_client_and_tools_are_type_errors():
    with pytest.raises(TypeError, match="ChatModel"):
        ToolRunner(object(), [add])
    with pytest.raises(TypeError, match="function"):
        ToolRunner(ScriptedModel([]), ["add"])


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"messages": "hi", "tools": []}, "tools"),
        ({"messages": "hi", "stream": True}, "stream"),
        ({"messages": "hi", "n": 2}, "n"),
        ({"messages": 3}, "messages"),
        ({"messages": ["hi"]}, "messages"),
    ],
)
def test_parameters_that_contradict_the_runner_are_refused(arguments, param):
    with pytest.raises(InvalidRequestError) as caught:
        run(ToolRunner(ScriptedModel([])).run(**arguments))
    assert param == caught.value.param


async def test_one_runner_serves_many_runs_at_a_time():
    async def answer(request: Any) -> Any:
        await asyncio.sleep(0)
        last = request.messages[-1]
        return ToolCall("1", "echo", json.dumps({"text": last["content"]})) if last["role"] == "user" else last["content"]

    async def echo(text: str) -> str:
        await asyncio.sleep(0)
        return text

    runner = ToolRunner(ScriptedModel([answer] * 40), [echo])
    assert [f"m{number}" for number in range(20)] == [
        result.content for result in await asyncio.gather(*(runner.run(f"m{number}") for number in range(20)))
    ]


def test_a_thread_that_is_interrupted_cancels_its_run():
    """What Ctrl-C does to run_sync, by hand: the wait raises, and the run's cleanup is over by then."""
    from patchbay import background

    cleaned = threading.Event()
    begun = threading.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    class InterruptedFuture:
        def __init__(self, future: Any) -> None:
            self.future = future

        def result(self) -> None:
            assert begun.wait(30)
            raise KeyboardInterrupt

        def __getattr__(self, name: str) -> Any:
            return getattr(self.future, name)

    submit = asyncio.run_coroutine_threadsafe
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "run_coroutine_threadsafe", lambda *args: InterruptedFuture(submit(*args)))
        with pytest.raises(KeyboardInterrupt):
            background.run_blocking(work())
    assert cleaned.is_set()


def test_interrupt_before_the_wait_stops_the_run():
    from patchbay import background

    begun, stopped = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    def behind(*args: Any) -> None:
        submit(*args)
        assert begun.wait(30)
        raise KeyboardInterrupt

    def before(*_: Any) -> None:
        raise KeyboardInterrupt

    submit = asyncio.run_coroutine_threadsafe
    for interrupted in (behind, before):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
            with pytest.raises(KeyboardInterrupt):
                background.run_blocking(work())
        assert stopped.is_set()


def test_system_exit_in_the_background_reaches_its_caller_only():
    from patchbay import background

    async def leave() -> None:
        sys.exit(3)

    async def stay() -> str:
        return "here"

    with pytest.raises(SystemExit) as left:
        background.run_blocking(leave())
    assert 3 == left.value.code
    assert "here" == background.run_blocking(stay())


def test_a_model_of_the_runner_is_that_of_runs_that_name_none():
    model = ScriptedModel(["a", "b"])
    runner = ToolRunner(model, model="mine")
    run(runner.run("hi"))
    run(runner.run("hi", model="other"))
    assert ["mine", "other"] == [request.parameters["model"] for request in model.requests]
